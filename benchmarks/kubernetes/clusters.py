"""A Kubernetes cluster: the one of the tests, whose API server also writes down what the manager asks of it."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import harness
from proctor.training_services.kubernetes.checks import RIGHTS

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from fakes.kubernetes.api import Api
from fakes.kubernetes.cluster import open_cluster
from fakes.kubernetes.control_plane import ControlPlane, free_ports
from fakes.kubernetes.requirements import missing_for_kubernetes

__all__ = ["USER", "WATCHED", "WRITES", "Api", "Bed", "bed", "cluster_manager", "read_ends", "read_time"]

USER = "person"
"""Who the manager is, and no one else."""
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
WATCHED = {"jobs", "pods", "events"}
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [USER]}, {"level": "None"}],
}


@dataclass
class Bed:
    """A cluster, and what its API server has answered to the manager."""

    cluster: Any
    _log: Path
    _read: int = 0

    def take_requests(self) -> list[dict[str, Any]]:
        """The requests that were answered since the last call. A watch counts when it ends."""
        with self._log.open() as log:
            log.seek(self._read)
            lines = log.readlines()
            self._read = log.tell()
        return [json.loads(line) for line in lines]

    def wait_for_no_pods(self) -> None:
        """Until the nodes have none, and all of their processes have ended."""

        def none() -> bool | None:
            return None if any(node.agent.runners for node in self.cluster.nodes.values()) else True

        harness.wait_for(none, "the pods to be gone", 120.0)

    def service(self, **more: Any) -> dict[str, Any]:
        """A `trainingService` of the namespace. `more` are keys of it."""
        where = {"kubeconfig": str(self.cluster.kubeconfig), "context": USER}
        return {"platform": "kubernetes", "image": "example/trial:1", **where, **more}


@contextmanager
def bed() -> Iterator[Bed]:
    """A cluster without nodes. Raises BenchmarkError where there can be none."""
    if reason := missing_for_kubernetes():
        raise harness.BenchmarkError(reason)
    with harness.temporary_folder() as folder:
        policy, log = folder / "policy.json", folder / "audit.log"
        policy.write_text(json.dumps(_POLICY))
        options = (f"--audit-policy-file={policy}", f"--audit-log-path={log}")
        with ControlPlane(folder / "plane", api_options=options).running() as plane:
            with open_cluster(plane.access) as cluster:
                log.touch()
                rules = [
                    {"apiGroups": [each.group], "resources": [each.resource], "verbs": list(each.verbs)}
                    for each in RIGHTS
                ]
                cluster.grant(USER, rules)
                yield Bed(cluster, log)


def read_ends(running: harness.RunningManager, experiment: str, number: int) -> dict[str, float]:
    """When the manager stored the end of each of so many trial jobs, in Unix time, by job id. (`ended_at` of a job is
    when its process ended, by the clock of its keeper.) Waits for them."""
    ends: dict[str, float] = {}
    with closing(running.client.events(experiment_id=experiment, after=0)) as changes:
        for event in changes:
            if event["kind"] == "job.status" and event["data"]["status"] == "ENDED":
                ends[event["job_id"]] = read_time(event["time"])
                if len(ends) == number:
                    return ends
    raise harness.BenchmarkError("the stream of changes ended")


def read_time(text: str) -> float:
    """Unix time of a time as the manager and the API server write it."""
    return datetime.fromisoformat(text).timestamp()


@contextmanager
def cluster_manager(home: Path) -> Iterator[tuple[harness.RunningManager, str]]:
    """A manager that has just come up, and the URL at which pods reach it."""
    (port,) = free_ports(1)
    with harness.bare_manager(home, PROCTOR_KEEPER_LISTEN=f"127.0.0.1:{port}") as running:
        yield running, f"https://127.0.0.1:{port}"
