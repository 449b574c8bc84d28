"""When a trial runs again, by whether its last job made progress, under virtual time."""

import asyncio
from functools import partial

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, by_attempt, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.training_services.base import EndReason
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedExit, ScriptedReport, ScriptedStart, Step

CHECKPOINT = Raw(1.0, b'{"kind":"checkpoint","path":"output/c1","step":1,"time":1.0}\n')
START, REPORT, FINAL = ScriptedStart(), ScriptedReport(1.0, 0.5), Final(1.0, 1.0)


class PatientScene(Scene):
    """Its trials run again very often."""

    config = SMALL | {"maxTrialNumber": 1, "maxTrialRetries": 100, "maxInfrastructureRetries": 100}


play = partial(small_experiments.play, kind=PatientScene)


@pytest.mark.parametrize("reason", [EndReason.PREEMPTED, EndReason.NODE_LOST, EndReason.OUT_OF_MEMORY])
@pytest.mark.parametrize("progress", [REPORT, CHECKPOINT])
@played(play)
async def test_a_trial_waits_longer_and_longer_until_a_job_has_got_on(
    scene: PatientScene, manager: Manager, /, reason: EndReason, progress: Step
) -> None:
    end = ScriptedExit(1.0, reason=reason, code=None)
    fruitless = [START, end]
    assert (
        await scene.run(by_attempt(fruitless, fruitless, fruitless, [START, progress, end], fruitless, [FINAL]))
    ).status is ExperimentStatus.DONE
    assert await scene.pauses() == [1, 2, 4, 0, 1]
    assert await scene.statuses() == [TrialStatus.SUCCEEDED]


@played(play)
async def test_a_later_manager_knows_that_a_job_has_got_on_and_how_many_have_not(
    scene: PatientScene, manager: Manager, /
) -> None:
    end = ScriptedExit(100.0, reason=EndReason.PREEMPTED, code=None)
    await scene.create(by_attempt([START, end], [REPORT, end], [START, end], [START, end], [FINAL]))
    for seconds in (50.0, 100.0, 100.0, 100.0):
        await asyncio.sleep(seconds)
        await scene.restart()
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert await scene.pauses() == [1, 0, 1, 2]


@played(play)
async def test_a_trial_whose_pause_is_over_waits_for_a_place_without_busying_the_loop(
    scene: PatientScene, manager: Manager, /
) -> None:
    lost = ScriptedExit(1.0, reason=EndReason.NODE_LOST, code=None)
    await scene.create(by_attempt([START, lost], [FINAL]), maxTrialNumber=2, seconds=1.5)
    await manager.pause_experiment("exp")
    await asyncio.sleep(100.0)
    assert (await scene.trial()).status is TrialStatus.WAITING
    await manager.resume_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE


@played(play)
async def test_an_experiment_that_is_stopped_right_after_its_start_is_soon_going_on_after_a_resume(
    scene: PatientScene, manager: Manager, /
) -> None:
    late = ScriptedReport(100.0, 0.5)
    await scene.create(by_attempt([START, late], [REPORT, late], [FINAL]))
    for _ in range(2):
        await asyncio.sleep(10.0)
        await manager.stop_experiment("exp")
        while (await scene.row()).status is not ExperimentStatus.STOPPED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await manager.resume_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert await scene.pauses() == [1, 0]
