"""What becomes of trials under a trial scheduler when the user takes part, or when metrics have no number."""

import asyncio
from collections.abc import Iterable

from fakes.small_experiments import Scene, play, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step


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
async def test_trials_that_wait_for_one_that_the_user_has_paused_are_kept(scene: Scene, manager: Manager, /) -> None:
    arguments = {"time_attr": "training_iteration", "perturbation_interval": 4, "population_size": 3, "synch": True}
    scheduler = {"name": "PBT", "classArgs": arguments}
    await scene.create(trialConcurrency=3, maxTrialNumber=3, trialScheduler=scheduler, seconds=15.0)
    first = await scene.trial()
    await manager.trials.pause(first.id)
    await asyncio.sleep(200.0)
    assert await scene.statuses() == [TrialStatus.PAUSED] * 3
    await manager.trials.resume(first.id)
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert await scene.statuses() == [TrialStatus.SUCCEEDED] * 3


@played(play, script=loss_between)
async def test_a_trial_that_has_used_max_t_has_a_number_as_its_result(scene: Scene, manager: Manager, /) -> None:
    await scene.run(maxTrialNumber=3, trialScheduler={"name": "ASHA", "classArgs": {"max_t": 4, "grace_period": 4}})
    assert [(trial.status, trial.final_value) for trial in await scene.trials()] == [(TrialStatus.SUCCEEDED, 4.0)] * 3
