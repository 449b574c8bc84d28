"""The curves of many trials in one answer, and their density, for charts."""

import gzip
import sqlite3
import time
from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from proctor.manager.api import charts, models
from proctor.manager.api.context import ApiContext, Density
from proctor.manager.api.dependencies import Context, answer_while_connected
from proctor.manager.api.groups import Routes
from proctor.manager.store.errors import QueryRefused
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import events, metrics, trials
from proctor.manager.store.tables.trials import TrialStarts

routes = Routes(prefix="/experiments/{experiment_id}", tags=["results"])

MAX_TRIALS = 200
MAX_CELLS = 2_000
TIME_LIMIT_SECONDS = 60.0
"""Of a read of all curves, which holds nothing else up."""

CurveKey = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="A key of what was reported, nested ones with dots; default: its number.",
        examples=["loss"],
    ),
]
XOfCurves = Annotated[
    charts.XAxis,
    Query(description="`step`; `seconds` since the trial was first started; `time`, the Unix time."),
]


@routes.get(
    "/curves",
    summary="The visible curves of trials",
    response_class=Response,
    responses={
        200: {"content": {charts.CURVES_MEDIA_TYPE: {}}, "description": "Binary; docs/rest.md describes it."},
        304: {"description": "Nothing has changed since the answer with this ETag."},
    },
)
async def get_curves(
    context: Context,
    request: Request,
    experiment_id: str,
    ids: Annotated[
        str | None,
        Query(
            max_length=10_000,
            description=f"Numbers or ids of at most {MAX_TRIALS} trials, with commas; default: all with points.",
            examples=["17,4,Xy7Zw3Qk"],
        ),
    ] = None,
    key: CurveKey = None,
    x: XOfCurves = "step",
) -> Response:
    """Each trial's visible curve, as `trials/{id}/curve` has it, in the order in which the trials were named, or by
    their numbers."""
    experiment = await context.manager.experiment(experiment_id)
    words = None if ids is None else list(dict.fromkeys(ids.split(",")))
    if words is not None and len(words) > MAX_TRIALS:
        raise QueryRefused("ids", position=0, expected=f"at most {MAX_TRIALS} trials", found=str(len(words)))
    database = await context.manager.metrics(experiment_id)
    tag = await _tag(context, experiment_id, charts.CURVES_VERSION)
    if words is not None:  # a word that names no trial is refused, even if nothing has changed
        wanted = await context.manager.control.read(lambda connection: _named(connection, experiment_id, words))
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": tag})
    if words is None:
        _watch(context, experiment_id)
        wanted = await context.manager.control.read(lambda connection: trials.starts(connection, experiment_id))
    asked = charts.CurveQuery(wanted, words is not None, experiment.report_from, key, x)
    read = context.manager.read_heavy(database, charts.curves_block, asked, time_limit_seconds=TIME_LIMIT_SECONDS)
    return await answer_while_connected(request, read, media_type=charts.CURVES_MEDIA_TYPE, headers={"ETag": tag})


class CurveKeys(models.Resource):
    """What curves can be drawn of."""

    items: list[str] = Field(examples=[["accuracy", "loss"]])
    """Keys of what was reported, nested ones with dots, by name; without `default`, which is the number itself."""


@routes.get("/curves/keys", summary="The keys under which trials have reported numbers")
async def get_curve_keys(context: Context, experiment_id: str) -> CurveKeys:
    """Of all trials whose curves are packed, which is done when they end or when all curves are read; of up to 200
    others, their first 20 reports are looked at."""
    experiment = await context.manager.experiment(experiment_id)
    database = await context.manager.metrics(experiment_id)
    read = context.manager.read_heavy(
        database, charts.curve_keys, experiment.report_from, time_limit_seconds=TIME_LIMIT_SECONDS
    )
    return CurveKeys(items=await read)


@routes.get(
    "/curves/density",
    summary="How many curves pass through each cell of a chart",
    response_class=Response,
    responses={
        200: {"content": {charts.DENSITY_MEDIA_TYPE: {}}, "description": "Binary; docs/rest.md describes it."},
        304: {"description": "Nothing has changed since the answer with this ETag."},
    },
)
async def get_density(
    context: Context,
    request: Request,
    experiment_id: str,
    key: CurveKey = None,
    x: XOfCurves = "step",
    width: Annotated[int, Query(ge=1, le=MAX_CELLS, description="How many columns of cells.")] = 1000,
    height: Annotated[int, Query(ge=1, le=MAX_CELLS, description="How many rows of cells.")] = 400,
    log_x: Annotated[bool, Query(description="Whether the x axis is logarithmic.")] = False,
    log_y: Annotated[bool, Query(description="Whether the axis of the values is logarithmic.")] = False,
) -> Response:
    """Of the visible curves of all trials. What it costs to count them limits how often that is done: an answer may be
    some seconds old, and says so."""
    experiment = await context.manager.experiment(experiment_id)
    grid = charts.Grid(width, height, log_x, log_y)
    tag = await _tag(context, experiment_id, charts.DENSITY_VERSION)
    subject = (experiment_id, key, x, grid)

    async def count() -> Density:
        began = time.monotonic()
        current, older = await _density(context, experiment, key, x, grid)
        return Density(tag, current, older, time.monotonic(), time.monotonic() - began)

    found = await context.densities.get(subject, tag, count)
    body = found.current if found.tag == tag else found.older
    headers = {"ETag": found.tag if found.tag == tag else f'{found.tag[:-1]}-older"', "Vary": "Accept-Encoding"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(body, media_type=charts.DENSITY_MEDIA_TYPE, headers=headers | {"Content-Encoding": "gzip"})
    return Response(gzip.decompress(body), media_type=charts.DENSITY_MEDIA_TYPE, headers=headers)


async def _density(
    context: ApiContext, experiment: ExperimentRow, key: str | None, x: charts.XAxis, grid: charts.Grid
) -> tuple[bytes, bytes]:
    _watch(context, experiment.id)
    database = await context.manager.metrics(experiment.id)
    wanted = await context.manager.control.read(lambda connection: trials.starts(connection, experiment.id))
    asked = charts.CurveQuery(wanted, False, experiment.report_from, key, x)
    return await context.manager.read_heavy(
        database, charts.density_block, asked, grid, time_limit_seconds=TIME_LIMIT_SECONDS
    )


def _watch(context: ApiContext, experiment_id: str) -> None:
    """All its curves are being read: those that are not packed are worth it."""
    if experiment_id not in context.manager.watched_curves:
        context.manager.watched_curves.add(experiment_id)
        context.manager.feed.notify()


async def _tag(context: ApiContext, experiment_id: str, version: int) -> str:
    """An ETag for what is read afterwards, which may then only be newer than what the tag says."""
    database = await context.manager.metrics(experiment_id)
    revision = await context.manager.control.read(lambda connection: events.revision(connection, experiment_id))
    return f'"{version}-{revision}-{await database.read(metrics.last_id)}"'


def _named(connection: sqlite3.Connection, experiment_id: str, words: list[str]) -> TrialStarts:
    """The trials that the words name, each once. Raises QueryRefused."""
    known = trials.named(connection, experiment_id, words)
    position = 0
    for word in words:
        if word not in known:
            expected = f"the number or id of a trial of experiment {experiment_id}"
            raise QueryRefused("ids", position=position, expected=expected, found=repr(word))
        position += len(word) + 1
    return TrialStarts.of(dict.fromkeys(known[word] for word in words))
