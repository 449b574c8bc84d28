"""The three lifecycles and the reason table."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.lifecycle.experiment import (
    EXPERIMENT,
    ExperimentEvent,
    ExperimentProgress,
    has_forgotten_trials,
    next_event,
    spent_limit,
    wanted_trials,
)
from proctor.manager.lifecycle.job import JOB, JobEvent
from proctor.manager.lifecycle.machine import InvalidTransition
from proctor.manager.lifecycle.retries import MEANINGS, Charge, RetryPolicy, judge, settled_reason
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import ENDS, TRIAL, TrialEvent
from proctor.training_services.base import EndReason, TrialJobStatus

DOCS = Path(__file__).parents[4] / "docs" / "lifecycle.md"


@given(st.lists(st.sampled_from(TrialEvent)))
def test_no_sequence_of_events_leaves_a_terminal_trial_status(events: list[TrialEvent]) -> None:
    status = TrialStatus.WAITING
    for event in events:
        if TRIAL.allows(status, event):
            assert not status.is_terminal
            status = TRIAL.after("trial t", status, event)


@given(st.lists(st.sampled_from(JobEvent)))
def test_a_job_only_ever_moves_forward(events: list[JobEvent]) -> None:
    order = list(TrialJobStatus)
    status = TrialJobStatus.CREATED
    for event in events:
        if JOB.allows(status, event):
            after = JOB.after("job j", status, event)
            assert order.index(after) >= order.index(status)
            status = after


def test_every_live_trial_can_end_in_every_terminal_status() -> None:
    terminal = {status for status in TrialStatus if status.is_terminal} - {TrialStatus.UNKNOWN}
    live = {status for status in TrialStatus if not status.is_terminal}
    assert set(ENDS) == terminal
    for origin, (status, event) in product(live, ENDS.items()):
        assert TRIAL.after("trial t", origin, event) is status


def test_an_illegal_move_names_the_thing_its_status_and_what_is_possible() -> None:
    with pytest.raises(
        InvalidTransition, match=r"trial abc is PAUSED and cannot take START; possible events: .*RESUME"
    ):
        TRIAL.after("trial abc", TrialStatus.PAUSED, TrialEvent.START)


def test_a_stopped_experiment_can_be_resumed_and_a_running_one_cannot() -> None:
    assert EXPERIMENT.allows(ExperimentStatus.STOPPED, ExperimentEvent.RESUME)
    assert not EXPERIMENT.allows(ExperimentStatus.RUNNING, ExperimentEvent.RESUME)


@pytest.mark.parametrize("status", list(ExperimentStatus))
def test_every_experiment_status_is_in_the_machine(status: ExperimentStatus) -> None:
    assert EXPERIMENT.events_from(status)


@pytest.mark.parametrize("machine", [EXPERIMENT, TRIAL, JOB], ids=lambda machine: machine.name)
def test_the_diagram_in_the_docs_is_the_table(machine: object) -> None:
    assert machine.diagram() in DOCS.read_text()  # type: ignore[attr-defined]


def test_every_end_reason_has_a_meaning() -> None:
    assert set(MEANINGS) == set(EndReason)
    kept = {end for end, meaning in MEANINGS.items() if not meaning.status.is_terminal}
    assert kept == {EndReason.PAUSED}
    assert MEANINGS[EndReason.PAUSED].status is TrialStatus.PAUSED


def test_the_reason_table_in_the_docs_is_the_table() -> None:
    text = DOCS.read_text()
    for reason, meaning in MEANINGS.items():
        assert f"| {reason.value} | {meaning.status} | {meaning.charge} | {meaning.with_final} |" in text


@given(
    end=st.sampled_from(EndReason),
    failures=st.integers(0, 10),
    infrastructure=st.integers(0, 10),
    trial_budget=st.integers(0, 5),
    infrastructure_budget=st.integers(0, 5),
)
def test_a_verdict_is_terminal_or_a_pause_or_a_retry_within_budget(
    end: EndReason, failures: int, infrastructure: int, trial_budget: int, infrastructure_budget: int
) -> None:
    policy = RetryPolicy(max_trial_retries=trial_budget, max_infrastructure_retries=infrastructure_budget)
    verdict = judge(end, failures=failures, infrastructure_failures=infrastructure, policy=policy)
    if verdict.retry_after_seconds is None:
        assert verdict.status.is_terminal or (end, verdict.status) == (EndReason.PAUSED, TrialStatus.PAUSED)
        assert (verdict.failures, verdict.infrastructure_failures) == (failures, infrastructure)
        return
    assert verdict.status is TrialStatus.WAITING
    assert 0 <= verdict.retry_after_seconds <= policy.max_backoff_seconds
    charged = (verdict.failures - failures, verdict.infrastructure_failures - infrastructure)
    assert charged == {Charge.TRIAL: (1, 0), Charge.INFRASTRUCTURE: (0, 1), Charge.FREE: (0, 0)}[MEANINGS[end].charge]
    if MEANINGS[end].charge is Charge.TRIAL:
        assert failures < trial_budget
    if MEANINGS[end].charge is Charge.INFRASTRUCTURE:
        assert infrastructure < infrastructure_budget


@pytest.mark.parametrize("end", EndReason)
def test_a_trial_whose_final_metric_is_stored_is_over_however_its_job_ended(end: EndReason) -> None:
    policy = RetryPolicy(max_trial_retries=9, max_infrastructure_retries=9)
    verdict = judge(end, failures=1, infrastructure_failures=2, policy=policy, has_final=True)
    own_words = {
        EndReason.EXITED_ERROR: TrialStatus.FAILED,
        EndReason.DEADLINE: TrialStatus.EARLY_STOPPED,
        EndReason.EARLY_STOPPED: TrialStatus.EARLY_STOPPED,
        EndReason.USER_CANCELED: TrialStatus.USER_CANCELED,
    }
    assert verdict.status is own_words.get(end, TrialStatus.SUCCEEDED)
    assert (verdict.failures, verdict.infrastructure_failures, verdict.retry_after_seconds) == (1, 2, None)


def test_a_failing_command_is_not_retried_by_default_and_infrastructure_is_with_growing_pauses() -> None:
    policy = RetryPolicy()
    failed = judge(EndReason.EXITED_ERROR, failures=0, infrastructure_failures=0, policy=policy)
    assert failed.status is TrialStatus.FAILED
    pauses = [
        judge(
            EndReason.NODE_LOST, failures=0, infrastructure_failures=n, fruitless_jobs=n + 1, policy=policy
        ).retry_after_seconds
        for n in range(6)
    ]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, None]
    patient = RetryPolicy(max_infrastructure_retries=10_000)
    late = judge(EndReason.NODE_LOST, failures=0, infrastructure_failures=5_000, fruitless_jobs=5_001, policy=patient)
    assert late.retry_after_seconds == 60


def test_a_negative_budget_has_no_limit() -> None:
    policy = RetryPolicy(max_trial_retries=-1, max_infrastructure_retries=-1)
    for end in (EndReason.EXITED_ERROR, EndReason.NODE_LOST):
        verdict = judge(end, failures=1000, infrastructure_failures=1000, fruitless_jobs=1000, policy=policy)
        assert (verdict.status, verdict.retry_after_seconds) == (TrialStatus.WAITING, 60.0)


def test_exit_codes_that_are_named_are_charged_to_infrastructure() -> None:
    policy = RetryPolicy(max_trial_retries=0, max_infrastructure_retries=1, retry_exit_codes=frozenset({75}))

    def verdict(end: EndReason, code: int, spent: int = 0) -> tuple[TrialStatus, int, int]:
        found = judge(end, failures=0, infrastructure_failures=spent, policy=policy, exit_code=code)
        return found.status, found.failures, found.infrastructure_failures

    assert verdict(EndReason.EXITED_ERROR, 75) == (TrialStatus.WAITING, 0, 1)
    assert verdict(EndReason.EXITED_ERROR, 75, spent=1) == (TrialStatus.FAILED, 0, 1)
    assert verdict(EndReason.EXITED_ERROR, 1) == (TrialStatus.FAILED, 0, 0)
    assert verdict(EndReason.USER_CANCELED, 75) == (TrialStatus.USER_CANCELED, 0, 0)


_NOT_RETRIED = {Charge.FINAL, Charge.PAUSE}


@pytest.mark.parametrize("end", [end for end, meaning in MEANINGS.items() if meaning.charge not in _NOT_RETRIED])
def test_a_trial_runs_again_at_once_after_a_job_that_has_got_on_and_else_after_growing_pauses(end: EndReason) -> None:
    policy = RetryPolicy(max_trial_retries=100, max_infrastructure_retries=100)
    found = [
        judge(end, failures=n, infrastructure_failures=n, fruitless_jobs=fruitless, policy=policy).retry_after_seconds
        for n, fruitless in enumerate([0, 1, 2, 3, 4, 0, 9])
    ]
    least = policy.no_room_seconds if end is EndReason.NO_ROOM else 0.0
    assert found == [max(pause, least) for pause in (0.0, 1.0, 2.0, 4.0, 8.0, 0.0, 60.0)]


def test_a_written_wish_to_stop_wins_over_how_the_job_left() -> None:
    for end in (EndReason.EXITED_ERROR, EndReason.NODE_LOST, EndReason.PREEMPTED, EndReason.LAUNCH_FAILED):
        assert settled_reason(end, EndReason.USER_CANCELED, has_final=False) is EndReason.USER_CANCELED
    assert settled_reason(EndReason.DEADLINE, EndReason.USER_CANCELED, has_final=False) is EndReason.DEADLINE


@pytest.mark.parametrize("stop", [EndReason.EXPERIMENT_STOPPED, EndReason.PAUSED, EndReason.CLONED])
def test_a_trial_that_finishes_while_it_is_to_be_interrupted_has_finished(stop: EndReason) -> None:
    assert settled_reason(EndReason.EXITED_OK, stop, has_final=True) is EndReason.EXITED_OK
    assert settled_reason(EndReason.EXITED_OK, stop, has_final=False) is stop


def test_a_trial_that_exits_well_without_the_final_it_reported_has_lost_its_result() -> None:
    lost = EndReason.RESULT_LOST
    assert settled_reason(EndReason.EXITED_OK, None, has_final=False, final_lost=True) is lost
    assert settled_reason(EndReason.EXITED_OK, None, has_final=True, final_lost=True) is EndReason.EXITED_OK
    assert settled_reason(EndReason.EXITED_OK, None, has_final=False) is EndReason.EXITED_OK
    assert settled_reason(EndReason.EXITED_ERROR, None, has_final=False, final_lost=True) is EndReason.EXITED_ERROR
    stop = EndReason.EXPERIMENT_STOPPED
    assert settled_reason(EndReason.EXITED_OK, stop, has_final=False, final_lost=True) is stop


@pytest.mark.parametrize("end", [EndReason.NO_ROOM, EndReason.PREEMPTED])
def test_a_job_that_was_given_back_after_it_was_to_stop_is_stopped(end: EndReason) -> None:
    assert settled_reason(end, EndReason.USER_CANCELED, has_final=False) is EndReason.USER_CANCELED


progresses = st.builds(
    ExperimentProgress,
    status=st.sampled_from(ExperimentStatus),
    created=st.integers(0, 20),
    max_trials=st.none() | st.integers(1, 20),
    active_seconds=st.floats(0, 100),
    max_seconds=st.none() | st.floats(1, 100),
    live=st.integers(0, 5),
    requested=st.integers(0, 5),
    exhausted=st.booleans(),
    gpu_hours=st.floats(0, 10),
    max_gpu_hours=st.none() | st.floats(1, 10),
    paused=st.integers(3, 5),
    paused_by_scheduler=st.integers(0, 3),
    has_scheduler=st.booleans(),
    idle=st.booleans(),
)


@given(progresses, st.integers(1, 10))
def test_suggestions_never_pass_a_limit_or_the_concurrency(progress: ExperimentProgress, concurrency: int) -> None:
    wanted = wanted_trials(progress, concurrency)
    assert wanted.count >= 0
    if wanted.count:
        assert progress.live + progress.requested + wanted.count <= concurrency
        assert progress.max_gpu_hours is None or wanted.can_start or progress.gpu_hours < progress.max_gpu_hours
        if not wanted.can_start:
            assert progress.has_scheduler
            assert wanted.count <= progress.paused_by_scheduler
        elif progress.max_trials is not None:
            assert progress.created + progress.requested + wanted.count <= progress.max_trials


@given(progresses, st.integers(1, 10))
def test_trials_that_a_scheduler_has_paused_never_wait_for_nothing(
    progress: ExperimentProgress, concurrency: int
) -> None:
    can_continue = progress.status in {
        ExperimentStatus.RUNNING,
        ExperimentStatus.NO_MORE_TRIAL,
        ExperimentStatus.TUNER_NO_MORE_TRIAL,
    }
    held = progress.has_scheduler and progress.paused_by_scheduler
    if held and can_continue and not (progress.live or progress.requested):
        assert wanted_trials(progress, concurrency).count or has_forgotten_trials(progress)
    else:
        assert not has_forgotten_trials(progress)


@given(progresses)
def test_the_moves_an_experiment_makes_by_itself_are_allowed_and_come_to_rest(progress: ExperimentProgress) -> None:
    for _ in range(4):
        move = next_event(progress)
        if move is None:
            break
        status = EXPERIMENT.after("experiment e", progress.status, move[0])
        progress = ExperimentProgress(**{**vars(progress), "status": status})
    assert next_event(progress) is None


def test_a_raised_limit_brings_a_done_experiment_back() -> None:
    done = ExperimentProgress(ExperimentStatus.DONE, 5, 5, 0.0, None, 0, 0, False)
    assert next_event(done) is None
    assert "maxTrialNumber 5" in spent_limit(done)
    raised = ExperimentProgress(ExperimentStatus.DONE, 5, 6, 0.0, None, 0, 0, False)
    assert next_event(raised) == (ExperimentEvent.RAISE_LIMIT, "a limit was raised")
