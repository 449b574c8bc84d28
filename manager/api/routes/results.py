"""The results of an experiment (best trial, curve of the best, table of trials, all results), and imported results.

Reads that grow with the experiment end when their client goes away (`answer_while_connected`).
"""

import sqlite3
from pathlib import Path
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from proctor.manager.api import columnar, models, table_files
from proctor.manager.api.dependencies import (
    DEFAULT_BYTES,
    LARGEST_ID,
    ByteLimit,
    Context,
    Cursor,
    Limit,
    Offset,
    RequestSender,
    TableColumns,
    TrialFilter,
    answer_while_connected,
)
from proctor.manager.api.groups import Routes
from proctor.manager.api.json_types import utc_or_none
from proctor.manager.api.requests import ImportRow
from proctor.manager.api.resources import (
    best_resource,
    explain_no_best,
    is_maximized,
    read_curve_values,
    reasons_of_running,
)
from proctor.manager.api.text import read_part, text_part
from proctor.manager.dispatcher.client.process import earlier_log
from proctor.manager.errors import NotFound
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import MetricRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, metrics, trials
from proctor.manager.store.trial_table import table

routes = Routes(prefix="/experiments/{experiment_id}", tags=["results"])


@routes.get("/best", summary="The best trial so far")
async def get_best(context: Context, experiment_id: str) -> models.Best:
    """The best of the trials that succeeded or were stopped early; 404 while none of them has a finite final metric."""
    row = await context.manager.experiment(experiment_id)

    def read(connection: sqlite3.Connection) -> TrialRow | str:
        best = trials.best(connection, experiment_id, is_maximized(row))
        counts = trials.counts(connection, experiment_id)
        return best or explain_no_best(connection, row, counts=counts, best=best)

    found = await context.manager.control.read(read)
    if isinstance(found, str):
        raise NotFound(f"experiment {experiment_id} has no best trial: {found}")
    return best_resource(found)


@routes.get(
    "/curve",
    summary="The best value over the trials that have ended",
    response_model=models.Page[models.CurvePoint],
)
async def get_curve(context: Context, request: Request, experiment_id: str) -> Response:
    """One point for every trial that succeeded or was stopped early and has a finite final metric, in the order of
    their ends."""
    row = await context.manager.experiment(experiment_id)

    def read(connection: sqlite3.Connection) -> bytes:
        points = trials.best_curve(connection, experiment_id, is_maximized(row))
        return models.Page(items=[curve_point(point) for point in points]).model_dump_json().encode()

    return await answer_while_connected(request, context.manager.control.read(read))


@routes.get(
    "/table",
    summary="The trials as a table",
    response_model=columnar.Table,
    responses={
        200: {
            "content": {
                columnar.MEDIA_TYPE: {},
                **{kind: {} for name, kind in table_files.MEDIA_TYPES.items() if name != "json"},
            }
        },
        501: {"description": "Parquet, and the manager has no pyarrow."},
    },
)
async def get_table(
    context: Context,
    request: Request,
    experiment_id: str,
    filter: TrialFilter = None,
    sort: Annotated[
        list[str] | None,
        Query(
            max_length=8,
            description="A column, or `-` and a column: the greatest first; may be repeated. Trials without a value "
            "come last.",
            examples=[["-value"]],
        ),
    ] = None,
    columns: TableColumns = "*",
    offset: Annotated[int, Query(ge=0, le=LARGEST_ID, description="How many trials to leave out.")] = 0,
    limit: Annotated[int, Query(ge=1, le=table.MAX_ROWS, description="How many trials at most.")] = 1000,
    format: Annotated[
        table_files.FileFormat | None,
        Query(description="A file to save; Parquet needs pyarrow where the manager runs."),
    ] = None,
) -> Response:
    """The trials that the filter lets through, in the order of `sort` and then of their numbers. With `Accept:
    application/vnd.proctor.columns` the same in a binary format, column by column. docs/rest.md describes both."""
    experiment = await context.manager.experiment(experiment_id)
    is_binary = format is None and columnar.MEDIA_TYPE in request.headers.get("accept", "")
    headers = {"Vary": "Accept"}
    if format is not None:
        headers["Content-Disposition"] = f'attachment; filename="{experiment_id}.{format}"'
    now = context.manager.clock.steady()

    control = context.manager.control
    named = columns.split(",")
    reasons: dict[str, str] = {}
    if not {table.ALL, "reason"}.isdisjoint(named):
        reasons = await control.read(lambda connection: reasons_of_running(context, connection, experiment_id))
    asked = columnar.TableQuery(
        experiment_id,
        now=now,
        filter=filter,
        sort=sort or (),
        columns=named,
        offset=offset,
        limit=limit,
        reasons=reasons,
        curve_values=await read_curve_values(context, experiment, filter=filter, sort=sort or (), columns=named),
        format="columns" if is_binary else format or "json",
    )
    return await answer_while_connected(
        request,
        context.manager.read_heavy(control, columnar.read_table, asked),
        media_type=columnar.MEDIA_TYPE if is_binary else table_files.MEDIA_TYPES[format or "json"],
        headers=headers,
    )


@routes.get(
    "/export",
    summary="Parameters and outcomes of the trials that have ended",
    response_model=models.Page[models.ExportRow],
)
async def export_results(
    context: Context,
    request: Request,
    experiment_id: str,
    status: Annotated[
        list[TrialStatus] | None,
        Query(description="Filter by status; may be repeated. Default: all ended trials."),
    ] = None,
    intermediate: Annotated[bool, Query(description="Whether to add the intermediate metrics.")] = False,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> Response:
    """By sequence id, with and without a final metric. `import` takes these rows."""
    report_from = (await context.manager.experiment(experiment_id)).report_from
    statuses = [each for each in TrialStatus if each.is_terminal] if status is None else status
    page = await context.manager.control.read(
        lambda c: trials.page(c, experiment_id, statuses=statuses, cursor=cursor, limit=limit)
    )
    database = await context.manager.metrics(experiment_id) if intermediate else context.manager.control

    def read(connection: sqlite3.Connection) -> bytes:
        items = []
        for row in page.items:
            curve = metrics.curve(connection, row.id, member=report_from) if intermediate else None
            items.append(_export_row(row, curve))
        return models.Page(items=items, next_cursor=page.next_cursor).model_dump_json().encode()

    return await answer_while_connected(request, database.read(read))


@routes.get("/imported", summary="The results from elsewhere that the tuner was given")
async def list_imported(context: Context, experiment_id: str) -> models.ImportedResults:
    """In the order of their import. Those of an experiment that was loaded from an archive begin with the results of
    its own trials."""
    await context.manager.experiment(experiment_id)
    rows = await context.manager.control.read(lambda c: dispatcher_inputs.imported(c, experiment_id))
    return models.ImportedResults(items=[models.ImportedResult(**row) for row in rows])


@routes.post("/import", summary="Import results from another experiment into the tuner")
async def import_results(
    context: Context,
    sender: RequestSender,
    experiment_id: str,
    body: list[ImportRow],
    skip_outside: Annotated[
        bool, Query(description="Skip rows outside of the search space, and import the others.")
    ] = False,
) -> models.Imported:
    """Rows as `export` gives them, here or in NNI, are taken as they are; those whose value is null are skipped. Where
    a row is outside of the search space, or its value holds no number, nothing is imported and the rows are listed."""
    rows = [{"parameter": row.parameter, "value": row.value} for row in body]
    found = await context.manager.import_data(experiment_id, rows, skip_outside=skip_outside, actor=sender.actor)
    return models.Imported(imported=len(found.rows), skipped=found.skipped, outside=found.outside)


@routes.get("/logs", summary="Part of a log of the experiment", response_class=Response)
async def get_experiment_logs(
    context: Context,
    experiment_id: str,
    source: Annotated[str, Query(pattern="^dispatcher$", description="The process that wrote the log.")] = "dispatcher",
    offset: Offset = 0,
    limit: ByteLimit = DEFAULT_BYTES,
) -> Response:
    """What the dispatcher, and a tuner of the user's in it, printed. Header X-Next-Offset: where to continue."""
    row = await context.manager.experiment(experiment_id)
    path = Path(row.directory) / "log" / f"{source}.log"
    return text_part(*read_part(path, offset, limit, is_cut=earlier_log(path).exists()))


def curve_point(point: trials.CurvePoint) -> models.CurvePoint:
    """A point of the curve of the best."""
    ended_at = utc_or_none(point.ended_at)
    return models.CurvePoint(sequence_id=point.sequence_id, ended_at=ended_at, value=point.value, best=point.best)


def _export_row(row: TrialRow, curve: list[MetricRow] | None) -> models.ExportRow:
    return models.ExportRow(
        parameter=row.parameters,
        value=row.final_value if row.final_data is None else row.final_data,
        trial_id=row.id,
        sequence_id=row.sequence_id,
        status=row.status,
        reason=row.reason,
        latest_value=row.latest_value,
        intermediate=None if curve is None else [point.reported for point in curve],
        intermediate_steps=None if curve is None else [point.step for point in curve],
    )
