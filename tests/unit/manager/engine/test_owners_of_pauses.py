"""Who has paused a trial: a user, its experiment or its trial scheduler. Only that one has it run again."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import CheckpointingScene, played, saved

from proctor.manager.engine.loop import transitions, user_commands
from proctor.manager.engine.loop.state import ExperimentState, Turn
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.rows import TrialRow
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step

BAD = 1
"""The number of the trial that its scheduler pauses, in the second minute in which it runs."""
PAUSING = {
    "name": "MedianStopping",
    "classArgs": {
        "time_attr": "training_iteration",
        "grace_period": 2,
        "min_samples_required": 1,
        "hard_stop": False,
    },
}


def four_minutes(form: TrialJobForm) -> Iterable[Step]:
    """Report once a minute, and register a checkpoint with each report."""
    begin = 0 if form.resume_checkpoint is None else int(form.resume_checkpoint.rpartition("/")[2])
    for step in range(begin + 1, 5):
        yield ScriptedReport(60.0, 0.0 if form.sequence_id == BAD else 1.0, step=step)
        yield saved(form, step, step=step)
    yield Final(1.0, form.sequence_id)
    yield ScriptedExit(30.0)


class OwnersScene(CheckpointingScene):
    """Four trials, one after the other; the second is paused by its trial scheduler in favor of the third."""

    config: dict[str, Any] = CheckpointingScene.config | {"maxTrialNumber": 4, "trialScheduler": PAUSING}

    async def until_paused(self) -> TrialRow:
        """The trial, once its scheduler has paused it and the next one runs."""
        await self.create(seconds=460.0)
        row = await self.trial(BAD)
        assert (row.status, row.paused_by) == (TrialStatus.PAUSED, PausedBy.SCHEDULER)
        assert (await self.trial(2)).status is TrialStatus.RUNNING
        return row

    async def until_done(self) -> None:
        await asyncio.sleep(3600.0)
        assert (await self.row()).status is ExperimentStatus.DONE
        assert await self.statuses() == [TrialStatus.SUCCEEDED] * 4


play = partial(small_experiments.play, script=four_minutes, kind=OwnersScene)


@played(play)
async def test_a_user_cannot_resume_what_the_trial_scheduler_has_paused(
    scene: OwnersScene, manager: Manager, /
) -> None:
    row = await scene.until_paused()
    with pytest.raises(Conflict) as refused:
        await manager.trials.resume(row.id)
    assert str(refused.value) == (
        f"trial {row.id} is paused by its trial scheduler, which decides when it runs again; clone the trial to "
        "continue from its checkpoint now"
    )
    await manager.resume_experiment("exp", trials=True)
    assert await scene.trial(BAD) == row
    await scene.until_done()


@played(play)
async def test_a_users_pause_of_a_trial_that_its_scheduler_has_paused_holds_until_that_user_resumes_it(
    scene: OwnersScene, manager: Manager, /
) -> None:
    row = await scene.until_paused()
    await manager.trials.pause(row.id)
    reason = "paused by the user; its trial scheduler has paused it, too"
    for _ in range(2):
        row = await scene.trial(BAD)
        assert (row.status, row.reason, row.paused_by) == (TrialStatus.PAUSED, reason, PausedBy.USER)
        manager = await scene.restart()
        await asyncio.sleep(3600.0)
    assert (
        manager.held_up(await scene.row()) == "1 trial is PAUSED by a user: resume or kill it to finish the experiment"
    )
    await manager.trials.resume(row.id)
    await asyncio.sleep(1.0)
    row = await scene.trial(BAD)
    assert (row.status, row.paused_by) == (
        TrialStatus.RUNNING,
        None,
    )  # there is a place, so that its scheduler wants it
    await scene.until_done()


@played(play)
async def test_a_trial_that_its_user_has_resumed_remains_paused_by_its_scheduler(
    scene: OwnersScene, manager: Manager, /
) -> None:
    row = await scene.until_paused()
    await manager.trials.pause(row.id)
    await manager.trials.resume(row.id)
    row = await scene.trial(BAD)
    assert (row.status, row.paused_by) == (TrialStatus.PAUSED, PausedBy.SCHEDULER)
    assert row.reason == "paused by its trial scheduler, which decides when it runs again"
    assert manager.held_up(await scene.row()) == ""
    await scene.until_done()


def two_are_bad(form: TrialJobForm) -> Iterable[Step]:
    return four_minutes(replace(form, sequence_id=BAD) if form.sequence_id == 2 else form)


@played(play, script=two_are_bad)
async def test_what_its_scheduler_decides_of_a_trial_that_a_user_has_paused_waits_for_that_user(
    scene: OwnersScene, manager: Manager, /
) -> None:
    await scene.create(seconds=640.0)
    wanted, other = (await scene.trials())[1:3]
    assert (wanted.paused_by, other.paused_by) == (PausedBy.SCHEDULER, PausedBy.SCHEDULER)
    await manager.trials.pause(wanted.id)
    await asyncio.sleep(3600.0)  # the scheduler has had both run again, in this order
    assert (await scene.trial(2)).status is TrialStatus.SUCCEEDED
    row = await scene.trial(1)
    assert (row.status, row.paused_by, row.jobs) == (TrialStatus.PAUSED, PausedBy.USER, 1)
    manager = await scene.restart()
    await manager.trials.resume(row.id)
    row = await scene.trial(1)
    assert (row.paused_by, row.jobs) == (None, 2)  # it has its place at once
    await scene.until_done()


@played(play)
async def test_a_resumed_experiment_resumes_the_trials_that_were_paused_with_it_and_no_others(
    scene: OwnersScene, manager: Manager, /
) -> None:
    await scene.create(trialScheduler=None, trialConcurrency=3, seconds=90.0)
    first, _, third = await scene.trials()
    await manager.trials.pause(first.id)
    await asyncio.sleep(1.0)
    await manager.pause_experiment("exp", trials=True)
    await asyncio.sleep(1.0)
    await manager.trials.pause(third.id)  # from now on this one is the user's, too
    assert [row.paused_by for row in await scene.trials()][:3] == [PausedBy.USER, PausedBy.EXPERIMENT, PausedBy.USER]
    assert (await scene.trial(2)).reason == "paused by the user"
    await manager.resume_experiment("exp", trials=True)
    await asyncio.sleep(3600.0)
    statuses = [TrialStatus.PAUSED, TrialStatus.SUCCEEDED, TrialStatus.PAUSED, TrialStatus.SUCCEEDED]
    assert await scene.statuses() == statuses
    await manager.trials.resume(first.id)
    await manager.trials.resume(third.id)
    await scene.until_done()


@played(play, stop_seconds=10.0)
async def test_trials_that_are_still_being_paused_when_their_experiment_is_resumed_run_again(
    scene: OwnersScene, manager: Manager, /
) -> None:
    await scene.create(trialScheduler=None, trialConcurrency=2, seconds=90.0)
    await manager.pause_experiment("exp", trials=True)
    await asyncio.sleep(1.0)
    assert (await scene.trial()).paused_by is PausedBy.EXPERIMENT
    await manager.resume_experiment("exp", trials=True)
    assert (await scene.trial()).status is TrialStatus.RUNNING  # it still has the time to save
    await scene.until_done()
    assert len(await scene.jobs()) == 2


def slower_and_better(form: TrialJobForm) -> Iterable[Step]:
    """The later a trial was created, the sooner and the lower it reports."""
    begin = 0 if form.resume_checkpoint is None else int(form.resume_checkpoint.rpartition("/")[2])
    for step in range(begin + 1, 7):
        yield ScriptedReport(30.0 - 3 * form.sequence_id, 10.0 * step - form.sequence_id, step=step)
        yield saved(form, step, step=step)
    yield Final(1.0, form.sequence_id)


@played(play, script=slower_and_better)
async def test_population_based_training_does_not_have_a_trial_run_that_a_user_has_paused(
    scene: OwnersScene, manager: Manager, /
) -> None:
    arguments = {"time_attr": "training_iteration", "perturbation_interval": 2, "population_size": 4, "synch": True}
    scheduler = {"name": "PBT", "classArgs": arguments}
    await scene.create(trialConcurrency=4, trialScheduler=scheduler, seconds=45.0)
    worst = await scene.trial(3)
    assert worst.paused_by is PausedBy.SCHEDULER  # it waits for the others
    await manager.trials.pause(worst.id)
    await asyncio.sleep(600.0)  # the scheduler has decided that it continues from another one
    row = await scene.trial(3)
    assert (row.status, row.paused_by, row.jobs) == (TrialStatus.PAUSED, PausedBy.USER, 1)
    await manager.trials.resume(row.id)
    await scene.until_done()
    _, job, *_ = await scene.jobs(3)
    assert job.resumed_from_job is not None
    assert not job.resumed_from_job.startswith(worst.id)


@played(play, script=slower_and_better)
async def test_hyperband_does_not_end_a_trial_that_a_user_has_paused(scene: OwnersScene, manager: Manager, /) -> None:
    arguments = {"time_attr": "training_iteration", "max_t": 4, "reduction_factor": 2}
    scheduler = {"name": "HyperBand", "classArgs": arguments}
    await scene.create(maxTrialNumber=7, trialConcurrency=7, trialScheduler=scheduler, seconds=40.0)
    discarded = await scene.trial(5)
    assert discarded.paused_by is PausedBy.SCHEDULER  # it waits for the others of its bracket
    await manager.trials.pause(discarded.id)
    await asyncio.sleep(3600.0)  # it is not among the best of them
    row = await scene.trial(5)
    assert (row.status, row.paused_by) == (TrialStatus.PAUSED, PausedBy.USER)
    assert (await scene.row()).status is ExperimentStatus.NO_MORE_TRIAL
    await manager.trials.resume(row.id)
    await asyncio.sleep(600.0)
    row = await scene.trial(5)
    assert (row.status, row.paused_by) == (TrialStatus.EARLY_STOPPED, None)
    assert row.reason.startswith("its trial scheduler does not have it run again: ")
    assert (await scene.row()).status is ExperimentStatus.DONE


@played(play)
async def test_what_is_asked_together_with_the_resumption_of_all_trials_is_carried_out_too(
    scene: OwnersScene, manager: Manager, /
) -> None:
    row = await scene.until_paused()
    await manager.trials.pause(row.id)
    resume_all = partial(manager.resume_experiment, "exp", trials=True)
    await asyncio.gather(resume_all(), manager.trials.resume(row.id))  # handled in one turn
    assert (await scene.trial(BAD)).paused_by is PausedBy.SCHEDULER
    await asyncio.gather(resume_all(), manager.trials.kill(row.id))
    assert (await scene.trial(BAD)).status is TrialStatus.USER_CANCELED


@pytest.mark.parametrize("reason", [EndReason.CLONED, EndReason.CHECKPOINT_DAMAGED])
@played(play, stop_seconds=10.0)
async def test_a_trial_whose_job_is_being_stopped_to_continue_elsewhere_is_paused_with_its_experiment(
    scene: OwnersScene, manager: Manager, /, monkeypatch: pytest.MonkeyPatch, reason: EndReason
) -> None:
    def stop(state: ExperimentState, turn: Turn, trial_id: str, *, save_seconds: float) -> None:
        transitions.request_stop(state, turn, state.trials[trial_id], reason, "it continues elsewhere")

    await scene.create(trialScheduler=None, trialConcurrency=1, seconds=90.0)
    row = await scene.trial()
    with monkeypatch.context() as patched:
        patched.setattr(user_commands, "pause_trial", stop)
        await manager.trials.pause(row.id)
    await manager.pause_experiment("exp", trials=True)
    await asyncio.sleep(60.0)
    row = await scene.trial()
    assert (row.status, row.paused_by, row.jobs) == (TrialStatus.PAUSED, PausedBy.EXPERIMENT, 1)
    assert (await scene.jobs())[0].end_reason is reason
    await manager.resume_experiment("exp", trials=True)
    await scene.until_done()
