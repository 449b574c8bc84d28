"""Curves are packed in the background: when trials end, and once they are looked at."""

import asyncio
from typing import Any

import pytest

from proctor.manager.engine import curve_packing
from proctor.manager.engine.curve_packing import _Packing, pack_curves_forever
from proctor.manager.store.tables import curves

pytestmark = pytest.mark.anyio


async def ended(api: Any) -> tuple[str, list[str]]:
    """An experiment that is over, and the ids of its trials."""
    ran = await api.ran()
    found = ran.trials
    return ran.id, [trial["id"] for trial in found]


async def packed(api: Any, experiment_id: str) -> list[str]:
    database = await api.manager.metrics(experiment_id)
    rows = await database.read(lambda c: c.execute("SELECT trial_id FROM packed_curves").fetchall())
    return sorted(trial_id for (trial_id,) in rows)


async def test_the_curves_of_trials_that_end_are_packed(api: Any) -> None:
    packing = _Packing(api.manager)
    points = list(range(curves.FEWEST_POINTS))
    earlier, before = await ended(api)
    await api.report(earlier, before[0], points)
    await packing.pack_ended()  # remembers where it begins
    experiment_id, ids = await ended(api)
    for trial_id in ids[:2]:
        await api.report(experiment_id, trial_id, points)
    await packing.pack_ended()
    assert await packed(api, experiment_id) == sorted(ids[:2])
    assert await packed(api, earlier) == []


async def test_curves_that_are_looked_at_are_packed_but_those_of_few_points(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve_packing, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(curve_packing, "_WAIT_SECONDS", 0.01)
    experiment_id, ids = await ended(api)
    await api.report(experiment_id, ids[0], list(range(curves.FEWEST_POINTS)))
    assert await packed(api, experiment_id) == []
    before = (await api.client.get(f"/api/v1/experiments/{experiment_id}/curves")).content
    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        running = group.create_task(pack_curves_forever(api.manager))
        while not await packed(api, experiment_id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running.cancel()
    assert await packed(api, experiment_id) == ids[:1]
    assert (await api.client.get(f"/api/v1/experiments/{experiment_id}/curves?x=step")).content == before


async def test_a_curve_that_cannot_be_packed_ends_nothing(
    api: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(curve_packing, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(curve_packing, "_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(curve_packing, "FILL_INTERVAL_SECONDS", 0.0)
    pack_some = curves.pack_some
    monkeypatch.setattr(curves, "pack_some", lambda *_, **__: [][0])
    experiment_id, ids = await ended(api)
    await api.report(experiment_id, ids[0], list(range(curves.FEWEST_POINTS)))
    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        running = group.create_task(pack_curves_forever(api.manager))
        api.manager.watched_curves.add(experiment_id)
        while "curves could not be packed" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        monkeypatch.setattr(curves, "pack_some", pack_some)
        api.manager.watched_curves.add(experiment_id)
        while not await packed(api, experiment_id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running.cancel()
    assert await packed(api, experiment_id) == ids[:1]


async def test_keys_that_are_not_packed_are_read_from_the_rows(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST_KEYS", 1)
    experiment_id, ids = await ended(api)
    await api.report(experiment_id, ids[0], [{"default": n, "loss": n / 2} for n in range(curves.FEWEST_POINTS)])
    database = await api.manager.metrics(experiment_id)

    async def read(key: str) -> Any:
        return await database.read(lambda c: curves.read_one(c, ids[0], member=0, key=key))

    before = [await read(key) for key in ("default", "loss")]
    [found] = await database.read(lambda c: curves.pack_some(c, ids[:1], member=0))
    assert len(found.keys) == 1
    await database.write(lambda c: curves.store(c, found, member=0))
    assert [await read(key) for key in ("default", "loss")] == before
