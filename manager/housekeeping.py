"""Once in a while old events go, a few at a time, so that the control database does not grow for ever.

Nobody needs them: what is true is in the tables, an event only says when to look. Whoever asks for events that are gone
is told to read everything again. What people are shown of them stays: each experiment's newest notices. What is
counted from them (Prometheus) is counted before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from proctor.manager.store import events
from proctor.manager.store.database import Database
from proctor.manager.store.errors import StoreError

log = logging.getLogger(__name__)

KEPT_EVENTS = 100_000
"""The newest ones stay: some 20 MB, and more than a client misses that comes back after a night."""
INTERVAL_SECONDS = 600.0
BATCH = 1_000
"""Ids that go in one transaction, which takes milliseconds: nobody's commit waits for longer."""
PAUSE_SECONDS = 0.25
"""Between two batches, so that others are served; still faster than events can be written for long."""


async def keep_events_few(
    control: Database, count: Callable[[], Awaitable[None]], *, keep: int = KEPT_EVENTS, batch: int = BATCH
) -> None:
    """Prune until cancelled. `count` is awaited before events go."""
    while True:
        try:
            await count()
        except StoreError as error:  # what is not counted is no reason to let the database grow
            log.warning("old events go uncounted: %s", error, extra={"action": "events.prune"})
        try:
            await _prune(control, keep, batch)
        except StoreError as error:
            log.warning("old events stay for now: %s", error, extra={"action": "events.prune"})
        await asyncio.sleep(INTERVAL_SECONDS)


async def _prune(control: Database, keep: int, batch: int) -> None:
    there_are_more = True
    while there_are_more:
        there_are_more = await control.write(lambda c: events.prune(c, keep, limit=batch))
        await asyncio.sleep(PAUSE_SECONDS)
