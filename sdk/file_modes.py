"""Whom the files of a process are for.

Manager and keepers keep theirs to their user, also in a folder that others may enter. What runs the user's own code
(trials, tuners) goes back to the user's umask.
"""

import os

_PRIVATE = 0o077
_umask_at_start: int | None = None  # beside the kernel's own, which is one for the process as well


def keep_files_private() -> None:
    """What this process creates from now on is for its user only, whoever may enter the folder. Idempotent."""
    global _umask_at_start
    before = os.umask(_PRIVATE)
    if _umask_at_start is None:
        _umask_at_start = before


def users_umask() -> int:
    """The umask with which this process was started: what runs the user's code goes back to it."""
    return read_umask() if _umask_at_start is None else _umask_at_start


def read_umask() -> int:
    """The umask of this process, read without changing it for other threads."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))
