"""Whether a dispatcher that says nothing is at work, suspended or stuck: judged from its answers and processor time.

A dispatcher answers pings at once, whatever its algorithms do: only a process that cannot run Python at all does not.
There are three kinds of those. One is suspended (SIGSTOP, a debugger) or deadlocked: it will never answer and is
started again. One computes in native code that holds the interpreter (a large linear algebra, say): it will answer,
and must not be shot, or it would be shot at the same place forever. One is still being loaded from a slow disk.
"""

from dataclasses import dataclass
from enum import StrEnum

BUSY_SHARE = 0.1
"""Of one processor: who uses more, computes. A thread that waits in vain for the interpreter looks every 5 ms and uses
a fiftieth; a dispatcher has four threads at most. On a crowded machine one check in `idle_seconds` is enough."""

LATE = 2.0
"""A check that comes later than this many intervals says that the manager was away itself: suspended, or its loop was
held up. That time is not the dispatcher's, whose answer may have lain there unread."""


@dataclass(frozen=True)
class Patience:
    """How long a dispatcher may leave a ping unanswered, in seconds in which the manager was awake."""

    idle_seconds: float = 60.0
    """One that does not compute either. Longer than a session with a debugger takes, or than a machine that swaps
    needs to recover; short enough that it is not a riddle for long why nothing runs."""

    @property
    def poll_seconds(self) -> float:
        """Between two checks, and so between an answer and the next ping."""
        return max(0.25, self.idle_seconds / 12)

    @property
    def start_seconds(self) -> float:
        """One that has never said anything: interpreter and modules may come from a slow disk."""
        return 5 * self.idle_seconds

    @property
    def busy_seconds(self) -> float:
        """One that computes: after that long it is not computing, it runs in a circle."""
        return 30 * self.idle_seconds


@dataclass(frozen=True)
class ProcessStats:
    """What the system says of a process; `processor_seconds` used so far, None where that is unknown."""

    processor_seconds: float | None
    suspended: bool = False


class Liveness(StrEnum):
    """What a check has found."""

    WELL = "WELL"  # nothing, or nothing new
    BUSY = "BUSY"  # it has been silent for long, but computes; said once per silence
    LOST = "LOST"  # it will never answer again


class LivenessMonitor:
    """One dispatcher's signs of life. Times are arguments; nothing is waited for here."""

    def __init__(self, patience: Patience, now: float, process_stats: ProcessStats) -> None:
        self._patience = patience
        self._polled_at = now
        self._stats = process_stats  # at the last check
        self._received = False
        self._answers = False  # something was received at least once
        self._silent = 0.0
        self._still = 0.0  # of that: since it has computed last
        self._reported = False

    def beat(self) -> None:
        """Something was received from it."""
        self._received = self._answers = True

    def check(self, now: float, process_stats: ProcessStats) -> Liveness:
        """Judge the time since the last check."""
        elapsed, self._polled_at = now - self._polled_at, now
        worked = self._has_worked(process_stats, elapsed)
        self._stats = process_stats
        if self._received:
            self._received = self._reported = False
            self._silent = self._still = 0.0
            return Liveness.WELL
        if elapsed <= LATE * self._patience.poll_seconds:
            self._silent += elapsed
            self._still = 0.0 if worked else self._still + elapsed
        return self._judge()

    @property
    def problem(self) -> str:
        """A clause about a dispatcher that has been silent for more than a moment, or ''."""
        if self._silent < self._patience.idle_seconds / 4:
            return ""
        return f"the dispatcher has not answered for {self._silent:.0f} s{self._cause()}"

    def _has_worked(self, process_stats: ProcessStats, elapsed: float) -> bool:
        """Whether it computes, as far as that can be seen."""
        used, before = process_stats.processor_seconds, self._stats.processor_seconds
        return used is None or before is None or used - before >= BUSY_SHARE * elapsed

    def _judge(self) -> Liveness:
        patience = self._patience
        allowed = patience.idle_seconds if self._answers else patience.start_seconds
        if self._still >= allowed or self._silent >= patience.busy_seconds:
            return Liveness.LOST
        if self._silent >= patience.idle_seconds and not self._reported:
            self._reported = True
            return Liveness.BUSY
        return Liveness.WELL

    def _cause(self) -> str:
        if self._stats.suspended:
            return ": it is suspended (by SIGSTOP or a debugger)"
        if not self._answers:
            return ": it is still being loaded"
        return (
            ": it is neither computing nor exiting"
            if self._still
            else ": it is running code that blocks everything else"
        )
