"""The changes of everything: notifying those who wait for them, and removing old ones.

The changes themselves are in the store's `events` table, read by id. Once in a while old events are removed, a few at a
time, so that the control database does not grow forever. They are not needed: what is true is in the tables, an event
only says when to look. A client that asks for events that are gone reads everything again. What people are shown of
them stays: each experiment's newest notices. What is counted from them (Prometheus) is counted before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from proctor.manager.store.database import Database
from proctor.manager.store.errors import StoreError
from proctor.manager.store.tables import events

log = logging.getLogger(__name__)

KEPT_EVENTS = 100_000
"""The newest ones stay: some 20 MB, and more than a client misses that comes back after a night."""
INTERVAL_SECONDS = 600.0
BATCH = 1_000
"""Ids that go in one transaction, which takes milliseconds: no commit waits for longer."""
PAUSE_SECONDS = 0.25
"""Between two batches, so that others are served; still faster than events can be written for long."""


class ChangeFeed:
    """Wakes the readers that wait for new rows in `events`. It carries no data, so a slow reader costs nothing."""

    def __init__(self) -> None:
        self._change = asyncio.Event()

    def notify(self) -> None:
        """A transaction that wrote events was committed."""
        self._change.set()
        self._change = asyncio.Event()

    async def wait(self, timeout_seconds: float) -> None:
        """Return after the next `notify`, or when the time is over. Read the store after it, not before it only."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._change.wait()

    def next_change(self) -> asyncio.Event:
        """The event of the next change: take it, read the store, then wait on it: nothing slips through."""
        return self._change


async def prune_events_forever(
    control: Database, count: Callable[[], Awaitable[None]], *, keep: int = KEPT_EVENTS, batch: int = BATCH
) -> None:
    """Prune until canceled. `count` is awaited before events go."""
    while True:
        try:
            await count()
        except StoreError as error:  # what is not counted is no reason to let the database grow
            log.warning("old events are deleted without being counted: %s", error, extra={"action": "events.prune"})
        try:
            await _prune(control, keep, batch)
        except StoreError as error:
            log.warning("old events are kept for now: %s", error, extra={"action": "events.prune"})
        await asyncio.sleep(INTERVAL_SECONDS)


async def _prune(control: Database, keep: int, batch: int) -> None:
    there_are_more = True
    while there_are_more:
        there_are_more = await control.write(lambda c: events.prune(c, keep, limit=batch))
        await asyncio.sleep(PAUSE_SECONDS)
