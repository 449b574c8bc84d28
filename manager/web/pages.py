"""The pages' routes. Every page is complete HTML; the script asks for it again when something has changed."""

import sqlite3
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, HTMLResponse

from proctor.manager.api.context import ApiContext
from proctor.manager.api.dependencies import Context
from proctor.manager.api.resources import (
    explain_no_best,
    explain_no_success,
    is_maximized,
    newest_node,
    node_resources,
    objective,
    reason_of,
    shown_number,
    trial_reason,
    usage_resource,
)
from proctor.manager.api.routes.trials import read_job_part
from proctor.manager.errors import Conflict, ManagerError, NotFound, Unavailable
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import events, experiments, jobs, metrics, trials
from proctor.manager.web import formats
from proctor.manager.web.charts import Series, chart, share_bar
from proctor.sdk.json_input import clean_text

router = APIRouter(include_in_schema=False)

_FOLDER = Path(__file__).parent
_ASSETS = {"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8"}
_BAR = ("SUCCEEDED", "EARLY_STOPPED", "RUNNING", "PAUSED", "FAILED", "USER_CANCELED", "SYS_CANCELED")
_TAIL_BYTES = 16 * 1024
_ROWS = 50
_MOST_LOSSES = 5


@router.get("/assets/{name}")
async def get_asset(name: str) -> FileResponse:
    """Style and script."""
    if name not in _ASSETS:
        raise NotFound(f"there is no asset {name}")
    return FileResponse(_FOLDER / "assets" / name, media_type=_ASSETS[name], headers={"Cache-Control": "no-cache"})


@router.get("/")
async def list_experiments(context: Context, cursor: str | None = None) -> HTMLResponse:
    """All experiments."""

    def read(connection: sqlite3.Connection) -> dict[str, Any]:
        page = experiments.page(connection, cursor=cursor, limit=_ROWS)
        items = [_summary(context, connection, row) for row in page.items]
        return {"items": items, "next_cursor": page.next_cursor, "last_event": events.last_id(connection)}

    return await _page(context, "experiments.html", "./", await context.manager.control.read(read))


@router.get("/experiments/{experiment_id}")
async def show_experiment(
    context: Context,
    experiment_id: str,
    sort: Literal["sequence_id", "-sequence_id", "value", "-value"] = "-sequence_id",
    status: Annotated[TrialStatus | None, Query()] = None,
    cursor: str | None = None,
) -> HTMLResponse:
    """One experiment and a page of its trials."""
    try:
        row = await context.manager.experiment(experiment_id)
    except ManagerError as error:
        return await _problem(context, error, "../")

    def read(connection: sqlite3.Connection) -> dict[str, Any]:
        statuses = None if status is None else [status]
        page = trials.page(connection, experiment_id, statuses=statuses, sort=sort, cursor=cursor, limit=_ROWS)
        counts = trials.counts(connection, experiment_id)
        curve = context.best_charts.draw(connection, row, counts=counts, maximize=is_maximized(row))
        return {
            **_summary(context, connection, row),
            "notices": events.notices(connection, experiment_id),
            "trials": [(trial, newest_node(connection, trial)) for trial in page.items],
            "next_cursor": page.next_cursor,
            "curve": curve,
            "last_event": events.last_id(connection),
        }

    values = await context.manager.control.read(read)
    values |= {"sort": sort, "status": status, "cursor": cursor, "events_of": experiment_id}
    return await _page(context, "experiment.html", "../", values)


@router.get("/trials/{trial_id}")
async def show_trial(context: Context, trial_id: str, job: Annotated[int | None, Query(ge=1)] = None) -> HTMLResponse:
    """One trial: parameters, curve, jobs, the end of its output."""
    try:
        trial = await context.manager.trials.get(trial_id)
        experiment = await context.manager.experiment(trial.experiment_id)
        tails = {name: await _tail(context, trial_id, job, name) for name in ("stdout", "stderr")}
    except ManagerError as error:
        return await _problem(context, error, "../")
    control, now = context.manager.control, context.manager.clock.now()
    rows, usage, last_event = await control.read(
        lambda c: (jobs.of_trial(c, trial_id), jobs.usage_of_trial(c, trial_id, now=now), events.last_id(c))
    )
    database = await context.manager.metrics(trial.experiment_id)
    report_from = experiment.report_from

    def read_metrics(connection: sqlite3.Connection) -> tuple[str, Any, list[str], list[metrics.RankSummary]]:
        """With the chart: drawing very many points would hold the event loop up."""
        curve = metrics.curve(connection, trial_id, member=report_from)
        latest = curve[-1].reported if curve else None
        points = [(float(point.sequence), point.value) for point in curve if point.value is not None]
        drawn = chart([Series("line", points)], title="Intermediate metrics", x_label="report")
        return drawn, latest, _losses(connection, trial_id), metrics.ranks(connection, trial_id)

    drawn, latest, losses, ranks = await database.read(read_metrics)
    values = {
        "trial": trial,
        "reason": trial_reason(context, trial, rows[-1].node_id if rows else None),
        "experiment": experiment,
        "losses": losses,
        "ranks": [_rank(found) for found in ranks] if any(found.member != report_from for found in ranks) else [],
        "jobs": rows,
        "usage": usage_resource(usage),
        "job": job or trial.jobs,
        "curve": drawn,
        "final": shown_number(trial.final_value, trial.final_data),
        "latest": shown_number(trial.latest_value, latest),
        "tails": tails,
        "events_of": experiment.id,
        "last_event": last_event,
    }
    return await _page(context, "trial.html", "../", values)


@router.get("/nodes")
async def show_nodes(context: Context) -> HTMLResponse:
    """The machines and their GPUs."""
    last_event = await context.manager.control.read(events.last_id)
    found = context.manager.pool.nodes()
    seen = [node.seen_at for node in found]
    nodes = list(zip(await node_resources(context, found), seen, strict=True))
    return await _page(context, "nodes.html", "./", {"nodes": nodes, "last_event": last_event})


def _summary(context: ApiContext, connection: sqlite3.Connection, row: ExperimentRow) -> dict[str, Any]:
    found = trials.counts(connection, row.id)
    best = trials.best(connection, row.id, is_maximized(row))
    counts = {name: found[TrialStatus(name)] for name in (*_BAR, "WAITING", "UNKNOWN") if TrialStatus(name) in found}
    total = max(row.max_trial_number or 0, sum(counts.values()))
    ended = sum(number for name, number in counts.items() if TrialStatus(name).is_terminal)
    return {
        "experiment": row,
        "active_seconds": context.manager.active_seconds(row),
        "usage": usage_resource(jobs.usage_of_experiment(connection, row.id, now=context.manager.clock.now())),
        "reason": reason_of(context, row),
        "failure": explain_no_success(connection, row, counts=found, best=best),
        "no_best_reason": explain_no_best(connection, row, counts=found, best=best),
        "counts": counts,
        "ended": ended,
        "bar": share_bar([(name, counts[name]) for name in _BAR if name in counts], total),
        "best": best,
        "objective": objective(row),
    }


def _rank(found: metrics.RankSummary) -> dict[str, Any]:
    """What one rank has reported, for the table of ranks."""
    latest, final = found.latest, found.final
    return {
        "member": found.member,
        "reports": found.intermediates,
        "latest": None if latest is None else shown_number(latest.value, latest.data),
        "final": None if final is None else shown_number(final.value, final.data),
    }


def _losses(connection: sqlite3.Connection, trial_id: str) -> list[str]:
    """What became of reports that are not in the curve, in words; the first ones of many."""
    lost = metrics.page(connection, trial_id, kind="lost", limit=_MOST_LOSSES)
    unread = metrics.page(connection, trial_id, kind="unreadable", limit=_MOST_LOSSES)
    return [
        *(f"Job {row.job}: {formats.show_loss(row.value, row.data)}" for row in lost),
        *(
            f"Job {row.job}: a line of its journal is not a valid record: {formats.show_value(row.data)}"
            for row in unread
        ),
    ]


async def _tail(context: ApiContext, trial_id: str, job: int | None, name: str) -> str:
    """The last lines of a trial's output."""
    try:
        data, begin = await read_job_part(context, trial_id, job, name, -_TAIL_BYTES, _TAIL_BYTES)
    except (Conflict, Unavailable) as error:  # a platform without files, or a machine that is away
        return f"({error})"
    text = data.decode("utf-8", errors="replace")
    return text.partition("\n")[2] if begin > 0 else text


async def _page(
    context: ApiContext, template: str, root: str, values: Mapping[str, Any], status_code: int = 200
) -> HTMLResponse:
    """A page. `root`: the way from it to the first page, so that any prefix works."""
    shared = {"root": root, "problem": context.manager.problem, "now": context.manager.clock.now()}
    text = _environment().get_template(template).render(**shared, **values)
    return HTMLResponse(clean_text(text), status_code=status_code, headers={"Cache-Control": "no-store"})


async def _problem(context: ApiContext, error: ManagerError, root: str) -> HTMLResponse:
    values = {"title": error.title, "detail": str(error)}
    return await _page(context, "problem.html", root, values, status_code=error.status_code)


@cache
def _environment() -> Any:
    """The templates; loaded for the first page that is requested."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        formats.show_number,
        formats.show_value,
        formats.named,
        formats.show_duration,
        formats.show_cpu_hours,
        formats.show_time,
        formats.machine_time,
    ):
        environment.filters[function.__name__] = function
    environment.globals.update(between=formats.between, query_text=formats.query_text, shown_number=shown_number)
    return environment
