"""Decisions of the assessor under virtual time: each is for one job of a trial, whenever it arrives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from fakes.small_experiments import SMALL

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import InProcessChannel
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, jobs, trials
from proctor.training_services.base import EndReason, TrainingService, TrialJobForm, TrialJobStatus
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

CONFIG = SMALL | {"maxTrialNumber": 2, "seed": 7, "assessor": {"name": "Medianstop"}}

Script = Callable[[TrialJobForm], Iterable[Step]]
Scenario = Callable[[Simulation, str], Awaitable[None]]


class SlowChannel(InProcessChannel):
    """A dispatcher whose answers to reports arrive late: a job may end between a report and the verdict on it."""

    async def lines(self) -> AsyncIterator[bytes]:
        async for line in super().lines():
            if isinstance(protocol.decode(line), protocol.KillTrial):
                await asyncio.sleep(0.5)
            yield line


def slow_dispatchers(row: ExperimentRow, config: ExperimentConfig) -> Opener:
    """Every experiment gets a slow dispatcher."""

    @asynccontextmanager
    async def open_slow() -> AsyncIterator[SlowChannel]:
        channel = SlowChannel()
        try:
            yield channel
        finally:
            channel.close()

    return open_slow


class DeafService(InMemoryTrainingService):
    """Its jobs keep running when they are canceled; it keeps their requests."""

    canceled: ClassVar[list[tuple[str, bool]]] = []

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        self.canceled.append((job_id, is_early_stopped))


class DeafSimulation(Simulation):
    """Jobs run on a `DeafService`."""

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        platforms = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return DeafService(self._script, platform=platforms, now=self.clock.now)


def play(
    tmp_path: Path,
    script: Script,
    scenario: Scenario,
    *,
    seconds: float = 10.0,
    kind: type[Simulation] = Simulation,
) -> None:
    """Let an experiment run for some virtual time, then run a scenario that starts managers as it likes."""

    async def main(loop: VirtualTimeLoop) -> None:
        home = Home(tmp_path / "home")
        simulation = kind(home, loop, script=script, open_dispatcher=slow_dispatchers)
        async with simulation.manager() as manager:
            row = await manager.create_experiment(config=CONFIG, directory=str(tmp_path))
            await asyncio.sleep(seconds)
        await scenario(simulation, row.id)

    run_virtual(main)


async def second_trial(manager: Manager, experiment_id: str) -> tuple[TrialRow, list[TrialJobRow]]:
    """The trial that is judged, and its jobs."""
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
    row = page.items[1]
    return row, await manager.control.read(lambda c: jobs.of_trial(c, row.id))


def a_good_trial() -> Iterable[Step]:
    yield ScriptedReport(1.0, 5.0)
    yield Final(0.0, 5.0)


def test_a_replayed_verdict_on_a_lost_job_does_not_stop_the_job_that_runs_now(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 0:
            yield from a_good_trial()
        elif form.number == 1:
            yield ScriptedReport(1.0, 1.0)  # the verdict on this one arrives when the job has ended
            yield ScriptedExit(0.1, EndReason.SIGNALED, code=None, signal=9)
        else:
            yield ScriptedReport(1.0, 9.0)
            yield Final(1000.0, 9.0)

    async def scenario(simulation: Simulation, experiment_id: str) -> None:
        async with simulation.manager() as manager:  # its dispatcher receives the whole log, and judges again
            await simulation.ended(manager, experiment_id)
            row, attempts = await second_trial(manager, experiment_id)
            assert [job.stop_reason for job in attempts] == [None, None]
            assert (row.status, row.final_value) == (TrialStatus.SUCCEEDED, 9.0)

    play(tmp_path, script, scenario)


def a_bad_second_trial(form: TrialJobForm) -> Iterable[Step]:
    if form.sequence_id == 0:
        yield from a_good_trial()
    else:
        yield ScriptedReport(1.0, 1.0)
        yield Final(1000.0, 1.0)


def test_a_verdict_that_was_not_committed_when_the_manager_died_is_carried_out_by_the_next_one(tmp_path: Path) -> None:
    async def scenario(simulation: Simulation, experiment_id: str) -> None:
        async with simulation.manager() as manager:
            _, attempts = await second_trial(manager, experiment_id)
            assert [job.stop_reason for job in attempts] == [None]
            await simulation.ended(manager, experiment_id)
            row, (job,) = await second_trial(manager, experiment_id)
            assert row.status is TrialStatus.EARLY_STOPPED
            assert job.stop_reason is EndReason.EARLY_STOPPED

    play(tmp_path, a_bad_second_trial, scenario, seconds=2.25)  # the report is stored, the verdict is on its way


def test_a_verdict_is_committed_with_its_position_and_recognized_when_it_is_replayed(tmp_path: Path) -> None:
    DeafService.canceled.clear()

    async def scenario(simulation: Simulation, experiment_id: str) -> None:
        async with simulation.manager() as manager:
            await asyncio.sleep(10.0)
            row, (job,) = await second_trial(manager, experiment_id)
            log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 100))
            assert log[-1].kind == "ReportMetrics"
            assert job.stop_position == log[-1].position
            # The restarted manager repeats what it may not have done, once, and in the same words.
            assert DeafService.canceled == [(job.id, True)] * 2
            assert (row.status, job.status) == (TrialStatus.RUNNING, TrialJobStatus.STOPPING)

    play(tmp_path, a_bad_second_trial, scenario, kind=DeafSimulation)
