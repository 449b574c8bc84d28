"""What can go wrong with the tests' cluster itself: its test is killed, or it does not start."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.kubernetes.shared import NoControlPlane, shared_control_plane

TESTS = Path(__file__).parents[2]

pytestmark = pytest.mark.thorough


SCRIPT = """
import sys
from pathlib import Path
from fakes.kubernetes.cluster import open_cluster
from fakes.kubernetes.control_plane import ControlPlane
from fakes.kubernetes.jobs import start_running

with ControlPlane(Path(sys.argv[1]), node_grace_seconds=120).running() as plane, open_cluster(plane.access) as cluster:
    node = cluster.add_node("node")
    pod = start_running(cluster, "lasting")
    print(node.container(pod).pid, *plane.pids, flush=True)
    sys.stdin.read()
"""


def test_nothing_of_a_cluster_survives_its_test(tmp_path: Path, control_plane: object) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "plane")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True) as test:
        assert test.stdin is not None
        assert test.stdout is not None
        has_come = select.select([test.stdout], [], [], 300)[0]
        pids = [int(word) for word in test.stdout.readline().split()] if has_come else []
        test.send_signal(signal.SIGKILL)
    assert has_come, "the cluster has not come up"
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


def wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(descriptor) as process:
        assert select.select([process], [], [], 60)[0], Path(f"/proc/{pid}/cmdline").read_text()
