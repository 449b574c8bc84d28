"""A training service that cannot do what it is asked costs no retry and no other trial, under virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import events, jobs, trials
from proctor.training_services.base import EndReason, TrainingService, TrialJobDetail, TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

CONFIG = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 4}

AWAY = ServiceUnavailable("the cluster does not answer")


class UnwillingService(InMemoryTrainingService):
    """Raises what the scene says, each time that it is asked for something with a job of these trials."""

    def __init__(self, scene: "Scene", *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._scene = scene

    def _ask(self, what: str, sequence_id: int) -> None:
        self._scene.asked.append((what, sequence_id))
        if (error := self._scene.errors.get((what, sequence_id))) is not None:
            raise error

    async def submit_trial_job(self, form: TrialJobForm) -> TrialJobDetail:
        self._ask("submit", form.sequence_id)
        return await super().submit_trial_job(form)

    async def update_trial_job(self, job_id: str, form: TrialJobForm) -> TrialJobDetail:
        self._ask("update", form.sequence_id)
        return await super().update_trial_job(job_id, form)

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        job = self.platform.jobs.get(job_id)
        if job is not None:
            self._ask("cancel", job.detail.sequence_id)
        await super().cancel_trial_job(job_id, is_early_stopped)


class Scene(Simulation):
    """A simulated home with one experiment; its service raises `errors` by (what it is asked, number of the trial)."""

    def __init__(self, folder: Path, loop: VirtualTimeLoop) -> None:
        super().__init__(Home(folder / "home"), loop, script=self._steps)
        self.folder = folder
        self.errors: dict[tuple[str, int], Exception] = {}
        self.asked: list[tuple[str, int]] = []
        self.trial_seconds = 10.0

    def _steps(self, form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedReport(1.0, 0.5)
        yield Final(self.trial_seconds - 1.0, 1.0)

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return UnwillingService(self, self._script, platform=memory, now=self.clock.now)

    async def create(self, manager: Manager) -> None:
        await manager.create_experiment(config=CONFIG, directory=str(self.folder), experiment_id="exp")

    async def trials(self, manager: Manager) -> list[TrialRow]:
        return (await manager.control.read(lambda c: trials.page(c, "exp", limit=100))).items

    async def jobs(self, manager: Manager, trial: TrialRow) -> list[TrialJobRow]:
        return await manager.control.read(lambda c: jobs.of_trial(c, trial.id))

    async def notices(self, manager: Manager) -> list[str]:
        found = await manager.control.read(lambda c: events.notices(c, "exp", limit=100))
        return [text for text in found if text.startswith("trial ")]


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await act(Scene(tmp_path, loop))

    run_virtual(main)


@played(play)
async def test_a_job_waits_for_a_service_that_is_away_and_is_not_charged(scene: Scene, /) -> None:
    scene.errors["submit", 0] = AWAY
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(400.0)
        first, *others = await scene.trials(manager)
        assert {trial.status for trial in others} == {TrialStatus.SUCCEEDED}
        assert first.status is TrialStatus.WAITING
        expected = (
            "waiting: platform local rejected the trial for now: the cluster does not answer; tried again in 60 s"
        )
        assert first.reason == expected
        assert 8 < scene.asked.count(("submit", 0)) < 16
        scene.errors.clear()
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
        first = (await scene.trials(manager))[0]
        assert (first.status, first.jobs, first.infrastructure_failures) == (TrialStatus.SUCCEEDED, 1, 0)


@pytest.mark.parametrize("whole", [True, False], ids=["stop", "kill"])
@played(play)
async def test_a_job_that_waits_for_its_service_can_be_stopped(scene: Scene, /, whole: bool) -> None:
    scene.errors["submit", 0] = AWAY
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(5.0)
        first = (await scene.trials(manager))[0]
        if whole:
            await manager.stop_experiment("exp")
            assert (await scene.ended(manager, "exp")).status is ExperimentStatus.STOPPED
        else:
            await manager.trials.kill(first.id)
            await asyncio.sleep(1.0)
        (job,) = await scene.jobs(manager, first)
        assert job.end_reason is (EndReason.EXPERIMENT_STOPPED if whole else EndReason.USER_CANCELED)
        times = scene.asked.count(("submit", 0))
        await asyncio.sleep(400.0)
        assert scene.asked.count(("submit", 0)) == times


@played(play)
async def test_a_job_that_waited_for_its_service_when_the_manager_ended_is_submitted_by_the_next_one(
    scene: Scene, /
) -> None:
    scene.errors["submit", 0] = AWAY
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(5.0)
    async with scene.manager() as manager:
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
        first = (await scene.trials(manager))[0]
        assert (first.status, first.jobs, first.infrastructure_failures) == (TrialStatus.SUCCEEDED, 1, 0)


@pytest.mark.parametrize(
    "error", [RuntimeError("a fault of the plug-in"), OSError(5, "a fault of the plug-in"), TrainingServiceError("no")]
)
@played(play)
async def test_after_any_other_error_of_a_submission_the_job_waits_with_the_reason_and_costs_no_retry(
    scene: Scene, /, error: Exception
) -> None:
    scene.errors["submit", 1] = error
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(1000.0)
        first, second, *others = await scene.trials(manager)
        assert {trial.status for trial in (first, *others)} == {TrialStatus.SUCCEEDED}
        assert (second.status, second.jobs, second.infrastructure_failures) == (TrialStatus.WAITING, 1, 0)
        expected = f"waiting: platform local rejected the trial for now: {error}; tried again in 60 s"
        assert second.reason == expected
        scene.errors.clear()
        row = await scene.ended(manager, "exp")
        assert (row.status, row.error) == (ExperimentStatus.DONE, "")
        second = (await scene.trials(manager))[1]
        assert (second.status, second.jobs, second.infrastructure_failures) == (TrialStatus.SUCCEEDED, 1, 0)


@played(play)
async def test_an_error_of_several_lines_becomes_a_reason_on_one_line(scene: Scene, /) -> None:
    scene.errors["submit", 0] = RuntimeError("The quota is used up:\n  8 of 8 jobs.\n")
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(1000.0)
        first = (await scene.trials(manager))[0]
        expected = "platform local rejected the trial for now: the quota is used up: 8 of 8 jobs; tried again in 60 s"
        assert first.reason == f"waiting: {expected}"


@pytest.mark.parametrize("error", [AWAY, RuntimeError("a fault of the plug-in")])
@played(play)
async def test_a_cancellation_that_fails_is_noticed_and_not_forgotten(scene: Scene, /, error: Exception) -> None:
    scene.trial_seconds = 100_000.0
    scene.errors["cancel", 0] = error
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(5.0)
        first = (await scene.trials(manager))[0]
        await manager.trials.kill(first.id)
        await asyncio.sleep(200.0)
        first = (await scene.trials(manager))[0]
        text = f"platform local cannot stop it: {error}; tried again in 60 s"
        assert (first.status, first.reason) == (TrialStatus.RUNNING, f"being stopped: {text}")
        assert await scene.notices(manager) == [f"trial 0: platform local cannot stop it: {error}; it is tried again"]
        scene.errors.clear()
        await asyncio.sleep(61.0)
        first = (await scene.trials(manager))[0]
        assert first.status is TrialStatus.USER_CANCELED
        times = scene.asked.count(("cancel", 0))
        await asyncio.sleep(400.0)
        assert scene.asked.count(("cancel", 0)) == times


@played(play)
async def test_a_changed_limit_that_a_service_does_not_take_is_noticed_and_told_again(scene: Scene, /) -> None:
    scene.trial_seconds = 100_000.0
    scene.errors["update", 0] = RuntimeError("a fault of the plug-in")
    async with scene.manager() as manager:
        await scene.create(manager)
        await asyncio.sleep(5.0)
        await manager.update_experiment("exp", max_trial_seconds=300.0)
        await asyncio.sleep(100.0)
        assert (await manager.experiment("exp")).status is ExperimentStatus.RUNNING
        assert await scene.notices(manager) == [
            "trial 0: platform local rejected its new limits for now: a fault of the plug-in; it is tried again"
        ]
        scene.errors.clear()
        await asyncio.sleep(300.0)
        assert [trial.status for trial in await scene.trials(manager)][:2] == [TrialStatus.EARLY_STOPPED] * 2
