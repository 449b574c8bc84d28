"""Training services that cannot find their jobs again after a restart of the manager."""

from functools import partial

import pytest
from fakes import small_experiments
from fakes.forgetful_service import ForgetfulScene
from fakes.small_experiments import played, plays

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.training_services.base import EndReason
from proctor.training_services.errors import UnknownPlatform
from proctor.training_services.in_memory.scripts import Final, ScriptedReport

WHY = (
    "the job was submitted before the manager or the experiment was restarted, and platform local cannot find its jobs "
    "again"
)
TEN_REPORTS = plays(*(ScriptedReport(10.0, value) for value in range(10)), Final(0.0, 1.0))


class TwoTrials(ForgetfulScene):
    """An experiment of two trials at the same time."""

    config = ForgetfulScene.config | {"trialConcurrency": 2, "maxTrialNumber": 2}


play = partial(small_experiments.play, kind=TwoTrials, script=TEN_REPORTS)


@played(play)
async def test_a_job_of_the_previous_manager_ends_as_unknown_and_its_trial_gets_another_one(
    scene: TwoTrials, manager: Manager, /
) -> None:
    await scene.create(seconds=35.0)
    await scene.restart()
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    found = await scene.trials()
    assert [(trial.status, trial.jobs) for trial in found] == [(TrialStatus.SUCCEEDED, 2)] * 2
    for number in range(2):
        first, second = await scene.jobs(number)
        assert (first.end_reason, first.detail) == (EndReason.EXIT_UNKNOWN, WHY)
        assert second.end_reason is EndReason.EXITED_OK
        assert await scene.curve(number) == [(2, place, float(place)) for place in range(10)]
    jobs = sorted(f"{trial.id}.{number}" for trial in found for number in (1, 2))
    assert sorted(form.job_id for form in scene.forms) == jobs
    assert sorted(scene.services[1].canceled) == sorted(f"{trial.id}.1" for trial in found)


@played(play)
async def test_a_job_that_was_to_be_stopped_before_the_restart_ends_as_it_was_asked_to(
    scene: TwoTrials, manager: Manager, /
) -> None:
    await scene.create(seconds=35.0)
    scene.services[0].is_deaf = True
    await manager.stop_experiment("exp")
    await scene.restart()
    assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    assert [(trial.status, trial.jobs) for trial in await scene.trials()] == [(TrialStatus.WAITING, 1)] * 2
    assert len(scene.forms) == 2


@played(play)
async def test_an_experiment_whose_plug_in_is_gone_cannot_be_resumed_and_says_why(
    scene: TwoTrials, manager: Manager, /
) -> None:
    await scene.create(seconds=35.0)
    await manager.stop_experiment("exp")
    await scene.until_ended()
    scene.broken = UnknownPlatform("no training service is registered for platform 'slurm'")
    with pytest.raises(Conflict, match=r"cannot be resumed and stays STOPPED: no training service .* 'slurm'"):
        await manager.resume_experiment("exp")
    assert (await scene.row()).status is ExperimentStatus.STOPPED
    with pytest.raises(Unavailable, match=r"no training service .* 'slurm'"):
        await manager.list_job_files((await scene.trial()).id)
    scene.broken = None
    await manager.resume_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
