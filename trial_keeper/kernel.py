"""The few calls to the kernel that Python has no function for, and what the kernel says about memory.

Used by the reaper, so it imports as little as possible.
"""

import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make all orphaned descendants of this process its children."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for memory since boot; 0 where it does not say."""
    try:
        with open("/proc/vmstat", "rb") as file:
            _, found, rest = file.read().partition(b"\noom_kill ")
    except OSError:
        return 0
    return int(rest.split(b"\n", 1)[0]) if found else 0
