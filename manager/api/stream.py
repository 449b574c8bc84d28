"""The stream of changes as server-sent events.

A reader holds no queue: it has a cursor, reads the store from there, sends, waits for the feed's next change. A slow
client costs one page of events; a client that comes back with `Last-Event-ID` continues exactly there.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from proctor.manager.actors import Actor
from proctor.manager.api.json_types import json_to_wire, rfc3339, utc
from proctor.manager.events import ChangeFeed
from proctor.manager.store.database import Database
from proctor.manager.store.rows import EventRow
from proctor.manager.store.tables import events

PAGE = 500
MAX_READERS = 100
"""Each reads the store at every change."""
PING_SECONDS = 15.0
QUIET_SECONDS = 0.25
"""After a page of nothing but metrics the reader rests this long, so that fast reporters do not wake it for each."""


@dataclass(frozen=True)
class Stretch:
    """Some events in order, and the cursor after them; `missed`: some that were asked for are gone."""

    rows: list[EventRow]
    cursor: int
    missed: bool = False


async def read_stretch(control: Database, cursor: int, experiment_id: str | None, limit: int = PAGE) -> Stretch:
    """The next events after `cursor`. The cursor also passes events that the filter leaves out; one that this store has
    never reached is of another (or of a later copy of this one), whose reader has missed all of ours."""

    def read(connection: object) -> Stretch:
        last = events.last_id(connection)  # type: ignore[arg-type]
        missed = not events.pruned_to(connection) <= cursor <= last  # type: ignore[arg-type]
        rows = events.after(connection, cursor, experiment_id=experiment_id, limit=limit)  # type: ignore[arg-type]
        return Stretch(rows, rows[-1].id if len(rows) == limit else last, missed)

    return await control.read(read)


async def server_sent_events(
    control: Database,
    feed: ChangeFeed,
    closing: asyncio.Event,
    *,
    after: int | None,
    experiment_id: str | None,
    revoked: asyncio.Event | None = None,
) -> AsyncIterator[bytes]:
    """Everything after the event `after` (None: from now on), until the client goes, the manager closes, or the token
    is `revoked`."""
    endings = (closing,) if revoked is None else (closing, revoked)
    cursor = await control.read(events.last_id) if after is None else after
    yield f"retry: 1000\n: from {cursor}\n\n".encode()
    while not any(ending.is_set() for ending in endings):
        changed = feed.next_change()
        stretch = await read_stretch(control, cursor, experiment_id)
        if any(ending.is_set() for ending in endings):
            return
        cursor = stretch.cursor
        if stretch.missed:
            yield message("reset", {"detail": "older events are no longer available; read everything again"}, cursor)
        if stretch.rows:
            yield b"".join(map(_event, stretch.rows))
            if len(stretch.rows) < PAGE and all(row.kind == events.METRICS for row in stretch.rows):
                await wait_for_any(QUIET_SECONDS, *endings)
        elif not await wait_for_any(PING_SECONDS, changed, *endings):
            yield b": ping\n\n"


def message(kind: str, data: object, event_id: int) -> bytes:
    """One server-sent event."""
    return f"id: {event_id}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _event(row: EventRow) -> bytes:
    body = {
        "id": row.id,
        "time": rfc3339(utc(row.time)),
        "experiment_id": row.experiment_id,
        "trial_id": row.trial_id,
        "job_id": row.job_id,
        "kind": row.kind,
        "data": json_to_wire(row.data),
        "actor": None if row.actor is None else Actor.from_text(row.actor).to_json(),
    }
    return message(row.kind, body, row.id)


async def wait_for_any(seconds: float, *waited: asyncio.Event) -> bool:
    """Whether one of them was set within the time."""
    if any(event.is_set() for event in waited):
        return True
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait(), name="wait for a change") for event in waited]
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    return bool(done)
