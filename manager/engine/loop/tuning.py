"""The algorithms' side of an experiment's loop: tuner, assessor and trial scheduler.

Stored metrics are applied to the trials and sent to the dispatcher; its answers become trials, or stop them; and as
many suggestions are requested as there are free places and the limits allow.
"""

import logging
from dataclasses import replace
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.engine.loop import hints, starts, transitions
from proctor.manager.engine.loop.messages import MetricsRefused, MetricsStored, SuggestionRefused
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.manager.lifecycle.experiment import (
    EXPERIMENT,
    ExperimentEvent,
    next_event,
    wanted_trials,
)
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind, PausedBy
from proctor.manager.store.rows import DecisionRow
from proctor.manager.store.tables import dispatcher_inputs, experiments, scheduler_tables, trials
from proctor.manager.store.tables.journals import metric_number
from proctor.manager.store.tables.metrics import StoredChunk
from proctor.sdk.protocol import NO_MILESTONE
from proctor.training_services.base import CheckpointOffer, EndReason


def on_stored(state: ExperimentState, turn: Turn, message: MetricsStored, *, notify: bool) -> None:
    """Bring the trials' rows up to date.

    :param notify: the experiment has an assessor, so that the dispatcher gets intermediate metrics.
    """
    rows: list[protocol.ReportedMetric] = []
    ids: list[int] = []
    ended: list[str] = []  # jobs of trials that have ended meanwhile: a replay must leave them out, too
    report_from = state.row.report_from
    for job_id, chunk in message.chunks:
        trial_id, _, number = job_id.rpartition(".")
        trial, job_number = state.trials.get(trial_id), int(number)
        if trial is None:
            ended.append(job_id)
            continue
        # The job may have been abandoned while its metrics were being stored: they are the trial's all the same.
        counts = chunk.member == report_from
        apply_chunk(turn, trial, chunk, is_newest=job_number == trial.row.jobs, counts=counts)
        if chunk.damaged and trial.job is not None and trial.job.id == job_id:
            on_damaged_checkpoint(state, turn, trial, chunk.damaged)
        if trial.job is not None and trial.job.id == job_id:
            trial.reported_seconds = max(trial.reported_seconds, chunk.run_seconds)
        if chunk.checkpoints:
            trial.has_checkpoints = True
            turn.retain.add(trial_id)
            turn.saved += chunk.checkpoints
        if not counts:
            continue
        if chunk.intermediates:
            hints.on_metric(state, turn, trial, chunk.intermediates[-1][2])
        if chunk.by_wall_clock:
            hints.on_wall_clock(state, turn, trial)
        parameter_id = trial.parameter_id_of(job_number)
        for row_id, sequence, value, step, seconds in chunk.intermediates:
            if row_id <= state.replayed_to:
                continue  # it arrived during recovery, which has sent it on
            ids.append(row_id)
            rows.append(protocol.ReportedMetric(parameter_id, trial_id, job_number, sequence, value, step, seconds))
    if not ids:
        return
    first, last = min(ids), max(ids)
    turn.add_event("metrics", {"first": first, "last": last, "count": len(ids)})
    state.row = replace(state.row, metrics_told=max(state.row.metrics_told, last))
    if notify:
        payload: dict[str, Any] = {"first": first, "last": last} | ({"ended": ended} if ended else {})
        turn.send_input(protocol.ReportMetrics(state.take_position(), rows), payload)


def on_damaged_checkpoint(state: ExperimentState, turn: Turn, trial: LiveTrial, path: str) -> None:
    """A job has found that what it was handed to continue from is damaged. Whatever it does now is not what was asked
    for: it ends, and the trial's next job continues from another checkpoint. Once for each checkpoint."""
    job = trial.job
    if job is None or job.resume_checkpoint != path:
        return
    detail = f"{path}, from which it was to continue, is damaged"
    transitions.request_stop(state, turn, trial, EndReason.CHECKPOINT_DAMAGED, detail)


def on_metrics_refused(state: ExperimentState, turn: Turn, message: MetricsRefused) -> None:
    """A trial whose reported result cannot be stored is stopped and has failed."""
    trial_id, _, number = message.job_id.rpartition(".")
    trial = state.trials.get(trial_id)
    if trial is None:
        return
    turn.add_notice(f"trial {trial.row.sequence_id}: {message.why}", trial_id=trial_id)
    if trial.job is not None and trial.job.number == int(number):
        transitions.request_stop(state, turn, trial, EndReason.EXITED_ERROR, message.why)


def apply_chunk(turn: Turn, trial: LiveTrial, chunk: StoredChunk, *, is_newest: bool, counts: bool) -> None:
    """Counts, the latest and the final value of one trial.

    :param is_newest: the chunk is of the trial's newest job, so that its intermediate metrics are the latest ones.
    :param counts: it is of the rank whose metrics are the trial's.
    """
    columns: dict[str, Any] = {}
    if is_newest and (chunk.intermediates or chunk.checkpoints):
        trial.has_progress = True
    if chunk.checkpoints:
        trial.saved_at = chunk.checkpoints[-1].time
    if chunk.finals and not counts:
        trial.other_final = chunk.member
    if chunk.intermediates and is_newest and counts:
        _, sequence, latest, _, _ = chunk.intermediates[-1]
        trial.latest, trial.has_latest = latest, True
        numbers = (each[2] for each in reversed(chunk.intermediates) if metric_number(each[2]) is not None)
        trial.latest_with_number = next(numbers, trial.latest_with_number)
        columns["intermediate_count"] = sequence + 1
        columns["latest_value"] = metric_number(latest)
    for _, data in chunk.finals if counts else ():
        if trial.has_final or "final_data" in columns:
            turn.add_notice("a second final metric was reported and ignored", trial_id=trial.row.id)
            continue
        columns["final_value"], columns["final_data"] = metric_number(data), data
    if chunk.lost:
        reports = "1 report" if chunk.lost == 1 else f"{chunk.lost} reports"
        turn.add_notice(f"{reports} lost: the trial's disk was full", trial_id=trial.row.id)
    for why in chunk.uncounted:
        turn.add_notice(f"trial {trial.row.sequence_id}: {why}", trial_id=trial.row.id)
    for step, waited in chunk.unjudged:
        text = (
            f"trial {trial.row.sequence_id} has trained past step {step}, where its trial scheduler decides: there was "
            f"no verdict within {waited:g} s (verdictTimeout)"
        )
        turn.add_notice(text, trial_id=trial.row.id)
    if chunk.unreadable:
        records = "1 journal record" if chunk.unreadable == 1 else f"{chunk.unreadable} journal records"
        text = f"{records} could not be read"
        turn.add_notice(text, trial_id=trial.row.id)
    if columns:
        trial.row = replace(trial.row, **columns)
        trial_id = trial.row.id
        turn.write(lambda c: trials.update(c, trial_id, **columns))


def on_new_trial(
    state: ExperimentState, turn: Turn, message: protocol.NewTrial, parent: CheckpointOffer | None
) -> None:
    """A suggestion becomes a trial. One that was not requested, or that came before, is ignored.

    :param parent: the checkpoint of its parent, if there is one.
    """
    if not state.take_answer(message.parameter_id):
        return
    trial = starts.create_trial(
        state,
        turn,
        parameter_id=message.parameter_id,
        parameters=message.parameters,
        source="algorithm",
        position=message.position,
        algorithm_state=message.state,
        origin_trial=message.parent_trial,
        checkpoint=parent,
    )
    if state.has_scheduler:
        trial.milestone = _milestone(message.milestone)


def on_suggestion_refused(state: ExperimentState, turn: Turn, message: SuggestionRefused) -> None:
    """A suggestion whose parameters the store refuses is a trial that has failed."""
    if not state.take_answer(message.parameter_id):
        return
    trial = starts.create_trial(
        state,
        turn,
        parameter_id=message.parameter_id,
        parameters=None,
        source="algorithm",
        position=message.position,
    )
    transitions.end_trial(state, turn, trial, TrialStatus.FAILED, message.why, cause=message.why)


def on_no_more(state: ExperimentState, message: protocol.NoMoreTrials) -> None:
    """The tuner has nothing to suggest for these ids."""
    answered = state.requested & set(message.parameter_ids)
    state.requested -= answered
    if not answered:
        return
    if message.for_now:
        state.idle_at = message.position
    else:
        state.declined |= answered
        state.exhausted = True


def on_kill(state: ExperimentState, turn: Turn, message: protocol.KillTrial, *, save_seconds: float) -> None:
    """The assessor or the trial scheduler wants a trial stopped early. The decision is for the job whose metric was
    judged, or since which the trial is PAUSED: it is ignored when the trial has another one, or was asked to stop
    already (a restarted dispatcher decides again). It is also ignored for a trial that a user has paused: that one is
    judged again once it runs.

    :param save_seconds: how long a trial may save, and report its final metric, that has used all that it may.
    """
    trial = state.trials.get(message.trial_id)
    detail = transitions.with_reason(f"stopped early by {_author(message)}", message.reason)
    if trial is None or trial.row.jobs != message.job_number:
        return
    if trial.row.status is TrialStatus.PAUSED:
        if trial.row.paused_by is PausedBy.SCHEDULER:
            transitions.end_trial(state, turn, trial, TrialStatus.EARLY_STOPPED, detail)
        return
    if trial.job is None:
        return
    if message.is_full:
        detail = f"ended by {_author(message)}: {message.reason}"
        reason, position = EndReason.BUDGET_USED, message.position
        transitions.stop_softly(state, turn, trial, reason, detail, save_seconds, position=position)
        return
    transitions.request_stop(state, turn, trial, EndReason.EARLY_STOPPED, detail, position=message.position)


def _author(message: protocol.KillTrial) -> str:
    return "its trial scheduler" if message.by == "scheduler" else "the assessor"


def on_pause(state: ExperimentState, turn: Turn, message: protocol.PauseTrial, *, save_seconds: float) -> None:
    """The trial scheduler wants a trial to give up its place. As a verdict, it is for the job whose metric was judged.

    :param save_seconds: how long the trial may save before it is signaled.
    """
    trial = state.trials.get(message.trial_id)
    if trial is None or trial.job is None or trial.job.number != message.job_number:
        return
    detail = transitions.with_reason("paused by its trial scheduler", message.reason)
    transitions.pause_trial(state, turn, trial, PausedBy.SCHEDULER, detail, save_seconds, position=message.position)


def on_decision(
    state: ExperimentState,
    turn: Turn,
    message: protocol.ResumeTrial | protocol.CloneTrial,
    donor: CheckpointOffer | None,
) -> None:
    """A request is answered by a trial that exists: it is written down, and carried out by the trial's next job. One
    that was not requested, or that came before, is ignored. A trial that a user has paused stays PAUSED until that user
    resumes it.

    :param donor: what a clone begins with, if there is a checkpoint.
    """
    if not state.take_answer(message.parameter_id):
        return
    trial = state.trials.get(message.trial_id)
    decision = DecisionRow(
        experiment_id=state.row.id,
        parameter_id=message.parameter_id,
        position=message.position,
        kind=DecisionKind.RESUME if isinstance(message, protocol.ResumeTrial) else DecisionKind.CLONE,
        trial_id=message.trial_id,
        decided_at=turn.now,
        state=message.state,
        reason=message.reason,
    )
    if isinstance(message, protocol.CloneTrial):
        decision = replace(decision, parameters=message.parameters, donor_trial=message.donor_trial)
        if donor is not None:
            curve = 0 if trial is None else trial.row.intermediate_count
            decision = replace(
                decision,
                donor_job=donor.job_id,
                donor_checkpoint=donor.path,
                donor_node=donor.node_id,
                donor_sequence=min(donor.sequence, curve),
            )
        else:
            hints.on_missing_donor(state, turn, message.trial_id)
    is_in_time = trial is not None and (
        decision.is_clone or trial.row.status is TrialStatus.PAUSED or _is_being_paused(trial)
    )
    if trial is None or not is_in_time:
        decision = replace(decision, job=0)
    turn.write(lambda c: dispatcher_inputs.record(c, decision))
    if trial is None or not is_in_time:
        return
    if (replaced := trial.decision) is not None:
        turn.write(lambda c: dispatcher_inputs.carry_out(c, replaced, 0))
    trial.decision, trial.milestone = decision, _milestone(message.milestone)
    why = transitions.describe_decision(decision)
    if trial.row.status is TrialStatus.PAUSED:
        if trial.row.paused_by is PausedBy.SCHEDULER:
            transitions.resume_trial(turn, trial, why)
    elif decision.is_clone:
        transitions.request_stop(state, turn, trial, EndReason.CLONED, why, position=message.position)


def on_milestone(state: ExperimentState, turn: Turn, message: protocol.Milestone) -> None:
    """The step at whose report a trial waits for its verdict is another one. A trial that is PAUSED or has ended needs
    none: it gets its next one when it runs again."""
    if message.trial_id is not None:
        trial = state.trials.get(message.trial_id)
    else:
        trials_of_id = (each for each in state.trials.values() if each.row.parameter_id == message.parameter_id)
        trial = next(trials_of_id, None)
    milestone = _milestone(message.step)
    if trial is None or trial.milestone == milestone:
        return
    trial.milestone = milestone
    if trial.job is not None and trial.job.stop_reason is None:
        turn.update[trial.row.id] = trial


def _milestone(step: int | None) -> int:
    return NO_MILESTONE if step is None else step


def on_state_saved(turn: Turn, message: protocol.StateSaved) -> None:
    """A dispatcher that is started later may begin with this state, and be sent only the inputs after it."""
    experiment_id = turn.experiment_id
    turn.write(lambda c: dispatcher_inputs.save_state(c, experiment_id, message.position, message.state))


def on_scheduler_tables(turn: Turn, message: protocol.SchedulerTables) -> None:
    """What people see of the trial scheduler is replaced. Nothing follows from it."""
    experiment_id, now = turn.experiment_id, turn.now
    turn.write(lambda c: scheduler_tables.replace_described(c, experiment_id, message.tables, time=now))


def _is_being_paused(trial: LiveTrial) -> bool:
    return trial.job is not None and trial.job.stop_reason is EndReason.PAUSED


def move_experiment(
    state: ExperimentState,
    turn: Turn,
    event: ExperimentEvent,
    reason: str,
    *,
    error: str | None = None,
) -> None:
    """Take the experiment through one transition of its lifecycle."""
    row, actor = state.row, turn.actor
    status = EXPERIMENT.after(f"experiment {row.id}", row.status, event)
    if state.active_since is not None:
        state.row = replace(state.row, active_seconds=state.active_seconds(turn.monotonic))
    state.active_since = turn.monotonic if status.counts_time else None
    begins = status is ExperimentStatus.RUNNING and row.started_at is None
    started_at = turn.now if begins else row.started_at
    ended_at = turn.now if status.has_ended else None
    expected = (row.status,)
    turn.log(
        transitions.with_reason(f"experiment {row.id} is {status}", reason),
        action=f"experiment.{event.lower()}",
        level=logging.ERROR if status is ExperimentStatus.ERROR else logging.INFO,
    )
    changes: dict[str, Any] = {"error": error} if error is not None else {}
    if status is ExperimentStatus.INITIALIZED:
        changes["error"] = ""
    if status is ExperimentStatus.STOPPED:
        changes["clean_up_owed"] = 1
    state.row = replace(state.row, status=status, reason=reason, started_at=started_at, ended_at=ended_at, **changes)
    turn.write(
        lambda c: experiments.move(
            c,
            row.id,
            expected=expected,
            status=status,
            reason=reason,
            time=turn.now,
            actor=actor,
            started_at=started_at,
            ended_at=ended_at,
            **changes,
        )
    )


def fail(state: ExperimentState, turn: Turn, reason: str, error: str) -> None:
    """The experiment cannot continue by itself.

    :param error: the whole of it, with a traceback if there is one.
    """
    if state.row.status is ExperimentStatus.STOPPING:
        turn.add_notice(f"while the experiment was being stopped: {reason}")
    if EXPERIMENT.allows(state.row.status, ExperimentEvent.FAIL):
        move_experiment(state, turn, ExperimentEvent.FAIL, reason, error=error)


def advance(state: ExperimentState, turn: Turn) -> None:
    """Let the experiment take the moves it makes by itself."""
    while (move := next_event(state.progress(turn.monotonic))) is not None:
        move_experiment(state, turn, move[0], move[1])


def request(state: ExperimentState, turn: Turn) -> None:
    """Request as many decisions on what runs next as there are free places and the limits allow."""
    wanted = wanted_trials(state.progress(turn.monotonic), state.row.trial_concurrency)
    if wanted.count == 0:
        return
    ids = state.take_parameter_ids(wanted.count)
    state.requested.update(ids)
    position = state.take_position(is_news=False)
    message = protocol.RequestTrialJobs(position, ids, can_start=wanted.can_start)
    turn.send_input(message, {"parameter_ids": ids} | ({} if wanted.can_start else {"can_start": False}))
