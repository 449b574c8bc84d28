"""What every process that the trainer starts shares: its death with its parent, and the values it hands over.

Two of multiprocessing's three ways to start a process import the script and PyTorch first, which takes seconds. A
process that learns only then whom to die with outlives a parent that is killed meanwhile. So the contexts here send
each process something that ties it while it is unpickled, before all imports.
"""

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


def die_with_parent(parent: "int | None" = None) -> None:
    """Have the kernel kill this process when the thread that started it ends, even by SIGKILL (Linux).

    :param parent: the parent's process id; if it is gone already, this process ends at once.
    """
    if sys.platform == "linux":
        eval(_tie(os.getppid() if parent is None else parent, "None"))


def find_start_method() -> str:
    """Return how this program starts processes unless it says otherwise; asking does not settle it."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def choose_context(asked: Any) -> Any:
    """Return what starts processes as it is asked for, and so that they die with this process.

    :param asked: None is the way that is set for the program; a context of the user's own class stays as it is.
    """
    asked = find_start_method() if asked is None else asked
    asked = multiprocessing.get_context(asked) if isinstance(asked, str) else asked
    tying = {context.SpawnContext: TyingSpawnContext, context.ForkServerContext: TyingForkServerContext}
    return tying[type(asked)]() if sys.platform == "linux" and type(asked) in tying else asked


class _TiedName(str):
    """The name of a process, which that process unpickles first, before it imports the script and PyTorch."""

    parent: int

    def __new__(cls, name: str, parent: int) -> "_TiedName":
        tied = super().__new__(cls, name)
        tied.parent = parent
        return tied

    def __reduce__(self) -> "Any":
        return eval, (_tie(self.parent, repr(str(self))),)


class TyingSpawnContext(context.SpawnContext):
    """Starts processes anew, tied to this one from their beginning."""

    def Process(self, *args: Any, **options: Any) -> context.SpawnProcess:  # type: ignore[override]
        process = context.SpawnProcess(*args, **options)
        process.name = _TiedName(process.name, os.getpid())
        return process


class TyingForkServerContext(context.ForkServerContext):
    """Starts processes by the fork server, tied to it as it is to this process."""

    def Process(self, *args: Any, **options: Any) -> context.ForkServerProcess:  # type: ignore[override]
        process = context.ForkServerProcess(*args, **options)
        process.name = _TiedName(process.name, _start_fork_server())
        return process


class _TiedModules(list[str]):
    """What the fork server imports first; its text, which is part of the server's command, ties the server."""

    def __repr__(self) -> str:
        return _tie(os.getpid(), super().__repr__())


def _start_fork_server() -> int:
    """Return the id of the fork server's process, which is started if it does not run.

    The server would notice the end of this process by itself, but only when it has imported the script. It is tied to
    the thread that starts it, so only the main thread, which lasts, ties it.
    """
    from multiprocessing import forkserver  # not everywhere

    server: Any = forkserver._forkserver
    modules = server._preload_modules
    is_main = threading.current_thread() is threading.main_thread()
    server._preload_modules = _TiedModules(modules) if is_main else list(modules)
    forkserver.ensure_running()
    return int(server._forkserver_pid)


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

    def get(self, timeout_seconds: float = 0.0) -> Any:
        """Return the oldest value that was handed over.

        :raises queue.Empty: there is none within the time.
        """
        return self._values.get(timeout=timeout_seconds) if timeout_seconds > 0 else self._values.get_nowait()

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
