"""Saved views: addresses of an experiment's pages, with their filter, order and columns, under names."""

from typing import Annotated

from fastapi import Path
from pydantic import Field

from proctor.manager.api import models
from proctor.manager.api.dependencies import Context, RequestSender
from proctor.manager.api.groups import Routes
from proctor.manager.api.json_types import Time, utc
from proctor.manager.api.requests import RequestBody
from proctor.manager.engine import saved_views as engine
from proctor.manager.engine.saved_views import ViewName, ViewPage, ViewQuery
from proctor.manager.store.rows import SavedViewRow
from proctor.manager.store.tables import saved_views

routes = Routes(prefix="/experiments/{experiment_id}/views", tags=["results"])


class SavedView(models.Resource):
    """One of an experiment's pages as somebody wants to see it again."""

    name: str = Field(examples=["best without dropout"])
    page: ViewPage
    query: str = Field(examples=["filter=value+%3E+0.9&sort=-value"])
    """The query string of the page's address, without the question mark."""
    saved_at: Time
    saved_by: str = Field(examples=["owner"])
    """The name of the token that has saved it; empty: it came with a saved experiment."""


class SaveView(RequestBody):
    """What a view shows."""

    page: ViewPage
    query: ViewQuery = Field(default="", examples=["filter=value+%3E+0.9&sort=-value"])
    """The query string of the page's address, percent-encoded; empty: the page as it is without one."""


Name = Annotated[ViewName, Path(description="The view's name, percent-encoded; unique in its experiment.")]


@routes.get("", summary="List the saved views of an experiment")
async def list_views(context: Context, experiment_id: str) -> models.Page[SavedView]:
    """By name; all on one page."""
    await context.manager.experiment(experiment_id)
    rows = await context.manager.control.read(lambda c: saved_views.of_experiment(c, experiment_id))
    return models.Page(items=[_resource(row) for row in rows])


@routes.put("/{name:path}", summary="Save a view, or replace the one of this name")
async def save_view(
    context: Context, sender: RequestSender, experiment_id: str, name: Name, body: SaveView
) -> SavedView:
    """An experiment has at most 100."""
    manager, actor = context.manager, sender.actor
    await manager.experiment(experiment_id)
    row = SavedViewRow(experiment_id, name, body.page, body.query, manager.clock.now(), actor.name)
    await manager.control.write(lambda c: engine.save(c, row, actor=actor))
    manager.feed.notify()
    return _resource(row)


@routes.delete("/{name:path}", status_code=204, summary="Delete a saved view")
async def delete_view(context: Context, sender: RequestSender, experiment_id: str, name: Name) -> None:
    """The page that it shows stays."""
    manager, actor = context.manager, sender.actor
    await manager.experiment(experiment_id)
    now = manager.clock.now()
    await manager.control.write(lambda c: saved_views.delete(c, experiment_id, name, time=now, actor=actor))
    manager.feed.notify()


def _resource(row: SavedViewRow) -> SavedView:
    return SavedView(
        name=row.name,
        page=row.page,  # type: ignore[arg-type]  # checked when it was saved
        query=row.query,
        saved_at=utc(row.saved_at),
        saved_by=row.saved_by,
    )
