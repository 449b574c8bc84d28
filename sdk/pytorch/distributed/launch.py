"""Where a run's processes come from: their devices, torchrun's processes that are joined, and ranks started here.

A rank that is started here has a pipe to its launcher, through which it reports that it has begun, hands values over,
and returns the result of its work. To find each other, the ranks need a store, which is in the launcher, on a port that
the system chooses. They learn the port when all have been started: the store has a thread, and no process is started
beside a thread.

A rank that fails reports it and ends; the others, which would wait for it, notice by themselves or are killed after
`SETTLE_SECONDS`. If the launcher ends, even by SIGKILL, so do the ranks; one that still imports PyTorch, when it has.
An exception reaches the launcher as itself where possible, and described in full where not. What PyTorch's own
launchers lack of this is in decision 0030.
"""

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from proctor.sdk.protocol import ENV_MEMBER
from proctor.sdk.pytorch.distributed.processes import (
    HandoverQueue,
    die_with_parent,
    find_start_method,
)
from proctor.sdk.pytorch.distributed.ranks import GroupOptions, Ranks, get_ranks, has_group, join_group
from proctor.sdk.pytorch.errors import ConfigurationError, RankFailedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from proctor.sdk.pytorch.config import Settings

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
_LOST_PEER_WORDS = ("connection closed by peer", "connection reset", "broken pipe", "gloo", "nccl")
_BREATH_SECONDS = 0.2
_HASH_SEED = "PYTHONHASHSEED"
_TORCHRUN_MARK = "TORCHELASTIC_RUN_ID"
_TORCHRUN_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
Work = Callable[[Ranks, torch.device, HandoverQueue], Any]


def find_gpus() -> "list[int]":
    """The ids of the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` leaves them; CUDA is not started."""
    return list(range(torch.cuda.device_count()))


def choose_devices(settings: "Settings", available: "Sequence[int] | None" = None) -> "tuple[torch.device, ...]":
    """Return the device of each process of this machine.

    `use_cpu`, or a machine without GPUs, gives the CPU `processes` times; otherwise the GPUs named by `gpus`, or all.

    :param available: the ids of the GPUs that are there; None asks the machine.
    :raises ConfigurationError: a GPU is asked for that is not there, or options contradict each other.
    """
    found = find_gpus() if available is None and not settings.use_cpu else list(available or ())
    if settings.gpus is not None and not settings.use_cpu:
        _check_gpus(settings.gpus, found)
        found = list(settings.gpus)
    if settings.use_cpu or not found:
        return (torch.device("cpu"),) * settings.processes
    if settings.processes > 1:
        raise ConfigurationError(
            f"processes={settings.processes} is for the CPU, and there are GPUs, which get one process each; set "
            "use_cpu=True, or name the GPUs in gpus."
        )
    return tuple(torch.device("cuda", number) for number in found)


def choose_threads(processes: int) -> int:
    """Return how many threads each process computes with: a fair share, or what `OMP_NUM_THREADS` says."""
    threads = int(torch.get_num_threads())
    return threads if "OMP_NUM_THREADS" in os.environ else max(1, threads // processes)


def on_device(device: torch.device) -> "AbstractContextManager[Any]":
    """Make a GPU the current one for a while: its stream of random numbers is the one that is saved."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _check_gpus(wanted: "Sequence[int]", found: "Sequence[int]") -> None:
    if not wanted:
        raise ConfigurationError("gpus is empty; leave it out to use all GPUs, or set use_cpu=True.")
    if not found:
        raise ConfigurationError(
            f"gpus={list(wanted)} were requested, but this process sees no GPU (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r}, CUDA of torch: {torch.version.cuda}); set use_cpu=True, or "
            "repair the driver or the build of torch."
        )
    if unknown := [number for number in wanted if number not in found]:
        raise ConfigurationError(f"there is no GPU {', '.join(map(str, unknown))}; available are {list(found)}.")
    if len(set(wanted)) != len(wanted):
        raise ConfigurationError(f"each GPU gets one process, and gpus={list(wanted)} names one twice.")


@dataclass(frozen=True)
class TorchrunPlace:
    """Who this process is among those that torchrun has started."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def find_torchrun(environment: "Mapping[str, str] | None" = None) -> "TorchrunPlace | None":
    """Return the place that torchrun has given this process; None if torchrun has not started it.

    :raises ConfigurationError: the environment is only partly that of torchrun.
    """
    environment = os.environ if environment is None else environment
    if _TORCHRUN_MARK not in environment:
        return None
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    if missing := [name for name in (*names, *_TORCHRUN_ADDRESS) if not environment.get(name)]:
        raise ConfigurationError(
            f"{_TORCHRUN_MARK} says that torchrun started this process, and {', '.join(missing)} is not set; pass on "
            f"the whole environment, or unset {_TORCHRUN_MARK}."
        )
    try:
        return TorchrunPlace(*(int(environment[name]) for name in names))
    except ValueError as problem:
        raise ConfigurationError(f"torchrun sets {', '.join(names)} to integers; found {problem}.") from None


def choose_local_device(place: "TorchrunPlace | None", devices: "tuple[torch.device, ...]") -> torch.device:
    """Return the device of this process: the local rank picks among the machine's GPUs; the CPU is shared.

    :param place: None if no others are started, then it is the first one.
    :raises ConfigurationError: there are fewer GPUs than processes.
    """
    if place is None or devices[0].type == "cpu":
        return devices[0]
    if place.local_world_size > len(devices):
        raise ConfigurationError(
            f"torchrun started {place.local_world_size} processes on this machine and there are {len(devices)} GPUs; "
            f"use --nproc-per-node={len(devices)}, or use_cpu=True."
        )
    return devices[place.local_rank]


def join_torchrun(device: torch.device, options: GroupOptions) -> Ranks:
    """Return the ranks of all processes; the group is made at the first call and left when the process ends.

    It is kept between `fit` and `test`: torchrun's store remembers the addresses of a group, so a second one would meet
    the first one's.
    """
    if not has_group():
        join_group(device, options)
        atexit.register(_destroy_group)
    return get_ranks()


def _destroy_group() -> None:
    """Destroy the group, which must not be left to the interpreter's end.

    The group's thread releases the tensors of the last collective, for which it needs the interpreter's lock. If a
    replica is what keeps the group then, its end would hold that lock and wait for the thread, forever.
    """
    if has_group():
        time.sleep(_BREATH_SECONDS)
        dist.destroy_process_group()


def spawn_ranks(
    work: Work,
    *,
    devices: "Sequence[torch.device]",
    options: GroupOptions,
    queue: HandoverQueue,
    initializer: "Callable[[], Any] | None" = None,
) -> Any:
    """Do the work once for each device, each in a new process, and return what the main rank's returned.

    :param work: importable by its name, as are the classes of what it holds; each rank gets a copy.
    :param queue: takes the values that the ranks hand over.
    :param initializer: called first in each rank, before the work is unpickled.
    :raises ConfigurationError: the work cannot be sent to another process.
    :raises RankFailedError: a rank died, or its exception cannot be brought here.
    :raises BaseException: what a rank raised, with the rank's traceback as its cause.
    """
    try:  # plainly: PyTorch's pickling for processes would make all ranks share the memory of the same weights
        payload = pickle.dumps(work)
    except Exception as problem:
        raise ConfigurationError(
            f"the model, the data module and the plug-ins are sent to a process for each device, and cannot be: "
            f"{problem}. Define their classes at the top level of a module, and make what cannot be copied in setup."
        ) from problem
    shared = {
        "payload": payload,
        "world_size": len(devices),
        "options": options,
        "threads": choose_threads(len(devices)),
        "loader_method": find_start_method(),
        "initializer": initializer,
    }
    context: Any = multiprocessing.get_context(START_METHOD)
    children: list[Child] = []
    store = None
    try:
        with _one_hash_seed():
            for rank, device in enumerate(devices):
                here, there = context.Pipe()
                # No daemon: those may not have children, and a rank's loaders have workers.
                process = context.Process(target=_run_rank, args=(rank, device, there), kwargs=shared, daemon=False)
                process.start()
                there.close()
                children.append(Child(rank, process, here))
        store = dist.TCPStore(_ADDRESS, 0, is_master=True, wait_for_workers=False)
        for child in children:
            with suppress(OSError):  # one that has ended will be noticed
                child.pipe.send(store.port)
        return supervise(children, queue, start_seconds=START_SECONDS)
    finally:
        end_children(children)
        del store  # now, and not when an error's traceback is released: it has a thread and a port


@contextmanager
def _one_hash_seed() -> "Iterator[None]":
    """Have processes that are started in it put the items of sets in the same order, each time, unless the user has
    said which."""
    is_ours = _HASH_SEED not in os.environ
    os.environ.setdefault(_HASH_SEED, "0")
    try:
        yield
    finally:
        if is_ours:
            del os.environ[_HASH_SEED]


@dataclass
class Child:
    """A rank as its launcher sees it."""

    rank: int
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    has_begun: bool = False
    has_ended: bool = False
    has_result: bool = False
    result: Any = None
    failure: "Failure | None" = None

    def receive(self, queue: HandoverQueue) -> None:
        """Take in what has come; of a process that has ended, its death is a failure unless it said something else."""
        exit_code = self.process.exitcode  # before its last messages are read
        while not self.pipe.closed and self.pipe.poll():
            self._read(queue)
        if exit_code is not None and not self.has_ended:
            self.has_ended = True
            self.pipe.close()
            if self.failure is None and not self.has_result:
                self.failure = describe_death(self.rank, exit_code, has_begun=self.has_begun)

    def _read(self, queue: HandoverQueue) -> None:
        """Take one message; at the end of the pipe close it."""
        try:
            kind, body = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.pipe.close()
        except Exception as problem:
            text = f"what rank {self.rank} handed over cannot be read here: {problem!r}."
            self.failure = self.failure or Failure(self.rank, time.monotonic(), False, text, "", None)
        else:
            if kind == BEGUN:
                self.has_begun = True
            elif kind == VALUE:
                queue.put(body)
            elif kind == RESULT:
                self.has_result, self.result = True, body
            else:
                self.failure = self.failure or body


def supervise(children: "list[Child]", queue: HandoverQueue, *, start_seconds: float) -> Any:
    """Return the main rank's result when all ranks have one.

    :param start_seconds: how long the processes may take until they have begun.
    :raises BaseException: the failure of the rank that failed first; see `make_error`.
    """
    start_until = time.monotonic() + start_seconds
    while not all(child.has_result for child in children) and not any(child.failure for child in children):
        _receive(children, queue, CHECK_SECONDS)
        late = [child.rank for child in children if not child.has_begun and child.failure is None]
        if late and time.monotonic() > start_until:
            raise RankFailedError(
                f"ranks {late} had not begun {start_seconds:g} s after their start; is the machine out of memory, "
                "or does an import of the script that calls fit not return?"
            )
    _settle(children, queue)
    if failures := [child.failure for child in children if child.failure is not None]:
        raise make_error(find_reason(failures))
    return children[0].result


def _settle(children: "list[Child]", queue: HandoverQueue) -> None:
    """Let the ranks end by themselves; if a failure only reports a lost peer, wait longer for that peer's own."""
    begin = time.monotonic()
    while not all(child.has_ended for child in children):
        is_known = any(child.failure is not None and not child.failure.is_consequence for child in children)
        left_seconds = begin + (SETTLE_SECONDS if is_known else END_SECONDS) - time.monotonic()
        if left_seconds <= 0:
            return
        _receive(children, queue, min(left_seconds, CHECK_SECONDS))


def _receive(children: "list[Child]", queue: HandoverQueue, seconds: float) -> None:
    """Wait until something comes, or the time is over, and take it in."""
    sources: list[Any] = [child.process.sentinel for child in children if not child.has_ended]
    ready = connection.wait([*sources, *(child.pipe for child in children if not child.pipe.closed)], seconds)
    for child in children:
        if not child.has_ended and child.process.sentinel in ready:
            child.process.join()  # it is ending; without this the sentinel would wake us again and again
        child.receive(queue)


def end_children(children: "list[Child]") -> None:
    """Kill what still runs and release everything; returns when no process is left."""
    for child in children:
        child.process.kill()
    for child in children:
        child.process.join(END_SECONDS)
        child.pipe.close()
        if child.process.exitcode is not None:
            child.process.close()


def _run_rank(
    rank: int,
    device: torch.device,
    pipe: "Connection[Any, Any]",
    *,
    payload: bytes,
    world_size: int,
    options: GroupOptions,
    threads: int,
    loader_method: str,
    initializer: "Callable[[], Any] | None",
) -> None:
    """The life of a rank, from its first statement to its last message."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the launcher decides
    if initializer is not None:
        initializer()
    os.environ[ENV_MEMBER] = str(rank)  # what it and its loaders' workers report is this rank's
    os.environ["LOCAL_RANK"] = str(rank)  # as under torchrun
    # A spawned process would spawn its loaders' workers, too, and each would import torch at every epoch.
    multiprocessing.set_start_method(loader_method, force=True)
    lock = threading.Lock()

    def send(kind: str, body: Any) -> None:
        data = pickle.dumps((kind, body))
        with lock:
            pipe.send_bytes(data)

    send(BEGUN, None)
    try:
        work: Work = pickle.loads(payload)
        torch.set_num_threads(threads)
        store = _enter_store(int(pipe.recv()), rank, world_size)  # the launcher sends its port, or ends this process
        ranks = join_group(device, options, store=store, rank=rank, world_size=world_size)
        with on_device(device):
            result = work(ranks, device, HandoverQueue(partial(send, VALUE)))
        ranks.barrier()  # no rank leaves while others still communicate
        send(RESULT, result if ranks.is_main else None)
        _leave(0)
    except BaseException as problem:
        send(FAILURE, describe_failure(rank, problem))
        _leave(1)


def _enter_store(port: int, rank: int, world_size: int) -> dist.TCPStore:
    """Return the launcher's store when all ranks have come; a start may take longer than a collective."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are here, whatever the host's name resolves to
    store = dist.TCPStore(_ADDRESS, port, is_master=False, timeout=timedelta(seconds=START_SECONDS))
    store.set(f"rank {rank}", "here")
    store.wait([f"rank {other}" for other in range(world_size)])
    return store


def _leave(exit_code: int) -> None:
    """End this process without taking its objects apart, which could deadlock as `_destroy_group` says."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(exit_code)


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


def describe_death(rank: int, exit_code: int, *, has_begun: bool) -> Failure:
    """Return what is known of a rank that ended without a message."""
    text = f"rank {rank} ended with exit code {exit_code}"
    if exit_code < 0:
        is_known = -exit_code in set(signal.Signals)
        text = f"rank {rank} was ended by {signal.Signals(-exit_code).name if is_known else f'signal {-exit_code}'}"
    if exit_code == -signal.SIGKILL:
        text += " (kill -9, or out of memory)"
    if not has_begun and exit_code > 0:
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
    error = None if failure.error is None else _unpack(failure.error)
    if error is None:
        text = failure.summary if not failure.traceback else f"rank {failure.rank} failed: {failure.summary}"
        error = RankFailedError(f"{text}. The other ranks were ended; the run continues from its latest checkpoint.")
    elif isinstance(error, SystemExit):  # a rank's must not end the caller, least of all with 0
        error = RankFailedError(f"rank {failure.rank} raised {failure.summary}.")
    error.__cause__ = RankTraceback(failure.traceback) if failure.traceback else None
    return error


def _is_about_lost_peer(problem: "BaseException | None") -> bool:
    while problem is not None:
        has_words = any(word in str(problem).lower() for word in _LOST_PEER_WORDS)
        if isinstance(problem, dist.DistError) or (isinstance(problem, RuntimeError) and has_words):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _pack(problem: BaseException) -> "bytes | None":
    """Pickle an exception; if its constructor takes other arguments than `args`, in a way that does not call it."""
    kind, texts = type(problem), tuple(str(arg) for arg in problem.args)
    forms: tuple[Any, ...] = (problem, (kind, problem.args, vars(problem)), (kind, texts, {}))
    for form in forms:
        with suppress(Exception):
            packed = pickle.dumps(form)
            if _unpack(packed) is not None:
                return packed
    return None


def _unpack(packed: bytes) -> "BaseException | None":
    with suppress(Exception):
        form = pickle.loads(packed)
        if isinstance(form, BaseException):
            return form
        kind, args, attributes = form
        error: BaseException = kind.__new__(kind, *args)
        error.args = args
        error.__dict__.update(attributes)
        return error
    return None
