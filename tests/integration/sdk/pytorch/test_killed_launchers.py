"""Nothing is left of a training whose first process is killed, wherever its other processes are then."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from fakes.incarnations import Incarnations
from fakes.killed_launchers import CELLS, PATIENCE_SECONDS, Launcher, kill_at_random

from proctor.sdk.pytorch.data import loaders


@pytest.mark.parametrize(("method", "ranks"), [("spawn", 2), pytest.param("forkserver", 1, marks=pytest.mark.thorough)])
def test_processes_that_still_import_when_their_launcher_is_killed_end_when_they_have(
    method: str, ranks: int, tmp_path: Path
) -> None:
    launcher = Launcher(method, ranks, stall=tmp_path)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(tmp_path.iterdir())) < ranks and time.monotonic() < deadline:
        time.sleep(0.05)
    found = launcher.kill()
    assert found.processes > ranks
    assert found.left_seconds < PATIENCE_SECONDS


@pytest.mark.thorough
def test_launchers_that_are_killed_at_any_time_leave_nothing() -> None:
    for kill in kill_at_random(3, seed="make test", cells=CELLS[::4]):
        assert kill.left_seconds < PATIENCE_SECONDS, kill


def test_a_worker_whose_process_is_gone_before_it_began_ends() -> None:
    """A fork that was not tied to its parent yet when that was killed."""
    reader, writer = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            worker = multiprocessing.get_context("fork").Process(target=_begin_late, args=(writer,))
            worker.start()
            os.close(writer)
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(owner, 0)
    assert os.read(reader, 100) == b""
    os.close(reader)


def _begin_late(writer: int) -> None:
    parent = multiprocessing.parent_process()
    while parent is not None and os.getppid() == parent.pid:
        time.sleep(0.01)
    loaders._start_worker(None, False, 0)
    os.write(writer, b"lives on")


def test_a_worker_that_is_stuck_in_a_sample_ends_when_its_process_is_killed(incarnations: Incarnations) -> None:
    assert incarnations.call("fakes.stuck_workers", "kill_its_process") == {"was there": True, "has ended": True}
