"""Which waiting trial gets a job now."""

import secrets
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from proctor.manager.engine.loop import starts, transitions, tuning
from proctor.manager.engine.loop.context import JobFormBuilder, LoopContext
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.manager.lifecycle.experiment import ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.placement import Impossible, Waiting
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import CheckpointRow, DecisionRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, jobs, trials
from proctor.manager.store.tables import metrics as metric_store
from proctor.sdk.protocol import is_url
from proctor.training_services.base import (
    CheckpointOffer,
    EndReason,
    JobStart,
    SupportsCheckpoints,
    describe_refused_start,
    describe_start,
    must_continue,
)
from proctor.training_services.capacity import Preemptible
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.stored_checkpoints import verify_stored
from proctor.training_services.trial_processes import verify_on_this_machine

MOST_OFFERED = 100
"""Maximum number of checkpoints that a job is offered: only where `keepCheckpoints` keeps more are some left out."""
BEING_STARTED = "waiting: its job is being started"
STORAGE_SECONDS = 10.0
"""How long the loop waits for the storage of checkpoints, where the service does not look at these by itself."""

_PLACING = {
    ExperimentStatus.RUNNING,
    ExperimentStatus.NO_MORE_TRIAL,
    ExperimentStatus.TUNER_NO_MORE_TRIAL,
    ExperimentStatus.DONE,
}

_HELD_BY_EXPERIMENT = {
    ExperimentStatus.INITIALIZED: "waiting: the experiment is being started",
    ExperimentStatus.PAUSED: "waiting: the experiment is paused; resume it, too",
    ExperimentStatus.STOPPING: transitions.WAITS_FOR_RESUME,
    ExperimentStatus.ERROR: "waiting: the experiment is in ERROR; resume it, too",
}
"""Reasons of waiting trials whose experiment places none."""


async def place_waiting(state: ExperimentState, turn: Turn, context: LoopContext) -> None:
    """Give jobs to waiting trials, in the order of their numbers, while there are places; record why for the others."""
    if state.row.status not in _PLACING:
        context.placer.stop_waiting()
        if (reason := _HELD_BY_EXPERIMENT.get(state.row.status)) is not None:
            for trial in state.waiting():
                transitions.set_reason(turn, trial, reason)
        return
    await _add_place_notices(state, turn, context)
    steady = context.clock.steady()
    shortage = ""  # why the first one that found no place found none; it holds for the others
    for trial in state.waiting():
        why_not = ""  # what keeps it from being placed, places apart
        if trial.retry_at is not None and trial.retry_at > turn.monotonic:
            why_not = _pending_retry(trial, turn)
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


def _pending_retry(trial: LiveTrial, turn: Turn) -> str:
    """The reason of a trial that runs again later; its experiment may have been paused meanwhile."""
    if trial.row.reason not in _HELD_BY_EXPERIMENT.values():
        return trial.row.reason
    return f"waiting: runs again in {max((trial.retry_at or 0.0) - turn.monotonic, 0.0):.0f} s"


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


async def _add_place_notices(state: ExperimentState, turn: Turn, context: LoopContext) -> None:
    """Notices about the places of trials; those from before a restart are not repeated."""
    turn.place_notices = [*state.place_notices, *context.placer.take_notices()]
    state.place_notices = []
    if not turn.place_notices:
        return
    known = await context.control.read(lambda c: events.notices(c, turn.experiment_id, limit=events.KEPT_NOTICES))
    for text in turn.place_notices:
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
    beginning = await find_start(context, state, trial.row, decision=trial.decision)
    if beginning.problem:
        context.placer.give_back(job_id)
        transitions.end_trial(state, turn, trial, TrialStatus.FAILED, beginning.problem, cause=beginning.problem)
        return None
    fingerprint = await context.code.fingerprint() or state.code_fingerprint  # unknown: no news
    if state.code_fingerprint not in {None, fingerprint}:
        where, number = context.forms.code_directory, trial.row.sequence_id
        text = f"the code in {where} has changed: trial {number} and later ones run the new code"
        turn.add_notice(text, trial_id=trial.row.id)
    state.code_fingerprint = fingerprint
    starts.create_job(
        state,
        turn,
        trial,
        token=token,
        placement=place,
        offers=beginning.offers,
        start=beginning.start,
        code_fingerprint=fingerprint,
        counted_gpus=context.placer.counted_gpus(place),
    )
    if trial.row.reason != starts.NOT_PLACED:  # what it has waited for is over
        transitions.set_reason(turn, trial, BEING_STARTED)
    turn.submit.append(trial)
    return None


@dataclass(frozen=True)
class Beginning:
    """The beginning of a trial's next job, as far as is known now: the checkpoints that it is offered, and the one that
    it is assumed to take."""

    offers: Sequence[CheckpointOffer]
    """The offered checkpoints, with those that are known to be damaged where the service says where the job begins."""
    start: JobStart
    problem: str = ""
    """Reason why the trial cannot run: it is to continue from another trial's checkpoint, and none is whole."""


async def find_start(
    context: LoopContext, state: ExperimentState, trial: TrialRow, *, decision: DecisionRow | None = None
) -> Beginning:
    """Return where the trial's next job begins. A service that is not `SupportsCheckpoints` is given the first
    checkpoint that is whole on this machine.

    :param decision: what was decided of the job.
    """
    stores = CheckpointStores(context.control, context.metrics, context.forms, state.row.report_from)
    found = await find_offers(stores, trial, deleting=state.deleting, decision=decision)
    if not found:
        reason = "from the start: the trial has registered no checkpoint" if trial.jobs > 0 else ""
        return Beginning((), JobStart(None, reason))
    known = await context.control.read(lambda c: jobs.damaged_checkpoints(c, trial.id))
    offers = [offer for offer in found if offer.path not in known]
    damaged = [replace(offer, damage="it was damaged when it was downloaded") for offer in found if offer.path in known]
    passed_over = [(offer, offer.damage) for offer in damaged]
    if offers and isinstance(context.service, SupportsCheckpoints):
        return Beginning([*offers, *damaged], describe_start(trial.id, offers[0], passed_over))
    for offer in offers:
        damage = await (_verify_stored(context, offer) if is_url(offer.path) else _verify_here(offer))
        if not damage:
            return Beginning([offer], describe_start(trial.id, offer, passed_over))
        passed_over.append((offer, damage))
    start = describe_start(trial.id, None, passed_over)
    return Beginning((), start, describe_refused_start(start) if must_continue(trial.id, found) else "")


async def _verify_here(offer: CheckpointOffer) -> str:
    """Return what is wrong with a checkpoint on this machine, as a clause. Nothing is placed while the manager has few
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


@dataclass(frozen=True)
class CheckpointStores:
    """The stores in which the checkpoints of an experiment's trials are looked up.

    `member`: the rank whose curve is the trial's.
    """

    control: Database
    metrics: Database
    forms: JobFormBuilder
    member: int

    async def row_of(self, offer: CheckpointOffer) -> CheckpointRow | None:
        """The record of a checkpoint, deleted or not."""
        trial_id, _, number = offer.job_id.rpartition(".")
        rows = await self.metrics.read(lambda c: metric_store.checkpoints_of_job(c, trial_id, int(number)))
        return next((row for row in rows if f"/{offer.path}".endswith(f"/{row.path}")), None)


async def find_offers(
    stores: CheckpointStores,
    trial: TrialRow,
    *,
    deleting: Collection[int] = (),
    decision: DecisionRow | None = None,
    most: int = MOST_OFFERED,
) -> list[CheckpointOffer]:
    """Return what a trial's next job may continue from, in the order of preference: the checkpoints that the trial has
    registered, newest first; then the one that it was cloned or retried from, before which its own curve has no points,
    with the others from which that one's trial could continue: first the older ones, then the newer ones.

    A clone that was decided of the job continues from its donor's checkpoint, and so do the jobs after it as long as
    none has registered one: what the trial had saved before is no longer part of its curve.

    :param deleting: checkpoints whose deletion is decided and perhaps not stored yet.
    :param decision: what was decided of the job.
    :param most: how many are wanted at most.
    """
    offers: list[CheckpointOffer] = []
    clone = decision if decision is not None and decision.is_clone else None
    if clone is None and trial.jobs > 0:
        clone = await stores.control.read(lambda c: dispatcher_inputs.newest_clone(c, trial.id, trial.jobs))
        offers += await _registered(stores, trial, clone, deleting, most)
    source, first = _source(trial, clone), None
    while source is not None and len(offers) < most:
        registered = await stores.row_of(source)
        if registered is not None:
            source = replace(source, manifest=registered.manifest)
        first = first or source
        if registered is None or (registered.deleted_at is None and registered.id not in deleting):
            offers.append(source)
        owner_id, _, number = source.job_id.rpartition(".")
        try:
            owner = await stores.control.read(lambda c, key=owner_id: trials.get(c, key))  # type: ignore[misc]
        except RowNotFound:
            break
        clone = await stores.control.read(
            lambda c, key=owner_id, job=int(number): dispatcher_inputs.newest_clone(c, key, job)  # type: ignore[misc]
        )
        others = await _registered(stores, owner, clone, deleting, most - len(offers), around=registered)
        offers += [_within(offer, source) for offer in others]
        next_source = _source(owner, clone)
        source = None if next_source is None else _within(next_source, source)
    if not offers and first is not None:
        offers.append(first)  # it is gone, and the trial must not begin at the start
    return await _complete(stores, offers)


async def _registered(
    stores: CheckpointStores,
    trial: TrialRow,
    clone: DecisionRow | None,
    deleting: Collection[int],
    most: int,
    *,
    around: CheckpointRow | None = None,
) -> list[CheckpointOffer]:
    """The checkpoints that a trial has registered and that were not deleted, newest first.

    :param clone: the decision by which it has continued last from another one's checkpoint.
    :param around: a checkpoint that is left out: first those that are older than it, then the newer ones, oldest first.
    """
    limit = -1 if around is not None else most + len(deleting)
    found = await stores.metrics.read(
        lambda c: metric_store.newest_checkpoints(c, trial.id, member=stores.member, limit=limit)
    )
    since = 0 if clone is None else clone.job or 0
    kept = [row for row in found if row.job >= since and row.id not in deleting]
    if around is not None:
        older = [row for row in kept if (row.job, row.id) < (around.job, around.id)]
        kept = older + [row for row in reversed(kept) if (row.job, row.id) > (around.job, around.id)]
    return [
        CheckpointOffer(
            f"{trial.id}.{row.job}",
            stores.forms.checkpoint_place(trial, row.job, row.path),
            row.sequence,
            manifest=row.manifest,
        )
        for row in kept[:most]
    ]


def _source(trial: TrialRow, clone: DecisionRow | None) -> CheckpointOffer | None:
    """The checkpoint of another trial with which a trial's curve begins.

    :param clone: the decision by which it has continued last from another one's checkpoint.
    """
    if clone is not None and clone.donor_job is not None and clone.donor_checkpoint is not None:
        return CheckpointOffer(clone.donor_job, clone.donor_checkpoint, clone.donor_sequence or 0, clone.donor_node)
    if trial.origin_job is not None and trial.origin_checkpoint is not None:
        return CheckpointOffer(trial.origin_job, trial.origin_checkpoint, 0)
    return None


def _within(offer: CheckpointOffer, newer: CheckpointOffer) -> CheckpointOffer:
    """An offer in the place of a newer one: the curve has no more points than for that."""
    return replace(offer, sequence=min(offer.sequence, newer.sequence))


async def _complete(stores: CheckpointStores, offers: Sequence[CheckpointOffer]) -> list[CheckpointOffer]:
    """Return the offers with the nodes of their jobs."""
    unknown = {offer.job_id for offer in offers if offer.node_id is None}

    def read(connection: sqlite3.Connection) -> dict[str, str | None]:
        return {job_id: jobs.get(connection, job_id).node_id for job_id in unknown if jobs.exists(connection, job_id)}

    nodes = await stores.control.read(read) if unknown else {}
    return [offer if offer.node_id is not None else replace(offer, node_id=nodes.get(offer.job_id)) for offer in offers]
