"""A training service that cannot do what it is asked costs no retry and no other trial, under virtual time."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, SceneService, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.training_services.base import EndReason, TrialJobDetail, TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused, TrainingServiceError
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

AWAY = ServiceUnavailable("the cluster does not answer")


class UnwillingService(SceneService):
    """Raises what the scene says, each time that it is asked for something with a job of these trials."""

    def _ask(self, what: str, sequence_id: int) -> None:
        self.scene.asked.append((what, sequence_id))
        if (error := self.scene.errors.get((what, sequence_id))) is not None:
            raise error

    async def submit_trial_job(self, form: TrialJobForm) -> TrialJobDetail:
        self._ask("submit", form.sequence_id)
        return await super().submit_trial_job(form)

    async def update_trial_job(self, job_id: str, form: TrialJobForm) -> TrialJobDetail:
        self._ask("update", form.sequence_id)
        return await super().update_trial_job(job_id, form)

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        if (job := self.platform.jobs.get(job_id)) is not None:
            self._ask("cancel", job.detail.sequence_id)
        await super().cancel_trial_job(job_id, is_early_stopped)


class UnwillingScene(Scene):
    """Its service raises `errors` by (what it is asked, number of the trial)."""

    service = UnwillingService
    config = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 4}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.errors: dict[tuple[str, int], Exception] = {}

    async def until_asked_no_more(self, what: str) -> None:
        """For long enough nothing of this kind is asked for the first trial."""
        times = self.asked.count((what, 0))
        await asyncio.sleep(400.0)
        assert self.asked.count((what, 0)) == times


def ten_seconds(form: TrialJobForm) -> Iterable[Step]:
    yield ScriptedReport(1.0, 0.5)
    yield Final(9.0, 1.0)


def a_day(form: TrialJobForm) -> Iterable[Step]:
    yield ScriptedReport(1.0, 0.5)
    yield Final(100_000.0, 1.0)


play = partial(small_experiments.play, kind=UnwillingScene, script=ten_seconds)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AWAY, "the cluster does not answer"),
        (RuntimeError("a fault of the plug-in"), "a fault of the plug-in"),
        (OSError(5, "a fault of the plug-in"), "[Errno 5] a fault of the plug-in"),
        (TrainingServiceError("no"), "no"),
        (RuntimeError("The quota is used up:\n  8 of 8 jobs.\n"), "the quota is used up: 8 of 8 jobs"),
    ],
)
@played(play)
async def test_a_job_that_its_service_rejects_waits_with_the_reason_on_one_line_and_costs_no_retry_and_no_other_trial(
    scene: UnwillingScene, manager: Manager, /, error: Exception, words: str
) -> None:
    scene.errors["submit", 1] = error
    await scene.create(seconds=400.0)
    first, second, *others = await scene.trials()
    assert {trial.status for trial in (first, *others)} == {TrialStatus.SUCCEEDED}
    assert (second.status, second.jobs, second.infrastructure_failures) == (TrialStatus.WAITING, 1, 0)
    assert second.reason == f"waiting: platform local rejected the trial for now: {words}; tried again in 60 s"
    assert 8 < scene.asked.count(("submit", 1)) < 16
    scene.errors.clear()
    row = await scene.until_ended()
    assert (row.status, row.error) == (ExperimentStatus.DONE, "")
    second = await scene.trial(1)
    assert (second.status, second.jobs, second.infrastructure_failures) == (TrialStatus.SUCCEEDED, 1, 0)


@pytest.mark.parametrize("whole", [True, False], ids=["stop", "kill"])
@played(play)
async def test_a_job_that_waits_for_its_service_can_be_stopped(
    scene: UnwillingScene, manager: Manager, /, whole: bool
) -> None:
    scene.errors["submit", 0] = AWAY
    await scene.create(seconds=5.0)
    if whole:
        await manager.stop_experiment("exp")
        assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    else:
        await manager.trials.kill((await scene.trial()).id)
        await asyncio.sleep(1.0)
    (job,) = await scene.jobs()
    assert job.end_reason is (EndReason.EXPERIMENT_STOPPED if whole else EndReason.USER_CANCELED)
    await scene.until_asked_no_more("submit")


@played(play)
async def test_a_job_that_waited_for_its_service_when_the_manager_ended_is_submitted_by_the_next_one(
    scene: UnwillingScene, manager: Manager, /
) -> None:
    scene.errors["submit", 0] = AWAY
    await scene.create(seconds=5.0)
    await scene.restart()
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    first = await scene.trial()
    assert (first.status, first.jobs, first.infrastructure_failures) == (TrialStatus.SUCCEEDED, 1, 0)


@pytest.mark.parametrize("error", [AWAY, RuntimeError("a fault of the plug-in")])
@played(play)
async def test_a_cancellation_that_fails_is_noticed_and_not_forgotten(
    scene: UnwillingScene, manager: Manager, /, error: Exception
) -> None:
    scene.errors["cancel", 0] = error
    await scene.create(a_day, seconds=5.0)
    await manager.trials.kill((await scene.trial()).id)
    await asyncio.sleep(200.0)
    first = await scene.trial()
    text = f"platform local cannot stop it: {error}; tried again in 60 s"
    assert (first.status, first.reason) == (TrialStatus.RUNNING, f"being stopped: {text}")
    assert await scene.notices() == [f"trial 0: platform local cannot stop it: {error}; it is tried again"]
    scene.errors.clear()
    await asyncio.sleep(61.0)
    assert (await scene.trial()).status is TrialStatus.USER_CANCELED
    await scene.until_asked_no_more("cancel")


@played(play)
async def test_a_changed_limit_that_a_service_does_not_take_is_noticed_and_told_again(
    scene: UnwillingScene, manager: Manager, /
) -> None:
    scene.errors["update", 0] = RuntimeError("a fault of the plug-in")
    await scene.create(a_day, seconds=5.0)
    await manager.update_experiment("exp", max_trial_seconds=300.0)
    await asyncio.sleep(100.0)
    assert (await scene.row()).status is ExperimentStatus.RUNNING
    assert await scene.notices() == [
        "trial 0: platform local rejected its new limits for now: a fault of the plug-in; it is tried again"
    ]
    scene.errors.clear()
    await asyncio.sleep(300.0)
    assert (await scene.statuses())[:2] == [TrialStatus.EARLY_STOPPED] * 2


@played(play)
async def test_a_limit_that_a_service_can_never_take_is_noticed_and_not_sent_again(
    scene: UnwillingScene, manager: Manager, /
) -> None:
    scene.errors["update", 0] = SubmissionRefused("no keeper can read it")
    await scene.create(a_day, seconds=5.0)
    await manager.update_experiment("exp", max_trial_seconds=300.0)
    await scene.until_asked_no_more("update")
    assert (await scene.trial()).status is TrialStatus.RUNNING
    assert await scene.notices() == ["trial 0: platform local rejected its new limits: no keeper can read it"]
