"""What trials use: counted while they run and when they have ended, limited by maxGpuHours, kept over restarts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.settable_clock import SettableClock
from fakes.small_experiments import played
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.engine.loop.state import GpuTime
from proctor.manager.engine.manager import UNLIMITED, Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialJobRow
from proctor.manager.store.tables import jobs, trials
from proctor.manager.store.tables.jobs import JobUsage
from proctor.training_services.base import EndReason, TrialJobForm, TrialJobStatus
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedStart, Step

Scenario = Callable[[Simulation, Manager], Awaitable[None]]
HOUR = 3600.0


def one_hour(form: TrialJobForm) -> Iterable[Step]:
    """The second trial's first attempt is lost with its node, and its processor time is not known."""
    yield ScriptedStart(0.0, "m1" if form.sequence_id % 2 == 0 else "m2")
    yield Final(HOUR, 1.0)
    if form.sequence_id == 1 and form.number == 1:
        yield ScriptedExit(reason=EndReason.NODE_LOST, code=None)
    yield ScriptedExit(cpu_seconds=1800.0)


def play(tmp_path: Path, *scenarios: Scenario) -> None:
    """Each scenario with a manager of its own, on one home: between them the manager is restarted."""

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=one_hour)
        simulation.clock = SettableClock()
        for scenario in scenarios:
            async with simulation.manager() as manager:
                await scenario(simulation, manager)

    run_virtual(main)


async def create(manager: Manager, tmp_path: Path, **changes: Any) -> str:
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 1,
        "trialGpuNumber": 2,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }
    row = await manager.create_experiment(config=config, directory=str(tmp_path))
    await asyncio.sleep(1.0)
    return row.id


async def used(manager: Manager, experiment_id: str) -> JobUsage:
    now = manager.clock.now()
    return await manager.control.read(lambda c: jobs.usage_of_experiment(c, experiment_id, now=now))


async def count(manager: Manager, experiment_id: str) -> int:
    return sum((await manager.control.read(lambda c: trials.counts(c, experiment_id))).values())


@played(play)
async def test_no_trial_starts_after_the_last_gpu_hour_and_a_raised_limit_continues(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxGpuHours=5)
    await asyncio.sleep(2.4 * HOUR)
    assert (await manager.experiment(experiment_id)).status is ExperimentStatus.RUNNING
    await asyncio.sleep(0.2 * HOUR)  # 2.5 hours on two GPUs, in the middle of the third trial
    row = await manager.experiment(experiment_id)
    assert (row.status, row.reason) == (ExperimentStatus.NO_MORE_TRIAL, "maxGpuHours 5 is reached")
    row = await simulation.ended(manager, experiment_id)
    assert (row.status, await count(manager, experiment_id)) == (ExperimentStatus.DONE, 3)
    assert (await used(manager, experiment_id)).gpu_seconds == pytest.approx(6 * HOUR, abs=30.0)
    await manager.update_experiment(experiment_id, max_gpu_hours=7.0)
    assert (await manager.experiment(experiment_id)).status is ExperimentStatus.RUNNING
    row = await simulation.ended(manager, experiment_id)
    assert (row.reason, await count(manager, experiment_id)) == ("maxGpuHours 7 is reached", 4)
    row = await manager.update_experiment(experiment_id, max_gpu_hours=UNLIMITED, max_trial_number=5)
    assert row.max_gpu_hours is None
    await simulation.ended(manager, experiment_id)
    assert await count(manager, experiment_id) == 5


def test_the_hours_of_a_running_trial_count_over_a_restart(tmp_path: Path) -> None:
    experiments: list[str] = []

    async def before(simulation: Simulation, manager: Manager) -> None:
        experiments.append(await create(manager, tmp_path, maxGpuHours=1))
        await asyncio.sleep(0.3 * HOUR)

    async def after(simulation: Simulation, manager: Manager) -> None:
        await asyncio.sleep(0.1 * HOUR)
        assert (await manager.experiment(experiments[0])).status is ExperimentStatus.RUNNING
        assert (await used(manager, experiments[0])).gpu_seconds == pytest.approx(0.8 * HOUR, abs=30.0)
        await asyncio.sleep(0.15 * HOUR)
        row = await manager.experiment(experiments[0])
        assert (row.status, row.reason) == (ExperimentStatus.NO_MORE_TRIAL, "maxGpuHours 1 is reached")

    play(tmp_path, before, after)


@played(play)
async def test_a_limit_is_not_reached_by_setting_the_clock(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    assert isinstance(simulation.clock, SettableClock)
    experiment_id = await create(manager, tmp_path, maxGpuHours=3, maxTrialNumber=1)
    simulation.clock.wrong_by = 24 * HOUR
    await manager.update_experiment(experiment_id, trial_concurrency=2)  # a turn of the loop
    row = await manager.update_experiment(experiment_id, max_trial_number=2)
    assert row.status is ExperimentStatus.RUNNING
    simulation.clock.wrong_by = 0.0


@played(play)
async def test_processor_time_that_is_not_known_makes_the_sum_a_lower_bound(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=3)
    await asyncio.sleep(0.5 * HOUR)
    assert await used(manager, experiment_id) == JobUsage(pytest.approx(HOUR, abs=30.0), 0.0, 1)
    await simulation.ended(manager, experiment_id)
    now = manager.clock.now()
    by_node = await manager.control.read(lambda c: jobs.usage_by_node(c, now=now))
    assert by_node == {
        "m1": JobUsage(pytest.approx(4 * HOUR, abs=30.0), 3600.0, 0),
        "m2": JobUsage(pytest.approx(2 * HOUR, abs=30.0), 0.0, 1),
    }
    assert await used(manager, experiment_id) == by_node["m1"] + by_node["m2"]


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


def test_what_was_used_lately_counts_over_a_restart(tmp_path: Path) -> None:
    experiments: list[str] = []

    async def before(simulation: Simulation, manager: Manager) -> None:
        experiments.append(await create(manager, tmp_path, maxTrialNumber=1))
        await simulation.ended(manager, experiments[0])

    async def after(simulation: Simulation, manager: Manager) -> None:
        recent = await manager.control.read(lambda c: jobs.recent_gpu_jobs(c, experiments[0]))
        counted, now = GpuTime(lately=recent), manager.clock.now()
        counted.count_lately(now=now, monotonic=1e6)
        assert counted.in_last_hour(1e6) == pytest.approx(2 * HOUR, abs=400.0)
        assert counted.in_last_hour(1e6 + HOUR / 2) == pytest.approx(HOUR, abs=400.0)
        assert counted.in_last_hour(1e6 + 2 * HOUR) == 0.0

    play(tmp_path, before, after)
