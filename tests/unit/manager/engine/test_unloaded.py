"""Experiments that cannot be loaded keep their status and their trials, under virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, played

from proctor.manager.engine.manager import Manager
from proctor.manager.engine.unloaded import FIRST_LASTING_SECONDS
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import ExperimentRow, TrialRow
from proctor.manager.store.tables import jobs, trials
from proctor.training_services.base import EndReason, TrainingService, TrialJobForm
from proctor.training_services.errors import BrokenPlatform
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

CONFIG = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 4, "seed": 7}


def three_reports(form: TrialJobForm) -> Iterable[Step]:
    for step in range(3):
        yield ScriptedReport(10.0, form.sequence_id + step / 10)
    yield Final(10.0, form.sequence_id)


class Scene(Simulation):
    """A simulated home with one experiment, whose folder can be taken away as a disk is."""

    def __init__(self, folder: Path, loop: VirtualTimeLoop) -> None:
        super().__init__(Home(folder / "home"), loop, script=three_reports)
        self.folder = folder
        self.id = ""
        self.broken = ""  # why no service can be made
        self.failures: list[Exception] = []  # of services that run, one after another

    async def create(self, manager: Manager) -> ExperimentRow:
        row = await manager.create_experiment(config=CONFIG, directory=str(self.folder))
        self.id = row.id
        return row

    async def row(self, manager: Manager) -> ExperimentRow:
        return await manager.experiment(self.id)

    async def trials(self, manager: Manager) -> list[TrialRow]:
        return (await manager.control.read(lambda c: trials.page(c, self.id, limit=100))).items

    def unmount(self) -> None:
        self._place.rename(self.folder / "unmounted")

    def mount(self) -> None:
        (self.folder / "unmounted").rename(self._place)

    @property
    def _place(self) -> Path:
        return self.home.experiment_directory(self.id)

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        if self.broken:
            raise BrokenPlatform(self.broken)
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return FailingService(self._script, platform=memory, now=self.clock.now, failures=self.failures)


class FailingService(InMemoryTrainingService):
    """Its `run` raises what it was given, five seconds after it began."""

    def __init__(self, *arguments: Any, failures: list[Exception], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._failures = failures

    async def run(self) -> None:
        if self._failures:
            failure = self._failures.pop(0)
            await asyncio.sleep(5.0)
            raise failure
        await super().run()


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await act(Scene(tmp_path, loop))

    run_virtual(main)


async def run_for(scene: Scene, seconds: float) -> None:
    """A manager that has created the experiment ends after so long; its trials keep running."""
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(seconds)


@played(play)
async def test_an_experiment_whose_disk_is_away_keeps_its_status_and_goes_on_when_the_disk_is_back(
    scene: Scene, /
) -> None:
    await run_for(scene, 15.0)
    scene.unmount()
    async with scene.manager() as manager:
        row = await scene.row(manager)
        assert (row.status, row.reason) == (ExperimentStatus.RUNNING, "")
        why = manager.not_loaded(row)
        assert why.startswith("not loaded: the database ")
        assert "No such file or directory" in why
        assert why.endswith("; its trials keep running; tried again in 1 s")
        assert manager.problem == f"experiment {row.id} is {why}"
        with pytest.raises(Unavailable, match=r"is not loaded: .*No such file"):
            await manager.trials.add(row.id, {"x": 0.5})
        other = await manager.create_experiment(config=CONFIG, directory=str(scene.folder))
        assert (await scene.ended(manager, other.id)).status is ExperimentStatus.DONE
        scene.mount()
        row = await scene.ended(manager, row.id)
        assert (row.status, row.reason) == (ExperimentStatus.DONE, "maxTrialNumber 4 is reached")
        assert (manager.not_loaded(row), manager.problem) == ("", "")
        found = await scene.trials(manager)
        assert [trial.final_value for trial in found] == [0.0, 1.0, 2.0, 3.0]
        assert [(trial.jobs, trial.intermediate_count) for trial in found] == [(1, 3)] * 4


@played(play)
async def test_attempts_grow_rarer_and_a_resume_asks_for_one_at_once(scene: Scene, /) -> None:
    await run_for(scene, 15.0)
    scene.unmount()
    async with scene.manager() as manager:
        await asyncio.sleep(1000.0)
        assert int(manager.not_loaded(await scene.row(manager)).rpartition(" in ")[2].split()[0]) > 15
        with pytest.raises(Unavailable, match=r"is not loaded: .*; tried again in 30 s"):
            await manager.resume_experiment(scene.id)
        assert (await scene.row(manager)).status is ExperimentStatus.RUNNING
        scene.mount()
        await manager.resume_experiment(scene.id)
        assert manager.not_loaded(await scene.row(manager)) == ""
        assert (await scene.ended(manager, scene.id)).status is ExperimentStatus.DONE


@played(play)
async def test_what_does_not_pass_by_itself_is_tried_less_often_and_kills_no_trial_either(scene: Scene, /) -> None:
    await run_for(scene, 15.0)
    scene.broken = "its package is not installed"
    async with scene.manager() as manager:
        wanted = "not loaded: its package is not installed; its trials keep running; tried again in 60 s"
        assert manager.not_loaded(await scene.row(manager)) == wanted
        scene.broken = ""
        await asyncio.sleep(FIRST_LASTING_SECONDS - 1.0)
        assert manager.not_loaded(await scene.row(manager)) != ""
        await asyncio.sleep(2.0)
        assert manager.not_loaded(await scene.row(manager)) == ""
        await scene.ended(manager, scene.id)
        assert {(trial.status, trial.jobs) for trial in await scene.trials(manager)} == {(TrialStatus.SUCCEEDED, 1)}


@played(play)
async def test_kills_stops_and_limits_are_written_down_and_hold_when_the_experiment_is_loaded(scene: Scene, /) -> None:
    await run_for(scene, 15.0)
    scene.unmount()
    async with scene.manager() as manager:
        first, second = await scene.trials(manager)
        await manager.trials.kill(first.id)
        row = await manager.update_experiment(scene.id, trial_concurrency=1, max_trial_number=3)
        assert (row.trial_concurrency, row.max_trial_number) == (1, 3)
        live = await manager.control.read(lambda c: jobs.live(c, scene.id))
        assert {job.trial_id: job.stop_reason for job in live} == {
            first.id: EndReason.USER_CANCELED,
            second.id: None,
        }
        await manager.stop_experiment(scene.id)
        row = await scene.row(manager)
        assert row.status is ExperimentStatus.STOPPING
        assert "; its trials are being stopped; " in manager.not_loaded(row)
        await manager.stop_experiment(scene.id)
    async with scene.manager() as manager:  # also by the next manager
        assert "; its trials are being stopped; " in manager.not_loaded(await scene.row(manager))
        scene.mount()
        assert (await scene.ended(manager, scene.id)).status is ExperimentStatus.STOPPED
        statuses = {trial.id: trial.status for trial in await scene.trials(manager)}
        assert statuses == {first.id: TrialStatus.USER_CANCELED, second.id: TrialStatus.WAITING}
        await manager.resume_experiment(scene.id)
        await scene.ended(manager, scene.id)
        assert [trial.status for trial in await scene.trials(manager)] == [
            TrialStatus.USER_CANCELED,
            TrialStatus.SUCCEEDED,
            TrialStatus.SUCCEEDED,
        ]


@played(play)
async def test_an_experiment_that_can_never_be_loaded_can_be_stopped_and_deleted(scene: Scene, /) -> None:
    await run_for(scene, 15.0)
    scene.unmount()
    async with scene.manager() as manager:
        with pytest.raises(Conflict, match="stop it before you delete it"):
            await manager.delete_experiment(scene.id)
        await manager.stop_experiment(scene.id)
        await manager.delete_experiment(scene.id)
        with pytest.raises(NotFound):
            await scene.row(manager)
        await asyncio.sleep(1000.0)
        assert manager.problem == ""


@played(play)
async def test_an_experiment_without_jobs_that_is_not_loaded_is_stopped_at_once(scene: Scene, /) -> None:
    await run_for(scene, 1000.0)
    scene.unmount()
    async with scene.manager() as manager:
        assert (await scene.row(manager)).status is ExperimentStatus.DONE
        await manager.stop_experiment(scene.id)
        row = await scene.row(manager)
        assert (row.status, manager.not_loaded(row)) == (ExperimentStatus.STOPPED, "")
        with pytest.raises(Unavailable, match=r"cannot be resumed and stays STOPPED: .*No such file"):
            await manager.resume_experiment(scene.id)
        assert (await scene.row(manager)).status is ExperimentStatus.STOPPED
        scene.mount()
        await manager.resume_experiment(scene.id)
        assert (await scene.ended(manager, scene.id)).status is ExperimentStatus.DONE


@played(play)
async def test_an_engine_that_meets_what_may_pass_is_started_again_and_the_experiment_keeps_its_status(
    scene: Scene, /
) -> None:
    scene.failures += [OSError(5, "Input/output error"), OSError(5, "Input/output error")]
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(5.5)
        row = await scene.row(manager)
        assert row.status is ExperimentStatus.RUNNING
        assert manager.not_loaded(row).startswith("not loaded: [Errno 5] Input/output error; ")
        await asyncio.sleep(6.0)  # loaded after 1 s, failed again after 5 s
        assert manager.not_loaded(await scene.row(manager)).endswith("; tried again in 2 s")
        assert (await scene.ended(manager, scene.id)).status is ExperimentStatus.DONE
        assert {(trial.status, trial.jobs) for trial in await scene.trials(manager)} == {(TrialStatus.SUCCEEDED, 1)}


@played(play)
async def test_an_engine_that_fails_for_another_reason_is_in_error_and_its_trials_still_end(scene: Scene, /) -> None:
    scene.failures += [RuntimeError("a fault of this program")]
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(6.0)
        row = await scene.row(manager)
        assert row.status is ExperimentStatus.ERROR
        why = manager.not_loaded(row)
        assert why.startswith(f"{row.reason}; not loaded: ")
        assert "a fault of this program" in why
        await asyncio.sleep(FIRST_LASTING_SECONDS)
        row = await scene.row(manager)
        assert (row.status, manager.not_loaded(row)) == (ExperimentStatus.ERROR, "")
        assert {trial.status for trial in await scene.trials(manager)} == {TrialStatus.SUCCEEDED}
        await manager.resume_experiment(scene.id)
        assert (await scene.ended(manager, scene.id)).status is ExperimentStatus.DONE


@played(play)
async def test_a_trial_of_a_failed_engine_can_be_killed_and_the_experiment_stopped(scene: Scene, /) -> None:
    scene.failures += [RuntimeError("a fault of this program")]
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(6.0)
        first, second = await scene.trials(manager)
        await manager.trials.kill(first.id)
        await manager.stop_experiment(scene.id)
        assert (await scene.ended(manager, scene.id)).status is ExperimentStatus.STOPPED
        live = await manager.control.read(lambda c: jobs.live(c, scene.id))
        assert live == []
        statuses = {trial.id: trial.status for trial in await scene.trials(manager)}
        assert statuses == {first.id: TrialStatus.USER_CANCELED, second.id: TrialStatus.WAITING}
