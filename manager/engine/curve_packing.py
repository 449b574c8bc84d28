"""Packing curves in the background: those of trials that end, and of experiments whose curves are looked at.

A curve that is not packed is read from its rows, which costs more and gives the same. So nothing waits for this, and
what fails is tried again when the curves are read the next time.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import ManagerError
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.errors import StoreError
from proctor.manager.store.tables import curves, events, trials
from proctor.manager.store.tables.curves import PackedCurve

log = logging.getLogger(__name__)

GATHER_SECONDS = 2.0
"""In which the ends of trials are collected, and late reports of theirs arrive."""
PAUSE_SECONDS = 0.05
"""Between two pieces, so that others are served."""
PIECE = 20
"""Trials that are packed and stored together: some milliseconds for curves of 100 points."""
FILL_INTERVAL_SECONDS = 30.0
"""Between two looks for what is not packed in one experiment."""
_EVENTS_AT_ONCE = 2_000
_WAIT_SECONDS = 60.0


async def pack_curves_forever(manager: Manager) -> None:
    """Pack until canceled."""
    packing = _Packing(manager)
    while True:
        await manager.feed.wait(_WAIT_SECONDS)
        await asyncio.sleep(GATHER_SECONDS)
        try:
            await packing.pack_ended()
            await packing.fill()
        except StoreError as error:
            log.debug("curves are not packed for now: %s", error, extra={"action": "curves.pack"})
        except Exception:  # nothing depends on it: charts read the rows
            log.exception("curves could not be packed; charts read their rows", extra={"action": "curves.pack"})


class _Packing:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._after: int | None = None  # the event up to which ends are dealt with
        self._filled: dict[str, float] = {}  # when experiments were looked through, by time.monotonic

    async def pack_ended(self) -> None:
        """The curves of trials that have ended since the last time. The first time only remembers where that was."""
        control = self._manager.control
        if self._after is None:
            self._after = await control.read(events.last_id)
            return
        while rows := await control.read(lambda c: events.after(c, self._after or 0, limit=_EVENTS_AT_ONCE)):
            self._after = rows[-1].id
            ended: dict[str, dict[str, None]] = {}
            for row in rows:
                if (
                    row.kind == events.TRIAL_STATUS
                    and row.experiment_id
                    and row.trial_id
                    and _is_end(row.data["status"])
                ):
                    ended.setdefault(row.experiment_id, {})[row.trial_id] = None
            for experiment_id, trial_ids in ended.items():
                await self._pack(experiment_id, list(trial_ids), is_watched=False)
            if len(rows) < _EVENTS_AT_ONCE:
                break

    async def fill(self) -> None:
        """What is not packed in experiments whose curves were read."""
        watched = self._manager.watched_curves.copy()
        self._manager.watched_curves.clear()
        for experiment_id in watched:
            if time.monotonic() - self._filled.get(experiment_id, float("-inf")) < FILL_INTERVAL_SECONDS:
                continue
            self._filled[experiment_id] = time.monotonic()
            try:
                member = (await self._manager.experiment(experiment_id)).report_from
                database = await self._manager.metrics(experiment_id)
                missing = await self._manager.read_heavy(database, partial(curves.unpacked, member=member))
            except ManagerError:  # it was deleted meanwhile
                self._filled.pop(experiment_id, None)
                continue
            live = await self._manager.control.read(partial(_live_ids, experiment_id=experiment_id))
            await self._pack(experiment_id, [each for each in missing if each not in live], is_watched=True)

    async def _pack(self, experiment_id: str, trial_ids: Sequence[str], *, is_watched: bool) -> None:
        remaining = iter(trial_ids)
        try:
            member = (await self._manager.experiment(experiment_id)).report_from
            while piece := list(islice(remaining, PIECE)):
                database = await self._manager.metrics(experiment_id)
                read = partial(curves.pack_some, trial_ids=piece, member=member)
                packed = await (self._manager.read_heavy(database, read) if is_watched else database.read(read))
                if packed:
                    await database.write(partial(_store, packed=packed, member=member))
                    await asyncio.sleep(PAUSE_SECONDS)
        except ManagerError as error:  # it was deleted meanwhile
            log.debug("curves are not packed: %s", error, extra={"action": "curves.pack"})


def _is_end(status: str) -> bool:
    return TrialStatus(status).is_terminal


def _live_ids(connection: sqlite3.Connection, experiment_id: str) -> set[str]:
    return {row.id for row in trials.live(connection, experiment_id)}


def _store(connection: sqlite3.Connection, packed: Sequence[PackedCurve], member: int) -> None:
    for curve in packed:
        curves.store(connection, curve, member=member)
