"""Densities of curves that are kept: to count one takes seconds, and a chart asks again with every change."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from weakref import WeakValueDictionary


@dataclass(frozen=True)
class Density:
    """A density of curves, ready to be sent: while it is that of `tag`, and afterwards. `counted_at` is a time of
    `time.monotonic`; `seconds`: how long it took."""

    tag: str
    current: bytes
    older: bytes
    counted_at: float
    seconds: float


class Densities:
    """The densities that were asked for last. One is counted again once its curves have changed, and its age is
    `REST_FACTOR` times what it took; those who ask for the same meanwhile wait together."""

    REST_FACTOR = 10.0
    MOST = 16

    def __init__(self) -> None:
        self._kept: dict[Hashable, Density] = {}
        self._counting: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()  # while someone waits

    async def get(self, subject: Hashable, tag: str, count: Callable[[], Awaitable[Density]]) -> Density:
        """The density of the curves of `tag`, or one that is somewhat older."""
        lock = self._counting.setdefault(subject, asyncio.Lock())
        async with lock:
            found = self._kept.get(subject)
            if found is None or (found.tag != tag and time.monotonic() >= self._due(found)):
                found = await count()
            self._kept.pop(subject, None)
            self._kept[subject] = found
            while len(self._kept) > self.MOST:
                del self._kept[next(iter(self._kept))]
        return found

    def _due(self, density: Density) -> float:
        return density.counted_at + self.REST_FACTOR * density.seconds
