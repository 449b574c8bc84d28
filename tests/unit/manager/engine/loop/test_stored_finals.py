"""A trial whose final metric is stored, under virtual time: it is over, however its job ends."""

from functools import partial

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, by_attempt, played, plays

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.tables import trials
from proctor.training_services.base import EndReason
from proctor.training_services.in_memory.scripts import Final, Hang, ScriptedExit, Wait

FINAL = Final(1.0, 0.5)


class OneTrial(Scene):
    """An experiment of one trial, which is not to run again."""

    config = SMALL | {"maxTrialNumber": 1, "maxInfrastructureRetries": 0, "seed": 7}


play = partial(small_experiments.play, kind=OneTrial)


@pytest.mark.parametrize(
    "reason", [EndReason.SIGNALED, EndReason.EXIT_UNKNOWN, EndReason.NODE_LOST, EndReason.OUT_OF_MEMORY]
)
@played(play)
async def test_a_trial_that_is_killed_after_its_final_metric_has_succeeded_and_does_not_run_again(
    scene: OneTrial, manager: Manager, /, reason: EndReason
) -> None:
    killed = ScriptedExit(1.0, reason, code=None, detail="it was killed")
    await scene.run(by_attempt([FINAL, killed], [Final(1.0, 0.9), killed]), maxInfrastructureRetries=3)
    row = await scene.trial()
    how = f"its final metric is stored; its job ended afterwards as {reason.value} (it was killed)"
    assert (row.status, row.final_value, row.jobs, row.reason) == (TrialStatus.SUCCEEDED, 0.5, 1, how)
    assert f"trial 0 has succeeded: {how}" in await scene.notices()
    assert [(end["status"], end["value"]) for end in await scene.inputs("TrialEnd")] == [("SUCCEEDED", 0.5)]


@played(play, script=plays(FINAL, ScriptedExit(1.0, EndReason.EXITED_ERROR, code=3)))
async def test_a_command_that_fails_after_its_final_metric_has_failed_and_is_not_retried(
    scene: OneTrial, manager: Manager, /
) -> None:
    await scene.run(maxTrialRetries=5)
    row = await scene.trial()
    assert (row.status, row.reason, row.jobs) == (TrialStatus.FAILED, "exit code 3", 1)


@played(play, script=plays(FINAL, Hang()))
async def test_a_trial_that_is_stopped_with_its_experiment_after_its_final_metric_does_not_run_again_on_resume(
    scene: OneTrial, manager: Manager, /
) -> None:
    await scene.create(seconds=10.0)
    await manager.stop_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    assert await scene.statuses() == [TrialStatus.SUCCEEDED]
    assert (await scene.jobs())[0].end_reason is EndReason.EXPERIMENT_STOPPED


@played(play, script=plays(FINAL, Hang()))
async def test_a_trial_that_the_user_cancels_after_its_final_metric_is_canceled(
    scene: OneTrial, manager: Manager, /
) -> None:
    await scene.create(seconds=10.0)
    await manager.trials.kill((await scene.trial()).id)
    await scene.until_ended()
    row = await scene.trial()
    assert (row.status, row.final_value) == (TrialStatus.USER_CANCELED, 0.5)


@played(play, script=plays(Wait(1.0, "waiting: no node takes it"), ScriptedExit(0.0, EndReason.NODE_LOST, code=None)))
async def test_a_waiting_trial_of_an_earlier_version_whose_final_metric_is_stored_does_not_run_again(
    scene: OneTrial, manager: Manager, /
) -> None:
    await scene.create(maxInfrastructureRetries=5, seconds=1.5)
    row = await scene.trial()
    assert row.status is TrialStatus.WAITING
    await manager.control.write(lambda c: trials.update(c, row.id, final_value=0.5, final_data=0.5))
    await scene.restart()
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    row = await scene.trial()
    assert (row.status, row.jobs) == (TrialStatus.SUCCEEDED, 1)
