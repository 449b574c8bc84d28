"""What has happened in an experiment: its events, the newest first. `GET events` streams the new ones."""

import sqlite3
from typing import Annotated

from fastapi import Query
from pydantic import Field

from proctor.manager.actors import Actor, Way
from proctor.manager.api import models
from proctor.manager.api.dependencies import LARGEST_ID, Context, Cursor, Limit, read_row_id
from proctor.manager.api.groups import Routes
from proctor.manager.api.json_types import Json, Time, json_to_wire, utc
from proctor.manager.store.rows import EventRow
from proctor.manager.store.tables import events

routes = Routes(prefix="/experiments/{experiment_id}", tags=["experiments"])

MOST_KINDS = 20


class EventActor(models.Resource):
    """Who caused an event."""

    name: str = Field(examples=["alice"])
    """The name of a token, or `manager`, `tuner`, `assessor` or `scheduler`."""
    via: Way | None
    """How the request came, as far as its sender said so; null for a part of the manager."""


class PastEvent(models.Resource):
    """A change, as the stream of changes has it, and the number of its trial."""

    id: int = Field(examples=[31337])
    time: Time
    experiment_id: str = Field(examples=["Ab3dE5f7"])
    trial_id: str | None = Field(examples=["p3kV9xQa"])
    sequence_id: int | None = Field(examples=[17])
    """The trial's number."""
    job_id: str | None = Field(examples=["p3kV9xQa.1"])
    kind: str = Field(examples=["trial.status"])
    data: Json = Field(examples=[{"status": "FAILED", "reason": "exit code 1", "sequence_id": 17}])
    actor: EventActor | None
    """Null for events of managers that did not write down who caused them."""


@routes.get("/events", summary="What has happened in an experiment")
async def list_events(
    context: Context,
    experiment_id: str,
    kind: Annotated[
        list[str] | None, Query(max_length=MOST_KINDS, description="Only of this kind; may be repeated.")
    ] = None,
    text: Annotated[
        str, Query(max_length=1000, description="Only those whose data contain this, upper or lower case (of ASCII).")
    ] = "",
    before: Annotated[int, Query(ge=0, le=LARGEST_ID, description="Only events with a smaller id.")] = LARGEST_ID,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> models.Page[PastEvent]:
    """The newest first. The newest 100,000 events of all experiments are kept, and more of notices. `cursor` and
    `before` say the same; `cursor` wins."""
    await context.manager.experiment(experiment_id)
    begin = before if cursor is None else read_row_id(cursor)

    def read(connection: sqlite3.Connection) -> list[tuple[EventRow, int | None]]:
        return events.before(connection, experiment_id, begin, kinds=kind, text=text, limit=limit + 1)

    rows = await context.manager.control.read(read)
    items = [_resource(row, sequence_id) for row, sequence_id in rows[:limit]]
    return models.Page(items=items, next_cursor=str(items[-1].id) if len(rows) > limit else None)


def _resource(row: EventRow, sequence_id: int | None) -> PastEvent:
    assert row.experiment_id is not None
    return PastEvent(
        id=row.id,
        time=utc(row.time),
        experiment_id=row.experiment_id,
        trial_id=row.trial_id,
        sequence_id=sequence_id,
        job_id=row.job_id,
        kind=row.kind,
        data=json_to_wire(row.data),
        actor=None if row.actor is None else EventActor.model_validate(Actor.from_text(row.actor).to_json()),
    )
