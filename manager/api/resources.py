"""From the store's rows to the resources of the REST API. Used by the routes."""

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proctor.manager.api import models
from proctor.manager.api.context import ApiContext
from proctor.manager.api.json_types import utc, utc_or_none
from proctor.manager.config.objective import MAXIMIZE, METRIC, stored_direction
from proctor.manager.engine.feasibility import Outlook
from proctor.manager.lifecycle.checkpoints import KeepReason
from proctor.manager.lifecycle.experiment_failures import most_frequent
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import CheckpointRow, DecisionRow, ExperimentRow, MetricRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import curves, events, jobs, trials
from proctor.manager.store.tables.jobs import JobUsage
from proctor.manager.store.tables.metrics import RankSummary
from proctor.manager.store.trial_table.columns import CurveValues, curve_columns, step_of
from proctor.sdk.metrics import JSON_WORDS
from proctor.sdk.protocol import checkpoint_place
from proctor.training_services.nodes.pool import Node, NodePool, Reservation
from proctor.training_services.providers import CheckStep, FileCollection
from proctor.trial_keeper.protocol import to_json

MOST_REASONS = 100
"""Of the newest ends. The cost of the sentence does not grow with the experiment."""

MOST_SHOWN = 60
"""Characters of a final metric."""


def objective(experiment: ExperimentRow) -> models.Objective:
    """What the experiment optimizes, as it was decided when it was created."""
    return models.Objective(metric=METRIC, direction=stored_direction(experiment.config))


async def read_curve_values(
    context: ApiContext,
    experiment: ExperimentRow,
    *,
    filter: str | None = None,
    sort: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> CurveValues:
    """The values of the columns of curves that a query of the table names. Raises QueryRefused."""
    names = curve_columns(filter, sort, columns)
    if not names:
        return {}
    database = await context.manager.metrics(experiment.id)
    steps = {name: step_of(name) for name in names}
    return await context.manager.read_heavy(
        database, curves.column_values, steps, experiment.report_from, is_maximized(experiment)
    )


def is_maximized(experiment: ExperimentRow) -> bool:
    """Whether greater is better."""
    return stored_direction(experiment.config) == MAXIMIZE


def reason_of(context: ApiContext, row: ExperimentRow) -> str:
    """Why an experiment is where it is; while it cannot be loaded or nothing can be written, what is in the way, while
    it is being stopped, what that waits for, and which trials are stuck."""
    if absence := context.manager.not_loaded(row):
        return absence
    if problem := context.manager.problem_of(row):
        return f"no new trials are started: {problem}"
    if waits := context.manager.awaited(row) or context.manager.held_up(row):
        return waits
    outlook = context.manager.outlook(row)
    clauses = [row.reason, "" if outlook is None else outlook.clause]
    for left in context.manager.node_connections.uncollected(experiment_id=row.id):
        clauses.append(f"files were not collected from node {left.node_id}: `proctor nodes collect {left.node_id}`")
    return "; ".join(filter(None, clauses))


def experiment_resource(context: ApiContext, connection: sqlite3.Connection, row: ExperimentRow) -> models.Experiment:
    """An experiment with its counts and best trial. Reads the store at a cost that does not grow."""
    best = trials.best(connection, row.id, is_maximized(row))
    counts = trials.counts(connection, row.id)
    return models.Experiment(
        id=row.id,
        name=row.name,
        status=row.status,
        reason=reason_of(context, row),
        error=row.error,
        config=row.config,
        search_space=row.search_space,
        trial_concurrency=row.trial_concurrency,
        max_trial_number=row.max_trial_number,
        max_experiment_duration_seconds=row.max_experiment_seconds,
        max_trial_duration_seconds=row.max_trial_seconds,
        max_gpu_hours=row.max_gpu_hours,
        priority=row.priority,
        tags=row.tags,
        archived=bool(row.archived),
        rules=row.rules,
        usage=usage_resource(jobs.usage_of_experiment(connection, row.id, now=context.manager.clock.steady())),
        trial_counts=counts,
        failure=explain_no_success(connection, row, counts=counts, best=best),
        no_best_reason=explain_no_best(connection, row, counts=counts, best=best),
        best=None if best is None else best_resource(best),
        objective=objective(row),
        created_at=utc(row.created_at),
        started_at=utc_or_none(row.started_at),
        ended_at=utc_or_none(row.ended_at),
        active_seconds=context.manager.active_seconds(row),
        directory=row.directory,
        url=f"{context.public_url}/experiments/{row.id}",
        notices=events.notices(connection, row.id),
        machines=machines_resource(context.manager.outlook(row)),
    )


def usage_resource(usage: JobUsage) -> models.Usage:
    """What some jobs have used."""
    return models.Usage(
        gpu_hours=usage.gpu_seconds / 3600,
        cpu_hours=usage.cpu_seconds / 3600,
        unmeasured_jobs=usage.unmeasured_jobs,
    )


def machines_resource(outlook: Outlook | None) -> models.Machines | None:
    """Which machines an experiment can use now."""
    if outlook is None:
        return None
    return models.Machines(
        total=outlook.total,
        pending=list(outlook.pending),
        unusable=[models.UnusableMachine(node_id=name, reason=why) for name, why in outlook.unusable.items()],
        never=outlook.never,
    )


def best_resource(row: TrialRow) -> models.Best:
    """The best trial. Only trials with a finite value are compared."""
    assert row.final_value is not None
    return models.Best(trial_id=row.id, sequence_id=row.sequence_id, value=row.final_value, parameters=row.parameters)


def trial_reason(context: ApiContext, row: TrialRow, node_id: str | None) -> str:
    """Why a trial is where it is; of one that runs, first why its node reports nothing of it.

    :param node_id: its newest job's.
    """
    return context.manager.silence_of(row, node_id) or row.reason


def trial_resource(
    context: ApiContext, row: TrialRow, *, experiment_directory: str, node_id: str | None, usage: JobUsage
) -> models.Trial:
    """A trial; `node_id` is its newest job's."""
    return models.Trial(
        id=row.id,
        experiment_id=row.experiment_id,
        sequence_id=row.sequence_id,
        status=row.status,
        reason=trial_reason(context, row, node_id),
        parameters=row.parameters,
        parameter_id=row.parameter_id,
        source=row.source,
        origin_trial_id=row.origin_trial,
        origin_job_id=row.origin_job,
        origin_checkpoint=row.origin_checkpoint,
        paused_by=row.paused_by,
        jobs=row.jobs,
        node_id=node_id,
        final_value=shown_number(row.final_value, row.final_data),
        final_data=row.final_data,
        latest_value=row.latest_value,
        intermediate_count=row.intermediate_count,
        usage=usage_resource(usage),
        run_seconds=usage.run_seconds,
        created_at=utc(row.created_at),
        started_at=utc_or_none(row.started_at),
        ended_at=utc_or_none(row.ended_at),
        directory=str(Path(experiment_directory) / "trials" / f"{row.sequence_id}-{row.id}"),
    )


def decision_resource(row: DecisionRow, donor_number: int | None) -> models.TrialDecision:
    """A decision on a trial; `donor_number` is that of the trial it was to continue from."""
    return models.TrialDecision(
        kind=row.kind,
        reason=row.reason,
        donor_trial_id=row.donor_trial,
        donor_sequence_id=donor_number,
        has_donor_checkpoint=row.is_clone,
        job=row.job,
        decided_at=utc(row.decided_at),
    )


def reasons_of_running(context: ApiContext, connection: sqlite3.Connection, experiment_id: str) -> dict[str, str]:
    """By the ids of an experiment's trials that run: why nodes report nothing of them; else what their rows say."""
    running = [row for row in trials.live(connection, experiment_id) if row.status is TrialStatus.RUNNING]
    return {row.id: trial_reason(context, row, newest_node(connection, row)) for row in running}


def newest_node(connection: sqlite3.Connection, row: TrialRow) -> str | None:
    """The node of the trial's newest job."""
    if row.jobs == 0:
        return None
    try:
        return jobs.get(connection, f"{row.id}.{row.jobs}").node_id
    except RowNotFound:
        return None


def shown_number(value: float | None, data: Any) -> Any:
    """The number of a metric: the column, or the word in the data where it is not finite."""
    if value is not None:
        return value
    word = data.get("default") if isinstance(data, dict) else data
    return word if isinstance(word, str) and word in JSON_WORDS else None


def job_resource(row: TrialJobRow, *, now: float) -> models.Job:
    """A job, without its token.

    :param now: `Clock.steady`.
    """
    gpus = (row.placement or {}).get("gpus")
    return models.Job(
        id=row.id,
        trial_id=row.trial_id,
        experiment_id=row.experiment_id,
        number=row.number,
        status=row.status,
        stop_reason=row.stop_reason,
        end_reason=row.end_reason,
        detail=row.detail,
        parameter_id=row.parameter_id,
        parameters=row.parameters,
        parent_job=row.parent_job,
        resumed_from_job=row.resumed_from_job,
        resumed_from_step=row.resumed_from_step,
        resume_checkpoint=row.resume_checkpoint,
        start_reason=row.start_reason,
        node_id=row.node_id,
        gpus=None if gpus is None else [models.GpuShare(uuid=gpu["uuid"], slot=gpu["slot"]) for gpu in gpus],
        counted_gpus=row.counted_gpus,
        cpu_seconds=row.cpu_seconds,
        run_seconds=row.run_seconds if row.status.is_terminal else row.seconds_until(now),
        verdict_seconds=row.verdict_seconds,
        pid=row.pid,
        exit_code=row.exit_code,
        signal=row.signal,
        code_fingerprint=row.code_fingerprint,
        submitted_at=utc_or_none(row.submitted_at),
        started_at=utc_or_none(row.started_at),
        ended_at=utc_or_none(row.ended_at),
    )


def metric_resource(row: MetricRow, report_from: int) -> models.Metric:
    """A report of a trial, of an experiment in which those of rank `report_from` count."""
    return models.Metric(
        id=row.id,
        trial_id=row.trial_id,
        job=row.job,
        member=row.member,
        counts=row.member == report_from,
        kind=row.kind,
        sequence=row.sequence,
        step=row.step,
        value=shown_number(row.value, row.data),
        data=row.reported,
        time=utc(row.time),
        seconds=row.seconds,
    )


def rank_resource(row: RankSummary, report_from: int) -> models.TrialRank:
    """What a rank has reported, in an experiment in which the reports of rank `report_from` count."""
    return models.TrialRank(
        member=row.member,
        counts=row.member == report_from,
        intermediate_count=row.intermediates,
        latest_value=shown_number(row.latest.value, row.latest.data) if row.latest else None,
        final_value=shown_number(row.final.value, row.final.data) if row.final else None,
    )


def checkpoint_resource(
    row: CheckpointRow, trial_directory: Path, kept: Sequence[KeepReason] = ()
) -> models.RegisteredCheckpoint:
    """A registered checkpoint, with the reasons to keep it. Looks for its folder, so call it in a thread."""
    return models.RegisteredCheckpoint(
        id=row.id,
        trial_id=row.trial_id,
        job=row.job,
        member=row.member,
        step=row.step,
        sequence=row.sequence,
        path=row.path,
        size_bytes=row.bytes,
        manifest=row.manifest,
        value=row.value,
        kept=list(kept),
        deleted_at=utc_or_none(row.deleted_at),
        is_here=os.path.isdir(checkpoint_place(f"{trial_directory}/jobs/{row.job}", row.path)),
        time=utc(row.time),
    )


def devices_of(pool: NodePool, node: Node) -> list[dict[str, Any]] | None:
    """A node's GPUs, each with its holders (`held_by`): trials of any experiment, then other processes, which are
    `foreign`, too."""
    if node.devices is None:
        return None
    [capacity] = pool.capacity((node.id,))
    uses: dict[str, dict[str, Any]] = {}
    for gpu in capacity.gpus or ():
        others = [f"another process (pid {process.pid}, {process.memory_mb} MiB)" for process in gpu.foreign]
        uses[gpu.uuid] = {
            "held_by": [holding.holder for holding in gpu.holdings] + others,
            "foreign": [to_json(process) for process in gpu.foreign],
        }
    unused: dict[str, Any] = {"held_by": [], "foreign": []}
    return [{**to_json(device), **uses.get(device.uuid, unused)} for device in node.devices]


def node_resource(context: ApiContext, node: Node, usage: JobUsage) -> models.Node:
    """A node as the pool knows it now."""
    manager = context.manager
    pool = manager.pool
    facts = {
        "hostname": node.hostname,
        "version": node.version,
        "devices": devices_of(pool, node),
        "driver_note": node.driver_note,
        "disk_free_mb": node.disk_free_mb,
        "notes": [*node.notes, *_shortages(node), *_stops(node)],
    }
    return models.Node(
        id=node.id,
        kind=node.kind,
        status=node.status,
        reason=node.reason or "; ".join(_stops(node)),
        hold=node.hold,
        address=manager.node_connections.address(node.id),
        experiments=manager.experiments_on(node.id),
        uncollected=[left.experiment_id for left in manager.node_connections.uncollected(node_id=node.id)],
        reservations=[_reservation_resource(reservation) for reservation in pool.reservations(node.id)],
        usage=usage_resource(usage),
        facts=facts,
        seen_at=utc_or_none(node.seen_at),
    )


async def node_resources(context: ApiContext, nodes: Iterable[Node]) -> list[models.Node]:
    """Nodes as the pool knows them now, with what the store says was used on them."""
    now = context.manager.clock.steady()
    used = await context.manager.control.read(lambda connection: jobs.usage_by_node(connection, now=now))
    return [node_resource(context, node, used.get(node.id, JobUsage())) for node in nodes]


def collection_resource(collection: FileCollection) -> models.FileCollection:
    """How far a collection is now."""
    return models.FileCollection(
        experiment_id=collection.experiment_id,
        files=collection.files,
        total_files=collection.total_files,
        bytes=collection.bytes,
        total_bytes=collection.total_bytes,
        problem=collection.problem,
        is_finished=collection.ended.is_set(),
    )


def _shortages(node: Node) -> list[str]:
    """Where it has no room for new jobs, each place with its reason."""
    clauses = filter(None, (*node.full.values(), node.copy_obstacle))
    return [f"no new jobs can be started: {clause}" for clause in clauses]


def _stops(node: Node) -> list[str]:
    """What is stuck there because a process of its keeper is suspended."""
    return [f"trial job {job_id}: {clause}" if job_id else clause for job_id, clause in node.suspended.items()]


def _reservation_resource(reservation: Reservation) -> models.NodeReservation:
    gpus = reservation.gpus
    return models.NodeReservation(
        job_id=reservation.job_id,
        holder=reservation.holder,
        gpus=None if gpus is None else [models.GpuShare(uuid=gpu.uuid, slot=gpu.slot) for gpu in gpus],
    )


def check_resource(step: CheckStep) -> models.CheckStep:
    """One hop on the way to a machine."""
    return models.CheckStep(
        machine=step.machine, name=step.name, verdict=step.verdict, found=step.found, advice=step.advice
    )


# ---- experiments without a success, or without a best trial ----------------------------------------------------------


def explain_no_success(
    connection: sqlite3.Connection,
    experiment: ExperimentRow,
    *,
    counts: Mapping[TrialStatus, int],
    best: TrialRow | None,
) -> str:
    """Where trials have ended and none has succeeded, a clause that says so, with the most frequent reason; else ''.

    A trial that was stopped early may be as intended: it counts once the experiment is over, and only without a metric.
    """
    ended = {status: number for status, number in counts.items() if status.is_terminal and number}
    if not ended or best is not None or ended.keys() & {TrialStatus.SUCCEEDED, TrialStatus.UNKNOWN}:
        return ""
    if experiment.ended_at is None and TrialStatus.EARLY_STOPPED in ended:
        return ""
    reasons = trials.newest_reasons(connection, experiment.id, statuses=tuple(ended), limit=MOST_REASONS)
    return _success_clause(sum(ended.values()), reasons)


def explain_no_best(
    connection: sqlite3.Connection,
    experiment: ExperimentRow,
    *,
    counts: Mapping[TrialStatus, int],
    best: TrialRow | None,
) -> str:
    """Where there is no best trial, a clause that says why; else ''. Looks at the newest trials of each status only."""
    if best is not None:
        return ""
    present = [status for status, number in counts.items() if number]
    for status in sorted(present, key=lambda status: (status not in trials.RANKED, not status.is_terminal)):
        found = trials.a_final_metric(connection, experiment.id, status, limit=MOST_REASONS)
        if found is None:
            continue
        if status in trials.RANKED:
            data = json.dumps(found.final_data, ensure_ascii=False)[:MOST_SHOWN].strip('"')
            return (
                f"no final metric is a finite number that could be compared; trial {found.sequence_id} reported {data}"
            )
        if status.is_terminal:
            return f"only trials without success have reported a final metric; trial {found.sequence_id} is {status}"
        return f"trial {found.sequence_id} has reported a final metric, but has not ended yet"
    newest = f"none of the newest {MOST_REASONS} trials" if sum(counts.values()) > MOST_REASONS else "no trial"
    return f"{newest} has reported a final metric" + ("" if experiment.ended_at else " yet")


def _success_clause(total: int, reasons: Sequence[str]) -> str:
    """`reasons` are those of the newest of `total` ended trials, newest first."""
    reason, times = most_frequent(reasons)
    reason = reason or "no reason was given"
    if total == 1:
        return f"the only finished trial failed: {reason}"
    sample = f"{len(reasons)}" if len(reasons) == total else f"the newest {len(reasons)}"
    return f"none of {total} trials has succeeded; {times} of {sample} ended with: {reason}"
