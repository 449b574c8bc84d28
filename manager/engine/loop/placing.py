"""Which waiting trial gets a job now."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from proctor.manager.engine.loop import transitions, tuning
from proctor.manager.engine.loop.context import LoopContext
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.manager.lifecycle.experiment import ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.placement import Impossible, Waiting
from proctor.manager.store.rows import DecisionRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, jobs
from proctor.manager.store.tables import metrics as metric_store
from proctor.sdk.protocol import is_url
from proctor.training_services.base import (
    CheckpointOffer,
    EndReason,
    JobStart,
    SupportsCheckpoints,
    describe_start,
)
from proctor.training_services.capacity import Preemptible
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.stored_checkpoints import verify_stored
from proctor.training_services.trial_processes import verify_on_this_machine

OFFERED_CHECKPOINTS = 3
STORAGE_SECONDS = 10.0
"""How long the loop waits for the storage of checkpoints, where the service does not look at these by itself."""

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
    _preempt(state, turn, context)


def _waiting(trial: LiveTrial, why: str) -> str:
    """The reason of a trial that found no place."""
    return "waiting: " + "; ".join(filter(None, (trial.preempted, why)))


def offer_preemptible(state: ExperimentState, context: LoopContext) -> None:
    """Say which trials may be stopped for those of a higher priority: such as have a checkpoint to continue from, or
    time of their own to save one."""
    if not context.placer.is_preemptible:
        return
    can_save = bool(context.config.save_seconds and context.save_seconds)
    preemptible: dict[str, Preemptible] = {}
    # Others rely on what is offered, so it is nothing where `place_waiting` does not look.
    for job_id, trial in state.by_job.items() if state.row.status in _PLACING else ():
        job = trial.job
        if job is None or job.stop_reason is not None or job.started_at is None:
            continue
        if trial.saved_at is not None or job.resume_checkpoint is not None or can_save:
            saved_at = max(trial.saved_at or 0.0, job.started_at)
            preemptible[job_id] = Preemptible(state.row.priority, saved_at)
    context.placer.set_preemptible(preemptible)


def _preempt(state: ExperimentState, turn: Turn, context: LoopContext) -> None:
    """Stop trials for waiting ones of experiments with a higher priority, as many as these need. Their loops start them
    when the GPUs are free."""
    if not context.placer.is_wanted(state.row.priority):
        return
    standing = state.standing(turn.monotonic)
    for job_id, winner in context.placer.preempt(standing, context.clock.steady()).items():
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
    offers, start = await find_start(context, state, trial.row, decision=trial.decision)
    fingerprint = await context.code.fingerprint() or state.code_fingerprint  # unknown: no news
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
        offers=offers,
        start=start,
        code_fingerprint=fingerprint,
        counted_gpus=context.placer.counted_gpus(place),
    )
    turn.submit.append(trial)
    return None


async def find_start(
    context: LoopContext, state: ExperimentState, trial: TrialRow, *, decision: DecisionRow | None = None
) -> tuple[Sequence[CheckpointOffer], JobStart]:
    """What the trial's next job is offered to continue from, and where it begins as far as is known now: a service that
    is not `SupportsCheckpoints` is given the first one that is whole on this machine.

    :param decision: what was decided of the job.
    """
    offers = await _find_offers(context, state, trial, decision)
    if not offers:
        reason = "from the start: the trial has registered no checkpoint" if trial.jobs > 0 else ""
        return (), JobStart(None, reason)
    if isinstance(context.service, SupportsCheckpoints):
        return offers, describe_start(trial.id, offers[0], ())
    passed_over: list[tuple[CheckpointOffer, str]] = []
    for offer in offers:
        damage = await (_verify_stored(context, offer) if is_url(offer.path) else _verify_here(offer))
        if not damage:
            return [offer], describe_start(trial.id, offer, passed_over)
        passed_over.append((offer, damage))
    return (), describe_start(trial.id, None, passed_over)


async def _verify_here(offer: CheckpointOffer) -> str:
    """What is wrong with a checkpoint on this machine, as a clause. Nothing is placed while the manager has few
    descriptors left, so that this hardly ever fails."""
    try:
        return await verify_on_this_machine(offer)
    except OSError as error:
        return f"it cannot be read now: {error.strerror}"


async def _verify_stored(context: LoopContext, offer: CheckpointOffer) -> str:
    """What is wrong with a checkpoint under a URL, as a clause. While the storage cannot be read, nothing is: the trial
    waits for it when it downloads."""
    storage = context.forms.storage
    try:
        return await verify_stored(offer, {} if storage is None else storage.environment, time_limit=STORAGE_SECONDS)
    except ServiceUnavailable:
        return ""


async def _find_offers(
    context: LoopContext, state: ExperimentState, trial: TrialRow, decision: DecisionRow | None
) -> list[CheckpointOffer]:
    """In the order of preference: the newest checkpoints that the trial has registered, then the one that it was cloned
    or retried from, before which its own curve has no points.

    A clone that was decided of the job continues from its donor's checkpoint, and so do the jobs after it as long as
    none has registered one: what the trial had saved before is not part of its curve any more.
    """
    offers: list[CheckpointOffer] = []
    clone = decision if decision is not None and decision.is_clone else None
    if clone is None and trial.jobs > 0:
        clone = await context.control.read(lambda c: dispatcher_inputs.newest_clone(c, trial.id))
        since = clone.job or 0 if clone is not None else 0
        member, count = state.row.report_from, OFFERED_CHECKPOINTS + len(state.deleting)
        found = await context.metrics.read(
            lambda c: metric_store.newest_checkpoints(c, trial.id, member=member, limit=count)
        )
        kept = [row for row in found if row.job >= since and row.id not in state.deleting]
        for row in kept[:OFFERED_CHECKPOINTS]:
            path = context.forms.checkpoint_place(trial, row.job, row.path)
            offers.append(CheckpointOffer(f"{trial.id}.{row.job}", path, row.sequence, manifest=row.manifest))
    if clone is not None and clone.donor_job is not None and clone.donor_checkpoint is not None:
        sequence = clone.donor_sequence or 0
        offers.append(CheckpointOffer(clone.donor_job, clone.donor_checkpoint, sequence, clone.donor_node))
    elif trial.origin_job is not None and trial.origin_checkpoint is not None:
        offers.append(CheckpointOffer(trial.origin_job, trial.origin_checkpoint, 0))
    return [await _complete(context, offer) for offer in offers]


async def _complete(context: LoopContext, offer: CheckpointOffer) -> CheckpointOffer:
    """With the node of its job and, if it is another trial's, with its manifest."""
    if offer.node_id is None:
        job = await context.control.read(lambda c: jobs.get(c, offer.job_id) if jobs.exists(c, offer.job_id) else None)
        offer = replace(offer, node_id=None if job is None else job.node_id)
    if offer.manifest is None:
        trial_id, _, number = offer.job_id.rpartition(".")
        rows = await context.metrics.read(lambda c: metric_store.checkpoints_of_job(c, trial_id, int(number)))
        manifest = next((row.manifest for row in rows if f"/{offer.path}".endswith(f"/{row.path}")), None)
        offer = replace(offer, manifest=manifest)
    return offer
