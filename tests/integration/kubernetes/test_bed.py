"""The cluster of the tests behaves as a real one does, in what the tests of platform kubernetes do not show."""

from pathlib import Path

import pytest
from fakes.kubernetes.cluster import Cluster
from fakes.kubernetes.jobs import IMAGE, start_job, state_of, wait_for_end, wait_for_pod
from fakes.machines.processes import in_namespace_of

pytestmark = pytest.mark.thorough


def test_a_job_runs_as_pid_1_on_files_that_reach_nothing_of_this_machine_and_says_how_it_ends(cluster: Cluster) -> None:
    cluster.add_node("node")
    script = "echo $$$$; hostname; pwd; touch /proctor-was-here; echo done > /dev/termination-log; kill $$$$; exit 0"
    start_job(cluster, "job", script, workingDir="/of/its/own")
    start_job(cluster, "failing", "echo why; exit 3", terminationMessagePolicy="FallbackToLogsOnError")
    start_job(cluster, "killed", "kill -9 1; sh -c 'kill -9 $$$$'")
    assert wait_for_end(cluster, "job") == "Complete"
    (pod,) = cluster.pods_of("job")
    name = pod["metadata"]["name"]
    assert cluster.log(name).splitlines() == ["1", name, "/of/its/own"]
    assert cluster.log(name, tailLines="1") == "/of/its/own\n"
    ended = state_of(pod)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "done\n")
    assert not Path("/proctor-was-here").exists()
    assert not Path("/of/its/own").exists()
    assert [wait_for_end(cluster, job) for job in ("failing", "killed")] == ["Failed", "Failed"]
    ended = state_of(cluster.pods_of("failing")[0])["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "why\n")
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
    paths = {"text": "/proctor/text", "hidden": "/proctor/hidden", "scratch": "/var/run/proctor-test", "data": "/data"}
    environment = [
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "key"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "BOTH", "value": "$(KEY)$(POD)"},
    ]
    script = (
        "cat /proctor/text/* /proctor/hidden/key /var/run/proctor-test/first; echo; stat -Lc %a /proctor/hidden/key; "
    )
    script += "echo $BOTH; touch /proctor/text/c 2> /dev/null || echo read-only; echo kept > /data/file"
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    first = {"name": "first", "image": IMAGE, "command": ["sh", "-c", "printf 4 > /var/run/proctor-test/first"]}
    pod = {"volumes": volumes, "initContainers": [{**first, "volumeMounts": mounts}]}
    start_job(cluster, "job", script, volumeMounts=mounts, env=environment, pod=pod)
    assert wait_for_end(cluster, "job") == "Complete"
    (made,) = cluster.pods_of("job")
    found = cluster.log(made["metadata"]["name"], container="main").splitlines()
    assert found == ["1234", "400", "3" + made["metadata"]["uid"], "read-only"]
    assert (claim / "file").read_text() == "kept\n"
    assert not Path("/run/proctor-test").exists(), "/var/run is a link, and must not lead to this machine"


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
