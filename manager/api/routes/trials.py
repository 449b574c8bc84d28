"""Trials, their jobs, metrics, logs and files."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Path as PathValue
from fastapi import Query
from starlette.responses import Response, StreamingResponse

from proctor.manager.api import models
from proctor.manager.api.context import ApiContext
from proctor.manager.api.dependencies import (
    DEFAULT_BYTES,
    LARGEST_ID,
    ByteLimit,
    Context,
    Cursor,
    Limit,
    Offset,
    RequestSender,
    TrialFilter,
    read_row_id,
)
from proctor.manager.api.groups import Routes
from proctor.manager.api.requests import AddTrial, TrialClone
from proctor.manager.api.resources import (
    checkpoint_resource,
    decision_resource,
    is_maximized,
    job_resource,
    metric_resource,
    newest_node,
    rank_resource,
    read_curve_values,
    trial_resource,
)
from proctor.manager.api.text import NEXT_OFFSET, begin_of, text_part
from proctor.manager.errors import NotFound
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import MetricRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, experiments, jobs, metrics, trials
from proctor.manager.store.trial_table import table

routes = Routes(tags=["trials"])

_INDEXED = {"no": "sequence_id", "-no": "-sequence_id", "value": "value", "-value": "-value"}
"""The orders of which a page costs the same however many trials there are."""
MetricLimit = Annotated[int, Query(ge=1, le=10_000)]
JobNumber = Annotated[int | None, Query(ge=1, le=LARGEST_ID, description="The job's number; default: the newest.")]


@routes.get("/experiments/{experiment_id}/trials", summary="List an experiment's trials")
async def list_trials(
    context: Context,
    experiment_id: str,
    status: Annotated[list[TrialStatus] | None, Query(description="Filter by status; may be repeated.")] = None,
    filter: TrialFilter = None,
    sort: Annotated[
        str,
        Query(
            max_length=1000,
            description="sequence_id, or a column of the table; best: by value, the best first. `-`: the greatest (of "
            "best: the worst) first. Trials without a value come last.",
            examples=["sequence_id", "best", "-parameter.lr"],
        ),
    ] = "sequence_id",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> models.Page[models.Trial]:
    """Trials in the order of `sort`, and then of their numbers."""
    experiment = await context.manager.experiment(experiment_id)
    order = _column_order(sort, maximize=is_maximized(experiment))
    now = context.manager.clock.steady()
    curve_values = await read_curve_values(context, experiment, filter=filter, sort=[order])

    def find(connection: sqlite3.Connection) -> trials.TrialPage[TrialRow]:
        if filter is None and order in _INDEXED:
            indexed = _INDEXED[order]
            return trials.page(connection, experiment_id, statuses=status, sort=indexed, cursor=cursor, limit=limit)
        return table.page(
            connection,
            experiment_id,
            now=now,
            filter=filter,
            statuses=status,
            sort=order,
            cursor=cursor,
            curve_values=curve_values,
            limit=limit,
        )

    def read(connection: sqlite3.Connection) -> models.Page[models.Trial]:
        page = find(connection)
        items = [_resource(context, connection, row, experiment.directory) for row in page.items]
        return models.Page(items=items, next_cursor=page.next_cursor)

    return await context.manager.control.read(read)


@routes.post("/experiments/{experiment_id}/trials", status_code=201, summary="Add a trial by hand")
async def add_trial(context: Context, sender: RequestSender, experiment_id: str, body: AddTrial) -> models.Trial:
    """A trial with parameters that no tuner has suggested; the tuner receives its result."""
    return await _read_resource(
        context, await context.manager.trials.add(experiment_id, body.parameters, actor=sender.actor)
    )


@routes.get("/trials", summary="Find trials by the beginning of their id")
async def find_trials(
    context: Context, id_prefix: Annotated[str, Query(min_length=1, max_length=64)]
) -> models.Page[models.Trial]:
    """At most 20 trials of all experiments."""

    def read(connection: sqlite3.Connection) -> models.Page[models.Trial]:
        found = trials.find_by_prefix(connection, id_prefix)
        homes = {row.experiment_id: experiments.get(connection, row.experiment_id).directory for row in found}
        return models.Page(items=[_resource(context, connection, row, homes[row.experiment_id]) for row in found])

    return await context.manager.control.read(read)


@routes.get("/trials/{trial_id}", summary="Read a trial")
async def get_trial(context: Context, trial_id: str) -> models.TrialInFull:
    """One trial, with what its trial scheduler has decided of it."""
    found = await _read_resource(context, await context.manager.trials.get(trial_id))
    rows = await context.manager.control.read(lambda c: dispatcher_inputs.of_trial(c, trial_id))
    return models.TrialInFull(**dict(found), decisions=[decision_resource(row, donor) for row, donor in rows])


@routes.post("/trials/{trial_id}/kill", status_code=202, summary="End a trial")
async def kill_trial(context: Context, sender: RequestSender, trial_id: str) -> models.Trial:
    """The request is stored when this returns."""
    await context.manager.trials.kill(trial_id, actor=sender.actor)
    return await _read_resource(context, await context.manager.trials.get(trial_id))


@routes.post("/trials/{trial_id}/pause", status_code=202, summary="Pause a trial")
async def pause_trial(context: Context, sender: RequestSender, trial_id: str) -> models.Trial:
    """It is stopped, may save first (`saveSeconds`), and is kept without a place or GPUs until a user resumes it, also
    one that its trial scheduler has paused. The request is stored when this returns; the trial is PAUSED when its job
    has ended."""
    await context.manager.trials.pause(trial_id, actor=sender.actor)
    return await _read_resource(context, await context.manager.trials.get(trial_id))


@routes.post("/trials/{trial_id}/resume", status_code=202, summary="Resume a paused trial")
async def resume_trial(context: Context, sender: RequestSender, trial_id: str) -> models.Trial:
    """It waits for a place, which may be on another node, and continues from its newest checkpoint. A trial that its
    trial scheduler has paused is refused with 409. If its trial scheduler has paused it besides a user, it remains
    PAUSED."""
    await context.manager.trials.resume(trial_id, actor=sender.actor)
    return await _read_resource(context, await context.manager.trials.get(trial_id))


@routes.post("/trials/{trial_id}/retry", status_code=201, summary="Run an ended trial's parameters again")
async def retry_trial(
    context: Context,
    sender: RequestSender,
    trial_id: str,
    from_checkpoint: Annotated[bool, Query(description="From its newest checkpoint, not from the start.")] = False,
) -> models.Trial:
    """Answers with the new trial."""
    return await _read_resource(
        context, await context.manager.trials.retry(trial_id, from_checkpoint=from_checkpoint, actor=sender.actor)
    )


@routes.post("/trials/{trial_id}/clone", status_code=201, summary="Continue a trial with other parameters")
async def clone_trial(context: Context, sender: RequestSender, trial_id: str, body: TrialClone) -> models.Trial:
    """A new trial that begins with the newest checkpoint of this one, which may be running. Answers with the new
    trial."""
    return await _read_resource(
        context, await context.manager.trials.clone(trial_id, body.parameters, actor=sender.actor)
    )


@routes.get("/trials/{trial_id}/jobs", summary="A trial's jobs")
async def list_jobs(context: Context, trial_id: str) -> models.Page[models.Job]:
    """Every attempt to run it, the first one first."""
    await context.manager.trials.get(trial_id)
    rows = await context.manager.control.read(lambda c: jobs.of_trial(c, trial_id))
    now = context.manager.clock.steady()
    return models.Page(items=[job_resource(row, now=now) for row in rows])


@routes.get("/trials/{trial_id}/metrics", summary="A trial's reports")
async def list_metrics(
    context: Context,
    trial_id: str,
    kind: Annotated[Literal["intermediate", "final", "lost", "unreadable"] | None, Query()] = None,
    member: Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="Only reports of this rank.")] = None,
    after: Annotated[int, Query(ge=0, le=LARGEST_ID, description="Only reports with a greater id.")] = 0,
    cursor: Cursor = None,
    limit: MetricLimit = 1000,
) -> models.Page[models.Metric]:
    """In the order of storing, of all jobs. `cursor` and `after` say the same; `cursor` wins."""
    trial = await context.manager.trials.get(trial_id)
    after_id = after if cursor is None else read_row_id(cursor)
    database = await context.manager.metrics(trial.experiment_id)
    experiment = await context.manager.experiment(trial.experiment_id)
    rows = await database.read(
        lambda c: metrics.page(c, trial_id, kind=kind, member=member, after_id=after_id, limit=limit + 1)
    )
    return _metrics_page(rows, limit, experiment.report_from)


@routes.get("/trials/{trial_id}/ranks", summary="What each rank of a trial has reported")
async def list_ranks(context: Context, trial_id: str) -> models.Page[models.TrialRank]:
    """The ranks of a distributed trial, by number, in its newest job that has reported; one of any other trial."""
    trial = await context.manager.trials.get(trial_id)
    database = await context.manager.metrics(trial.experiment_id)
    experiment = await context.manager.experiment(trial.experiment_id)
    rows = await database.read(lambda c: metrics.ranks(c, trial_id))
    return models.Page(items=[rank_resource(row, experiment.report_from) for row in rows])


@routes.get("/trials/{trial_id}/curve", summary="A trial's visible curve")
async def get_trial_curve(
    context: Context,
    trial_id: str,
    member: Annotated[
        int | None,
        Query(ge=0, le=LARGEST_ID, description="The curve of this rank; default: the rank whose reports count."),
    ] = None,
    cursor: Cursor = None,
    limit: MetricLimit = 1000,
) -> models.Page[models.Metric]:
    """The intermediate metrics of its newest job, and before the point at which that job resumed those of the job whose
    checkpoint it continues. `sequence` counts the points from 0."""
    trial = await context.manager.trials.get(trial_id)
    after_id = 0 if cursor is None else read_row_id(cursor)
    database = await context.manager.metrics(trial.experiment_id)
    report_from = (await context.manager.experiment(trial.experiment_id)).report_from
    rank = report_from if member is None else member
    rows = await database.read(lambda c: metrics.curve(c, trial_id, member=rank, after_id=after_id, limit=limit + 1))
    return _metrics_page(rows, limit, report_from)


@routes.get("/trials/{trial_id}/checkpoints", summary="A trial's checkpoints")
async def list_checkpoints(
    context: Context, trial_id: str, cursor: Cursor = None, limit: Limit = 100
) -> models.Page[models.RegisteredCheckpoint]:
    """What its jobs have registered, in the order of storing; it would continue from the newest one that was not
    deleted."""
    trial = await context.manager.trials.get(trial_id)
    after_id = 0 if cursor is None else read_row_id(cursor)
    database = await context.manager.metrics(trial.experiment_id)
    rows = await database.read(lambda c: metrics.checkpoints(c, trial_id, after_id=after_id, limit=limit + 1))
    folder = Path((await context.manager.experiment(trial.experiment_id)).directory)
    folder = folder / "trials" / f"{trial.sequence_id}-{trial.id}"

    kept = await context.manager.trials.reasons_to_keep(trial)

    def look() -> list[models.RegisteredCheckpoint]:
        return [checkpoint_resource(row, folder, kept.get(row.id, ())) for row in rows[:limit]]

    following = str(rows[limit - 1].id) if len(rows) > limit else None
    return models.Page(items=await asyncio.to_thread(look), next_cursor=following)


@routes.get(
    "/trials/{trial_id}/checkpoints/{checkpoint_id}/tar",
    summary="A checkpoint's files",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-tar": {}}, "description": "A tar with one folder."}},
)
async def download_checkpoint(
    context: Context, trial_id: str, checkpoint_id: Annotated[int, PathValue(ge=1, le=LARGEST_ID)]
) -> StreamingResponse:
    """Wherever they are. 404 for one that was deleted, with the reason; 503 while its node is away."""
    archive = await context.manager.archive_checkpoint(trial_id, checkpoint_id)
    headers = {
        "Content-Length": str(archive.size),
        "Content-Disposition": f'attachment; filename="{trial_id}-checkpoint-{checkpoint_id}.tar"',
    }
    return StreamingResponse(archive.body(), media_type="application/x-tar", headers=headers)


@routes.get("/trials/{trial_id}/logs", summary="Part of a trial's output", response_class=Response)
async def get_trial_logs(
    context: Context,
    trial_id: str,
    stream: Annotated[Literal["stdout", "stderr"], Query()] = "stdout",
    job: JobNumber = None,
    offset: Offset = 0,
    limit: ByteLimit = DEFAULT_BYTES,
) -> Response:
    """Plain text. Header X-Next-Offset: where to continue."""
    return text_part(*await read_job_part(context, trial_id, job, stream, offset, limit))


@routes.get("/trials/{trial_id}/files", summary="A trial's files")
async def list_files(context: Context, trial_id: str, job: JobNumber = None) -> models.Page[models.FileEntry]:
    """The files of one of its jobs."""
    found = await context.manager.list_job_files(trial_id, job)
    return models.Page(items=[models.FileEntry(path=path, size_bytes=size) for path, size in sorted(found)])


@routes.get("/trials/{trial_id}/files/{path:path}", summary="Part of a file", response_class=Response)
async def get_file(
    context: Context,
    trial_id: str,
    path: str,
    job: JobNumber = None,
    offset: Offset = 0,
    limit: ByteLimit = 4 * 1024 * 1024,
) -> Response:
    """Bytes. Header X-Next-Offset: where to continue."""
    begin = await _begin(context, trial_id, job, path, offset)
    data = await context.manager.read_job_file(trial_id, job, path, begin, limit)
    headers: dict[str, str] = {NEXT_OFFSET: str(begin + len(data)), "Content-Disposition": "attachment"}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def read_job_part(
    context: ApiContext, trial_id: str, job: int | None, path: str, offset: int, limit: int
) -> tuple[bytes, int]:
    """Part of a file of a job and where it begins; a file that is not there yet is empty."""
    await context.manager.trials.get(trial_id)
    try:
        begin = await _begin(context, trial_id, job, path, offset)
        return await context.manager.read_job_file(trial_id, job, path, begin, limit), begin
    except NotFound:
        if job is not None:
            known: list[Any] = await context.manager.control.read(lambda c: jobs.of_trial(c, trial_id))
            if all(row.number != job for row in known):
                raise
        return b"", 0


def _metrics_page(rows: list[MetricRow], limit: int, report_from: int) -> models.Page[models.Metric]:
    """A page of reports; `rows` holds one more than the `limit` if there are more."""
    shown = rows[:limit]
    following = str(shown[-1].id) if len(rows) > limit else None
    return models.Page(items=[metric_resource(row, report_from) for row in shown], next_cursor=following)


async def _begin(context: ApiContext, trial_id: str, job: int | None, path: str, offset: int) -> int:
    if offset >= 0:
        return offset
    sizes = dict(await context.manager.list_job_files(trial_id, job))
    return begin_of(offset, sizes.get(path, 0))


async def _read_resource(context: ApiContext, row: TrialRow) -> models.Trial:
    experiment = await context.manager.experiment(row.experiment_id)
    return await context.manager.control.read(lambda c: _resource(context, c, row, experiment.directory))


def _column_order(sort: str, *, maximize: bool) -> str:
    """The order by a column of the table that a `sort` stands for; the best depend on which values are better."""
    if sort in ("best", "-best"):
        return "-value" if (sort == "best") == maximize else "value"
    return {"sequence_id": "no", "-sequence_id": "-no"}.get(sort, sort)


def _resource(context: ApiContext, connection: sqlite3.Connection, row: TrialRow, directory: str) -> models.Trial:
    usage = jobs.usage_of_trial(connection, row.id, now=context.manager.clock.steady())
    node_id = newest_node(connection, row)
    return trial_resource(context, row, experiment_directory=directory, node_id=node_id, usage=usage)
