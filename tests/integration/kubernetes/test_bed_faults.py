"""What can go wrong in a cluster goes wrong in the tests' cluster as it does in a real one: what test_reasons does not
show."""

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
from fakes.kubernetes.jobs import SLEEP, make_job, start_job, start_running, state_of, wait_for_end, wait_for_pod
from fakes.kubernetes.shared import NoControlPlane, shared_control_plane
from fakes.machines.processes import in_namespace_of

TESTS = Path(__file__).parents[2]

pytestmark = pytest.mark.thorough
FILLS_MEMORY = "exec python3 -c 'a = [bytearray(1 << 20) for _ in range(256)]'"


def is_ready(cluster: Cluster, node: str) -> str:
    """What the cluster says about a node: True, False, Unknown."""
    conditions = cluster.get(f"/api/v1/nodes/{cluster.nodes[node].name}")["status"]["conditions"]
    return next(str(each["status"]) for each in conditions if each["type"] == "Ready")


@pytest.mark.skipif(memory_cgroup("any") is None, reason="no memory controller of cgroup v1, by which pods are limited")
def test_a_container_that_takes_too_much_memory_is_killed(cluster: Cluster) -> None:
    cluster.add_node("node")
    start_job(cluster, "job", FILLS_MEMORY, resources={"limits": {"memory": "64Mi"}})
    assert wait_for_end(cluster, "job") == "Failed"
    ended = state_of(cluster.pods_of("job")[0])["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_pods_that_are_only_played_end_when_they_are_told_to(cluster: Cluster) -> None:
    node = cluster.add_node("node", plays=True, capacity={"pods": "200"}, cpus=200)
    cluster.create_all(cluster.path("jobs"), [make_job(name, SLEEP) for name in ("bad", "good", "better")])
    bad, *_ = (wait_for_pod(cluster, job, "Running")["metadata"]["name"] for job in ("bad", "good", "better"))
    node.finish(bad, exit_code=7, message="why")
    assert node.finish_all() == 2
    assert [wait_for_end(cluster, job) for job in ("bad", "good", "better")] == ["Failed", "Complete", "Complete"]
    ended = state_of(cluster.pods_of("bad")[0])["terminated"]
    assert (ended["exitCode"], ended["message"]) == (7, "why")


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
