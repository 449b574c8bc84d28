"""Old events go while the manager runs, under virtual time."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

from fakes.small_experiments import played

from proctor.manager.events import INTERVAL_SECONDS, PAUSE_SECONDS, prune_events_forever
from proctor.manager.metrics import Measurements
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.database import Database
from proctor.manager.store.errors import ReadTimeout
from proctor.manager.store.tables import events


def append(connection: sqlite3.Connection, number: int) -> None:
    for _ in range(number):
        events.append(connection, time=1.0, kind=events.TRIAL_STATUS, data={}, experiment_id="a")


def count(connection: sqlite3.Connection) -> int:
    return len(events.after(connection, 0, limit=100_000))


async def nothing() -> None:
    """Nothing is counted."""


def play(
    tmp_path: Path,
    scenario: Callable[[Database], Awaitable[None]],
    *,
    counting: Callable[[Database], Awaitable[None]] = lambda control: nothing(),
) -> None:
    """Run a scenario beside the housekeeping; 300 events are kept, 50 go at a time."""

    async def main(loop: VirtualTimeLoop) -> None:
        async with (
            await Database.open(
                str(tmp_path / "control.db"), "control", on_pending=loop.pending, threads=False
            ) as control,
            asyncio.TaskGroup() as group,
        ):
            await control.write(lambda c: append(c, 1000))
            keeping = group.create_task(prune_events_forever(control, lambda: counting(control), keep=300, batch=50))
            await scenario(control)
            keeping.cancel()

    run_virtual(main)


@played(play)
async def test_the_newest_events_stay_and_the_others_go_again_and_again(control: Database, /) -> None:
    for _ in range(5):
        await asyncio.sleep(INTERVAL_SECONDS / 2)
        assert await control.read(count) == 300
        await control.write(lambda c: append(c, 500))
        await asyncio.sleep(INTERVAL_SECONDS / 2)


@played(play)
async def test_others_are_served_between_two_small_batches(control: Database, /) -> None:
    seen = [1000]
    while seen[-1] > 300:
        await asyncio.sleep(PAUSE_SECONDS / 2)
        seen.append(await control.read(count))
    assert max(before - after for before, after in pairwise(seen)) == 50


def test_events_are_counted_before_they_go_even_if_counting_fails(tmp_path: Path) -> None:
    counted: list[int] = []

    async def counting(control: Database) -> None:
        counted.append(await control.read(count))
        if len(counted) == 2:
            raise ReadTimeout("too many")

    async def scenario(control: Database) -> None:
        for _ in range(3):
            await asyncio.sleep(INTERVAL_SECONDS / 2)
            await control.write(lambda c: append(c, 100))
            await asyncio.sleep(INTERVAL_SECONDS / 2)
        await asyncio.sleep(INTERVAL_SECONDS / 2)

    play(tmp_path, scenario, counting=counting)
    assert counted == [1000, 400, 400, 400]


def test_starts_are_counted_before_pruning_once_somebody_asks_for_them(tmp_path: Path) -> None:
    measurements = Measurements()

    async def scenario(control: Database) -> None:
        await asyncio.sleep(INTERVAL_SECONDS / 2)
        assert measurements.seen_event is None
        await measurements.count_new_starts(control)
        assert measurements.seen_event == 1000
        await control.write(lambda c: append(c, 1000))
        await asyncio.sleep(INTERVAL_SECONDS)
        assert measurements.seen_event == 2000

    play(tmp_path, scenario, counting=measurements.count_before_pruning)
