"""Processes that do not outlive the one that started them, however that one ends."""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import connection

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: "int | None" = None) -> None:
    """Have this process killed as soon as its parent is gone, even by SIGKILL.

    On Linux the kernel does it, when the thread that started this process ends; elsewhere a thread watches the parent.

    :param parent: the parent's process id; if it is gone already, this process ends at once.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            _die()
    elif parent is not None:
        threading.Thread(target=_watch, name="proctor-lifeline", daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
