"""What a trial is said to wait for is true: it does not remain when that is over."""

import asyncio
from collections.abc import Iterable
from functools import partial

from fakes import small_experiments
from fakes.small_experiments import Scene, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, Step, Wait

PAUSED = "waiting: the experiment is paused; resume it, too"


def a_minute(form: TrialJobForm) -> Iterable[Step]:
    yield Final(60.0, 1.0)


def fails_once(form: TrialJobForm) -> Iterable[Step]:
    if form.number < 3:
        yield ScriptedExit(10.0, EndReason.EXITED_ERROR, 1)
    yield Final(1.0, 1.0)


def slow_to_start(form: TrialJobForm) -> Iterable[Step]:
    """The second trial's job takes its time."""
    if form.sequence_id == 1:
        yield Wait(600.0, "")
    yield Final(60.0, 1.0)


play = partial(small_experiments.play, script=a_minute)


@played(play)
async def test_a_trial_of_a_paused_experiment_waits_for_that_to_be_resumed(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=3, seconds=1.0)
    await manager.pause_experiment("exp")
    await manager.trials.add("exp", {"x": 0.5})
    row = await scene.trial(1)
    assert (row.status, row.reason) == (TrialStatus.WAITING, PAUSED)
    await asyncio.sleep(600.0)
    assert (await scene.trial(1)).reason == PAUSED
    await manager.resume_experiment("exp")
    await scene.until_ended()
    assert await scene.statuses() == [TrialStatus.SUCCEEDED] * 3


@played(play, script=fails_once)
async def test_a_trial_that_is_to_run_again_waits_for_its_paused_experiment_and_then_for_its_time(
    scene: Scene, manager: Manager, /
) -> None:
    await scene.create(maxTrialNumber=2, maxTrialRetries=5, seconds=21.2)  # its second job has failed; it waits 2 s
    await manager.pause_experiment("exp")
    assert (await scene.trial()).reason == PAUSED
    await manager.resume_experiment("exp")
    assert (await scene.trial()).reason == "waiting: runs again in 2 s"
    await scene.until_ended()


@played(play)
async def test_a_trial_of_a_stopped_experiment_waits_for_that_to_be_resumed(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.0)
    await manager.stop_experiment("exp")
    await asyncio.sleep(60.0)
    assert (await scene.trial()).reason == "waiting: the experiment is stopped; resume runs it"


@played(play, script=slow_to_start)
async def test_a_trial_that_has_its_place_no_longer_waits_for_one(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.0)
    await manager.trials.add("exp", {"x": 0.5})
    assert (await scene.trial(1)).reason == "waiting: trialConcurrency 1 is used up"
    await asyncio.sleep(120.0)
    row = await scene.trial(1)
    assert (row.status, row.jobs, row.reason) == (TrialStatus.WAITING, 1, "waiting: its job is being started")
    await asyncio.sleep(600.0)
    assert (await scene.trial(1)).reason == ""
