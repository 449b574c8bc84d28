"""Where the manager's time comes from: nothing else reads the clock, so a virtual one can be put in its place."""

import asyncio
import time
from abc import ABC, abstractmethod


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


class SystemClock(Clock):
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class LoopClock(Clock):
    """The running event loop's time, as Unix time from `epoch`; under a virtual-time loop, virtual time."""

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()
