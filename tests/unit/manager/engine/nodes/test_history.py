"""How busy nodes were: sampled, written once a minute, read back after a restart, bounded."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proctor.manager.clock import Clock
from proctor.manager.engine.nodes.history import NodeHistory, PastHolding, thin_out, with_slots
from proctor.manager.store.database import Database
from proctor.manager.store.rows import NodeRow, TrialJobRow
from proctor.manager.store.tables import nodes
from proctor.manager.store.tables.nodes import KEPT_MINUTES, GpuSample, NodeSample
from proctor.training_services.base import TrialJobStatus
from proctor.training_services.errors import UnknownNode
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.protocol import Device, SystemLoad

pytestmark = pytest.mark.anyio

START = 1_764_000_000.0


class SetClock(Clock):
    """Shows the time that it was set to."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def connected_pool() -> NodePool:
    pool = NodePool()
    pool.add("gpu-1", "remote")
    device = Device(0, "GPU-a", "H100", 81559, 4000, 90)
    pool.connect("gpu-1", [device], driver_note="", hostname="h", version="1", seen_at=START)
    pool.update("gpu-1", START, system=SystemLoad(1.5, 8, 2000, 16000))
    return pool


async def test_samples_of_full_minutes_survive_a_restart_and_each_is_written_once(tmp_path: Path) -> None:
    clock = SetClock()
    pool = connected_pool()
    async with await Database.open(str(tmp_path / "control.db"), "control") as control:
        history = NodeHistory(pool, control, clock)
        before = control.commits
        for _ in range(13):  # two minutes and 10 seconds
            history.sample()
            await history.write_full_minutes()
            clock.time += 10
        assert control.commits - before == 2
        found = await history.read("gpu-1", since=START, until=clock.now(), limit=10)
        assert [s.time - START for s in found.samples] == [10 * n for n in range(13)]
        assert found.samples[0] == NodeSample(START, 1.5, 2000, (GpuSample("GPU-a", 90, 4000),))

    async with await Database.open(str(tmp_path / "control.db"), "control") as control:
        history = NodeHistory(NodePool(), control, clock)
        with pytest.raises(UnknownNode):
            await history.read("gpu-1", since=START, until=clock.now(), limit=10)  # it was never written down
        await control.write(lambda c: nodes.upsert(c, NodeRow("gpu-1", "remote", "RELEASED")))
        found = await history.read("gpu-1", since=START, until=clock.now(), limit=10)
        assert len(found.samples) == 12


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(str(tmp_path / "control.db"), "control") as control:
        yield control


async def test_no_more_than_a_day_of_samples_is_kept(control: Database) -> None:
    for minute in range(0, 3 * KEPT_MINUTES, 97):
        sample = NodeSample(START + 60 * minute, 1.0, 1)
        await control.write(lambda c, s=sample: nodes.write_samples(c, "n", [s]))  # type: ignore[misc]
    count = "SELECT count(*), min(minute), max(minute) FROM node_samples"
    rows, first, last = await control.read(lambda c: c.execute(count).fetchone())
    assert last - first < KEPT_MINUTES
    assert rows == len(range(0, last - first + 1, 97))
    await control.write(lambda c: nodes.delete_old_samples(c, now=START + 60 * 10 * KEPT_MINUTES))
    assert (await control.read(lambda c: c.execute(count).fetchone()))[0] == 0


async def test_samples_of_a_node_that_is_gone_are_deleted_while_the_manager_runs(control: Database) -> None:
    clock = SetClock()
    history = NodeHistory(NodePool(), control, clock)
    await history.delete_old()
    await control.write(lambda c: nodes.write_samples(c, "gone", [NodeSample(START, 1.0, 1)]))
    before = control.commits
    await history.delete_old()
    assert control.commits == before
    clock.time += (KEPT_MINUTES + 1) * 60
    await history.delete_old()
    assert await control.read(lambda c: c.execute("SELECT count(*) FROM node_samples").fetchone()) == (0,)


async def test_a_node_that_is_not_connected_is_not_sampled(control: Database) -> None:
    pool = NodePool()
    pool.add("gpu-1", "remote")
    history = NodeHistory(pool, control, SetClock())
    history.sample()
    assert (await history.read("gpu-1", since=0, until=START + 1, limit=1)).samples == []


def job(name: str, started: float, ended: float | None, gpus: list[str] | None = None) -> PastHolding:
    row = TrialJobRow(
        id=name,
        trial_id=name,
        experiment_id="e",
        number=1,
        token="t",
        status=TrialJobStatus.RUNNING,
        parameter_id=0,
        parameters={},
        started_at=started,
        ended_at=ended,
    )
    return PastHolding(row, 0, None if gpus is None else tuple(gpus))


def test_jobs_without_a_gpu_have_places_that_they_share_with_no_other_job_at_the_time() -> None:
    holdings = [job("c", 2, None), job("a", 0, 2), job("g", 0, 9, ["GPU-a"]), job("b", 1, 3), job("d", 2.5, 4, [])]
    assert [(each.job.id, each.slot) for each in with_slots(holdings)] == [
        ("a", 0),
        ("g", None),
        ("b", 1),
        ("c", 0),
        ("d", 2),
    ]


def test_many_samples_become_means_of_equal_stretches() -> None:
    samples = [NodeSample(float(n), float(n), None, (GpuSample("a", n % 2 * 100, n),)) for n in range(100)]
    thinned = thin_out(samples, 10, since=0, until=100)
    assert len(thinned) == 10
    assert thinned[0].load == 4.5
    assert thinned[0].memory_used_mb is None
    assert thinned[0].gpus[0].utilization == 50
