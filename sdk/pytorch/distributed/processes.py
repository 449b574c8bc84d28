"""What the processes of a run share: their failures, the death of their parent, and the values they hand over.

An exception reaches the launcher as itself where possible, and described in full where not.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, context
from typing import Any

import torch.distributed as dist

from proctor.sdk.pytorch.errors import RankFailedError

_LOST_PEER_WORDS = ("connection closed by peer", "connection reset", "broken pipe", "gloo", "nccl")
_PR_SET_PDEATHSIG = 1


class RankTraceback(Exception):
    """The traceback of another process, as the cause of the exception that came from there."""

    def __str__(self) -> str:
        return f"in another process:\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """What ended a rank."""

    rank: int
    at: float  # the monotonic clock of the machine, which its processes share
    is_consequence: bool  # that another rank is gone, which then is the reason
    summary: str
    traceback: str
    error: "bytes | None"  # the exception, if it can be sent


def describe_failure(rank: int, problem: BaseException) -> Failure:
    """Return what another process needs to know of an exception."""
    return Failure(
        rank,
        time.monotonic(),
        _is_about_lost_peer(problem),
        f"{type(problem).__name__}: {problem}",
        "".join(traceback.format_exception(type(problem), problem, problem.__traceback__)),
        _pack(problem),
    )


def describe_death(rank: int, exit_code: "int | None", *, has_begun: bool) -> Failure:
    """Return what is known of a rank that ended without a message."""
    code = exit_code or 0
    text = f"rank {rank} was ended by {_name_signal(-code)}" if code < 0 else f"rank {rank} ended with exit code {code}"
    if code == -signal.SIGKILL:
        text += " (kill -9, or out of memory)"
    if not has_begun and code > 0:
        text += (
            " before it began, see its output. Every process imports the script that calls fit: keep what it "
            "does under if __name__ == '__main__'"
        )
    return Failure(rank, time.monotonic(), False, text, "", None)


def find_reason(failures: "list[Failure]") -> Failure:
    """Return the failure that the others follow from: the first one that is not about a lost peer."""
    return min(failures, key=lambda failure: (failure.is_consequence, failure.at))


def make_error(failure: Failure) -> BaseException:
    """Return the exception to raise in this process: the rank's own one, or a `RankFailedError` that describes it."""
    cause = RankTraceback(failure.traceback) if failure.traceback else None
    error = None if failure.error is None else _unpack(failure.error)
    if error is None:
        text = failure.summary if not failure.traceback else f"rank {failure.rank} failed: {failure.summary}"
        error = RankFailedError(f"{text}. The other ranks were ended; the run continues from its latest checkpoint.")
    elif isinstance(error, SystemExit):  # a rank's must not end the caller, least of all with 0
        error = RankFailedError(f"rank {failure.rank} raised {failure.summary}.")
    error.__cause__ = cause
    return error


def _is_about_lost_peer(problem: "BaseException | None") -> bool:
    while problem is not None:
        if isinstance(problem, getattr(dist, "DistError", ())):
            return True
        if isinstance(problem, RuntimeError) and any(word in str(problem).lower() for word in _LOST_PEER_WORDS):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _pack(problem: BaseException) -> "bytes | None":
    """Pickle an exception; if its constructor takes other arguments than `args`, in a way that does not call it."""
    kind, texts = type(problem), tuple(str(arg) for arg in problem.args)
    forms: tuple[Any, ...] = (problem, (kind, problem.args, vars(problem)), (kind, texts, {}))
    for form in forms:
        try:
            packed = pickle.dumps(form)
        except Exception:
            continue
        if _unpack(packed) is not None:
            return packed
    return None


def _unpack(packed: bytes) -> "BaseException | None":
    try:
        form = pickle.loads(packed)
        if isinstance(form, BaseException):
            return form
        kind, args, attributes = form
        error: BaseException = kind.__new__(kind, *args)
        error.args = args
        error.__dict__.update(attributes)
    except Exception:
        return None
    return error


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def die_with_parent(parent: "int | None" = None) -> None:
    """Have this process killed as soon as its parent is gone, even by SIGKILL.

    On Linux the kernel does it, when the thread that started this process ends; elsewhere a thread watches the parent.

    :param parent: the parent's process id; if it is gone already, this process ends at once.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            _kill_self()
    elif parent is not None:
        threading.Thread(target=_watch_parent, name="proctor-parent-watch", daemon=True).start()


def find_start_method() -> str:
    """Return how this program starts processes unless it says otherwise; asking does not settle it."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


class TiedName(str):
    """The name of a process that is to die with its parent before it imports anything.

    A process that is not a fork of its parent unpickles its name first, then imports the script and PyTorch, which
    takes seconds. Unpickling this name does what `die_with_parent` does.

    :param through_server: whether it will be a fork of multiprocessing's fork server, which then is its parent.
    """

    through_server: bool

    def __new__(cls, name: str, *, through_server: bool = False) -> "TiedName":
        tied = super().__new__(cls, name)
        tied.through_server = through_server
        return tied

    def __reduce__(self) -> "Any":
        """Pickled when the process is started."""
        if sys.platform != "linux":
            return str, (str(self),)
        parent = _start_fork_server() if self.through_server else os.getpid()
        return eval, (_tie(parent, repr(str(self))),)


class TyingSpawnContext(context.SpawnContext):
    """Starts processes anew, tied to this one from their beginning."""

    def Process(self, *args: Any, **options: Any) -> context.SpawnProcess:  # type: ignore[override]
        process = context.SpawnProcess(*args, **options)
        process.name = TiedName(process.name)
        return process


class TyingForkServerContext(context.ForkServerContext):
    """Starts processes by the fork server, tied to it as it is to this process."""

    def Process(self, *args: Any, **options: Any) -> context.ForkServerProcess:  # type: ignore[override]
        process = context.ForkServerProcess(*args, **options)
        process.name = TiedName(process.name, through_server=True)
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


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        _kill_self()


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


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
