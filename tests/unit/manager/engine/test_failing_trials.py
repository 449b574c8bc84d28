"""Experiments whose trials fail with one cause, or too often: they go to ERROR, and a resume starts over."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Hang, Script, ScriptedExit, Step

DONE, ERROR = ExperimentStatus.DONE, ExperimentStatus.ERROR
FAILED, SUCCEEDED = TrialStatus.FAILED, TrialStatus.SUCCEEDED
ADVICE = "; correct it, then resume the experiment"
FAILURE = EndReason.EXITED_ERROR


def failing(form: TrialJobForm) -> Iterable[Step]:
    detail = f"exit code 1: OSError: /scratch/{form.trial_id}/part-{form.sequence_id} at 0x7f{form.sequence_id:04x}"
    yield ScriptedExit(1.0, FAILURE, code=1, detail=detail)


def ending_as(*ends: EndReason | None) -> Script:
    """Trials that end so in the order of their numbers, those after them as the last one; None: they succeed."""

    def script(form: TrialJobForm) -> Iterable[Step]:
        end = ends[min(form.sequence_id, len(ends) - 1)]
        yield Final(1.0, 1.0) if end is None else ScriptedExit(1.0, end)

    return script


class FailingScene(Scene):
    """Trials follow each other."""

    config = SMALL | {"seed": 7}

    async def counts(self) -> dict[TrialStatus, int]:
        """How many trials are in each status."""
        return Counter(await self.statuses())


play = partial(small_experiments.play, kind=FailingScene)


@played(play, script=failing)
async def test_ten_first_trials_that_fail_with_one_cause_end_the_experiment(
    scene: FailingScene, manager: Manager, /
) -> None:
    row = await scene.run(maxTrialNumber=100)
    assert row.status is ERROR
    assert row.reason.startswith("the first 10 trials that have ended failed with one cause: EXITED_ERROR (exit code 1")
    assert row.reason.endswith(ADVICE)
    assert await scene.counts() == {FAILED: 10}


@pytest.mark.parametrize(("number", "said"), [(1, "the only finished trial failed"), (3, "all 3 trials")])
@played(play, script=failing)
async def test_fewer_trials_that_all_fail_with_one_cause_are_an_error_when_they_are_all(
    scene: FailingScene, manager: Manager, /, number: int, said: str
) -> None:
    row = await scene.run(maxTrialNumber=number)
    assert row.status is ERROR
    assert row.reason.startswith(said)
    assert await scene.counts() == {FAILED: number}


def another_error(form: TrialJobForm) -> Iterable[Step]:
    error = "ValueError: depth" if form.sequence_id == 9 else "KeyError: width"
    yield ScriptedExit(1.0, FAILURE, code=1, detail=f"exit code 1: {error}")


@pytest.mark.parametrize(
    ("script", "failed"),
    [
        (ending_as(*[FAILURE] * 9, None, FAILURE), 29),
        (ending_as(*[FAILURE] * 9, EndReason.DEADLINE, FAILURE), 29),
        (ending_as(*[FAILURE] * 9, EndReason.EARLY_STOPPED, FAILURE), 29),
        (another_error, 30),
        (ending_as(*[FAILURE] * 9, EndReason.OUT_OF_MEMORY), 30),
    ],
    ids=["one works", "one has no more time", "one is stopped early", "two messages", "two reasons"],
)
@played(play)
async def test_another_end_among_the_first_ten_lets_the_experiment_go_on(
    scene: FailingScene, manager: Manager, /, script: Script, failed: int
) -> None:
    assert (await scene.run(script, maxTrialNumber=30)).status is DONE
    assert (await scene.counts())[FAILED] == failed


@pytest.mark.parametrize("end", [EndReason.NODE_LOST, EndReason.CANCELED, EndReason.INFRASTRUCTURE])
@played(play)
async def test_what_infrastructure_ends_is_no_failure_of_the_trials(
    scene: FailingScene, manager: Manager, /, end: EndReason
) -> None:
    assert (
        await scene.run(ending_as(end), maxTrialNumber=12, maxInfrastructureRetries=0, maxFailedTrials=2)
    ).status is DONE
    assert await scene.counts() == {TrialStatus.SYS_CANCELED: 12}


@played(play)
async def test_an_exit_code_that_is_to_be_retried_is_charged_to_infrastructure(
    scene: FailingScene, manager: Manager, /
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number <= 7:
            yield ScriptedExit(1.0, FAILURE, code=75 if form.sequence_id == 0 else 1)
        yield Final(1.0, 1.0)

    budgets = {"maxTrialRetries": 0, "maxInfrastructureRetries": -1}
    await scene.run(script, maxTrialNumber=2, retryExitCodes=75, **budgets)
    assert await scene.statuses() == [SUCCEEDED, FAILED]


@played(play, script=ending_as(EndReason.UNPLACEABLE))
async def test_trials_that_the_platform_refuses_for_good_fail_with_one_cause(
    scene: FailingScene, manager: Manager, /
) -> None:
    assert (await scene.run(maxTrialNumber=30)).status is ERROR
    assert await scene.counts() == {TrialStatus.SYS_CANCELED: 10}


@played(play)
async def test_trials_that_the_user_kills_are_no_failures(scene: FailingScene, manager: Manager, /) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedExit(1.0, FAILURE) if form.sequence_id < 9 else Hang()

    await scene.create(script, maxTrialNumber=11, maxFailedTrials=10)
    for number in (9, 10):
        await asyncio.sleep(60.0)
        trial = await scene.trial(number)
        assert trial.status is TrialStatus.RUNNING
        assert (await scene.row()).status is not ERROR
        await manager.trials.kill(trial.id)
    row = await scene.until_ended()
    assert row.status is ERROR  # its other nine trials have failed, and no more come
    assert row.reason.startswith("all 9 trials that have ended failed with one cause")


@played(play, script=ending_as(None, FAILURE, None, EndReason.OUT_OF_MEMORY, None, FAILURE))
async def test_max_failed_trials_counts_failures_of_all_causes(scene: FailingScene, manager: Manager, /) -> None:
    row = await scene.run(maxTrialNumber=50, maxFailedTrials=4)
    assert row.status is ERROR
    assert row.reason.startswith("4 trials have failed, maxFailedTrials is 4; the first one: EXITED_ERROR (")
    assert await scene.counts() == {SUCCEEDED: 3, FAILED: 4}


@played(play, script=ending_as(FAILURE, None))
async def test_a_retried_trial_fails_once(scene: FailingScene, manager: Manager, /) -> None:
    assert (await scene.run(maxTrialNumber=3, maxTrialRetries=4, maxFailedTrials=4)).status is DONE
    assert await scene.statuses() == [FAILED, SUCCEEDED, SUCCEEDED]


@played(play)
async def test_running_trials_go_on_and_nothing_new_is_started(scene: FailingScene, manager: Manager, /) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(500.0, 1.0) if form.sequence_id == 0 else ScriptedExit(1.0, FAILURE)

    assert (await scene.run(script, maxTrialNumber=50, trialConcurrency=2)).status is ERROR
    assert await scene.statuses() == [TrialStatus.RUNNING] + [FAILED] * 10
    await asyncio.sleep(1000.0)
    assert await scene.statuses() == [SUCCEEDED] + [FAILED] * 10


@played(play)
async def test_a_resumed_experiment_counts_anew_and_leaves_out_what_ran_before(
    scene: FailingScene, manager: Manager, /
) -> None:
    is_repaired = False

    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id >= 10:  # these are running when the experiment fails, and end after it was resumed
            yield from () if is_repaired else (ScriptedExit(300.0, FAILURE),)
        elif not is_repaired:
            yield ScriptedExit(1.0, FAILURE)
        yield Final(1.0, 1.0)

    assert (await scene.run(script, maxTrialNumber=40, trialConcurrency=20, maxFailedTrials=10)).status is ERROR
    is_repaired = True
    await manager.resume_experiment("exp")
    row = await scene.until_ended()
    assert (row.status, row.resumes) == (DONE, 1)
    assert await scene.counts() == {FAILED: 20, SUCCEEDED: 20}


@played(play, script=failing)
async def test_a_resume_that_has_nothing_left_to_do_does_not_fail_again(
    scene: FailingScene, manager: Manager, /
) -> None:
    assert (await scene.run(maxTrialNumber=3)).status is ERROR
    await manager.resume_experiment("exp")
    row = await scene.until_ended()
    assert (row.status, row.reason) == (DONE, "maxTrialNumber 3 is reached")
    await manager.update_experiment("exp", max_trial_number=20)
    row = await scene.until_ended()
    assert (row.status, row.failed_trials, await scene.counts()) == (ERROR, 10, {FAILED: 13})


@pytest.mark.parametrize("restarts", [1, 4])
@played(play, script=failing)
async def test_the_counts_survive_restarts_of_the_manager(
    scene: FailingScene, manager: Manager, /, restarts: int
) -> None:
    await scene.create(maxTrialNumber=100)
    for number in range(1, restarts + 1):
        await scene.restart()
        await asyncio.sleep(2.0)
        row = await scene.row()
        assert (row.status, row.failed_trials >= number) == (ExperimentStatus.RUNNING, True)
    await scene.restart()
    assert (await scene.until_ended()).status is ERROR
    assert len(await scene.trials()) == 10


@played(play, script=ending_as(EndReason.EXITED_OK))
async def test_a_trial_without_a_final_metric_is_noticed_and_says_so(scene: FailingScene, manager: Manager, /) -> None:
    assert (await scene.run(maxTrialNumber=12)).status is DONE
    reasons = {(row.status, row.reason) for row in await scene.trials()}
    assert reasons == {(SUCCEEDED, "no final metric was reported")}
    assert [text.split(":")[0] for text in await scene.notices()] == [
        "trial 0 has ended without a final metric (it is the first one)",
        "trial 9 has ended without a final metric (10 trials have by now)",
    ]


@played(play, script=ending_as(None))
async def test_a_trial_with_a_final_metric_gives_no_such_notice(scene: FailingScene, manager: Manager, /) -> None:
    await scene.run(maxTrialNumber=2)
    assert {row.reason for row in await scene.trials()} == {""}
    assert await scene.notices() == []
