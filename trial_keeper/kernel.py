"""The few calls to the kernel that Python has no function for, and what the kernel says about memory.

Used by the reaper, so it imports as little as possible.
"""

import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make all orphaned descendants of this process its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_subreaper() -> bool:
    """Whether the orphaned descendants of this process become its children."""
    answer = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(answer))
    return answer.value != 0


def reap_children() -> bool:
    """Collect what has ended; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
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
