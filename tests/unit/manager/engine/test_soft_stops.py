"""Trials of an experiment that is being stopped may save first: how long, what the reason says, what ends the wait."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fakes.small_experiments import played

from proctor.manager.actors import Actor, Way
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialJobRow
from proctor.manager.store.tables import events, jobs, trials
from proctor.training_services.base import (
    EndReason,
    SoftStop,
    StatusChange,
    SupportsSoftStop,
    TrainingService,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.in_memory.scripts import Final, Hang, ScriptedReport, ScriptedStart, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext


class SavingPlatform(InMemoryPlatform):
    """Notes how its jobs were asked to stop: (job id, how), None for at once."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.asked: list[tuple[str, SoftStop | None]] = []


class SavingService(InMemoryTrainingService, SupportsSoftStop):
    """Its jobs continue their scripts until the time to save is over."""

    platform: SavingPlatform

    async def cancel_softly(self, job_id: str, stop: SoftStop) -> None:
        self.platform.asked.append((job_id, stop))
        job = self.platform.jobs[job_id]
        job.detail = replace(job.detail, status=TrialJobStatus.STOPPING)
        asyncio.get_running_loop().call_later(
            stop.save_seconds, lambda: self.platform.end(job, EndReason.CANCELED, detail="its time was over")
        )

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        self.platform.asked.append((job_id, None))
        await super().cancel_trial_job(job_id, is_early_stopped)


class SavingSimulation(Simulation):
    """Jobs run on a `SavingService`."""

    def platform(self, experiment_id: str) -> SavingPlatform:
        """Where the experiment's jobs live."""
        found = self.platforms.setdefault(experiment_id, SavingPlatform(self.clock.now))
        assert isinstance(found, SavingPlatform)
        return found

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        jobs = self.platform(context.experiment_id)
        return SavingService(self._script, platform=jobs, now=self.clock.now)


def finish_or_hang(form: TrialJobForm) -> Iterable[Step]:
    """Trial 0 finishes 70 s after its start, trial 1 never, trial 2 never begins."""
    if form.sequence_id == 2:
        yield ScriptedStart(10_000.0)
    yield ScriptedReport(1.0, 0.5)
    if form.sequence_id == 0:
        yield Final(69.0, 0.75)
    else:
        yield Hang()


def play(tmp_path: Path, scenario: Callable[[SavingSimulation], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await scenario(SavingSimulation(Home(tmp_path / "home"), loop, script=finish_or_hang))

    run_virtual(main)


async def create(manager: Manager, tmp_path: Path, **changes: Any) -> str:
    """An experiment of three trials, a minute after its beginning."""
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 3,
        "maxTrialNumber": 3,
        "objective": {"direction": "maximize"},
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }
    row = await manager.create_experiment(config=config, directory=str(tmp_path))
    await asyncio.sleep(60.0)
    return row.id


async def trials_by_number(manager: Manager, experiment_id: str) -> list[tuple[TrialStatus, EndReason | None]]:
    """Status and end reason of the newest job, of each trial."""
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
    found = []
    for trial in sorted(page.items, key=lambda trial: trial.sequence_id):
        attempts: list[TrialJobRow] = await manager.control.read(lambda c, key=trial.id: jobs.of_trial(c, key))  # type: ignore[misc]
        found.append((trial.status, attempts[-1].end_reason))
    return found


async def printed(manager: Manager, experiment_id: str) -> str:
    """What the stop waits for."""
    return manager.awaited(await manager.experiment(experiment_id))


async def until_stopped(manager: Manager, experiment_id: str) -> float:
    """Wait for STOPPED; returns how many seconds that took."""
    began = asyncio.get_running_loop().time()
    while (await manager.experiment(experiment_id)).status is not ExperimentStatus.STOPPED:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return asyncio.get_running_loop().time() - began


STOPPED = (TrialStatus.WAITING, EndReason.EXPERIMENT_STOPPED)


@played(play)
async def test_running_trials_save_and_one_that_finishes_meanwhile_has_finished(
    simulation: SavingSimulation, /, tmp_path: Path
) -> None:
    async with simulation.manager() as manager:
        experiment_id = await create(manager, tmp_path)
        await manager.stop_experiment(experiment_id)
        await asyncio.sleep(1.0)
        assert await printed(manager, experiment_id) == "waits for trials 0 and 1 to save, at most 29 s"
        await asyncio.sleep(14.0)
        assert await printed(manager, experiment_id) == "waits for trial 1 to save, at most 15 s"
        assert await until_stopped(manager, experiment_id) <= 16.0
        assert await trials_by_number(manager, experiment_id) == [
            (TrialStatus.SUCCEEDED, EndReason.EXITED_OK),
            STOPPED,
            STOPPED,
        ]
        asked = dict(simulation.platform(experiment_id).asked)
        soft = SoftStop("the experiment was stopped", 30.0, only_if_able=True)
        assert sorted(map(str, asked.values())) == sorted(map(str, [soft, soft, None]))


@played(play)
async def test_the_configured_time_holds_for_every_trial_and_zero_is_none(
    simulation: SavingSimulation, /, tmp_path: Path
) -> None:
    async with simulation.manager() as manager:
        for value, expected in (
            ("2m", SoftStop("the experiment was stopped", 120.0, only_if_able=False)),
            (0, None),
        ):
            experiment_id = await create(manager, tmp_path, saveSeconds=value)
            await manager.stop_experiment(experiment_id)
            asked = [stop for _, stop in simulation.platform(experiment_id).asked]
            assert asked == ([expected, expected, None] if expected else [None, None, None])
            await until_stopped(manager, experiment_id)


@played(play)
async def test_a_second_stop_ends_the_time_to_save(simulation: SavingSimulation, /, tmp_path: Path) -> None:
    async with simulation.manager() as manager:
        experiment_id = await create(manager, tmp_path)
        await manager.stop_experiment(experiment_id)
        await manager.stop_experiment(experiment_id)
        assert await until_stopped(manager, experiment_id) <= 1.0
        assert await trials_by_number(manager, experiment_id) == [STOPPED] * 3


@played(play)
async def test_killing_a_trial_ends_its_time_to_save_and_the_stop_stays_its_reason(
    simulation: SavingSimulation, /, tmp_path: Path
) -> None:
    async with simulation.manager() as manager:
        experiment_id = await create(manager, tmp_path)
        page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
        (second,) = [trial.id for trial in page.items if trial.sequence_id == 1]
        await manager.stop_experiment(experiment_id)
        await manager.trials.kill(second)
        await asyncio.sleep(1.0)
        assert await printed(manager, experiment_id) == "waits for trial 0 to save, at most 29 s"
        assert (await trials_by_number(manager, experiment_id))[1] == STOPPED


@played(play)
async def test_a_trial_that_is_killed_has_no_time_to_save(simulation: SavingSimulation, /, tmp_path: Path) -> None:
    async with simulation.manager() as manager:
        experiment_id = await create(manager, tmp_path, saveSeconds=600)
        page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
        for trial in page.items:
            await manager.trials.kill(trial.id)
        assert [stop for _, stop in simulation.platform(experiment_id).asked] == [None] * 3


@played(play)
async def test_a_trial_that_is_being_stopped_and_stuck_says_both(
    simulation: SavingSimulation, /, tmp_path: Path
) -> None:
    async with simulation.manager() as manager:
        experiment_id = await create(manager, tmp_path)
        platform = simulation.platform(experiment_id)
        page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
        (second,) = [trial.id for trial in page.items if trial.sequence_id == 1]

        async def reason_after_a_report(detail: str) -> str:
            job = platform.jobs[f"{second}.1"]
            time = datetime.fromtimestamp(simulation.clock.now(), UTC)
            job.changes.append(StatusChange(job.id, job.token, TrialJobStatus.RUNNING, time, detail=detail))
            platform.waiting[job.id] = job
            platform.wake()
            await asyncio.sleep(1.0)
            return (await manager.trials.get(second)).reason

        stuck = "its end cannot be noticed: its reaper is suspended"
        assert await reason_after_a_report(stuck) == stuck
        await manager.trials.pause(second)
        reasons = [await reason_after_a_report(detail) for detail in (stuck, "")]
        assert reasons == [
            f"stopping: paused by the user; it may save for at most 30 s; {stuck}",
            "stopping: paused by the user; it may save for at most 29 s",
        ]


def test_after_a_restart_of_the_manager_a_stop_is_still_of_the_one_who_requested_it(tmp_path: Path) -> None:
    alice, bob = Actor("alice", Way.PAGE), Actor("bob", Way.CLI)

    async def scenario(simulation: SavingSimulation) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            found = await manager.control.read(lambda c: trials.live(c, experiment_id))
            killed, paused = (trial.id for trial in sorted(found, key=lambda trial: trial.sequence_id)[:2])
            for trial_id in (killed, paused):
                await manager.trials.pause(trial_id, actor=alice)
            await manager.trials.kill(killed, actor=bob)
        async with simulation.manager() as manager:
            await asyncio.sleep(60.0)
            rows = await manager.control.read(lambda c: events.after(c, 0, limit=1000))
            causes = {(row.trial_id, row.data["status"]): row.actor for row in rows if row.kind.endswith(".status")}
            assert causes[paused, "ENDED"] == causes[paused, "PAUSED"] == "alice@page"
            assert causes[killed, "ENDED"] == causes[killed, "USER_CANCELED"] == "bob@cli"

    play(tmp_path, scenario)


@played(play)
async def test_after_a_restart_of_the_manager_a_trial_saves_until_the_same_time(
    simulation: SavingSimulation, /, tmp_path: Path
) -> None:
    async with simulation.manager() as manager:
        experiment_id = await create(manager, tmp_path)
        await manager.stop_experiment(experiment_id)
    platform = simulation.platform(experiment_id)
    platform.asked.clear()
    await asyncio.sleep(6.0)
    async with simulation.manager() as manager:
        await asyncio.sleep(1.0)
        assert sorted({stop.save_seconds for _, stop in platform.asked if stop is not None}) == [24.0]
        assert await printed(manager, experiment_id) == "waits for trials 0 and 1 to save, at most 23 s"
        await manager.stop_experiment(experiment_id)
    platform.asked.clear()
    async with simulation.manager() as manager:
        assert [stop for _, stop in platform.asked if stop is not None] == []
        assert await until_stopped(manager, experiment_id) <= 1.0
