"""Stopping the keeper of a node, for the manager that looks after it over SSH."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proctor.trial_keeper.command_input import CommandInput
from proctor.trial_keeper.errors import CommandRefused
from proctor.trial_keeper.job_ending import count_running, end_jobs
from proctor.trial_keeper.settings import LOCK_FILE
from proctor.trial_keeper.start import stop_keeper

GRACE_SECONDS = 5.0

_LOCK_SECONDS = 30.0
_LOOK_SECONDS = 0.25


def stop(given: CommandInput) -> dict[str, Any]:
    """The command `stop`; see `commands.py`."""
    directory = given.directory()
    if not given.flag("kill_jobs"):
        stop_keeper(directory)
        return {"jobs": count_running(directory), "left": []}
    with no_keeper(directory):
        jobs, left = end_jobs(directory, grace_seconds=given.number("grace_seconds", GRACE_SECONDS))
    return {"jobs": jobs, "left": left}


@contextlib.contextmanager
def no_keeper(directory: Path) -> Iterator[None]:
    """Have the keeper leave, and let none start for as long as the body lasts. Raises CommandRefused when it stays."""
    path = directory / LOCK_FILE
    if not path.exists():
        yield  # no keeper ever was here
        return
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        gives_up = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(lock):
            if time.monotonic() > gives_up:
                raise CommandRefused(f"the keeper of {directory} does not end; a process holds {path}")
            if not stop_keeper(directory):
                time.sleep(_LOOK_SECONDS)  # one that is just starting cannot be found yet
        yield
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
