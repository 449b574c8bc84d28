"""Jobs of one pod for tests, and what becomes of them."""

from typing import Any

from fakes.kubernetes.api import Object
from fakes.kubernetes.cluster import Cluster

IMAGE = "example/trial:1"


def make_job(name: str, script: str, **changes: Any) -> Object:
    """A Job of one pod with one container that runs a script. `changes` are of the container, or `pod=…`."""
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **changes.pop("pod", {})}
    pod["containers"] = [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script], **changes}]
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}


def start_job(cluster: Cluster, name: str, script: str, **changes: Any) -> None:
    """Create what `make_job` makes."""
    cluster.create(cluster.path("jobs"), make_job(name, script, **changes))


def wait_for_end(cluster: Cluster, job: str) -> str:
    """The type of the condition with which a Job has ended."""

    def end() -> str:
        status = cluster.get(cluster.path("jobs", job))["status"]
        return next((each["type"] for each in status.get("conditions", ()) if each["status"] == "True"), "")

    return str(cluster.until(end))


def start_running(cluster: Cluster, job: str) -> str:
    """A Job whose pod runs; the pod's name."""
    start_job(cluster, job, "sleep 600")
    pod = cluster.until(
        lambda: next((pod for pod in cluster.pods_of(job) if pod["status"]["phase"] == "Running"), None)
    )
    return str(pod["metadata"]["name"])


def state_of(pod: Object) -> Object:
    """The state of a pod's only container."""
    state: Object = pod["status"]["containerStatuses"][0]["state"]
    return state
