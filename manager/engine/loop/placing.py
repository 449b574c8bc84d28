"""Which waiting trial gets a job now."""

import secrets
from pathlib import Path

from proctor.manager.engine.loop import transitions, tuning
from proctor.manager.engine.loop.context import LoopContext
from proctor.manager.engine.loop.state import Checkpoint, ExperimentState, LiveTrial, Turn
from proctor.manager.lifecycle.experiment import ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.placement import Impossible, Waiting
from proctor.manager.store.tables import events, jobs
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import SupportsCheckpoints

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
            transitions.set_reason(turn, trial, why_not or shortage)
            continue
        outcome = await _place(state, turn, context, trial)
        if isinstance(outcome, Impossible):
            return
        shortage = f"waiting: {outcome.reason}" if outcome is not None else ""
    if not shortage:
        context.placer.stop_waiting()


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
    place = context.placer.take(job_id, token, holder, since=trial.waiting_since, now=steady)
    if isinstance(place, Impossible):
        tuning.move_experiment(state, turn, ExperimentEvent.FAIL, place.reason, error=place.reason)
    if isinstance(place, Waiting | Impossible):
        transitions.set_reason(turn, trial, f"waiting: {place.reason}")
        return place
    trial.waiting_since = None
    checkpoint = await _checkpoint(context, trial, state.row.report_from)
    fingerprint = await context.code.fingerprint()
    if state.code_fingerprint not in {None, fingerprint}:
        where, number = context.forms.code_directory, trial.row.sequence_id
        text = f"the code in {where} has changed: trial {number} and later ones run the new code"
        turn.add_notice(text, trial_id=trial.row.id)
    state.code_fingerprint = fingerprint
    transitions.create_job(
        state, turn, trial, token=token, placement=place, checkpoint=checkpoint, code_fingerprint=fingerprint
    )
    turn.submit.append(trial)
    return None


async def _checkpoint(context: LoopContext, trial: LiveTrial, report_from: int) -> Checkpoint | None:
    """What the trial's next job continues from: the newest checkpoint that it has registered, else the one that it was
    cloned from, before which its own curve has no points. If its folder is not on this machine: only for a service that
    finds it elsewhere."""
    trial_id, job_id, path, sequence = trial.row.id, trial.row.origin_job, trial.row.origin_checkpoint, 0
    if trial.row.jobs > 0:
        row = await context.metrics.read(
            lambda connection: metric_store.latest_checkpoint(connection, trial_id, member=report_from)
        )
        if row is not None:
            job_id, sequence = f"{trial_id}.{row.job}", row.sequence
            path = str(context.forms.job_directory(trial.row, row.job) / row.path)
    if job_id is None or path is None:
        return None
    if isinstance(context.service, SupportsCheckpoints):
        saved = await context.control.read(lambda connection: jobs.get(connection, job_id))
        return Checkpoint(job_id, sequence, path, saved.node_id)
    return Checkpoint(job_id, sequence, path) if Path(path).is_dir() else None
