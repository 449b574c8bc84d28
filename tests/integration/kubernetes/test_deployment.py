"""A manager as deploy/kubernetes describes it, in a real cluster: its objects are taken, and its rights are enough."""

import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from fakes.documentation import ROOT
from fakes.kubernetes.api import Object
from fakes.kubernetes.cluster import OWNER_LABEL, Cluster
from ruamel.yaml import YAML

from proctor.sdk.client import Client
from proctor.sdk.client.errors import ClientError

FOLDER = ROOT / "deploy" / "kubernetes"
IMAGE = ROOT / "deploy" / "docker" / "manager.Dockerfile"
HOME = "/var/lib/proctor"
TRIAL = """
import os, sys, time, proctor
x = proctor.get_next_parameter()["x"]
proctor.report_intermediate_result(x)
while sys.argv[1:] and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
proctor.report_final_result(x)
"""
TOKENS = {"token": secrets.token_hex(16), "readonly-token": secrets.token_hex(16)}
CONFIG = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCodeDirectory": ".",
    "trialConcurrency": 2,
    "maxTrialNumber": 2,
    "tuner": {"name": "Random"},
}
POD = "manager"

pytestmark = pytest.mark.thorough


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def write_overlay(folder: Path, namespace: str) -> None:
    """The base and the Ingress in a namespace, less what the API server is too old for. kustomize takes relative paths
    only."""
    deploy = os.path.relpath(FOLDER, folder.resolve())
    newer = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "proctor-manager"}}
    overlay = {
        "patches": [{"patch": json.dumps({**newer, "$patch": "delete"})}],
        "namespace": namespace,
        "resources": [f"{deploy}/base"],
        "components": [f"{deploy}/components/ingress"],
    }
    with (folder / "kustomization.yaml").open("w") as file:
        YAML().dump(overlay, file)


def add_volume(cluster: Cluster) -> Path:
    """What the claim of the home is bound to, as a provisioner makes it; the folder that it stands for."""
    folder = cluster.folder / "home"
    folder.mkdir()
    spec = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": cluster.namespace, "name": "proctor-home"},
    }
    metadata = {"name": f"home-{cluster.namespace}", "labels": {OWNER_LABEL: cluster.namespace}}
    cluster.create("/api/v1/persistentvolumes", {"metadata": metadata, "spec": spec})
    return folder


class DeployedManager:
    """The manager of the Deployment in a cluster with one node, and a client that comes through the Ingress's path."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster = cluster
        self.home = home
        self._ports = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._ports[0]}/proctor"
        self.client = Client(self.url, TOKENS["token"])

    def start(self) -> None:
        """Start the Deployment's pod, whose controller does not run here; returns when it serves.

        Its image is this machine, whose interpreter belongs to root, and all pods share one network without names: that
        much is changed.
        """
        deployment = json.loads(self.cluster.kubectl("get", "deployment", "proctor-manager", "-o", "json"))
        spec = deployment["spec"]["template"]["spec"]
        spec |= {"restartPolicy": "Never", "securityContext": {"runAsUser": 0}}
        (container,) = spec["containers"]
        container["command"] = [sys.executable, "-P", "-m", "proctor.manager.cli.main", "manager", "run"]
        port, keeper_port = self._ports
        changed = {
            **dict(re.findall(r"\b(PROCTOR_\w+)=(\S+)", IMAGE.read_text(encoding="utf-8"))),
            "PROCTOR_PORT": str(port),
            "PROCTOR_KEEPER_LISTEN": f"127.0.0.1:{keeper_port}",
            "PROCTOR_KEEPER_URL": f"https://127.0.0.1:{keeper_port}",
        }
        kept = [row for row in container["env"] if row["name"] not in changed]
        container["env"] = [*kept, *({"name": name, "value": value} for name, value in changed.items())]
        metadata = {"name": POD, "labels": deployment["spec"]["template"]["metadata"]["labels"]}
        self.cluster.create(self.cluster.path("pods"), {"metadata": metadata, "spec": spec})
        self.cluster.until(lambda: self._answers() or self._phase() == "Failed")
        assert self._answers(), self.cluster.log(POD)

    def replace(self) -> None:
        """Delete the pod, and start another one when it has gone, as the strategy `Recreate` does."""
        self.cluster.delete(self.cluster.path("pods", POD))
        self.cluster.until(lambda: POD not in {each["metadata"]["name"] for each in self.cluster.list("pods")})
        self.start()

    def create(self, *arguments: str, **training_service: Any) -> str:
        """An experiment of two trials on platform kubernetes; `arguments` are those of its trials. Its id."""
        platform = {"platform": "kubernetes", "image": "example/trial:1", **training_service}
        command = " ".join(["python3", "trial.py", *arguments])
        config = {**CONFIG, "trialCommand": command, "trainingService": platform}
        return str(self.client.create_experiment(config, directory=f"{HOME}/code")["id"])

    def ask(self, path: str, host: str, token: str = "") -> int:
        """The status with which a request without the client is answered that names a host."""
        headers = {"Host": host} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urlopen(Request(f"http://127.0.0.1:{self._ports[0]}{path}", headers=headers)) as answer:
                return int(answer.status)
        except HTTPError as error:
            return int(error.code)

    def until_done(self, experiment_id: str) -> list[Object]:
        """Its trials, once it is over."""

        def end() -> Object | None:
            found: Object = self.client.experiment(experiment_id)
            return found if found["status"] in ("DONE", "ERROR") else None

        found = self.cluster.until(end)
        assert found["status"] == "DONE", (found["reason"], self.cluster.log(POD))
        return list(self.client.trials(experiment_id))

    def _answers(self) -> bool:
        try:
            return self.client.health()["status"] == "ok"
        except ClientError:
            return False

    def _phase(self) -> str:
        return str(self.cluster.get(self.cluster.path("pods", POD))["status"]["phase"])


@pytest.fixture
def deployed(cluster: Cluster, tmp_path: Path) -> Iterator[DeployedManager]:
    """A manager that serves."""
    cluster.add_node("node")
    home = add_volume(cluster)
    (home / "code").mkdir()  # on the manager's claim alone
    (home / "code" / "trial.py").write_text(TRIAL)
    literals = [f"--from-literal={key}={value}" for key, value in TOKENS.items()]
    cluster.kubectl("create", "secret", "generic", "proctor-tokens", *literals)
    write_overlay(tmp_path, cluster.namespace)
    cluster.kubectl("apply", "-k", str(tmp_path))
    manager = DeployedManager(cluster, home)
    with manager.client:
        manager.start()
        yield manager


def test_a_manager_in_the_cluster_runs_trials_with_the_rights_of_its_role_and_they_outlive_its_pod(
    deployed: DeployedManager,
) -> None:
    shared = deployed.cluster.add_claim("data")
    experiment = deployed.create("/data/go", mounts=[{"claim": "data", "path": "/data"}])

    def both_have_reported() -> bool:
        rows = list(deployed.client.trials(experiment))
        return len(rows) == 2 and all(row["intermediate_count"] == 1 for row in rows)

    deployed.cluster.until(both_have_reported)
    pods = {each["metadata"]["uid"] for each in deployed.cluster.list("pods", labelSelector="job-name")}
    deployed.replace()
    assert {each["metadata"]["uid"] for each in deployed.cluster.list("pods", labelSelector="job-name")} == pods
    (shared / "go").touch()
    rows = deployed.until_done(experiment)
    assert [row["status"] for row in rows] == ["SUCCEEDED", "SUCCEEDED"]
    assert [len(list(deployed.client.jobs(row["id"]))) for row in rows] == [1, 1]
    with Client(deployed.url, TOKENS["readonly-token"]) as reader:
        assert len(list(reader.trials(experiment))) == 2
        with pytest.raises(ClientError, match="read-only"):
            reader.stop_experiment(experiment)
    assert (deployed.home / "token").read_text().strip() == TOKENS["token"]
    pod, reader_token = "10.32.0.7:8080", TOKENS["readonly-token"]  # probes and Prometheus know no name of it
    assert [deployed.ask(path, pod) for path in ("/api/v1/health", "/proctor/api/v1/health")] == [200, 200]
    assert [deployed.ask("/metrics", pod, token) for token in (reader_token, "")] == [200, 401]
    assert deployed.ask("/api/v1/health", f"proctor-manager.{deployed.cluster.namespace}.svc:8080") == 200
    assert deployed.ask("/api/v1/health", "attacker.example.org") == 403
    deployed.cluster.until(lambda: not deployed.cluster.list("jobs"))
