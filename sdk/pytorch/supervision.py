"""What a launcher does while its ranks work: it listens to them, and notices when one is gone."""

import pickle
import time
from dataclasses import dataclass, field
from math import inf
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from proctor.sdk.pytorch.errors import RankFailedError
from proctor.sdk.pytorch.failures import Failure, describe_death, find_reason, make_error
from proctor.sdk.pytorch.queues import HandoverQueue

# Kinds of messages of a rank; each is a pair of its kind and a body.
BEGUN = "begun"  # the process runs and could import what it needs
VALUE = "value"  # for the queue
RESULT = "result"  # what the work returned; the main rank's counts
FAILURE = "failure"  # a `Failure`

SETTLE_SECONDS = 5.0  # for the ranks that are left to notice a failure and to tear down
END_SECONDS = 30.0  # for a rank that has told its result to end
CHECK_SECONDS = 2.0  # an ended rank may leave a child behind that keeps its pipes open: then only asking helps


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
class _Hearing:
    """What has been heard so far."""

    children: "list[Child]"
    queue: HandoverQueue
    failures: "list[Failure]" = field(default_factory=list)
    result: Any = None

    def listen(self, until: float = inf) -> None:
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
            self._note(child, RankFailedError(f"what rank {child.rank} handed over cannot be read here: {problem!r}."))
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
        """Take the last words of a rank that has ended, and note it if there was none."""
        while not child.pipe.closed and child.pipe.poll():
            self._read(child)
        child.pipe.close()
        child.has_ended = True
        if not child.has_failed and not child.has_result:
            self.failures.append(describe_death(child.rank, child.process.exitcode, has_begun=child.has_begun))

    def _note(self, child: Child, problem: Exception) -> None:
        child.has_failed = True
        self.failures.append(Failure(child.rank, time.monotonic(), False, str(problem), "", None))


def supervise(children: "list[Child]", queue: HandoverQueue, *, start_seconds: float) -> Any:
    """Return the main rank's result when all ranks have one.

    :param start_seconds: how long the processes may take until they have begun.
    :raises BaseException: what came of the rank that failed first; see `make_error`.
    """
    hearing = _Hearing(children, queue)
    start_until = time.monotonic() + start_seconds
    while not hearing.failures and not all(child.has_result for child in children):
        hearing.listen()
        late = [child.rank for child in children if not child.has_begun]
        if late and not hearing.failures and time.monotonic() > start_until:
            raise RankFailedError(
                f"ranks {late} had not begun {start_seconds:g} s after their start; is the machine out of memory, "
                "or does an import of the script that calls fit not return?"
            )
    _settle(hearing)
    if hearing.failures:
        raise make_error(find_reason(hearing.failures))
    return hearing.result


def end_children(children: "list[Child]") -> None:
    """Kill what still runs and let go of everything; returns when no process is left."""
    for child in children:
        child.process.kill()
    for child in children:
        child.process.join(END_SECONDS)
        child.pipe.close()
        if child.process.exitcode is not None:
            child.process.close()


def _settle(hearing: _Hearing) -> None:
    """Let the ranks end by themselves; a failure that only tells of a lost peer waits longer for that peer's own."""
    begin = time.monotonic()
    while not all(child.has_ended for child in hearing.children):
        is_known = any(not failure.is_consequence for failure in hearing.failures)
        until = begin + (SETTLE_SECONDS if is_known else END_SECONDS)
        if time.monotonic() >= until:
            return
        hearing.listen(until)
