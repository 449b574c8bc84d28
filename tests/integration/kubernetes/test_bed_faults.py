"""What can go wrong in a cluster goes wrong in the tests' cluster as it does in a real one."""

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fakes.kubernetes.cluster import Cluster, open_cluster
from fakes.kubernetes.container import memory_cgroup
from fakes.kubernetes.control_plane import Access, answers, free_ports
from fakes.kubernetes.jobs import IMAGE, SLEEP, make_job, start_job, start_running, state_of, wait_for_end, wait_for_pod
from fakes.kubernetes.shared import NoControlPlane, shared_control_plane
from fakes.machines.processes import in_namespace_of

TESTS = Path(__file__).parents[2]
FILLS_MEMORY = "exec python3 -c 'a = [bytearray(1 << 20) for _ in range(256)]'"


def is_ready(cluster: Cluster, node: str) -> str:
    """What the cluster says about a node: True, False, Unknown."""
    conditions = cluster.get(f"/api/v1/nodes/{cluster.nodes[node].name}")["status"]["conditions"]
    return next(str(each["status"]) for each in conditions if each["type"] == "Ready")


def test_an_image_that_cannot_be_pulled_is_tried_again(cluster: Cluster) -> None:
    cluster.add_node("node")
    cluster.lose_image(IMAGE, "no such image")
    start_job(cluster, "job", "true")
    pods = cluster.until(lambda: [pod for pod in cluster.pods_of("job") if "containerStatuses" in pod["status"]])
    assert state_of(pods[0])["waiting"]["reason"] in ("ErrImagePull", "ImagePullBackOff")
    said = [each["message"] for each in cluster.list("events") if each["reason"] == "Failed"]
    assert any("no such image" in each for each in said)
    cluster.find_image(IMAGE)
    assert wait_for_end(cluster, "job") == "Complete"


def test_a_pod_waits_for_what_is_missing(cluster: Cluster) -> None:
    cluster.add_node("node")
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "a"}}}
    start_job(cluster, "variable", "echo $A", env=[variable])
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "absent"}}
    start_job(cluster, "claim", "true", pod={"volumes": [volume]})
    start_job(cluster, "large", "true", resources={"limits": {"nvidia.com/gpu": "1"}})

    def said() -> str:
        pods = [each["status"] for each in cluster.list("pods")]
        waits = [state_of({"status": each}).get("waiting", {}) for each in pods if "containerStatuses" in each]
        return str([waits, [each.get("conditions") for each in pods]])

    cluster.until(lambda: 'persistentvolumeclaim "absent" not found' in said())
    cluster.until(lambda: 'configmap "absent" not found' in said() and "CreateContainerConfigError" in said())
    cluster.until(lambda: "Insufficient nvidia.com/gpu" in said())
    cluster.create(cluster.path("configmaps"), {"metadata": {"name": "absent"}, "data": {"a": "b"}})
    assert wait_for_end(cluster, "variable") == "Complete"


def test_a_quota_refuses_pods(cluster: Cluster) -> None:
    cluster.add_node("node")
    cluster.set_quota(pods="0")
    start_job(cluster, "job", "true")
    cluster.until(lambda: any("exceeded quota: quota" in each["message"] for each in cluster.list("events")))


@pytest.mark.skipif(memory_cgroup("any") is None, reason="no memory controller of cgroup v1, by which pods are limited")
def test_a_container_that_takes_too_much_memory_is_killed(cluster: Cluster) -> None:
    cluster.add_node("node")
    start_job(cluster, "job", FILLS_MEMORY, resources={"limits": {"memory": "64Mi"}})
    assert wait_for_end(cluster, "job") == "Failed"
    ended = state_of(cluster.pods_of("job")[0])["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_pods_are_evicted_and_killed(cluster: Cluster) -> None:
    node = cluster.add_node("node")
    short, killed, drained = (start_running(cluster, job) for job in ("short", "killed", "drained"))
    node.run_out(short)
    status = wait_for_pod(cluster, "short", "Failed")["status"]
    assert (status["reason"], status["message"]) == ("Evicted", "The node was low on resource: memory. ")
    node.oom_kill(killed)
    assert state_of(wait_for_pod(cluster, "killed", "Failed"))["terminated"]["reason"] == "OOMKilled"
    process = node.container(drained).pid
    node.drain()
    cluster.until(lambda: drained not in [pod["metadata"]["name"] for pod in cluster.list("pods")])
    assert not Path(f"/proc/{process}").exists()


def test_a_pod_without_a_network_reaches_nothing(cluster: Cluster) -> None:
    node = cluster.add_node("node")
    node.agent.without_network.append("alone")
    reach = f"curl -s -o /dev/null -k https://127.0.0.1:{cluster.access.port}/"
    start_job(cluster, "alone", reach)
    start_job(cluster, "connected", reach)
    assert [wait_for_end(cluster, job) for job in ("alone", "connected")] == ["Failed", "Complete"]


def test_the_api_server_is_away_for_those_with_the_kubeconfig_file(cluster: Cluster) -> None:
    cluster.add_node("node")
    assert cluster.kubectl("get", "pods") == ""
    cluster.gate.close()
    with pytest.raises(AssertionError, match="was refused"):
        cluster.kubectl("get", "pods")
    start_job(cluster, "job", "true")
    assert wait_for_end(cluster, "job") == "Complete"
    cluster.gate.open()
    assert "Completed" in cluster.kubectl("get", "pods")


def test_pods_that_are_only_played_end_when_they_are_told_to(cluster: Cluster) -> None:
    node = cluster.add_node("node", plays=True, capacity={"pods": "200"}, cpus=200)
    cluster.create_all(cluster.path("jobs"), [make_job(name, SLEEP) for name in ("bad", "good", "better")])
    bad, *_ = (wait_for_pod(cluster, job, "Running")["metadata"]["name"] for job in ("bad", "good", "better"))
    node.finish(bad, exit_code=7, message="why")
    assert node.finish_all() == 2
    assert [wait_for_end(cluster, job) for job in ("bad", "good", "better")] == ["Failed", "Complete", "Complete"]
    ended = state_of(cluster.pods_of("bad")[0])["terminated"]
    assert (ended["exitCode"], ended["message"]) == (7, "why")


def test_a_node_that_is_out_of_touch_keeps_its_pod_while_the_job_has_another_one(cluster: Cluster) -> None:
    cluster.add_node("first")
    cluster.add_node("second")
    pod = start_running(cluster, "job")
    node = cluster.node_of(pod)
    process = node.container(pod).pid
    cluster.add_second_pod("job")
    other = cluster.until(
        lambda: [
            each["metadata"]["name"]
            for each in cluster.pods_of("job")
            if each["status"]["phase"] == "Running" and each["metadata"]["name"] != pod
        ]
    )
    assert cluster.node_of(other[0]) != node
    assert Path(f"/proc/{process}").exists()
    node.come_back()
    cluster.until(lambda: [each["metadata"]["name"] for each in cluster.pods_of("job")] == other)
    assert not Path(f"/proc/{process}").exists()


def test_a_node_without_power_is_not_ready_and_its_pod_is_deleted(cluster: Cluster) -> None:
    cluster.add_node("node")
    cluster.add_node("other")
    pod = start_running(cluster, "job")
    node = cluster.node_of(pod)
    processes = in_namespace_of(node.container(pod).pid)
    name = next(name for name, each in cluster.nodes.items() if each is node)
    node.power_off()
    cluster.until(lambda: not [each for each in processes if Path(f"/proc/{each.pid}").exists()])
    cluster.until(lambda: is_ready(cluster, name) == "Unknown")
    path = cluster.path("pods", pod)
    cluster.until(lambda: "deletionTimestamp" in cluster.get(path)["metadata"])
    node.come_back()
    cluster.until(lambda: is_ready(cluster, name) == "True")
    cluster.until(lambda: pod not in [each["metadata"]["name"] for each in cluster.pods_of("job")])


def test_a_node_that_was_out_of_touch_says_itself_that_it_is_ready(cluster: Cluster) -> None:
    path = f"/api/v1/nodes/{cluster.add_node('node').name}/status"
    cluster.patch(path, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    cluster.until(lambda: is_ready(cluster, "node") == "True")


SCRIPT = """
import sys
from pathlib import Path
from fakes.kubernetes.cluster import open_cluster
from fakes.kubernetes.control_plane import ControlPlane
from fakes.kubernetes.jobs import start_running, wait_for_end

with ControlPlane(Path(sys.argv[1]), node_grace_seconds=120).running() as plane, open_cluster(plane.access) as cluster:
    node = cluster.add_node("node")
    pod = start_running(cluster, "lasting")
    start_running(cluster, "job", "sleep 1")
    plane.kill_api_server()
    plane.start_api_server()
    assert wait_for_end(cluster, "job") == "Complete"
    print(node.container(pod).pid, *plane.pids, flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_pods_survive_the_api_server_and_nothing_survives_the_test(tmp_path: Path, control_plane: object) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "plane")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True) as test:
        assert test.stdin is not None
        assert test.stdout is not None
        assert select.select([test.stdout], [], [], 300)[0], "the cluster has not come up, and back again"
        has_come = select.select([test.stdout], [], [], 300)[0]
        pids = [int(word) for word in test.stdout.readline().split()] if has_come else []
        test.send_signal(signal.SIGKILL)
    assert has_come, "the cluster has not come up, and back again"
    assert len(pids) == 5
    for pid in pids:
        wait_until_gone(pid)


def test_a_control_plane_that_does_not_start_fails_everyone_at_once_with_the_reason(
    tmp_path: Path, control_plane: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NoControlPlane, match="kube-apiserver is missing"), shared_control_plane(tmp_path / "plane"):
        pass
    monkeypatch.undo()
    with pytest.raises(NoControlPlane, match="kube-apiserver is missing"), shared_control_plane(tmp_path / "plane"):
        pass


def test_tests_fail_at_once_whose_control_plane_does_not_answer(
    control_plane: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fakes.kubernetes.control_plane.HEALTH_SECONDS", 0.0)
    dead = replace(control_plane, port=free_ports(1)[0])
    with pytest.raises(AssertionError, match="does not answer"), open_cluster(dead):
        pass
    monkeypatch.setattr("fakes.kubernetes.cluster.is_healthy", lambda _: pytest.fail("it is asked once"))
    with pytest.raises(AssertionError, match="does not answer"), open_cluster(dead):
        pass


@pytest.mark.thorough
def test_a_control_plane_whose_keeper_was_killed_is_started_again(
    tmp_path: Path, control_plane: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fakes.kubernetes.control_plane.HEALTH_SECONDS", 0.0)
    dead = replace(control_plane, port=free_ports(1)[0])
    (tmp_path / "access.json").write_text(json.dumps(asdict(dead)))
    with shared_control_plane(tmp_path) as access:
        assert access != dead
        assert answers(access, "/readyz")


def wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(descriptor) as process:
        assert select.select([process], [], [], 60)[0], Path(f"/proc/{pid}/cmdline").read_text()
