"""Processes that may start no others, nor threads: a control group that counts them, v1 or v2, whatever this machine
has."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from proctor.trial_keeper.linux.processes import descendants, survey


class ProcessLimit:
    """Made by `process_limit`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def close(self, pid: int, *, left: int = 0) -> None:
        """From now on a process, and those that it has started, may have only `left` more."""
        for member in (pid, *descendants(survey(), [pid])):
            (self._folder / "cgroup.procs").write_text(str(member))
        present = int((self._folder / "pids.current").read_text())
        (self._folder / "pids.max").write_text(str(present + left))

    def open(self) -> None:
        """There is no limit any more."""
        (self._folder / "pids.max").write_text("max")


@contextmanager
def process_limit() -> Iterator[ProcessLimit]:
    """Skips the test where no such group can be made."""
    for parent in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        folder = parent / f"proctor-test-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            if (folder / "pids.max").exists():
                break
            folder.rmdir()
    else:
        pytest.skip("no control group that limits processes can be made here")
    limit = ProcessLimit(folder)
    try:
        yield limit
    finally:
        limit.open()
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(200):  # its last process may still be dying
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} is still in use")
