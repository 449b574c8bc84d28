"""What every process that the trainer starts shares: its death with its parent, and the values it hands over."""

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import context
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with_parent(*, by_server: bool = False) -> None:
    """Have the kernel kill this process when the thread that started it ends, even by SIGKILL (Linux); if that process
    is gone already, this one ends at once.

    :param by_server: a fork server has started it, which dies with the process that has asked for it.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        eval(_tie(os.getppid() if parent is None or by_server else int(parent.pid or 0), "None"))
        if parent is not None and by_server and not parent.is_alive():  # the server went before this process was tied
            os._exit(1)


def find_start_method() -> str:
    """Return how this program starts processes unless it says otherwise; asking does not settle it."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def choose_context(asked: Any) -> Any:
    """Return what starts processes as it is asked for; a fork server dies with this process.

    The server would notice the end of this process by itself, but not while its workers are there. It is tied to the
    thread that starts it, so only the main thread, which lasts, ties it.

    :param asked: None is the way that is set for the program.
    """
    asked = find_start_method() if asked is None else asked
    chosen = multiprocessing.get_context(asked) if isinstance(asked, str) else asked
    is_main = threading.current_thread() is threading.main_thread()
    if sys.platform == "linux" and isinstance(chosen, context.ForkServerContext) and is_main:
        from multiprocessing import forkserver

        server: Any = forkserver._forkserver
        server._preload_modules = _TyingModules(server._preload_modules)
        forkserver.ensure_running()
    return chosen


class _TyingModules(list[str]):
    """What the fork server imports first; its text, which is part of the server's command, ties the server."""

    def __repr__(self) -> str:
        return _tie(os.getpid(), super().__repr__())


def _tie(parent: int, value: str) -> str:
    """Return an expression that ties the process that evaluates it to its parent; needs no import of ours.

    :param value: the expression for what it comes to.
    """
    die = f"__import__('ctypes').CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)"
    return f"({die}, __import__('os').getppid() == {parent} or __import__('os')._exit(1), {value})[2]"


class HandoverQueue:
    """What a model puts here is there for the caller of `fit`, whether the run has one process or several.

    In a process that the trainer has started, `put` sends the value (pickled) to the caller's process; it has arrived
    there when `fit` returns or raises. Under torchrun no process is the caller of all: each has a queue of its own.
    """

    def __init__(self, send: "Callable[[Any], None] | None" = None) -> None:
        self._send = send
        self._values: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, value: Any) -> None:
        """Hand a value over; from several processes they arrive in no particular order among each other."""
        if self._send is None:
            self._values.put(value)
        else:
            self._send(value)

    def get(self, block: bool = True, timeout: "float | None" = 0.0) -> Any:
        """Return the oldest value that was handed over, as `queue.Queue.get` does, but by default without waiting.

        :param timeout: how many seconds to wait for one; None is without an end.
        :raises queue.Empty: there is none within the time.
        """
        return self._values.get(block and timeout != 0, timeout or None)

    def get_nowait(self) -> Any:
        """Return the oldest value that was handed over.

        :raises queue.Empty: there is none.
        """
        return self._values.get_nowait()

    def get_all(self) -> "list[Any]":
        """Return all values that have arrived, the oldest first."""
        values = []
        while not self._values.empty():
            values.append(self._values.get_nowait())
        return values

    def empty(self) -> bool:
        """Whether nothing is there."""
        return self._values.empty()

    def __reduce__(self) -> "tuple[type[HandoverQueue], tuple[()]]":
        """A copy for another process is empty; the trainer connects it there."""
        return HandoverQueue, ()
