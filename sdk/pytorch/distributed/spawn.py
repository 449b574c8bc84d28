"""Several processes on one machine, one for each device: started, supervised, and none of them left behind.

Each rank has a pipe of its own to the launcher, through which it reports that it has begun, hands values over, and
returns the result of its work. To find each other, the ranks need a store, which is in the launcher, on a port that the
system chooses. They learn the port when all have been started: the store has a thread, and no process is started beside
a thread.

A rank that fails reports it and ends; the others, which would wait for it, notice by themselves or are killed after
`SETTLE_SECONDS`. If the launcher ends, even by SIGKILL, so do the ranks, also while they still import PyTorch.
"""

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from proctor.sdk.protocol import ENV_MEMBER
from proctor.sdk.pytorch.distributed.collectives import GroupOptions, GroupRanks, adopt_ranks, join_group
from proctor.sdk.pytorch.distributed.devices import choose_threads, on_device
from proctor.sdk.pytorch.distributed.processes import (
    Failure,
    HandoverQueue,
    TiedName,
    describe_death,
    describe_failure,
    die_with_parent,
    find_reason,
    find_start_method,
    make_error,
)
from proctor.sdk.pytorch.errors import ConfigurationError, RankFailedError
from proctor.sdk.pytorch.ranks import Ranks
from proctor.sdk.pytorch.trial import defer_termination

# Kinds of messages of a rank; each is a pair of its kind and a body.
BEGUN = "begun"  # the process runs and could import what it needs
VALUE = "value"  # for the queue
RESULT = "result"  # what the work returned; the main rank's counts
FAILURE = "failure"  # a `Failure`
SETTLE_SECONDS = 5.0  # for the ranks that are left to notice a failure and to tear down
END_SECONDS = 30.0  # for a rank that has sent its result to end
CHECK_SECONDS = 2.0  # an ended rank may leave a child behind that keeps its pipes open: then only polling helps
START_METHOD = "spawn"  # a fork would share CUDA and the locks of threads that are not there
START_SECONDS = 600.0
_ADDRESS = "127.0.0.1"
Work = Callable[[Ranks, torch.device, HandoverQueue], Any]


@dataclass(frozen=True)
class _Start:
    """What a rank gets besides its work."""

    rank: int
    world_size: int
    device: torch.device
    options: GroupOptions
    threads: int
    launcher: int
    loader_method: str


def spawn_ranks(work: Work, *, devices: "Sequence[torch.device]", options: GroupOptions, queue: HandoverQueue) -> Any:
    """Do the work once for each device, each in a new process, and return what the main rank's returned.

    :param work: importable by its name, as are the classes of what it holds; each rank gets a copy.
    :param queue: takes the values that the ranks hand over.
    :raises ConfigurationError: the work cannot be sent to another process.
    :raises RankFailedError: a rank died, or its exception cannot be brought here.
    :raises BaseException: what a rank raised, with the rank's traceback as its cause.
    """
    payload = _pack(work)
    shared: dict[str, Any] = {
        "world_size": len(devices),
        "options": options,
        "threads": choose_threads(len(devices)),
        "launcher": os.getpid(),
        "loader_method": find_start_method(),
    }
    starts = [_Start(rank=rank, device=device, **shared) for rank, device in enumerate(devices)]
    children: list[Child] = []
    store = None
    try:
        for start in starts:
            children.append(_start(start, payload))
        store = _open_store(children)
        return supervise(children, queue, start_seconds=START_SECONDS)
    finally:
        end_children(children)
        del store  # now, and not when an error's traceback is released: it has a thread and a port


def _pack(work: Work) -> bytes:
    """Pickle plainly: PyTorch's pickling for processes would make all ranks share the memory of the same weights."""
    try:
        return pickle.dumps(work)
    except Exception as problem:
        raise ConfigurationError(
            f"the model, the data module and the plug-ins are sent to a process for each device, and cannot be: "
            f"{problem}. Define their classes at the top level of a module, and make what cannot be copied in setup."
        ) from problem


def _start(start: _Start, payload: bytes) -> "Child":
    context: Any = multiprocessing.get_context(START_METHOD)
    here, there = context.Pipe()
    # No daemon: those may not have children, and a rank's loaders have workers.
    process = context.Process(
        target=_run_rank, args=(start, payload, there), name=TiedName(f"proctor-rank-{start.rank}"), daemon=False
    )
    process.start()
    there.close()
    return Child(start.rank, process, here)


def _open_store(children: "list[Child]") -> Any:
    store = dist.TCPStore(_ADDRESS, 0, is_master=True, wait_for_workers=False)
    for child in children:
        with suppress(OSError):  # one that has ended will be noticed
            child.pipe.send(store.port)
    return store


def supervise(children: "list[Child]", queue: HandoverQueue, *, start_seconds: float) -> Any:
    """Return the main rank's result when all ranks have one.

    :param start_seconds: how long the processes may take until they have begun.
    :raises BaseException: the failure of the rank that failed first; see `make_error`.
    """
    messages = _Messages(children, queue)
    start_until = time.monotonic() + start_seconds
    while not messages.failures and not all(child.has_result for child in children):
        messages.receive()
        late = [child.rank for child in children if not child.has_begun]
        if late and not messages.failures and time.monotonic() > start_until:
            raise RankFailedError(
                f"ranks {late} had not begun {start_seconds:g} s after their start; is the machine out of memory, "
                "or does an import of the script that calls fit not return?"
            )
    messages.settle()
    if messages.failures:
        raise make_error(find_reason(messages.failures))
    return messages.result


def end_children(children: "list[Child]") -> None:
    """Kill what still runs and release everything; returns when no process is left."""
    for child in children:
        child.process.kill()
    for child in children:
        child.process.join(END_SECONDS)
        child.pipe.close()
        if child.process.exitcode is not None:
            child.process.close()


@dataclass
class Child:
    """A rank as its launcher sees it."""

    rank: int
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    has_begun: bool = False
    has_result: bool = False
    has_failed: bool = False
    has_ended: bool = False


@dataclass
class _Messages:
    """What the ranks have sent so far, received by the launcher while they work."""

    children: "list[Child]"
    queue: HandoverQueue
    failures: "list[Failure]" = field(default_factory=list)
    result: Any = None

    def receive(self, until: float = inf) -> None:
        """Take in what comes next; returns after a while, and when the time is over, without it."""
        sources: dict[Any, Child] = {child.process.sentinel: child for child in self.children if not child.has_ended}
        sources.update((child.pipe, child) for child in self.children if not child.pipe.closed)
        wait_seconds = max(0.0, min(until - time.monotonic(), CHECK_SECONDS))
        for source in connection.wait(list(sources), wait_seconds):
            if source is sources[source].pipe:
                self._read(sources[source])
            else:
                sources[source].process.join()  # it is ending; without this the sentinel would wake us again and again
        for child in self.children:
            if not child.has_ended and child.process.exitcode is not None:
                self._end(child)

    def settle(self) -> None:
        """Let the ranks end by themselves; if a failure only reports a lost peer, wait longer for that peer's own."""
        begin = time.monotonic()
        while not all(child.has_ended for child in self.children):
            is_known = any(not failure.is_consequence for failure in self.failures)
            until = begin + (SETTLE_SECONDS if is_known else END_SECONDS)
            if time.monotonic() >= until:
                return
            self.receive(until)

    def _read(self, child: Child) -> None:
        """Take one message; at the end of the pipe close it."""
        if child.pipe.closed:
            return
        try:
            kind, body = pickle.loads(child.pipe.recv_bytes())
        except (EOFError, OSError):
            child.pipe.close()
            return
        except Exception as problem:
            text = f"what rank {child.rank} handed over cannot be read here: {problem!r}."
            child.has_failed = True
            self.failures.append(Failure(child.rank, time.monotonic(), False, text, "", None))
            return
        self._take(child, kind, body)

    def _take(self, child: Child, kind: str, body: Any) -> None:
        if kind == BEGUN:
            child.has_begun = True
        elif kind == VALUE:
            self.queue.put(body)
        elif kind == FAILURE:
            child.has_failed = True
            self.failures.append(body)
        elif kind == RESULT:
            child.has_result = True
            self.result = body if child.rank == 0 else self.result

    def _end(self, child: Child) -> None:
        """Read the last messages of a rank that has ended; if there was no result, its death is a failure."""
        while not child.pipe.closed and child.pipe.poll():
            self._read(child)
        child.pipe.close()
        child.has_ended = True
        if not child.has_failed and not child.has_result:
            self.failures.append(describe_death(child.rank, child.process.exitcode, has_begun=child.has_begun))


def _run_rank(start: _Start, payload: bytes, pipe: "Connection[Any, Any]") -> None:
    """The life of a rank, from its first statement to its last message."""
    die_with_parent(start.launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the launcher decides
    defer_termination()  # so does the keeper's SIGTERM
    os.environ[ENV_MEMBER] = str(start.rank)  # what it and its loaders' workers report is this rank's
    # A spawned process would spawn its loaders' workers, too, and each would import torch at every epoch.
    multiprocessing.set_start_method(start.loader_method, force=True)
    line = _Line(pipe)
    line.send(BEGUN, None)
    try:
        work: Work = pickle.loads(payload)
        ranks = _join(start, line.receive_port())
        with on_device(start.device):
            result = work(ranks, start.device, HandoverQueue(line.send_value))
        ranks.barrier()  # no rank leaves while others still communicate
        line.send(RESULT, result if ranks.is_main else None)
        _leave(0)
    except BaseException as problem:
        line.send(FAILURE, describe_failure(start.rank, problem))
        _leave(1)


def _leave(exit_code: int) -> None:
    """End this process without taking its objects apart.

    A replica that is the last to keep the group would at its end wait for the group's thread and hold the interpreter's
    lock, which the thread may need for the tensors of the last collective: both would wait for ever.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(exit_code)


def _join(start: _Start, port: int) -> Ranks:
    """Be one of the ranks, until the process ends."""
    torch.set_num_threads(start.threads)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are here, whatever the host's name resolves to
    store = dist.TCPStore(_ADDRESS, port, is_master=False, timeout=timedelta(seconds=START_SECONDS))
    store.set(f"rank {start.rank}", "here")
    store.wait([f"rank {rank}" for rank in range(start.world_size)])  # a start may take longer than a collective
    join_group(start.device, start.options, store=store, rank=start.rank, world_size=start.world_size)
    ranks = GroupRanks(start.rank)
    adopt_ranks(ranks)
    return ranks


class _Line:
    """A rank's end of its pipe."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, kind: str, body: Any) -> None:
        """Send one message; returns when the launcher's system has it."""
        data = pickle.dumps((kind, body))
        with self._lock:
            self._pipe.send_bytes(data)

    def receive_port(self) -> int:
        """Wait until the launcher sends the port of the store; it ends this process if it cannot."""
        return int(self._pipe.recv())

    def send_value(self, value: Any) -> None:
        """Hand a value over."""
        self.send(VALUE, value)
