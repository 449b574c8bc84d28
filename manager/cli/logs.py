"""Logs as they grow: pieces by byte offset, the first or the last lines, and following one until it ends."""

import atexit
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from proctor.manager.cli.session import CliSession
from proctor.manager.control_characters import LogFilter
from proctor.manager.lifecycle.states import TrialStatus

if TYPE_CHECKING:
    from proctor.sdk.client.logs import ReadLog

TERMINAL = frozenset(status for status in TrialStatus if status.is_terminal)
AWAY = frozenset({502, 503, 504})
"""The statuses of answers that say "not now"."""
WAIT_SECONDS = 0.5
"""How often a log that is followed is asked for more when nothing has changed."""


class GrowingLog:
    """A log that is read from its beginning, or from its last lines on, and knows how far."""

    def __init__(self, read: "ReadLog") -> None:
        self._read = read
        self._offset = 0

    def pieces(self) -> Iterator[bytes]:
        """What has been added since the last time, until there is no more."""
        while (piece := self._read(self._offset, None)).data:
            self._offset = piece.next_offset
            yield piece.data

    def tail(self, lines: int) -> bytes:
        """Its last lines; what is before them is not read. `pieces` continues after them."""
        from proctor.sdk.client.logs import read_tail

        piece = read_tail(self._read, lines)
        self._offset = piece.next_offset
        return piece.data

    def lines(self) -> Iterator[bytes]:
        """The same by lines, with their ends; the last one may have none."""
        rest = b""
        for data in self.pieces():
            *whole, rest = (rest + data).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if rest:
            yield rest


def print_log(log: GrowingLog, *, tail: int | None = None, head: int | None = None) -> None:
    """Print a log as far as it goes, or only its first or last lines."""
    if head is not None:
        for _, line in zip(range(head), log.lines(), strict=False):
            write(line)
    elif tail is not None:
        write(log.tail(tail))
    else:
        print_new(log)


def print_new(log: GrowingLog) -> None:
    """Print what has been added."""
    for data in log.pieces():
        write(data)


def write(data: bytes) -> None:
    """Bytes as they are, at once; on a terminal only what it may be given, and the log's colors end with us."""
    if sys.stdout.isatty():
        sys.stdout.write(_terminal_filter().pass_through(data))
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


@cache
def _terminal_filter() -> LogFilter:
    made = LogFilter()
    atexit.register(lambda: sys.stdout.write(made.reset()))
    return made


def follow(log: GrowingLog) -> None:
    """Print what is added until Ctrl-C, for logs that have no end."""
    while True:
        print_new(log)
        time.sleep(WAIT_SECONDS)


def follow_trial(session: CliSession, trial: dict[str, Any], stream: str, *, job: int | None = None) -> None:
    """Print a trial's log until the trial has ended; the log of a retry follows that of the attempt before.

    :param job: only this attempt, until it is over.
    """
    from proctor.sdk.client.events import Watch

    client, number = session.client, job or max(trial["jobs"], 1)
    log, link = trial_log(session, trial["id"], stream, number), Link(session.report)
    with Watch(client.events(experiment_id=trial["experiment_id"])) as watch:
        while True:
            with link:
                trial = client.trial(trial["id"])  # before the log: what was printed until then is read below
                if trial["jobs"]:
                    print_new(log)
            if trial["jobs"] > number and job is None:
                if link.broken:
                    unread = f"proctor trial log {trial['id']} -j {number}"
                    session.report(f"Attempt {number} may have printed more; when its machine is back: {unread}")
                number = trial["jobs"]
                session.report(f"Trial {trial['id']} runs again: attempt {number}.")
                log = trial_log(session, trial["id"], stream, number)
            elif not link.broken and (trial["status"] in TERMINAL or trial["jobs"] > number):
                return
            else:
                watch.wait(WAIT_SECONDS)  # raises if no manager answers for long


class Link:
    """Tolerates what passes by itself: inside of `with`, errors that say "not now" are reported once, until all is
    well again. `broken`: the last block has ended in one."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.broken = False
        self._report = report

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not _passes(error):
            return False
        if error is not None and not self.broken:
            self._report(f"waiting: {error}")
        self.broken = error is not None
        return self.broken


def _passes(error: BaseException) -> bool:
    """Whether the same question may be answered later: the machine or the manager is away for now."""
    from proctor.sdk.client.errors import ManagerUnreachable, ProblemError

    away = isinstance(error, ProblemError) and error.status_code in AWAY
    return away or isinstance(error, ManagerUnreachable)


def trial_log(session: CliSession, trial_id: str, stream: str, job: int | None) -> GrowingLog:
    """What one attempt of a trial has printed; its newest one if not named."""
    client = session.client
    return GrowingLog(
        lambda start, limit: client.trial_log(trial_id, stream=stream, job=job, offset=start, limit=limit)
    )
