"""The cluster of the tests behaves as a real one does."""

from pathlib import Path
from typing import Any

from fakes.kubernetes.api import ApiError, Object
from fakes.kubernetes.cluster import Cluster
from fakes.kubernetes.node_agent import GPU
from fakes.machines.processes import in_namespace_of

SLEEP = "sleep 600"
IMAGE = "example/trial:1"


def start_job(cluster: Cluster, name: str, script: str, **changes: Any) -> None:
    """Create a Job of one pod with one container that runs a script. `changes` are of the container, or `pod=…`."""
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **changes.pop("pod", {})}
    pod["containers"] = [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script], **changes}]
    body = {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}
    cluster.create(cluster.path("jobs"), body)


def wait_for_end(cluster: Cluster, job: str) -> str:
    """The type of the condition with which a Job has ended."""

    def end() -> str:
        status = cluster.get(cluster.path("jobs", job))["status"]
        return next((each["type"] for each in status.get("conditions", ()) if each["status"] == "True"), "")

    return str(cluster.until(end))


def wait_for_pod(cluster: Cluster, job: str, phase: str) -> Object:
    """The Job's only pod, once it is in a phase."""
    found: Object = cluster.until(
        lambda: next((pod for pod in cluster.pods_of(job) if pod["status"]["phase"] == phase), None)
    )
    return found


def state_of(pod: Object) -> Object:
    state: Object = pod["status"]["containerStatuses"][0]["state"]
    return state


def read_log(cluster: Cluster, pod: str) -> str:
    """What a pod has written, nothing if it has not started."""
    try:
        return cluster.log(pod)
    except ApiError as error:
        return "" if "is waiting to start: ContainerCreating" in error.message else error.message


def limits(**amounts: str) -> Object:
    return {"limits": {name.replace("gpu", GPU): amount for name, amount in amounts.items()}}


def test_a_job_runs_as_pid_1_on_files_that_reach_nothing_of_this_machine(cluster: Cluster) -> None:
    cluster.add_node("node")
    script = "echo $$$$; hostname; pwd; touch /proctor-was-here; echo done > /dev/termination-log; kill $$$$; exit 0"
    start_job(cluster, "job", script, workingDir="/of/its/own")
    assert wait_for_end(cluster, "job") == "Complete"
    (pod,) = cluster.pods_of("job")
    name = pod["metadata"]["name"]
    assert cluster.log(name).splitlines() == ["1", name, "/of/its/own"]
    assert cluster.log(name, tailLines="1") == "/of/its/own\n"
    ended = state_of(pod)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "done\n")
    assert not Path("/proctor-was-here").exists()
    assert not Path("/of/its/own").exists()


def test_a_job_that_fails_has_its_exit_code_and_the_end_of_its_log(cluster: Cluster) -> None:
    cluster.add_node("node")
    start_job(cluster, "job", "echo why; exit 3", terminationMessagePolicy="FallbackToLogsOnError")
    start_job(cluster, "killed", "kill -9 1; sh -c 'kill -9 $$$$'")
    assert wait_for_end(cluster, "job") == "Failed"
    ended = state_of(cluster.pods_of("job")[0])["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "why\n")
    assert wait_for_end(cluster, "killed") == "Failed"
    assert state_of(cluster.pods_of("killed")[0])["terminated"]["exitCode"] == 137


def test_what_a_pod_mounts_is_where_it_says(cluster: Cluster) -> None:
    cluster.add_node("node")
    claim = cluster.add_claim("data")
    text = {"metadata": {"name": "text"}, "data": {"a": "1"}, "binaryData": {"b": "Mg=="}}
    cluster.create(cluster.path("configmaps"), text)
    cluster.create(cluster.path("secrets"), {"metadata": {"name": "hidden"}, "stringData": {"key": "3"}})
    volumes = [
        {"name": "text", "configMap": {"name": "text"}},
        {"name": "hidden", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    paths = {"text": "/proctor/text", "hidden": "/proctor/hidden", "scratch": "/scratch", "data": "/data"}
    environment = [
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "key"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "BOTH", "value": "$(KEY)$(POD)"},
    ]
    script = "cat /proctor/text/* /proctor/hidden/key /scratch/first; echo; stat -Lc %a /proctor/hidden/key; "
    script += "echo $BOTH; touch /proctor/text/c 2> /dev/null || echo read-only; echo kept > /data/file"
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    first = {"name": "first", "image": IMAGE, "command": ["sh", "-c", "printf 4 > /scratch/first"]}
    pod = {"volumes": volumes, "initContainers": [{**first, "volumeMounts": mounts}]}
    start_job(cluster, "job", script, volumeMounts=mounts, env=environment, pod=pod)
    assert wait_for_end(cluster, "job") == "Complete"
    (made,) = cluster.pods_of("job")
    found = cluster.log(made["metadata"]["name"], container="main").splitlines()
    assert found == ["1234", "400", "3" + made["metadata"]["uid"], "read-only"]
    assert (claim / "file").read_text() == "kept\n"


def test_a_pod_that_is_deleted_has_its_grace(cluster: Cluster) -> None:
    node = cluster.add_node("node")
    grace = {"pod": {"terminationGracePeriodSeconds": 60}}
    start_job(cluster, "polite", "trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done", **grace)
    start_job(cluster, "deaf", "trap '' TERM; sleep 600 & wait; sleep 600")
    pods = [wait_for_pod(cluster, job, "Running")["metadata"]["name"] for job in ("polite", "deaf")]
    inside = [in_namespace_of(node.container(pod).pid) for pod in pods]
    for job in ("polite", "deaf"):
        cluster.delete(cluster.path("jobs", job), {"propagationPolicy": "Foreground"})
    cluster.until(lambda: not cluster.list("jobs") and not cluster.list("pods"))
    assert not [process for processes in inside for process in processes if Path(f"/proc/{process.pid}").exists()]


def test_a_node_has_as_many_gpus_as_it_says(cluster: Cluster) -> None:
    node = cluster.add_node("node", gpus=4)
    for name in "abc":
        start_job(cluster, name, "echo $NVIDIA_VISIBLE_DEVICES; " + SLEEP, resources=limits(gpu="2"))
    pods = cluster.until(lambda: len(node.agent.runners) == 2 and list(node.agent.runners.values()))
    logs = [cluster.until(lambda pod=pod: read_log(cluster, pod.name)) for pod in pods]
    assert len({uuid for line in logs for uuid in line.strip().split(",")}) == 4
    waiting = cluster.until(lambda: cluster.list("pods", fieldSelector="spec.nodeName="))
    said = [each["message"] for each in waiting[0]["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert "Insufficient nvidia.com/gpu" in said[0]


def test_an_image_that_cannot_be_pulled_is_tried_again(cluster: Cluster) -> None:
    cluster.add_node("node")
    cluster.lose_image(IMAGE, "no such image")
    start_job(cluster, "job", "true")
    waiting = cluster.until(
        lambda: [state_of(pod) for pod in cluster.pods_of("job") if "containerStatuses" in pod["status"]]
    )
    assert waiting[0]["waiting"]["reason"] in ("ErrImagePull", "ImagePullBackOff")
    said = [each["message"] for each in cluster.list("events") if each["reason"] == "Failed"]
    assert any("no such image" in each for each in said)
    cluster.find_image(IMAGE)
    assert wait_for_end(cluster, "job") == "Complete"
