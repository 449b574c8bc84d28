"""What has changed in an experiment: a page reads it after an event, and is up to date."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from proctor.manager.api import columnar, models
from proctor.manager.api.dependencies import LARGEST_ID, Context, TableColumns, TrialFilter
from proctor.manager.api.groups import Routes
from proctor.manager.api.resources import experiment_resource, read_curve_values, reasons_of_running
from proctor.manager.store.tables import experiments
from proctor.manager.store.trial_table import changes, table

routes = Routes(prefix="/experiments/{experiment_id}", tags=["results"])


class CurveStretch(models.Resource):
    """New points of a trial's visible curve."""

    no: int = Field(examples=[17])
    """The trial's number (`sequence_id`)."""
    first: int = Field(alias="from", examples=[40])
    """The place of the first of these points in the curve, from 0; what the curve had from there on is replaced."""
    steps: list[int] = Field(examples=[[40, 41]])
    values: list[float | None] = Field(examples=[[0.71, 0.73]])
    """A value that is not a finite number is null."""


class ExperimentChanges(models.Resource):
    """What has changed since an event."""

    revision: int = Field(examples=[31337])
    """The event to ask from next time."""
    reset: bool
    """Some of the changes are gone, or there are too many: read everything again, then ask from `revision`."""
    experiment: models.Experiment | None
    """As it is now; null where nothing has changed."""
    rows: columnar.Table | None
    """The trials that have changed and that the filter lets through, as they are now; null for none."""
    filtered_out: list[int] = Field(examples=[[12]])
    """The numbers of the trials that have changed and that the filter does not let through."""
    points: list[CurveStretch]
    """In the order in which they are to be applied."""


@routes.get("/changes", summary="What has changed since an event", response_model=ExperimentChanges)
async def get_changes(
    context: Context,
    experiment_id: str,
    after: Annotated[
        int, Query(ge=0, le=LARGEST_ID, description="An event: the `revision` of a table or of the changes before.")
    ],
    columns: TableColumns = "*",
    filter: TrialFilter = None,
) -> Response:
    """The experiment, the rows of at most 2,000 trials and 20,000 points of curves. Ask after an event of the stream, a
    few times a second at most."""
    row = await context.manager.experiment(experiment_id)
    control, now = context.manager.control, context.manager.clock.steady()
    found = await control.read(lambda connection: changes.since(connection, experiment_id, after))
    points: list[changes.NewPoints] | None = []
    if found.metrics:
        database = await context.manager.metrics(experiment_id)
        points = await database.read(
            lambda connection: changes.new_points(connection, found.metrics, member=row.report_from)
        )
    trial_ids = found.trial_ids | {each.trial_id for each in points or ()}
    named = columns.split(",")
    curve_values = await read_curve_values(context, row, filter=filter, columns=named) if trial_ids else {}
    is_too_much = points is None or len(trial_ids) > changes.MAX_TRIALS

    def read(connection: sqlite3.Connection) -> bytes:
        if found.missed or is_too_much:
            return _body(found.revision, reset=True)
        if not found.has_events:
            return _body(found.revision)
        experiment = experiment_resource(context, connection, experiments.get(connection, experiment_id))
        numbers = changes.numbers(connection, trial_ids)
        stretches = [
            CurveStretch(no=numbers[each.trial_id], **{"from": each.first}, steps=each.steps, values=each.values)
            for each in points or ()
        ]
        rows, left = None, set[int]()
        if trial_ids:
            read_rows = partial(
                table.read,
                connection,
                experiment_id,
                now=now,
                filter=filter,
                trial_ids=trial_ids,
                curve_values=curve_values,
                limit=changes.MAX_TRIALS,
            )
            rows = read_rows(columns=named)
            if any(column.name == "reason" for column in rows.columns):
                columnar.add_reasons(rows, reasons_of_running(context, connection, experiment_id))
            if filter is not None:
                left = {numbers[trial_id] for trial_id in trial_ids} - set(read_rows(columns=["no"]).columns[0].values)
        return _body(found.revision, experiment=experiment, rows=rows, filtered_out=sorted(left), points=stretches)

    return Response(await control.read(read), media_type="application/json")


def _body(
    revision: int,
    *,
    reset: bool = False,
    experiment: models.Experiment | None = None,
    rows: table.TrialTable | None = None,
    filtered_out: Sequence[int] = (),
    points: Sequence[CurveStretch] = (),
) -> bytes:
    """The text of `ExperimentChanges`. A table has a text already."""
    parts = {
        "revision": b"%d" % revision,
        "reset": b"true" if reset else b"false",
        "experiment": b"null" if experiment is None else experiment.model_dump_json().encode(),
        "rows": b"null" if rows is None else columnar.table_to_json(rows),
        "filtered_out": columnar.compact(filtered_out).encode(),
        "points": b"[" + b",".join(each.model_dump_json(by_alias=True).encode() for each in points) + b"]",
    }
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), text) for name, text in parts.items()) + b"}"
