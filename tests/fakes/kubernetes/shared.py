"""One control plane for all workers of a test run.

Each worker holds a shared lock of `users`. The first one starts a process that starts the control plane, and waits
until it gets the lock alone: then no user is left, also when they were killed, and it ends everything.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fakes.kubernetes.control_plane import Access, ControlPlane

_TESTS = Path(__file__).parents[2]


@contextmanager
def shared_control_plane(folder: Path) -> Iterator[Access]:
    """The control plane of everyone who names the same folder; started unless it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "users", "a") as users, open(folder / "starting", "a") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        state = folder / "access.json"
        if not state.exists():
            _start(folder)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield Access(**json.loads(state.read_text()))


def _start(folder: Path) -> None:
    """Start the process that keeps the control plane, as no worker's child, and wait until it is ready."""
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": f"{_TESTS}:{_TESTS.parent / 'src'}"}
    with open(reading) as ready, open(folder / "log", "wb") as log:
        words = ["setsid", "--fork", sys.executable, "-m", "fakes.kubernetes.shared", str(folder), str(writing)]
        try:
            subprocess.run(words, env=environment, check=True, pass_fds=(writing,), stdout=log, stderr=log)
        finally:
            os.close(writing)
        assert ready.read() == "ready", f"no control plane: {(folder / 'log').read_text()[-2000:]}"


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
            state.unlink()
    finally:
        shutil.rmtree(files)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]))
