"""Logs as they grow: pieces by byte offset, the first or the last lines, and following one until it ends.

A trial has two, stdout and stderr, which are shown together."""

import atexit
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from proctor.manager.cli.session import CliSession
from proctor.manager.control_characters import LogFilter
from proctor.manager.lifecycle.states import TrialStatus

if TYPE_CHECKING:
    from proctor.sdk.client.logs import ReadLog

STDOUT, STDERR = "stdout", "stderr"
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

    def tail(self, lines: int) -> Iterator[bytes]:
        """Its last lines; what is before them is not read. `pieces` continues after them."""
        from proctor.sdk.client.logs import tail_pieces

        for piece in tail_pieces(self._read, lines):
            self._offset = piece.next_offset
            yield piece.data

    def head(self, lines: int) -> Iterator[bytes]:
        """Its first lines, in pieces: a line may be as long as the log."""
        for data in self.pieces():
            position = 0
            while lines and (end := data.find(b"\n", position)) >= 0:
                position = end + 1
                lines -= 1
            yield data if lines else data[:position]
            if not lines:
                return

    def selected(self, *, tail: int | None = None, head: int | None = None) -> Iterable[bytes]:
        """The first or the last lines, or what has been added since the last time."""
        if head is not None:
            return self.head(head)
        return self.pieces() if tail is None else self.tail(tail)

    def is_empty(self) -> bool:
        """Whether there is nothing in it yet."""
        return not self._read(0, 1).data

    def lines(self) -> Iterator[bytes]:
        """The same as `pieces`, by lines with their ends; the last one may have none."""
        begun: list[bytes] = []
        for data in self.pieces():
            first, *others = data.split(b"\n")
            begun.append(first)
            if others:
                yield b"".join(begun) + b"\n"
                yield from (line + b"\n" for line in others[:-1])
                begun = [others[-1]]
        if rest := b"".join(begun):
            yield rest


def print_log(log: GrowingLog, *, tail: int | None = None, head: int | None = None) -> None:
    """Print a log as far as it goes, or only its first or last lines; called again, what has been added."""
    for data in log.selected(tail=tail, head=head):
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
        print_log(log)
        time.sleep(WAIT_SECONDS)


class TrialOutput:
    """What one attempt of a trial has printed, of one stream or of both.

    The files of the two streams hold no times. What is there already is therefore printed stream by stream, each under
    its name if there is anything on stderr; what is added later is printed as it comes. Names go to stderr.
    """

    def __init__(self, session: CliSession, trial_id: str, streams: Sequence[str], job: int | None) -> None:
        self._report = session.report
        self._logs = {stream: trial_log(session, trial_id, stream, job) for stream in streams}
        self._titles: dict[str, str] = {}
        """What is still to be said before a stream is printed."""
        self._printed = ""
        """The stream that was printed last."""
        self._is_amid_line = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was printed."""
        return not self._printed

    def print_now(self, *, tail: int | None = None, head: int | None = None) -> None:
        """Print what there is, or the first or last lines of each stream."""
        is_titled = len(self._logs) > 1 and not self._logs[STDERR].is_empty()
        if is_titled:
            self._titles = {stream: f"==> {stream} <==" for stream in self._logs}
        for stream, log in self._logs.items():
            self._print(stream, log.selected(tail=tail, head=head))
        self._titles = dict.fromkeys(self._logs, "==> following both <==") if is_titled else {}

    def print_new(self) -> None:
        """Print what has been added to either stream since."""
        for stream, log in self._logs.items():
            self._print(stream, log.pieces())

    def _print(self, stream: str, pieces: Iterable[bytes]) -> None:
        for data in filter(None, pieces):
            if self._is_amid_line and stream != self._printed:
                write(b"\n")
            if title := self._titles.pop(stream, ""):
                self._report(title)
                self._titles = {other: text for other, text in self._titles.items() if text != title}
            write(data)
            self._printed, self._is_amid_line = stream, not data.endswith(b"\n")


def print_trial(
    session: CliSession,
    trial: dict[str, Any],
    streams: Sequence[str],
    *,
    job: int | None = None,
    tail: int | None = None,
    head: int | None = None,
) -> None:
    """Print what an attempt of a trial, its newest if not named, has printed so far."""
    output = TrialOutput(session, trial["id"], streams, job)
    output.print_now(tail=tail, head=head)
    if output.is_empty:
        session.report(
            f"Trial {trial['id']} has printed nothing{' to ' + streams[0] if len(streams) == 1 else ''} yet."
        )
    _point_to_stderr(session, trial, streams, job)


def follow_trial(
    session: CliSession,
    trial: dict[str, Any],
    streams: Sequence[str],
    *,
    job: int | None = None,
    tail: int | None = None,
) -> None:
    """Print a trial's log until the trial has ended; the log of a retry follows that of the attempt before.

    :param job: only this attempt, until it is over.
    :param tail: of what there is, only so many lines of each stream.
    """
    from proctor.sdk.client.events import Watch

    client, number = session.client, job or max(trial["jobs"], 1)
    output, link, is_new = TrialOutput(session, trial["id"], streams, number), Link(session.report), True
    with Watch(client.events(experiment_id=trial["experiment_id"])) as watch:
        while True:
            with link:
                trial = client.trial(trial["id"])  # before the log: what was printed until then is read below
                if trial["jobs"] and is_new:
                    output.print_now(tail=tail)
                    is_new = False
                elif trial["jobs"]:
                    output.print_new()
            if trial["jobs"] > number and job is None:
                if link.broken:
                    unread = f"proctor trial log {trial['id']} -j {number}"
                    session.report(f"Attempt {number} may have printed more; when its machine is back: {unread}")
                number = trial["jobs"]
                session.report(f"Trial {trial['id']} runs again: attempt {number}.")
                output, tail = TrialOutput(session, trial["id"], streams, number), None
            elif not link.broken and (trial["status"] in TERMINAL or trial["jobs"] > number):
                with link:
                    _point_to_stderr(session, trial, streams, job)
                return
            else:
                watch.wait(WAIT_SECONDS)  # raises if no manager answers for long


def _point_to_stderr(session: CliSession, trial: dict[str, Any], streams: Sequence[str], job: int | None) -> None:
    """What a failed trial wrote to stderr is never hidden: where it was not printed, say how to see it."""
    if STDERR in streams or trial["status"] != TrialStatus.FAILED:
        return
    if not trial_log(session, trial["id"], STDERR, job).is_empty():
        attempt = f" -j {job}" if job is not None else ""
        session.report(f"It failed and wrote to stderr, too: proctor trial log {trial['id']}{attempt} --stderr")


class Link:
    """Tolerates what passes by itself: inside of `with`, errors that say "not now" are reported once, until one
    block works again. `broken`: the last block has ended in one."""

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
