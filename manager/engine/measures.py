"""What the loop makes of metrics that were stored."""

import math
from dataclasses import replace
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.engine import trials as trial_moves
from proctor.manager.engine.messages import MetricsRefused, MetricsStored
from proctor.manager.engine.state import ExperimentState, LiveTrial
from proctor.manager.engine.step import Step
from proctor.manager.store import trials
from proctor.manager.store.metrics import StoredChunk
from proctor.training_services.base import EndReason


def on_stored(state: ExperimentState, step: Step, message: MetricsStored, *, tell: bool) -> None:
    """Bring the trials' rows up to date and tell the dispatcher, if its assessor wants to know."""
    rows: list[protocol.ReportedMetric] = []
    ids: list[int] = []
    report_from = state.row.report_from
    for job_id, chunk in message.chunks:
        trial_id, _, number = job_id.rpartition(".")
        trial, job_number = state.trials.get(trial_id), int(number)
        if trial is None:
            continue
        # The job may have been given up while its metrics were being stored: they are the trial's all the same.
        counts = chunk.member == report_from
        note_chunk(step, trial, chunk, is_newest=job_number == trial.row.jobs, counts=counts)
        if not counts:
            continue
        parameter_id = trial.row.parameter_id
        for row_id, sequence, value in chunk.intermediates:
            if row_id <= state.caught_up:
                continue  # it came while the experiment was being taken up
            ids.append(row_id)
            rows.append(protocol.ReportedMetric(parameter_id, trial_id, job_number, sequence, value))
    if not ids:
        return
    first, last = min(ids), max(ids)
    step.note("metrics", {"first": first, "last": last, "count": len(ids)})
    state.row = replace(state.row, metrics_told=max(state.row.metrics_told, last))
    if tell:
        step.tell(protocol.ReportMetrics(state.take_position(), rows), {"first": first, "last": last})


def on_refused(state: ExperimentState, step: Step, message: MetricsRefused) -> None:
    """The trial cannot have the result that it has reported: it is stopped and has failed."""
    trial_id, _, number = message.job_id.rpartition(".")
    trial = state.trials.get(trial_id)
    if trial is None:
        return
    step.note("notice", {"text": f"trial {trial.row.sequence_id}: {message.why}"}, trial_id=trial_id)
    if trial.job is not None and trial.job.number == int(number):
        trial_moves.request_stop(state, step, trial, EndReason.EXITED_ERROR, message.why)


def note_chunk(step: Step, trial: LiveTrial, chunk: StoredChunk, *, is_newest: bool, counts: bool) -> None:
    """Counts, the latest and the final value of one trial.

    :param is_newest: the chunk is of the trial's newest job, so that its intermediate metrics are the latest ones.
    :param counts: it is of the rank whose metrics are the trial's.
    """
    columns: dict[str, Any] = {}
    if is_newest and (chunk.intermediates or chunk.checkpoints):
        trial.has_progress = True
    if chunk.finals and not counts:
        trial.other_final = chunk.member
    if chunk.intermediates and is_newest and counts:
        _, sequence, latest = chunk.intermediates[-1]
        trial.latest, trial.has_latest = latest, True
        columns["intermediate_count"] = sequence + 1
        columns["latest_value"] = finite_number(latest)
    for _, data in chunk.finals if counts else ():
        if trial.has_final or "final_data" in columns:
            step.note("notice", {"text": "a second final metric was reported and ignored"}, trial_id=trial.row.id)
            continue
        columns["final_value"], columns["final_data"] = finite_number(data), data
    if chunk.lost:
        step.note("notice", {"text": f"{chunk.lost} reports lost: the trial's disk was full"}, trial_id=trial.row.id)
    for why in chunk.uncounted:
        step.note("notice", {"text": f"trial {trial.row.sequence_id}: {why}"}, trial_id=trial.row.id)
    if chunk.unreadable:
        text = f"{chunk.unreadable} journal records could not be read"
        step.note("notice", {"text": text}, trial_id=trial.row.id)
    if columns:
        trial.row = replace(trial.row, **columns)
        trial_id = trial.row.id
        step.write(lambda c: trials.update(c, trial_id, **columns))


def finite_number(data: Any) -> float | None:
    """The number that stands for a metric: itself, or its "default"; None when that is not a finite number."""
    value = data.get("default") if isinstance(data, dict) else data
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
