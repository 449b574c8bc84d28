"""What trials use: counted while they run and when they have ended, limited by maxGpuHours, kept over restarts."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, SettableClock, played
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.engine.loop.state import GpuTime
from proctor.manager.engine.manager import UNLIMITED, Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store.rows import TrialJobRow
from proctor.manager.store.tables import jobs
from proctor.manager.store.tables.jobs import JobUsage
from proctor.training_services.base import EndReason, TrialJobForm, TrialJobStatus
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedStart, Step

HOUR = 3600.0


def one_hour(form: TrialJobForm) -> Iterable[Step]:
    """The second trial's first attempt is lost with its node, and its processor time is not known."""
    yield ScriptedStart(0.0, "m1" if form.sequence_id % 2 == 0 else "m2")
    yield Final(HOUR, 1.0)
    if form.sequence_id == 1 and form.number == 1:
        yield ScriptedExit(reason=EndReason.NODE_LOST, code=None)
    yield ScriptedExit(cpu_seconds=1800.0)


class GpuScene(Scene):
    """Each trial uses two GPUs."""

    config = SMALL | {"trialGpuNumber": 2}

    async def used(self) -> JobUsage:
        now = self.clock.steady()
        return await self._manager.control.read(lambda c: jobs.usage_of_experiment(c, "exp", now=now))


play = partial(small_experiments.play, kind=GpuScene, script=one_hour)


@played(play)
async def test_no_trial_starts_after_the_last_gpu_hour_and_a_raised_limit_continues(
    scene: GpuScene, manager: Manager, /
) -> None:
    await scene.create(maxGpuHours=5, seconds=2.4 * HOUR)
    assert (await scene.row()).status is ExperimentStatus.RUNNING
    manager = await scene.restart()  # what trials have used that have ended counts on
    await asyncio.sleep(0.2 * HOUR)  # 2.5 hours on two GPUs, in the middle of the third trial
    row = await scene.row()
    assert (row.status, row.reason) == (ExperimentStatus.NO_MORE_TRIAL, "maxGpuHours 5 is reached")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert len(await scene.trials()) == 3
    assert (await scene.used()).gpu_seconds == pytest.approx(6 * HOUR, abs=30.0)
    await manager.update_experiment("exp", max_gpu_hours=7.0)
    assert (await scene.row()).status is ExperimentStatus.RUNNING
    assert (await scene.until_ended()).reason == "maxGpuHours 7 is reached"
    assert len(await scene.trials()) == 4
    row = await manager.update_experiment("exp", max_gpu_hours=UNLIMITED, max_trial_number=5)
    assert row.max_gpu_hours is None
    await scene.until_ended()
    assert len(await scene.trials()) == 5


@played(play)
async def test_the_hours_of_a_running_trial_count_over_a_restart(scene: GpuScene, manager: Manager, /) -> None:
    await scene.create(maxGpuHours=1, seconds=0.3 * HOUR)
    await scene.restart()
    await asyncio.sleep(0.1 * HOUR)
    assert (await scene.row()).status is ExperimentStatus.RUNNING
    assert (await scene.used()).gpu_seconds == pytest.approx(0.8 * HOUR, abs=30.0)
    await asyncio.sleep(0.15 * HOUR)
    row = await scene.row()
    assert (row.status, row.reason) == (ExperimentStatus.NO_MORE_TRIAL, "maxGpuHours 1 is reached")


@played(play)
async def test_a_limit_is_not_reached_by_setting_the_clock(scene: GpuScene, manager: Manager, /) -> None:
    await scene.create(maxGpuHours=3, maxTrialNumber=1, seconds=1.0)
    scene.clock.wrong_by = 24 * HOUR
    await manager.update_experiment("exp", trial_concurrency=2)  # a turn of the loop
    row = await manager.update_experiment("exp", max_trial_number=2)
    assert row.status is ExperimentStatus.RUNNING


@pytest.mark.parametrize("hours", [-24, 24])
@played(play)
async def test_a_limit_is_not_reached_by_setting_the_clock_before_the_manager_is_restarted(
    scene: GpuScene, manager: Manager, /, hours: int
) -> None:
    await scene.create(maxGpuHours=1, maxTrialNumber=1, seconds=0.2 * HOUR)
    scene.clock = SettableClock()  # as another process has it
    scene.clock.wrong_by = hours * HOUR
    manager = await scene.restart()
    row = await manager.update_experiment("exp", max_trial_number=2)  # a turn of the loop
    assert row.status is ExperimentStatus.RUNNING
    assert (await scene.used()).gpu_seconds == pytest.approx(0.4 * HOUR, abs=30.0)
    await asyncio.sleep(0.35 * HOUR)
    assert (await scene.row()).reason == "maxGpuHours 1 is reached"


@played(play)
async def test_processor_time_that_is_not_known_makes_the_sum_a_lower_bound(
    scene: GpuScene, manager: Manager, /
) -> None:
    await scene.create(maxTrialNumber=3, seconds=0.5 * HOUR)
    assert await scene.used() == JobUsage(pytest.approx(HOUR, abs=30.0), 0.0, 1)
    await scene.until_ended()
    now = manager.clock.now()
    by_node = await manager.control.read(lambda c: jobs.usage_by_node(c, now=now))
    assert by_node == {
        "m1": JobUsage(pytest.approx(4 * HOUR, abs=30.0), 3600.0, 0),
        "m2": JobUsage(pytest.approx(2 * HOUR, abs=30.0), 0.0, 1),
    }
    assert await scene.used() == by_node["m1"] + by_node["m2"]


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1 / 3, 0.5, 1.0, 8.0]), st.floats(0, 1e4), st.floats(0, 1e4), st.booleans()),
        max_size=20,
    ),
    st.floats(0, 600),
)
def test_gpu_time_is_the_sum_over_all_jobs(found: list[tuple[float, float, float, bool]], later: float) -> None:
    now, counted, total, lately = 2e4 + later, GpuTime(17.0), 17.0, 0.0
    minute = now // 60 * 60
    for number, (gpus, start, length, has_ended) in enumerate(found):
        job = TrialJobRow(f"t{number}.1", f"t{number}", "e", 1, "", TrialJobStatus.RUNNING, 0, {}, counted_gpus=gpus)
        counted.start(job, start)
        counted.start(job, start + 1.0)  # heard twice
        end = start + length if has_ended else now
        if has_ended:
            counted.end(replace(job, started_at=start, ended_at=end), end)
        total += gpus * (end - start)
        lately += gpus * max(min(end, minute) - max(start, minute - HOUR), 0.0)
    assert counted.seconds(now) == pytest.approx(total, abs=1e-3)
    assert counted.in_last_hour(now) == pytest.approx(lately, abs=1e-3)
    assert counted.in_last_hour(minute) == counted.in_last_hour(minute + 59.0)


@played(play)
async def test_what_was_used_lately_counts_over_a_restart(scene: GpuScene, manager: Manager, /) -> None:
    await scene.run(maxTrialNumber=1)
    manager = await scene.restart()
    recent = await manager.control.read(lambda c: jobs.recent_gpu_jobs(c, "exp"))
    counted, now = GpuTime(lately=recent), manager.clock.now()
    counted.count_lately(now=now, monotonic=1e6)
    assert counted.in_last_hour(1e6) == pytest.approx(2 * HOUR, abs=400.0)
    assert counted.in_last_hour(1e6 + HOUR / 2) == pytest.approx(HOUR, abs=400.0)
    assert counted.in_last_hour(1e6 + 2 * HOUR) == 0.0
