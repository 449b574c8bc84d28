"""Trials of an experiment that is being stopped may save first: how long, what the reason says, what ends the wait."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, SceneService, played

from proctor.manager.actors import Actor, Way
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import events
from proctor.training_services.base import (
    EndReason,
    SoftStop,
    StatusChange,
    SupportsSoftStop,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.in_memory.scripts import Final, Hang, ScriptedReport, ScriptedStart, Step


class SavingService(SceneService, SupportsSoftStop):
    """Its jobs continue their scripts until the time to save is over. It notes how each is to stop; None: at once."""

    async def cancel_softly(self, job_id: str, stop: SoftStop) -> None:
        self.scene.asked.append(stop)
        job = self.platform.jobs[job_id]
        job.detail = replace(job.detail, status=TrialJobStatus.STOPPING)
        asyncio.get_running_loop().call_later(
            stop.save_seconds, lambda: self.platform.end(job, EndReason.CANCELED, detail="its time was over")
        )

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        self.scene.asked.append(None)
        await super().cancel_trial_job(job_id, is_early_stopped)


class SavingScene(Scene):
    """An experiment of three trials."""

    service = SavingService
    config = SMALL | {"trialConcurrency": 3, "maxTrialNumber": 3}

    async def create_and_stop(self, **changes: Any) -> ExperimentRow:
        """Stop it a minute after its beginning."""
        await self.create(seconds=60.0, **changes)
        return await self._manager.stop_experiment("exp")

    async def ends(self) -> list[tuple[TrialStatus, EndReason | None]]:
        """Status and end reason of the newest job, of each trial."""
        found = await self.trials()
        return [(trial.status, (await self.jobs(number))[-1].end_reason) for number, trial in enumerate(found)]

    async def awaited(self) -> str:
        """What the stop waits for."""
        return self._manager.awaited(await self.row())

    async def until_stopped(self) -> float:
        """Wait for STOPPED; returns how many seconds that took."""
        began = asyncio.get_running_loop().time()
        while (await self.row()).status is not ExperimentStatus.STOPPED:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        return asyncio.get_running_loop().time() - began


def finish_or_hang(form: TrialJobForm) -> Iterable[Step]:
    """Trial 0 finishes 70 s after its start, trial 1 never, trial 2 never begins."""
    if form.sequence_id == 2:
        yield ScriptedStart(10_000.0)
    yield ScriptedReport(1.0, 0.5)
    yield Final(69.0, 0.75) if form.sequence_id == 0 else Hang()


play = partial(small_experiments.play, kind=SavingScene, script=finish_or_hang)
STOPPED = (TrialStatus.WAITING, EndReason.EXPERIMENT_STOPPED)


@played(play)
async def test_running_trials_save_and_one_that_finishes_meanwhile_has_finished(
    scene: SavingScene, manager: Manager, /
) -> None:
    await scene.create_and_stop()
    await asyncio.sleep(1.0)
    assert await scene.awaited() == "waits for trials 0 and 1 to save, at most 29 s"
    await asyncio.sleep(14.0)
    assert await scene.awaited() == "waits for trial 1 to save, at most 15 s"
    assert await scene.until_stopped() <= 16.0
    assert await scene.ends() == [(TrialStatus.SUCCEEDED, EndReason.EXITED_OK), STOPPED, STOPPED]
    soft = SoftStop("the experiment was stopped", 30.0, only_if_able=True)
    assert sorted(map(str, scene.asked)) == sorted(map(str, [soft, soft, None]))


@pytest.mark.parametrize(
    ("seconds", "soft"), [("2m", SoftStop("the experiment was stopped", 120.0, only_if_able=False)), (0, None)]
)
@played(play)
async def test_the_configured_time_holds_for_every_trial_and_zero_is_none(
    scene: SavingScene, manager: Manager, /, seconds: str | int, soft: SoftStop | None
) -> None:
    await scene.create_and_stop(saveSeconds=seconds)
    assert scene.asked == [soft, soft, None]


@played(play)
async def test_a_second_stop_ends_the_time_to_save(scene: SavingScene, manager: Manager, /) -> None:
    await scene.create_and_stop()
    await manager.stop_experiment("exp")
    assert await scene.until_stopped() <= 1.0
    assert await scene.ends() == [STOPPED] * 3


@played(play)
async def test_killing_a_trial_ends_its_time_to_save_and_the_stop_stays_its_reason(
    scene: SavingScene, manager: Manager, /
) -> None:
    await scene.create_and_stop()
    await manager.trials.kill((await scene.trial(1)).id)
    await asyncio.sleep(1.0)
    assert await scene.awaited() == "waits for trial 0 to save, at most 29 s"
    assert (await scene.ends())[1] == STOPPED


@played(play)
async def test_a_trial_that_is_killed_has_no_time_to_save(scene: SavingScene, manager: Manager, /) -> None:
    await scene.create(saveSeconds=600, seconds=60.0)
    for trial in await scene.trials():
        await manager.trials.kill(trial.id)
    assert scene.asked == [None] * 3


@played(play)
async def test_a_trial_that_is_being_stopped_and_stuck_says_both(scene: SavingScene, manager: Manager, /) -> None:
    await scene.create(seconds=60.0)
    second = (await scene.trial(1)).id
    platform = scene.platforms["exp"]

    async def reason_after_a_report(detail: str) -> str:
        job = platform.jobs[f"{second}.1"]
        time = datetime.fromtimestamp(scene.clock.now(), UTC)
        job.changes.append(StatusChange(job.id, job.token, TrialJobStatus.RUNNING, time, detail=detail))
        platform.waiting[job.id] = job
        platform.wake()
        await asyncio.sleep(1.0)
        return (await scene.trial(1)).reason

    stuck = "its end cannot be noticed: its reaper is suspended"
    assert await reason_after_a_report(stuck) == stuck
    await manager.trials.pause(second)
    reasons = [await reason_after_a_report(detail) for detail in (stuck, "")]
    assert reasons == [
        f"stopping: paused by the user; it may save for at most 30 s; {stuck}",
        "stopping: paused by the user; it may save for at most 29 s",
    ]


@played(play)
async def test_after_a_restart_of_the_manager_a_stop_is_still_of_the_one_who_requested_it(
    scene: SavingScene, manager: Manager, /
) -> None:
    alice, bob = Actor("alice", Way.PAGE), Actor("bob", Way.CLI)
    await scene.create(seconds=60.0)
    killed, paused = [trial.id for trial in await scene.trials()][:2]
    for trial_id in (killed, paused):
        await manager.trials.pause(trial_id, actor=alice)
    await manager.trials.kill(killed, actor=bob)
    manager = await scene.restart()
    await asyncio.sleep(60.0)
    rows = await manager.control.read(lambda c: events.after(c, 0, limit=1000))
    causes = {(row.trial_id, row.data["status"]): row.actor for row in rows if row.kind.endswith(".status")}
    assert causes[paused, "ENDED"] == causes[paused, "PAUSED"] == "alice@page"
    assert causes[killed, "ENDED"] == causes[killed, "USER_CANCELED"] == "bob@cli"


@played(play)
async def test_after_a_restart_of_the_manager_a_trial_saves_until_the_same_time(
    scene: SavingScene, manager: Manager, /
) -> None:
    await scene.create_and_stop()
    await scene.end()
    scene.asked.clear()
    await asyncio.sleep(6.0)
    manager = await scene.start()
    await asyncio.sleep(1.0)
    assert {stop.save_seconds for stop in scene.asked if stop is not None} == {24.0}
    assert await scene.awaited() == "waits for trials 0 and 1 to save, at most 23 s"
    await manager.stop_experiment("exp")
    await scene.end()
    scene.asked.clear()
    await scene.start()
    assert [stop for stop in scene.asked if stop is not None] == []
    assert await scene.until_stopped() <= 1.0
