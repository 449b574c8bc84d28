"""What becomes of trials under a trial scheduler when the user takes part, or when metrics have no number."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from fakes.small_experiments import all_trials, create, play, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.simulation.simulation import Simulation
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

MAXIMIZE = {"direction": "maximize"}


def ten_points(form: TrialJobForm) -> Iterable[Step]:
    for step in range(1, 11):
        yield ScriptedReport(10.0 + form.sequence_id / 10, step, step=step)
    yield Final(1.0, 10)


def loss_between(form: TrialJobForm) -> Iterable[Step]:
    for step in range(1, 11):
        yield ScriptedReport(1.0 + form.sequence_id / 10, {"default": step}, step=step)
        yield ScriptedReport(0.0, {"loss": 0.3}, step=step)
    yield Final(1.0, 10)


@played(play, script=ten_points)
async def test_trials_that_wait_for_one_that_the_user_has_paused_are_kept(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    arguments = {"time_attr": "training_iteration", "perturbation_interval": 4, "population_size": 3, "synch": True}
    made = await create(
        manager,
        tmp_path,
        trialConcurrency=3,
        maxTrialNumber=3,
        objective=MAXIMIZE,
        trialScheduler={"name": "PBT", "classArgs": arguments},
        seconds=15.0,
    )
    first, _, _ = await all_trials(manager, made)
    await manager.trials.pause(first.id)
    await asyncio.sleep(200.0)
    assert {trial.status for trial in await all_trials(manager, made)} == {TrialStatus.PAUSED}
    await manager.trials.resume(first.id)
    ended = await simulation.ended(manager, made)
    assert ended.status is ExperimentStatus.DONE
    assert {trial.status for trial in await all_trials(manager, made)} == {TrialStatus.SUCCEEDED}


@played(play, script=loss_between)
async def test_a_trial_that_has_used_max_t_has_a_number_as_its_result(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    scheduler = {"name": "ASHA", "classArgs": {"max_t": 4, "grace_period": 4}}
    made = await create(manager, tmp_path, maxTrialNumber=3, objective=MAXIMIZE, trialScheduler=scheduler, seconds=0.0)
    await simulation.ended(manager, made)
    trials = await all_trials(manager, made)
    assert {trial.status for trial in trials} == {TrialStatus.SUCCEEDED}
    assert [trial.final_value for trial in trials] == [4.0, 4.0, 4.0]
