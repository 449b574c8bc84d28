"""The manager itself: health, version, what a token allows, log, the stream of changes, shutdown, Prometheus."""

import os
import platform
import sqlite3
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Annotated, Literal
from urllib.parse import urlsplit

from fastapi import Header, Query
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from proctor.manager.api import models, table_files
from proctor.manager.api.context import ApiContext, health_of
from proctor.manager.api.dependencies import (
    DEFAULT_BYTES,
    LARGEST_ID,
    ByteLimit,
    Context,
    Offset,
    RequestSender,
    read_row_id,
)
from proctor.manager.api.groups import Routes
from proctor.manager.api.guard import MAX_BODY_BYTES
from proctor.manager.api.json_types import utc
from proctor.manager.api.stream import MAX_READERS, server_sent_events
from proctor.manager.api.text import read_part, text_part
from proctor.manager.errors import Unavailable
from proctor.manager.metrics import CONTENT_TYPE, ExperimentFigures, render
from proctor.manager.security import Access
from proctor.manager.store.tables import experiments, jobs, trials
from proctor.manager.store.trial_table.filters import MAX_LENGTH
from proctor.manager.store.trial_table.table import MAX_ROWS

routes = Routes(tags=["system"])
root_routes = Routes(tags=["system"])


@routes.get("/health", summary="Whether the manager is healthy (no token needed)")
async def get_health(context: Context) -> models.Health:
    """`degraded`: it answers, but something cannot be written or loaded, or trials of this machine cannot be started
    or are not reported on; the reason says what."""
    return models.Health.model_validate(health_of(context))  # described here, answered by `application`


@routes.get("/version", summary="The manager that answers")
async def get_version(context: Context) -> models.Version:
    """Versions and process of the manager."""
    return models.Version(
        version=version("proctor"),
        python=platform.python_version(),
        home=str(context.home.path),
        pid=os.getpid(),
        started_at=utc(context.started_at),
    )


class SessionLimits(models.Resource):
    """How much may be asked for at a time."""

    table_rows: int = Field(examples=[MAX_ROWS])
    """Trials of a table."""
    filter_characters: int = Field(examples=[MAX_LENGTH])
    body_bytes: int = Field(examples=[MAX_BODY_BYTES])
    """Of a request."""


class ClientSession(models.Resource):
    """What the sender of this request may do here, and under which path."""

    access: Literal["full", "read-only"]
    token: str = Field(examples=["alice"])
    """The name of the token; those of the home are called `owner` and `read-only`."""
    version: str = Field(examples=["0.1.0"])
    url_prefix: str = Field(examples=["/proctor"])
    """The path in front of all URLs as people reach them; empty, or it begins with a slash."""
    limits: SessionLimits
    export_formats: list[table_files.FileFormat] = Field(examples=[["json", "csv"]])
    """What `table?format=` can write; parquet where the manager has pyarrow."""


@routes.get("/session", summary="What the token of this request allows")
async def get_session(context: Context, sender: RequestSender) -> ClientSession:
    """For a page: what to show, and what to hide from the read-only token."""
    return ClientSession(
        access="full" if sender.access is Access.FULL else "read-only",
        token=sender.actor.name,
        version=version("proctor"),
        url_prefix=urlsplit(context.public_url).path,
        limits=SessionLimits(table_rows=MAX_ROWS, filter_characters=MAX_LENGTH, body_bytes=MAX_BODY_BYTES),
        export_formats=table_files.file_formats(),
    )


@routes.get(
    "/events",
    summary="The stream of changes",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events; `data` is an Event."}},
)
async def stream_events(
    context: Context,
    sender: RequestSender,
    experiment_id: Annotated[str | None, Query(description="Only changes of this experiment.")] = None,
    after: Annotated[
        int | None, Query(ge=0, le=LARGEST_ID, description="Start after this event; default: from now on.")
    ] = None,
    last_event_id: Annotated[str | None, Header(description="As `after`; set by browsers that come back.")] = None,
) -> StreamingResponse:
    """Continues exactly after `Last-Event-ID` (or `after`). The event `reset` says that older ones were deleted. It
    ends when its token is revoked."""
    if last_event_id is not None and last_event_id.strip():
        after = read_row_id(last_event_id.strip(), "Last-Event-ID")
    if context.stream_readers >= MAX_READERS:
        raise Unavailable(f"{MAX_READERS} clients read the stream of changes already; close some of them")
    body = _counted(
        context,
        server_sent_events(
            context.manager.control,
            context.manager.feed,
            context.closing,
            after=after,
            experiment_id=experiment_id,
            revoked=sender.revoked,
        ),
    )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _counted(context: ApiContext, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream, while its reader is counted."""
    context.stream_readers += 1
    try:
        async for part in stream:
            yield part
    finally:
        context.stream_readers -= 1


@routes.get("/logs/manager", summary="Part of the manager's log", response_class=Response)
async def get_manager_log(context: Context, offset: Offset = 0, limit: ByteLimit = DEFAULT_BYTES) -> Response:
    """JSON lines. Header X-Next-Offset: where to continue."""
    return text_part(*read_part(context.home.manager_log, offset, limit))


@routes.post("/stop-all", status_code=202, summary="Stop every active experiment")
async def stop_all(context: Context, sender: RequestSender) -> models.Page[str]:
    """Returns the ids of those that are being stopped."""
    return models.Page(items=await context.manager.stop_all(actor=sender.actor))


@routes.post("/shutdown", status_code=202, summary="End the manager")
async def shut_down(context: Context) -> models.Accepted:
    """Trials keep running under their keepers."""
    context.request_shutdown()
    return models.Accepted()


@root_routes.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
async def get_metrics(context: Context) -> Response:
    """Prometheus' text format."""

    now = context.manager.clock.steady()

    def read(connection: sqlite3.Connection) -> ExperimentFigures:
        counts: dict[tuple[str, str], int] = {}
        cursor: str | None = None
        while True:
            page = experiments.page(connection, cursor=cursor, limit=1000)
            for row in page.items:
                counts |= {(row.id, status.value): n for status, n in trials.counts(connection, row.id).items()}
            if (cursor := page.next_cursor) is None:
                break
        used = jobs.usage_by_experiment_and_node(connection, now=now)
        return ExperimentFigures(counts, used, healthy=not context.manager.problem, commits=control.commits)

    control, measurements = context.manager.control, context.measurements
    await measurements.count_new_starts(control)
    return Response(render(measurements, await control.read(read)), headers={"Content-Type": CONTENT_TYPE})
