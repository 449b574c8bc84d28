"""What the routes work with, put into the application's state by the composition root. Free of the web framework.

One part of it are the densities of curves: to count one takes seconds, and a chart asks again with every change, so
they are kept.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from proctor.manager.engine.manager import Manager
from proctor.manager.metrics import Measurements
from proctor.manager.named_tokens import NamedTokens
from proctor.manager.settings import Home
from proctor.sdk.json_input import clean_text


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


@dataclass
class ApiContext:
    """The manager, and what the API knows about the process around it."""

    manager: Manager
    home: Home
    named_tokens: NamedTokens
    public_url: str
    """Scheme, host, port and prefix under which people reach the page; no slash at the end."""
    started_at: float
    """Unix time."""
    request_shutdown: Callable[[], None]
    """Ask the process to end in good order."""
    measurements: Measurements = field(default_factory=Measurements)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is about to end: requests that are held open end."""
    stream_readers: int = 0
    """How many clients read the stream of changes."""
    densities: Densities = field(default_factory=Densities)
    """What charts of all curves show."""
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Held by those that search logs: each occupies a thread, and the disk."""


def health_of(context: ApiContext) -> dict[str, str]:
    """Whether the manager is healthy, and what is wrong if it is not."""
    problem = clean_text(context.manager.problem)
    return {"status": "degraded" if problem else "ok", "reason": problem}
