"""Trials that are paused: what they hold, what is shown, how they come back, also after a restart of the manager."""

import asyncio
import sqlite3
from collections.abc import Iterable
from functools import partial

import pytest
from fakes import small_experiments
from fakes.small_experiments import CheckpointingScene, played, saved

from proctor.manager.actors import Actor, Way
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step


def ten_minutes(form: TrialJobForm) -> Iterable[Step]:
    """Report 0, 1, 2, … 9, one a minute, and register a checkpoint with each."""
    begin = 0 if form.resume_checkpoint is None else int(form.resume_checkpoint.rpartition("/")[2])
    for step in range(begin, 10):
        yield ScriptedReport(60.0, step)
        yield saved(form, step + 1, step=step)
    yield Final(1.0, form.sequence_id)
    yield ScriptedExit(30.0)


class PausingScene(CheckpointingScene):
    """An experiment whose first trial has saved once when a test begins."""

    async def begin(self, number: int = 2, concurrency: int = 1) -> None:
        await self.create(maxTrialNumber=number, trialConcurrency=concurrency, seconds=90.0)

    async def pause(self) -> TrialRow:
        """Pause the first trial and wait until it is PAUSED."""
        await self._manager.trials.pause((await self.trial()).id)
        await asyncio.sleep(1.0)
        row = await self.trial()
        assert row.status is TrialStatus.PAUSED
        return row

    async def ends(self, number: int = 0) -> list[EndReason | None]:
        return [job.end_reason for job in await self.jobs(number)]

    async def reported(self) -> list[float]:
        """The values of the first trial's visible curve."""
        return [value for _, _, value in await self.curve()]

    async def until_done(self) -> None:
        await asyncio.sleep(3600.0)
        assert (await self.row()).status is ExperimentStatus.DONE


play = partial(small_experiments.play, script=ten_minutes, kind=PausingScene)


@played(play)
async def test_a_paused_trial_gives_up_its_place_and_continues_from_its_checkpoint(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin()
    assert (await scene.pause()).reason == "paused by the user"
    assert (await scene.trial(1)).status is TrialStatus.RUNNING
    await manager.trials.resume((await scene.trial()).id)
    assert (await scene.trial()).reason == "waiting: trialConcurrency 1 is used up"
    await scene.until_done()
    assert await scene.ends() == [EndReason.PAUSED, EndReason.EXITED_OK]
    first, second = await scene.jobs()
    assert (first.detail, second.start_reason) == ("paused by the user", "from checkpoint 1 of job 1")
    assert await scene.reported() == list(range(10))
    assert (await scene.trial()).final_data == 0


@played(play)
async def test_an_experiment_with_nothing_but_paused_trials_is_not_done_and_says_why(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin(1)
    row = await scene.pause()
    await asyncio.sleep(3600.0)
    assert (await scene.row()).status is ExperimentStatus.NO_MORE_TRIAL
    clause = "1 trial is PAUSED by a user: resume or kill it to finish the experiment"
    assert manager.held_up(await scene.row()) == clause
    await manager.trials.resume(row.id)
    assert manager.held_up(await scene.row()) == ""
    await scene.until_done()


@played(play)
async def test_a_trial_that_waits_is_paused_at_once(scene: PausingScene, manager: Manager, /) -> None:
    await scene.begin(1)
    waiting = await manager.trials.add("exp", {"x": 0.5})
    await manager.trials.pause(waiting.id)
    assert (await scene.trial(1)).status is TrialStatus.PAUSED
    await asyncio.sleep(3600.0)
    assert (await scene.jobs(1)) == []
    await manager.trials.resume(waiting.id)
    await scene.until_done()


@played(play)
async def test_a_trial_that_is_being_paused_says_so_and_can_be_killed_but_not_resumed(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin(1)
    row = await scene.trial()
    pausing = manager.trials.pause(row.id)
    refused, _ = await asyncio.gather(manager.trials.resume(row.id), pausing, return_exceptions=True)
    assert str(refused) == f"trial {row.id} is RUNNING; only a PAUSED trial can be resumed"
    await asyncio.sleep(1.0)
    await manager.trials.resume(row.id)
    await asyncio.sleep(1.0)
    answers = await asyncio.gather(
        manager.trials.pause(row.id),
        manager.trials.resume(row.id),
        manager.trials.kill(row.id),
        return_exceptions=True,
    )
    assert str(answers[1]) == (
        f"trial {row.id} is still being paused (stopping: paused by the user); resume it when it is PAUSED"
    )
    await asyncio.sleep(1.0)
    killed = await scene.trial()
    assert (killed.status, killed.reason) == (TrialStatus.USER_CANCELED, "canceled by the user")
    assert await scene.ends() == [EndReason.PAUSED, EndReason.USER_CANCELED]
    await scene.until_done()


@played(play)
async def test_a_paused_trial_can_be_killed_and_its_tuner_gets_its_end(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin(1)
    row = await scene.pause()
    await manager.trials.kill(row.id)
    await scene.until_done()
    assert (await scene.trial()).status is TrialStatus.USER_CANCELED
    inputs = await manager.control.read(lambda c: dispatcher_inputs.after(c, "exp", 0, 100))
    assert [one.kind for one in inputs] == ["RequestTrialJobs", "TrialEnd"]


@played(play)
async def test_what_cannot_be_paused_or_resumed_is_refused_with_its_status(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin(1)
    row = await scene.trial()
    await asyncio.gather(manager.trials.pause(row.id), manager.trials.pause(row.id))
    await scene.pause()  # idempotent
    await manager.trials.kill(row.id)
    with pytest.raises(Conflict, match="is USER_CANCELED; only a WAITING or RUNNING trial can be paused"):
        await manager.trials.pause(row.id)
    with pytest.raises(Conflict, match="is USER_CANCELED; only a PAUSED trial can be resumed"):
        await manager.trials.resume(row.id)


@played(play)
async def test_a_trial_that_is_being_stopped_is_not_paused(scene: PausingScene, manager: Manager, /) -> None:
    await scene.begin()
    row = await scene.trial()
    kill, pause = manager.trials.kill(row.id), manager.trials.pause(row.id)
    answers = await asyncio.gather(kill, pause, return_exceptions=True)
    assert str(answers[1]) == f"trial {row.id} is being stopped already (canceled by the user)"


@played(play)
async def test_a_trial_that_ends_in_the_moment_in_which_it_is_paused_is_not_paused(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin(3)
    row = await scene.pause()
    await manager.pause_experiment("exp")
    await manager.trials.resume(row.id)  # it has no job: a kill ends it at once
    kill, pause = manager.trials.kill(row.id), manager.trials.pause(row.id)
    answers = await asyncio.gather(kill, pause, return_exceptions=True)
    assert str(answers[1]) == f"trial {row.id} has ended already; only a live trial can be paused"


@played(play)
async def test_a_trial_with_a_final_metric_is_not_kept_but_has_succeeded(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin()
    await asyncio.sleep(520.0)
    row = await scene.trial()
    assert (row.status, row.final_data) == (TrialStatus.RUNNING, 0)
    await manager.trials.pause(row.id)
    await scene.until_done()
    row = await scene.trial()
    assert row.status is TrialStatus.SUCCEEDED
    assert row.reason == "its final metric is stored; its job ended afterwards as PAUSED (paused by the user)"


@played(play)
async def test_it_stays_paused_when_the_manager_is_restarted_or_the_experiment_is_stopped(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin()
    row = await scene.pause()
    manager = await scene.restart()
    await manager.stop_experiment("exp")
    await asyncio.sleep(60.0)
    assert (await scene.trial()).status is TrialStatus.PAUSED
    with pytest.raises(Conflict, match="is not running; resume it first"):
        await manager.trials.resume(row.id)
    manager = await scene.restart()
    await manager.resume_experiment("exp")
    await asyncio.sleep(3600.0)
    assert (await scene.trial()).status is TrialStatus.PAUSED
    assert (await scene.row()).status is ExperimentStatus.NO_MORE_TRIAL
    await manager.trials.resume(row.id)
    await scene.until_done()
    assert await scene.reported() == list(range(10))


@played(play)
async def test_an_experiment_is_paused_and_resumed_with_its_trials(scene: PausingScene, manager: Manager, /) -> None:
    await scene.begin(3, concurrency=2)
    await manager.pause_experiment("exp", trials=True)
    await asyncio.sleep(600.0)
    both = (await scene.trials())[:2]
    assert [(row.status, row.reason) for row in both] == [(TrialStatus.PAUSED, "paused with its experiment")] * 2
    await manager.resume_experiment("exp")
    await asyncio.sleep(60.0)
    assert (await scene.trial(2)).status is TrialStatus.RUNNING
    assert (await scene.trial()).status is TrialStatus.PAUSED
    await manager.resume_experiment("exp", trials=True)
    await scene.until_done()
    assert await scene.ends(1) == [EndReason.PAUSED, EndReason.EXITED_OK]


@played(play)
async def test_a_trial_that_is_resumed_in_a_paused_experiment_says_what_it_waits_for(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin()
    await manager.pause_experiment("exp", trials=True)
    await asyncio.sleep(60.0)
    await manager.trials.resume((await scene.trial()).id)
    assert (await scene.trial()).reason == "waiting: the experiment is paused; resume it, too"
    await manager.resume_experiment("exp")
    await scene.until_done()


@played(play)
async def test_what_follows_from_a_persons_command_is_that_persons_and_the_reason_says_so(
    scene: PausingScene, manager: Manager, /
) -> None:
    await scene.begin()
    first = await scene.trial()
    await manager.trials.kill(first.id, actor=Actor("alice", Way.PAGE))
    await asyncio.sleep(1.0)
    row = await scene.trial()
    assert (row.status, row.reason) == (TrialStatus.USER_CANCELED, "canceled by alice (page)")

    def read(connection: sqlite3.Connection) -> list[tuple[str, str | None]]:
        found = events.after(connection, 0, limit=1000)
        return [(str(each.data.get("status")), each.actor) for each in found if each.trial_id == first.id]

    seen = await manager.control.read(read)
    assert {("WAITING", "tuner"), ("STOPPING", "alice@page"), ("ENDED", "alice@page")} <= set(seen)
    assert [actor for status, actor in seen if status == "USER_CANCELED"] == ["alice@page"]
    await manager.stop_experiment("exp", actor=Actor("bob", Way.CLI))
    await asyncio.sleep(60.0)
    assert (await scene.row()).reason == "stopped by bob (cli)"
