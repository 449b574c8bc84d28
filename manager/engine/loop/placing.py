"""Which waiting trial gets a job now."""

import secrets
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from proctor.manager.engine.loop import transitions, tuning
from proctor.manager.engine.loop.context import LoopContext
from proctor.manager.engine.loop.state import Checkpoint, ExperimentState, LiveTrial, Turn
from proctor.manager.lifecycle.experiment import ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.placement import Impossible, Waiting
from proctor.manager.store.rows import DecisionRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, jobs
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import EndReason, SupportsCheckpoints
from proctor.training_services.capacity import Preemptible

_PLACING = {
    ExperimentStatus.RUNNING,
    ExperimentStatus.NO_MORE_TRIAL,
    ExperimentStatus.TUNER_NO_MORE_TRIAL,
    ExperimentStatus.DONE,
}


async def place_waiting(state: ExperimentState, turn: Turn, context: LoopContext) -> None:
    """Give jobs to waiting trials, in the order of their numbers, while there are places; record why for the others."""
    if state.row.status not in _PLACING:
        context.placer.stop_waiting()
        return
    await _add_node_notices(turn, context)
    steady = context.clock.steady()
    shortage = ""  # why the first one that found no place found none; it holds for the others
    for trial in state.waiting():
        why_not = ""  # what keeps it from being placed, places apart
        if trial.retry_at is not None and trial.retry_at > turn.monotonic:
            why_not = trial.row.reason
        elif state.placed() >= state.row.trial_concurrency:
            why_not = f"waiting: trialConcurrency {state.row.trial_concurrency} is used up"
        if why_not or shortage:
            trial.waiting_since = None if why_not else trial.waiting_since or steady
            transitions.set_reason(turn, trial, why_not or _waiting(trial, shortage))
            continue
        outcome = await _place(state, turn, context, trial)
        if isinstance(outcome, Impossible):
            return
        shortage = outcome.reason if outcome is not None else ""
    if not shortage:
        context.placer.stop_waiting()
    if context.placer.is_preemptible:
        _preempt(state, turn, context)


def _waiting(trial: LiveTrial, why: str) -> str:
    """The reason of a trial that found no place."""
    return "waiting: " + "; ".join(filter(None, (trial.preempted, why)))


def _preempt(state: ExperimentState, turn: Turn, context: LoopContext) -> None:
    """Stop trials for waiting ones of experiments with a higher priority, as many as these need: such as have a
    checkpoint to continue from, or time of their own to save one. Their loops start theirs when the GPUs are free."""
    can_save = bool(context.config.save_seconds and context.save_seconds)
    preemptible: dict[str, Preemptible] = {}
    for job_id, trial in state.by_job.items():
        job = trial.job
        if job is None or job.stop_reason is not None or job.started_at is None:
            continue
        if trial.saved_at is not None or job.resume_checkpoint is not None or can_save:
            saved_at = max(trial.saved_at or 0.0, job.started_at)
            preemptible[job_id] = Preemptible(state.row.priority, saved_at)
    standing = state.standing(turn.monotonic)
    for job_id, winner in context.placer.preempt(standing, preemptible, context.clock.steady()).items():
        turn.preempted.append(job_id)
        detail = f"preempted by experiment {winner.experiment_id} (priority {winner.priority})"
        trial = state.by_job[job_id]
        transitions.stop_softly(state, turn, trial, EndReason.PREEMPTED, detail, context.save_seconds)


async def _add_node_notices(turn: Turn, context: LoopContext) -> None:
    """Notices about nodes that no trial ever gets; those from before a restart are not repeated."""
    news = context.placer.take_notices()
    if not news:
        return
    known = await context.control.read(lambda c: events.notices(c, turn.experiment_id, limit=events.KEPT_NOTICES))
    for text in news:
        if text not in known:
            turn.add_notice(text)


async def _place(
    state: ExperimentState, turn: Turn, context: LoopContext, trial: LiveTrial
) -> Waiting | Impossible | None:
    """Place one trial; returns why it was not."""
    token = secrets.token_hex(8)
    holder = f"trial {trial.row.sequence_id} of experiment {state.row.id}"
    steady = context.clock.steady()
    trial.waiting_since = trial.waiting_since or steady
    job_id = f"{trial.row.id}.{trial.row.jobs + 1}"
    standing = state.standing(turn.monotonic)
    place = context.placer.take(job_id, token, holder, since=trial.waiting_since, now=steady, standing=standing)
    if isinstance(place, Impossible):
        tuning.move_experiment(state, turn, ExperimentEvent.FAIL, place.reason, error=place.reason)
    if isinstance(place, Waiting | Impossible):
        transitions.set_reason(turn, trial, _waiting(trial, place.reason))
        return place
    trial.waiting_since = None
    checkpoint = await find_checkpoint(
        context, trial.row, state.row.report_from, decision=trial.decision, deleting=state.deleting
    )
    fingerprint = await context.code.fingerprint()
    if state.code_fingerprint not in {None, fingerprint}:
        where, number = context.forms.code_directory, trial.row.sequence_id
        text = f"the code in {where} has changed: trial {number} and later ones run the new code"
        turn.add_notice(text, trial_id=trial.row.id)
    state.code_fingerprint = fingerprint
    transitions.create_job(
        state,
        turn,
        trial,
        token=token,
        placement=place,
        checkpoint=checkpoint,
        code_fingerprint=fingerprint,
        counted_gpus=context.placer.counted_gpus(place),
    )
    turn.submit.append(trial)
    return None


async def find_checkpoint(
    context: LoopContext,
    trial: TrialRow,
    report_from: int,
    *,
    decision: DecisionRow | None = None,
    deleting: Collection[int] = (),
) -> Checkpoint | None:
    """What the trial's next job continues from: the newest checkpoint that it has registered, else the one that it was
    cloned from, before which its own curve has no points. If its folder is not on this machine: only for a service that
    finds it elsewhere.

    :param decision: what was decided of the job. A clone continues from its donor's checkpoint, and so do the jobs
        after it as long as none has registered one: what the trial had saved before is not part of its curve any more.
    :param deleting: checkpoints that are deleted, although the store may not say so yet.
    """
    found: Checkpoint | None = None
    if decision is not None and decision.is_clone:
        found = _donated(decision)
    elif trial.jobs > 0:
        clone = await context.control.read(lambda connection: dispatcher_inputs.newest_clone(connection, trial.id))
        row = await context.metrics.read(
            lambda connection: metric_store.latest_checkpoint(connection, trial.id, member=report_from, but=deleting)
        )
        if row is not None and row.job >= (clone.job or 0 if clone is not None else 0):
            path = str(context.forms.job_directory(trial, row.job) / row.path)
            found = Checkpoint(f"{trial.id}.{row.job}", row.sequence, path)
        elif clone is not None:
            found = _donated(clone)
    if found is None and trial.origin_job is not None and trial.origin_checkpoint is not None:
        found = Checkpoint(trial.origin_job, 0, trial.origin_checkpoint)
    if found is None:
        return None
    if isinstance(context.service, SupportsCheckpoints):
        saved = await context.control.read(lambda connection: jobs.get(connection, found.job_id))
        return replace(found, node_id=saved.node_id)
    return found if Path(found.path).is_dir() else None


def _donated(clone: DecisionRow) -> Checkpoint:
    assert clone.donor_job is not None
    assert clone.donor_checkpoint is not None
    return Checkpoint(clone.donor_job, clone.donor_sequence or 0, clone.donor_checkpoint, clone.donor_node)
