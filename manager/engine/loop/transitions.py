"""How trials and jobs go through their lifecycles in an experiment's loop.

A trial is created and given one job after another (`starts`), and ended once. What becomes of a job is decided by its
training service's events (`on_change`); whether its trial then ends or runs again, by `end_job`.
"""

import logging
from dataclasses import replace
from typing import Any

from proctor.manager.actors import MANAGER, Actor
from proctor.manager.clock import Clock
from proctor.manager.dispatcher import protocol
from proctor.manager.engine.loop import hints, starts
from proctor.manager.engine.loop.messages import Delayed, JobRefused
from proctor.manager.engine.loop.state import (
    ExperimentState,
    LiveTrial,
    Turn,
    seconds_since_start,
    seconds_so_far,
    start_columns,
)
from proctor.manager.lifecycle.experiment_failures import cause_of_failure, is_worth_a_notice
from proctor.manager.lifecycle.job import JOB, JobEvent
from proctor.manager.lifecycle.retries import RetryDecision, RetryPolicy, judge, retry_delay, settled_reason
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import ENDS, TRIAL, PausedBy, TrialEvent
from proctor.manager.store.rows import DecisionRow, TrialJobRow
from proctor.manager.store.tables import jobs, trials
from proctor.manager.store.tables.journals import metric_number
from proctor.training_services.base import (
    EndReason,
    Exit,
    StatusChange,
    TrialJobStatus,
)

_NO_FINAL = "no final metric was reported"
WAITS_FOR_RESUME = "waiting: the experiment is stopped; resume runs it"


def set_reason(turn: Turn, trial: LiveTrial, reason: str) -> None:
    """Record why a trial waits, or is stuck, if that has changed."""
    if trial.row.reason == reason:
        return
    trial.row = replace(trial.row, reason=reason)
    trial_id = trial.row.id
    turn.write(lambda c: trials.update(c, trial_id, reason=reason))
    turn.add_event("trial.reason", {"status": str(trial.row.status), "reason": reason}, trial_id=trial_id)


def end_trial(
    state: ExperimentState,
    turn: Turn,
    trial: LiveTrial,
    status: TrialStatus,
    reason: str,
    *,
    cause: str = "",
    more_follow: bool = False,
) -> None:
    """The trial is over: its result goes to the tuner.

    :param cause: why it has failed, if that counts as a failure of the experiment's trials (`cause_of_failure`).
    :param more_follow: others end with it, in later turns.
    """
    _move(turn, trial, ENDS[status], reason, ended_at=turn.now, paused_by=None)
    state.remove(trial)
    turn.ended.append(trial.row.id)
    if trial.has_checkpoints:
        turn.retain.add(trial.row.id)
    if trial.row.origin_job is not None:
        turn.retain.add(trial.row.origin_job.rpartition(".")[0])
    state.count_end(status, cause, has_final=trial.has_final)
    if status is TrialStatus.SUCCEEDED:
        hints.on_success(state, turn, trial)
    state.exhausted = False  # a tuner that had nothing to suggest may have learned something
    value, has_value = outcome(trial, status, counts_intermediate=state.counts_intermediate_results)
    message = protocol.TrialEnd(
        state.take_position(),
        trial.row.parameter_id,
        trial.row.id,
        trial.row.parameters,
        str(status),
        has_value,
        value,
        customized=trial.row.source != "algorithm",
        more_follow=more_follow,
    )
    if more_follow:
        state.more_follow_at = message.position
    turn.send_input(message, starts.message_payload(message))


def pause_trial(
    state: ExperimentState,
    turn: Turn,
    trial: LiveTrial,
    paused_by: PausedBy,
    detail: str,
    save_seconds: float,
    *,
    position: int | None = None,
) -> None:
    """Keep a trial without a place until whoever pauses it has it run again. One that runs may save first.

    Of a trial that is paused already only a user's pause changes anything: it becomes that user's.

    :param save_seconds: how long it may save before it is signaled.
    :param position: of the dispatcher input that led its trial scheduler to this decision.
    """
    job = trial.job
    if trial.row.paused_by is not None:
        if paused_by is PausedBy.USER and trial.row.paused_by is not PausedBy.USER:
            _take_pause_over(turn, trial, detail)
        elif job is not None and position is not None and job.stop_position is None and not _goes_on(job):
            trial.job = replace(job, stop_position=position)  # its scheduler holds it, too
            turn.write(lambda c: jobs.update(c, job.id, token=job.token, stop_position=position))
    elif job is None:
        trial.row = replace(trial.row, paused_by=paused_by)
        _set_aside(state, turn, trial, detail)
    elif _goes_on(job):
        set_paused_by(turn, trial, paused_by)  # once its job has ended, see `end_job`
    else:
        stop_softly(state, turn, trial, EndReason.PAUSED, detail, save_seconds, position=position)
        if trial.job is not None and trial.job.stop_reason is EndReason.PAUSED:
            set_paused_by(turn, trial, paused_by)


def _goes_on(job: TrialJobRow) -> bool:
    """Whether a job is being stopped so that its trial's next job continues from another checkpoint."""
    return job.stop_reason in {EndReason.CLONED, EndReason.CHECKPOINT_DAMAGED}


def _take_pause_over(turn: Turn, trial: LiveTrial, detail: str) -> None:
    job = trial.job
    if trial.is_held or (job is not None and job.stop_position is not None):
        detail += "; its trial scheduler has paused it, too"
    if job is not None:
        columns: dict[str, Any] = {"detail": detail, "stopped_by": turn.actor.to_text()}
        trial.job = replace(job, **columns)
        turn.write(lambda c: jobs.update(c, job.id, token=job.token, **columns))
        detail = _describe_stop(trial.job, turn.now)
    set_paused_by(turn, trial, PausedBy.USER)
    set_reason(turn, trial, detail)


def set_paused_by(turn: Turn, trial: LiveTrial, paused_by: PausedBy | None) -> None:
    """Record who has paused a trial, or is pausing it."""
    trial.row = replace(trial.row, paused_by=paused_by)
    trial_id = trial.row.id
    turn.write(lambda c: trials.update(c, trial_id, paused_by=paused_by))


def _set_aside(state: ExperimentState, turn: Turn, trial: LiveTrial, reason: str) -> None:
    _move(turn, trial, TrialEvent.PAUSE, reason, not_before=None, paused_by=trial.row.paused_by)
    state.set_aside(trial)
    turn.paused[trial.row.id] = trial


def resume_trial(turn: Turn, trial: LiveTrial, why: str) -> None:
    """Have a PAUSED trial run again when there is a place."""
    _move(turn, trial, TrialEvent.RESUME, f"waiting: {why}", paused_by=None)


def end_pause(turn: Turn, trial: LiveTrial, why: str) -> None:
    """A user no longer keeps a trial PAUSED. If its trial scheduler has paused it, too, it remains that one's."""
    if trial.is_held and trial.decision is None:
        set_paused_by(turn, trial, PausedBy.SCHEDULER)
        set_reason(turn, trial, "paused by its trial scheduler, which decides when it runs again")
    else:
        resume_trial(turn, trial, why if trial.decision is None else f"{why}; {describe_decision(trial.decision)}")


def describe_decision(decision: DecisionRow) -> str:
    """Why a trial runs again, as a clause."""
    if decision.is_clone:
        return with_reason(f"its trial scheduler has it continue from trial {decision.donor_trial}", decision.reason)
    return with_reason("resumed by its trial scheduler", decision.reason)


def with_reason(text: str, reason: str | None) -> str:
    """A clause with its reason, if there is one."""
    return f"{text}: {reason}" if reason else text


def take_latest_as_final(turn: Turn, trial: LiveTrial) -> None:
    """The trial has used all that it may: its latest intermediate metric with a number is its result."""
    latest = trial.latest if trial.latest_with_number is None else trial.latest_with_number
    columns = {"final_value": metric_number(latest), "final_data": latest}
    trial.row = replace(trial.row, **columns)
    trial_id = trial.row.id
    turn.write(lambda c: trials.update(c, trial_id, **columns))


def accept_final(state: ExperimentState, turn: Turn, trial: LiveTrial, how: str) -> None:
    """The trial has succeeded by its stored final metric, although its job did not end well; a notice says so.

    :param how: a clause, what has become of the job.
    """
    text = f"trial {trial.row.sequence_id} has succeeded: its final metric is stored; {how}"
    turn.add_notice(text, trial_id=trial.row.id)
    end_trial(state, turn, trial, TrialStatus.SUCCEEDED, f"its final metric is stored; {how}")


def end_waiting_with_final(state: ExperimentState, turn: Turn) -> None:
    """Trials that were sent back to WAITING before their final metric was stored, or before it was known that a final
    metric is the end, do not run again."""
    for trial in [trial for trial in state.jobless.values() if trial.has_final]:
        accept_final(state, turn, trial, "its last job did not end well")


def outcome(trial: LiveTrial, status: TrialStatus, *, counts_intermediate: bool) -> tuple[Any, bool]:
    """An ended trial's result for the tuner: its final metric; where that counts, the latest one of a trial that was
    stopped early without one."""
    if trial.has_final:
        return trial.row.final_data, True
    if counts_intermediate and status is TrialStatus.EARLY_STOPPED and trial.has_latest:
        return trial.latest, True
    return None, False


def request_stop(
    state: ExperimentState,
    turn: Turn,
    trial: LiveTrial,
    reason: EndReason,
    detail: str,
    *,
    position: int | None = None,
    save_until: float | None = None,
) -> None:
    """Ask the trial's live job to stop; its end comes from the service. Asked twice, the first reason stands, except
    that a user may cancel a trial that is being interrupted to run again later, and that a decision about the trial
    replaces one about its place.

    :param position: of the dispatcher input that led an algorithm to this decision; it is committed with the request.
    :param save_until: Unix time until which the trial may save before it is signaled; None: it is signaled at once.
    """
    job = trial.job
    if job is None:
        return
    by = turn.actor.to_text()
    columns: dict[str, Any] = {"stop_reason": reason, "detail": detail, "stop_position": position, "stopped_by": by}
    if job.stop_reason is None:
        columns["save_until"] = save_until
        expected = JOB.sources(JobEvent.STOP)
        status = JOB.after(f"job {job.id}", job.status, JobEvent.STOP)
        trial.job = replace(job, status=status, **columns)
        actor, change = turn.actor, {"expected": expected, "status": status, "time": turn.now, **columns}
        turn.write(lambda c: jobs.move(c, job.id, token=job.token, actor=actor, **change))
    elif _supersedes(trial, job, reason):
        columns["save_until"] = _earlier(job.save_until, save_until)
        trial.job = replace(job, **columns)
        turn.write(lambda c: jobs.update(c, job.id, token=job.token, **columns))
    else:
        return
    set_reason(turn, trial, _describe_stop(trial.job, turn.now))
    turn.cancel.append((job.id, reason is EndReason.EARLY_STOPPED))


def _supersedes(trial: LiveTrial, job: TrialJobRow, reason: EndReason) -> bool:
    before = job.stop_reason
    if before is EndReason.PREEMPTED:
        return reason is not EndReason.PREEMPTED
    if before is EndReason.PAUSED and reason in {EndReason.EARLY_STOPPED, EndReason.BUDGET_USED}:
        return trial.row.paused_by is PausedBy.SCHEDULER
    return reason is EndReason.USER_CANCELED and before in {EndReason.PAUSED, EndReason.CLONED}


def _earlier(before: float | None, save_until: float | None) -> float | None:
    """Until when a trial may save that is asked to stop again: never longer than before. None: not at all."""
    return None if before is None or save_until is None else min(before, save_until)


def _describe_stop(job: TrialJobRow, now: float) -> str:
    """Why a trial's job is being stopped, and how long it may still save."""
    seconds = 0.0 if job.save_until is None else round(job.save_until - now, 1)
    saving = f"; it may save for at most {seconds:g} s" if seconds > 0 else ""
    return f"stopping: {job.detail}{saving}"


def stop_softly(
    state: ExperimentState,
    turn: Turn,
    trial: LiveTrial,
    reason: EndReason,
    detail: str,
    save_seconds: float,
    *,
    position: int | None = None,
) -> None:
    """Stop the trial's job; one whose process runs may save first.

    :param save_seconds: how long it may save before it is signaled.
    :param position: as of `request_stop`.
    """
    runs = trial.job is not None and trial.job.started_at is not None
    save_until = turn.now + save_seconds if runs and save_seconds > 0 else None
    request_stop(state, turn, trial, reason, detail, position=position, save_until=save_until)


def end_saving(turn: Turn, trial: LiveTrial) -> None:
    """The trial's job is to be signaled at once, if it was given time to save."""
    job = trial.job
    if job is None or job.save_until is None:
        return
    trial.job = replace(job, save_until=None)
    turn.write(lambda c: jobs.update(c, job.id, token=job.token, save_until=None))
    turn.cancel.append((job.id, False))


def _move(turn: Turn, trial: LiveTrial, event: TrialEvent, reason: str, **columns: Any) -> None:
    row, actor = trial.row, turn.actor
    status = TRIAL.after(f"trial {row.id}", row.status, event)
    trial.row = replace(row, status=status, reason=reason, **columns)
    turn.log(
        with_reason(f"trial {row.sequence_id} is {status}", reason),
        action=f"trial.{event.lower()}",
        level=logging.WARNING if event is TrialEvent.WAIT else logging.INFO,
        trial_id=row.id,
        job_id=None if trial.job is None else trial.job.id,
        node_id=None if trial.job is None else trial.job.node_id,
    )
    turn.write(
        lambda c: trials.move(
            c, row.id, expected=(row.status,), status=status, reason=reason, time=turn.now, actor=actor, **columns
        )
    )


# ---- what a training service reports of jobs -------------------------------------------------------------------------


def on_change(state: ExperimentState, turn: Turn, change: StatusChange, policy: RetryPolicy) -> None:
    """One status change. A job that is no longer live, or another token, is stale: nothing happens."""
    trial = state.by_job.get(change.job_id)
    if trial is None or trial.job is None or trial.job.token != change.token:
        return
    if change.start is not None:
        starts.record_start(state, turn, trial, change.start)
    if change.exit is not None:
        end_job(state, turn, trial, change.exit, policy)
        turn.actor = MANAGER
    elif change.status is TrialJobStatus.RUNNING:
        _start_job(state, turn, trial, change)
        if trial.row.status is TrialStatus.RUNNING:
            clauses = [change.detail] if change.detail else []
            if trial.job.stop_reason is not None:
                clauses.insert(0, _describe_stop(trial.job, turn.now))
            set_reason(turn, trial, "; ".join(clauses))
    elif change.detail and trial.row.status is TrialStatus.WAITING:
        set_reason(turn, trial, change.detail)


def _start_job(state: ExperimentState, turn: Turn, trial: LiveTrial, change: StatusChange) -> None:
    job = trial.job
    assert job is not None
    if job.started_at is not None:
        return
    started_at = change.time.timestamp()
    status, expected = JOB.after(f"job {job.id}", job.status, JobEvent.START), (job.status,)
    columns: dict[str, Any] = {"started_at": started_at, "pid": change.pid, "node_id": change.node_id or job.node_id}
    seconds = seconds_since_start(replace(job, started_at=started_at), turn.now)
    columns |= start_columns(seconds, turn.clock)
    trial.job = replace(job, status=status, **columns)
    state.gpu_time.start(trial.job, turn.monotonic - seconds)
    turn.write(
        lambda c: jobs.move(c, job.id, token=job.token, expected=expected, status=status, time=turn.now, **columns)
    )
    if trial.row.status is TrialStatus.WAITING:
        _move(turn, trial, TrialEvent.START, "", started_at=trial.row.started_at or started_at)


def end_job(state: ExperimentState, turn: Turn, trial: LiveTrial, exit: Exit, policy: RetryPolicy) -> None:
    """A job is over: settle why, then end its trial or send it back. Whoever has stopped it has caused what follows."""
    job = trial.job
    assert job is not None
    lost = state.row.report_from in exit.lost_finals
    reason = settled_reason(exit.reason, job.stop_reason, has_final=trial.has_final, final_lost=lost)
    detail = job.detail if reason is job.stop_reason and job.detail else exit.detail or describe(exit)
    if reason is EndReason.DEADLINE and trial.run_before > 0:
        detail = "its jobs ran longer in total than maxTrialDuration"
    if reason is job.stop_reason and job.stopped_by is not None:
        turn.actor = Actor.from_text(job.stopped_by)
    _close_job(state, turn, trial, exit, reason, detail)
    if not trial.has_final and trial.other_final is not None:
        text = (
            f"trial {trial.row.sequence_id} has no final metric: rank {trial.other_final} has reported one, but the "
            f"metrics of rank {state.row.report_from} count (reportFrom)"
        )
        turn.add_notice(text, trial_id=trial.row.id)
    is_preempted = job.stop_reason is EndReason.PREEMPTED and reason is EndReason.PREEMPTED
    if is_preempted:
        trial.preempted = detail
    fruitless = 0 if is_preempted or trial.has_progress else trial.row.fruitless_jobs + 1
    decision = judge(
        reason,
        failures=trial.row.failures,
        infrastructure_failures=trial.row.infrastructure_failures,
        fruitless_jobs=fruitless,
        policy=policy,
        has_final=trial.has_final,
        exit_code=exit.code,
    )
    if decision.status is TrialStatus.WAITING:
        _retry(turn, trial, decision, fruitless, reason, detail)
        if _goes_on(job) and trial.row.paused_by is not None:
            _set_aside(state, turn, trial, "paused with its experiment")
    elif decision.status is TrialStatus.PAUSED:
        _keep_paused(state, turn, trial, job, detail)
    elif decision.status is not TrialStatus.SUCCEEDED:
        is_new = job.resumes == state.row.resumes
        cause = cause_of_failure(decision.status, reason, detail) if is_new else ""
        end_trial(state, turn, trial, decision.status, detail, cause=cause)
    elif reason is EndReason.BUDGET_USED:
        if not trial.has_final and trial.has_latest:
            take_latest_as_final(turn, trial)
        end_trial(state, turn, trial, decision.status, detail)
    elif reason is EndReason.EXITED_OK:
        end_trial(state, turn, trial, decision.status, "" if trial.has_final else _NO_FINAL)
        if not trial.has_final and trial.other_final is None:
            _notice_missing_final(state, turn, trial)
    else:
        accept_final(state, turn, trial, f"its job ended afterwards as {reason.value} ({detail})")


def _keep_paused(state: ExperimentState, turn: Turn, trial: LiveTrial, job: TrialJobRow, detail: str) -> None:
    """A trial whose job was paused is PAUSED, unless whoever has paused it has changed that meanwhile."""
    trial.is_held = job.stop_position is not None
    if trial.is_held:
        hints.on_pause(state, turn, trial)
    paused_by = trial.row.paused_by
    _set_aside(state, turn, trial, detail)
    if paused_by is None:
        state.bring_back(trial)
        resume_trial(turn, trial, "resumed with its experiment")
    elif paused_by is PausedBy.SCHEDULER and trial.decision is not None:
        state.bring_back(trial)
        resume_trial(turn, trial, describe_decision(trial.decision))


def _notice_missing_final(state: ExperimentState, turn: Turn, trial: LiveTrial) -> None:
    """A notice at the first trial, the tenth, the hundredth … that its tuner learns nothing from it."""
    number = state.row.trials_without_final
    if not is_worth_a_notice(number):
        return
    which = "it is the first one" if number == 1 else f"{number} trials have by now"
    text = (
        f"trial {trial.row.sequence_id} has ended without a final metric ({which}): its command exited with 0 and "
        "never called report_final_result(), so the tuner gets no result from it"
    )
    turn.add_notice(text, trial_id=trial.row.id)


def _run_seconds(trial: LiveTrial, job: TrialJobRow, exit: Exit, clock: Clock) -> float | None:
    """How long a job has run that is over. Of one whose end no process has seen, such as one on a lost node, what is
    known counts: until it last reported, and never the time until the end was noticed."""
    is_unseen = exit.reason in (EndReason.EXIT_UNKNOWN, EndReason.NODE_LOST)
    known = 0.0 if exit.run_seconds is None and is_unseen else exit.run_seconds
    return None if known is None else max(known, min(trial.reported_seconds, seconds_so_far(job, clock)))


def _close_job(
    state: ExperimentState, turn: Turn, trial: LiveTrial, exit: Exit, reason: EndReason, detail: str
) -> None:
    job = trial.job
    assert job is not None
    status = JOB.after(f"job {job.id}", job.status, JobEvent.END)
    expected, actor = JOB.sources(JobEvent.END), turn.actor
    columns: dict[str, Any] = {
        "end_reason": reason,
        "detail": detail,
        "exit_code": exit.code,
        "signal": exit.signal,
        "started_at": job.started_at or exit.started_at or None,
        "ended_at": exit.ended_at,
        "cpu_seconds": exit.cpu_seconds,
        "run_seconds": _run_seconds(trial, job, exit, turn.clock),
        "verdict_seconds": exit.verdict_seconds,
    }
    state.end_job(trial, replace(job, **columns), turn.monotonic)
    turn.write(
        lambda c: jobs.move(
            c, job.id, token=job.token, expected=expected, status=status, time=turn.now, actor=actor, **columns
        )
    )
    turn.release.append(job.id)
    is_clone = job.resumed_from_job is not None and not job.resumed_from_job.startswith(f"{trial.row.id}.")
    if trial.has_checkpoints or is_clone:
        turn.retain.add(trial.row.id)
    if trial.row.started_at is None and columns["started_at"] is not None:
        trial.row = replace(trial.row, started_at=exit.started_at)
        trial_id = trial.row.id
        turn.write(lambda c: trials.update(c, trial_id, started_at=exit.started_at))


def _retry(
    turn: Turn, trial: LiveTrial, decision: RetryDecision, fruitless: int, reason: EndReason, detail: str
) -> None:
    delay = decision.retry_after_seconds or 0.0
    again = f"waiting: runs again in {delay:g} s" if delay else "waiting: runs again"
    _move(
        turn,
        trial,
        TrialEvent.WAIT,
        f"waiting: {trial.preempted}" if trial.preempted else f"{again} after {reason.value} ({detail})",
        failures=decision.failures,
        infrastructure_failures=decision.infrastructure_failures,
        fruitless_jobs=fruitless,
        not_before=turn.now + delay if delay else None,
    )
    trial.retry_at = turn.monotonic + delay if delay else None


def on_refused(state: ExperimentState, turn: Turn, message: JobRefused, policy: RetryPolicy) -> None:
    """The service would not take a job: it has ended without having begun."""
    trial = state.by_job.get(message.job_id)
    if trial is not None and trial.job is not None and trial.job.token == message.token:
        end_job(state, turn, trial, Exit(message.reason, None, None, 0.0, turn.now, message.detail), policy)
        turn.actor = MANAGER


def on_delayed(state: ExperimentState, turn: Turn, message: Delayed) -> None:
    """The service cannot do yet what it was asked to do with a job."""
    trial = state.by_job.get(message.job_id)
    if trial is None or trial.job is None or trial.job.token != message.token:
        return
    if message.reason:
        set_reason(turn, trial, message.reason)
    if message.notice:
        turn.add_notice(message.notice, trial_id=trial.row.id)


def restore_retry_times(state: ExperimentState, policy: RetryPolicy, *, now: float, monotonic: float) -> None:
    """After a restart: what is left of the delays of waiting trials, by the stored Unix time. The machine's clock may
    have been set meanwhile, so none waits longer than the delay that it was given."""
    for trial in state.jobless.values():
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
