"""Where the manager's time comes from: nothing else reads the clock, so a virtual one can be put in its place."""

import asyncio
import time
from abc import ABC, abstractmethod

from proctor.sdk.protocol import boot_time, read_moment, write_moment


class Clock(ABC):
    """Wall-clock time for records, monotonic time for waits; both in seconds."""

    _steady_offset: float | None = None

    @abstractmethod
    def now(self) -> float:
        """Unix time."""

    @abstractmethod
    def monotonic(self) -> float:
        """A time that never goes back, on the scale of the event loop's `time()`."""

    def steady(self) -> float:
        """Unix time that goes as the monotonic time does: right when it is first asked for, and not set afterwards. For
        how long something has waited, where people are shown since when."""
        if self._steady_offset is None:
            self._steady_offset = self.now() - self.monotonic()
        return self._steady_offset + self.monotonic()

    def moment(self, seconds_ago: float) -> str:
        """The moment so many seconds ago, as a text that a later manager on this machine can read."""
        return str(self.monotonic() - seconds_ago)

    def seconds_since(self, moment: str) -> float | None:
        """How long ago that was, at least 0, however the clock was set; None after a restart of the machine."""
        return max(self.monotonic() - float(moment), 0.0)


class SystemClock(Clock):
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def moment(self, seconds_ago: float) -> str:
        return write_moment(boot_time() - seconds_ago)

    def seconds_since(self, moment: str) -> float | None:
        at = read_moment(moment)
        return None if at is None else max(boot_time() - at, 0.0)


class LoopClock(Clock):
    """The running event loop's time, as Unix time from `epoch`; under a virtual-time loop, virtual time."""

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()
