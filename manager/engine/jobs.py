"""What the loop makes of a training service's news about jobs."""

from dataclasses import replace
from typing import Any

from proctor.manager.engine import trials as trial_moves
from proctor.manager.engine.messages import HeldUp
from proctor.manager.engine.state import ExperimentState, LiveTrial
from proctor.manager.engine.step import Step
from proctor.manager.lifecycle.failures import cause_of_failure, is_worth_a_notice
from proctor.manager.lifecycle.job import JOB, JobEvent
from proctor.manager.lifecycle.reasons import RetryPolicy, Verdict, judge, retry_delay, settled_reason
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store import jobs, trials
from proctor.training_services.base import EndReason, Exit, StatusChange, TrialJobStatus

_NO_FINAL = "no final metric was reported"


def on_change(state: ExperimentState, step: Step, change: StatusChange, policy: RetryPolicy) -> None:
    """One status change. A job that is not live any more, or another token, is stale: nothing happens."""
    trial = state.by_job.get(change.job_id)
    if trial is None or trial.job is None or trial.job.token != change.token:
        return
    if change.exit is None:
        trial_moves.note_beginning(state, step, trial, resumed=change.resumed, start_reason=change.start_reason)
    if change.exit is not None:
        end_job(state, step, trial, change.exit, policy)
    elif change.status is TrialJobStatus.RUNNING:
        _start_job(step, trial, change)
        if trial.row.status is TrialStatus.RUNNING:
            trial_moves.set_reason(step, trial, change.detail)
    elif change.detail and trial.row.status is TrialStatus.WAITING:
        trial_moves.set_reason(step, trial, change.detail)


def _start_job(step: Step, trial: LiveTrial, change: StatusChange) -> None:
    job = trial.job
    assert job is not None
    if job.started_at is not None:
        return
    started_at = change.time.timestamp()
    status = JOB.after(f"job {job.id}", job.status, JobEvent.START)
    expected = (job.status,)
    columns: dict[str, Any] = {"started_at": started_at, "pid": change.pid, "node_id": change.node_id or job.node_id}
    trial.job = replace(job, status=status, **columns)
    step.write(
        lambda c: jobs.move(c, job.id, token=job.token, expected=expected, status=status, time=step.now, **columns)
    )
    if trial.row.status is TrialStatus.WAITING:
        trial_moves.start_trial(step, trial, started_at)


def end_job(state: ExperimentState, step: Step, trial: LiveTrial, exit: Exit, policy: RetryPolicy) -> None:
    """A job is over: settle why, then end its trial or send it back."""
    job = trial.job
    assert job is not None
    lost = state.row.report_from in exit.lost_finals
    reason = settled_reason(exit.reason, job.stop_reason, has_final=trial.has_final, final_lost=lost)
    detail = job.detail if reason is job.stop_reason and job.detail else exit.detail or describe(exit)
    _close_job(state, step, trial, exit, reason, detail)
    if not trial.has_final and trial.other_final is not None:
        text = (
            f"trial {trial.row.sequence_id} has no final metric: rank {trial.other_final} has reported one, but the "
            f"metrics of rank {state.row.report_from} count (reportFrom)"
        )
        step.note("notice", {"text": text}, trial_id=trial.row.id)
    verdict = judge(
        reason,
        failures=trial.row.failures,
        infrastructure_failures=trial.row.infrastructure_failures,
        fruitless_jobs=0 if trial.has_progress else trial.row.fruitless_jobs + 1,
        policy=policy,
        has_final=trial.has_final,
    )
    if verdict.status is TrialStatus.WAITING:
        _retry(step, trial, verdict, reason, detail)
    elif verdict.status is not TrialStatus.SUCCEEDED:
        is_new = job.resumes == state.row.resumes
        cause = cause_of_failure(verdict.status, reason, detail) if is_new else ""
        trial_moves.end_trial(state, step, trial, verdict.status, detail, cause=cause)
    elif reason is EndReason.EXITED_OK:
        trial_moves.end_trial(state, step, trial, verdict.status, "" if trial.has_final else _NO_FINAL)
        if not trial.has_final and trial.other_final is None:
            _notice_missing_final(state, step, trial)
    else:
        trial_moves.accept_final(state, step, trial, f"its job ended afterwards as {reason.value} ({detail})")


def _notice_missing_final(state: ExperimentState, step: Step, trial: LiveTrial) -> None:
    """Say at the first trial, the tenth, the hundredth … that its tuner learns nothing from it."""
    number = state.row.trials_without_final
    if not is_worth_a_notice(number):
        return
    which = "it is the first one" if number == 1 else f"{number} trials have by now"
    text = (
        f"trial {trial.row.sequence_id} has ended without a final metric ({which}): its command exited with 0 and "
        "never called report_final_result(), so the tuner has no result of it"
    )
    step.note("notice", {"text": text}, trial_id=trial.row.id)


def _close_job(
    state: ExperimentState, step: Step, trial: LiveTrial, exit: Exit, reason: EndReason, detail: str
) -> None:
    job = trial.job
    assert job is not None
    status = JOB.after(f"job {job.id}", job.status, JobEvent.END)
    expected = JOB.sources(JobEvent.END)
    columns: dict[str, Any] = {
        "end_reason": reason,
        "detail": detail,
        "exit_code": exit.code,
        "signal": exit.signal,
        "started_at": job.started_at or exit.started_at or None,
        "ended_at": exit.ended_at,
    }
    trial.job = None
    del state.by_job[job.id]
    step.write(
        lambda c: jobs.move(c, job.id, token=job.token, expected=expected, status=status, time=step.now, **columns)
    )
    step.release.append(job.id)
    if trial.row.started_at is None and columns["started_at"] is not None:
        trial.row = replace(trial.row, started_at=exit.started_at)
        trial_id = trial.row.id
        step.write(lambda c: trials.update(c, trial_id, started_at=exit.started_at))


def _retry(step: Step, trial: LiveTrial, verdict: Verdict, reason: EndReason, detail: str) -> None:
    delay = verdict.retry_after_seconds or 0.0
    again = f"waiting: runs again in {delay:g} s" if delay else "waiting: runs again"
    trial_moves.send_back(
        step,
        trial,
        f"{again} after {reason.value} ({detail})",
        failures=verdict.failures,
        infrastructure_failures=verdict.infrastructure_failures,
        fruitless_jobs=0 if trial.has_progress else trial.row.fruitless_jobs + 1,
        not_before=step.now + delay if delay else None,
    )
    trial.retry_at = step.monotonic + delay if delay else None


def on_held_up(state: ExperimentState, step: Step, message: HeldUp) -> None:
    """The service cannot do yet what it was asked to do with a job."""
    trial = state.by_job.get(message.job_id)
    if trial is None or trial.job is None or trial.job.token != message.token:
        return
    if message.reason:
        trial_moves.set_reason(step, trial, message.reason)
    if message.notice:
        step.note("notice", {"text": message.notice}, trial_id=trial.row.id)


def restore_retry_times(state: ExperimentState, policy: RetryPolicy, *, now: float, monotonic: float) -> None:
    """After a restart: what is left of the delays of waiting trials, by the stored Unix time. The machine's clock may
    have been set meanwhile, so none waits longer than the delay that it was given."""
    for trial in state.trials.values():
        if trial.row.not_before is not None:
            longest = max(retry_delay(trial.row.fruitless_jobs, policy), policy.no_room_seconds)
            trial.retry_at = monotonic + min(max(trial.row.not_before - now, 0.0), longest)


def describe(exit: Exit) -> str:
    """How a job left, in a few words."""
    if exit.signal is not None:
        return f"killed by signal {exit.signal}"
    if exit.code is not None:
        return f"exit code {exit.code}"
    return exit.reason.value
