"""How trials and their jobs begin in an experiment's loop: a trial from a suggestion or a command, its jobs one after
another, each at the start or at a checkpoint.
"""

import secrets
import string
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.manager.lifecycle.job import JOB, JobEvent
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, jobs, trials
from proctor.training_services.base import CheckpointOffer, JobStart, NodePlacement, TrialJobStatus

NOT_PLACED = "waiting: not placed yet"
_ALPHABET = string.ascii_letters + string.digits
_AT_THE_START = JobStart(None)


def new_id() -> str:
    """Eight characters that no other trial or experiment has."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(8))


def create_trial(
    state: ExperimentState,
    turn: Turn,
    *,
    parameter_id: int,
    parameters: Any,
    source: str,
    position: int | None = None,
    algorithm_state: Any = None,
    origin_trial: str | None = None,
    checkpoint: CheckpointOffer | None = None,
) -> LiveTrial:
    """Add a new trial to the state and the store.

    :param origin_trial: what it was cloned or retried from.
    :param checkpoint: that trial's, which it begins with.
    """
    row = TrialRow(
        id=new_id(),
        experiment_id=state.row.id,
        sequence_id=state.take_sequence_id(),
        status=TrialStatus.WAITING,
        reason=NOT_PLACED,
        parameter_id=parameter_id,
        parameters=parameters,
        state=algorithm_state,
        position=position,
        source=source,
        created_at=turn.now,
        origin_trial=origin_trial,
        origin_job=None if checkpoint is None else checkpoint.job_id,
        origin_checkpoint=None if checkpoint is None else checkpoint.path,
    )
    trial = LiveTrial(row)
    state.add(trial)
    state.created += 1
    actor = turn.actor
    turn.write(lambda c: trials.insert(c, row, actor=actor))
    return trial


def create_job(
    state: ExperimentState,
    turn: Turn,
    trial: LiveTrial,
    *,
    token: str,
    placement: NodePlacement | None,
    offers: Sequence[CheckpointOffer] = (),
    start: JobStart = _AT_THE_START,
    code_fingerprint: str | None = None,
    counted_gpus: float = 0.0,
) -> TrialJobRow:
    """Store the trial's next job as submitted; the service gets it after the commit. It carries out what was decided of
    the trial: from then on a clone has its new parameters.

    :param offers: what it may continue from.
    :param start: where it begins, until its service says so (`record_start`).
    """
    number = trial.row.jobs + 1
    changes: dict[str, Any] = {"jobs": number, "not_before": None}
    if (decision := trial.decision) is not None:
        trial.decision = None
        turn.write(lambda c: dispatcher_inputs.carry_out(c, decision, number))
        if decision.is_clone:
            trial.parameters_before = (trial.row.parameter_id, number)
            changes |= {"parameter_id": decision.parameter_id, "parameters": decision.parameters}
    trial.row, trial.retry_at = replace(trial.row, **changes), None
    job = TrialJobRow(
        id=f"{trial.row.id}.{number}",
        trial_id=trial.row.id,
        experiment_id=state.row.id,
        number=number,
        token=token,
        members=1,
        status=JOB.after(f"job {trial.row.id}.{number}", TrialJobStatus.CREATED, JobEvent.SUBMIT),
        parameter_id=trial.row.parameter_id,
        parameters=trial.row.parameters,
        parent_job=f"{trial.row.id}.{number - 1}" if number > 1 else None,
        start_reason=start.reason,
        checkpoints=[asdict(offer) for offer in offers] or None,
        **_start_columns(start.checkpoint),
        placement=None if placement is None else placement.to_json(),
        node_id=None if placement is None else placement.node_id,
        code_fingerprint=code_fingerprint,
        submitted_at=turn.now,
        resumes=state.row.resumes,
        counted_gpus=counted_gpus,
    )
    state.set_job(trial, job)
    trial.has_progress, trial.preempted = False, ""
    turn.write(lambda c: jobs.insert(c, job))
    turn.write(lambda c: trials.update(c, job.trial_id, **changes))
    if number > 1:
        _send_restart(state, turn, trial, number, job.resumed_from_step or 0)
    return job


def record_start(state: ExperimentState, turn: Turn, trial: LiveTrial, start: JobStart) -> None:
    """The service says where the trial's job begins. The dispatcher is notified if the curve continues from another
    point than was assumed."""
    job = trial.job
    assert job is not None
    known = replace(job, start_reason=start.reason or job.start_reason, **_start_columns(start.checkpoint))
    if known == job:
        return
    trial.job = known
    columns = {"start_reason": known.start_reason, **_start_columns(start.checkpoint)}
    turn.write(lambda c: jobs.update(c, job.id, token=job.token, **columns))
    if (known.resumed_from_step or 0) != (job.resumed_from_step or 0):
        _send_restart(state, turn, trial, job.number, known.resumed_from_step or 0)


def _start_columns(checkpoint: CheckpointOffer | None) -> dict[str, Any]:
    """What a job's row says of the checkpoint that it continues from."""
    return {
        "resumed_from_job": None if checkpoint is None else checkpoint.job_id,
        "resumed_from_step": None if checkpoint is None else checkpoint.sequence,
        "resume_checkpoint": None if checkpoint is None else checkpoint.path,
        "resume_node_id": None if checkpoint is None else checkpoint.node_id,
    }


def _send_restart(state: ExperimentState, turn: Turn, trial: LiveTrial, number: int, first: int) -> None:
    message = protocol.TrialRestarted(state.take_position(), trial.row.parameter_id, trial.row.id, number, first)
    turn.send_input(message, message_payload(message))


def message_payload(message: Any) -> dict[str, Any]:
    """What the input log keeps of a message: all but its position."""
    body = dict(vars(message))
    del body["position"]
    return body
