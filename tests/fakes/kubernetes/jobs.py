"""Jobs of one pod for tests, and what becomes of them."""

from typing import Any

from fakes.kubernetes.api import Object
from fakes.kubernetes.cluster import Cluster


def start_job(cluster: Cluster, name: str, script: str, **changes: Any) -> None:
    """Create a Job of one pod with one container that runs a script. `changes` are of the container."""
    container = {"name": "main", "image": "example/trial:1", "command": ["sh", "-c", script], **changes}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    spec = {"backoffLimit": 0, "template": {"spec": pod}}
    cluster.create(cluster.path("jobs"), {"metadata": {"name": name}, "spec": spec})


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
