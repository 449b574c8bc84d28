"""One control plane for all workers of a test run.

Each worker holds a shared lock of `users`. The first one starts a process that starts the control plane, and waits
until it gets the lock alone: then no user is left, also when they were killed, and it ends everything.

A start that fails is tried once more. Then its reason is kept, and everyone fails with it at once.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fakes.kubernetes.control_plane import READY_SECONDS, Access, ControlPlane, is_healthy

_TESTS = Path(__file__).parents[2]
_ATTEMPTS = 2


class NoControlPlane(Exception):
    """The control plane cannot be started, or does not answer any more."""


@contextmanager
def shared_control_plane(folder: Path) -> Iterator[Access]:
    """The control plane of everyone who names the same folder; started unless it serves. Raises NoControlPlane."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "users", "a") as users, open(folder / "starting", "a") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        access = _find(folder)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield access


def _find(folder: Path) -> Access:
    """How to reach what runs, or is started now."""
    state, failure = folder / "access.json", folder / "failure"
    if failure.exists():
        raise NoControlPlane(failure.read_text())
    if state.exists():
        access = Access(**json.loads(state.read_text()))
        if is_healthy(access):
            return access
        state.unlink()  # what has kept it was killed
    for _ in range(_ATTEMPTS):
        why = _start(folder)
        if not why:
            return Access(**json.loads(state.read_text()))
    failure.write_text(f"no control plane after {_ATTEMPTS} attempts: {why}")
    raise NoControlPlane(failure.read_text())


def _start(folder: Path) -> str:
    """Start the process that keeps the control plane, as no worker's child, and wait for it; why it is not ready."""
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": f"{_TESTS}:{_TESTS.parent / 'src'}"}
    with open(reading) as ready, open(folder / "log", "wb") as log:
        words = ["setsid", "--fork", sys.executable, "-m", "fakes.kubernetes.shared", str(folder), str(writing)]
        try:
            subprocess.run(words, env=environment, check=True, pass_fds=(writing,), stdout=log, stderr=log)
        finally:
            os.close(writing)
        has_answered = select.select([ready], [], [], READY_SECONDS + 30)[0]
        if has_answered and ready.read() == "ready":
            return ""
    return (folder / "log").read_text()[-2000:] or f"it was not ready after {READY_SECONDS:g} s"


def _keep(folder: Path, writing: int) -> None:
    """Have a control plane as long as it has users."""
    state = folder / "access.json"
    # What it writes is of no use later, and the folders of a test run are kept.
    files = Path(tempfile.mkdtemp(prefix="proctor-control-plane-"))
    try:
        with ControlPlane(files).running() as plane, open(folder / "users") as users:
            with open(folder / "access.json.new", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                json.dump(asdict(plane.access), file)
            os.replace(folder / "access.json.new", state)
            os.write(writing, b"ready")
            os.close(writing)
            fcntl.flock(users, fcntl.LOCK_EX)
            state.unlink(missing_ok=True)
    finally:
        shutil.rmtree(files)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]))
