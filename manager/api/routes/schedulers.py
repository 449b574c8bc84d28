"""What an experiment's trial scheduler shows: rungs, brackets, populations."""

import sqlite3

from pydantic import Field

from proctor.manager.api import models
from proctor.manager.api.dependencies import Context
from proctor.manager.api.groups import Routes
from proctor.manager.api.json_types import Json, Time, utc
from proctor.manager.store.tables import scheduler_tables

routes = Routes(prefix="/experiments/{experiment_id}", tags=["results"])


class SchedulerTable(models.Resource):
    """One table, every row as wide as the head."""

    title: str = Field(examples=["Rungs"])
    columns: list[str] = Field(examples=[["milestone", "trials", "best value", "promoted", "waiting"]])
    rows: list[list[Json]] = Field(examples=[[[1, 9, 0.71, 3, 6], [3, 3, 0.84, 1, 2]]])
    """Cells are texts, numbers, booleans and null."""
    trial_columns: list[int] = Field(examples=[[]])
    """Which columns hold numbers of trials, from 0."""


class SchedulerState(models.Resource):
    """What people see of a trial scheduler."""

    name: str | None = Field(examples=["ASHA"])
    """The built-in's, or `module.Class` of the user's; null: the experiment has no trial scheduler."""
    tables: list[SchedulerTable]
    """As it stood at `updated_at`; empty before there are any."""
    trial_ids: dict[int, str] = Field(default={}, examples=[{"3": "p3kV9xQa"}])
    """Of the trials that the tables name, by their numbers."""
    updated_at: Time | None = None


@routes.get("/scheduler", summary="Rungs, brackets or population of the trial scheduler")
async def get_scheduler(context: Context, experiment_id: str) -> SchedulerState:
    """What it shows depends on the scheduler. It may be some seconds old; how it was last is kept."""
    row = await context.manager.experiment(experiment_id)
    scheduler = row.config.get("trial_scheduler")
    if scheduler is None:
        return SchedulerState(name=None, tables=[])
    name = scheduler.get("name") or scheduler.get("class_name")

    def read(connection: sqlite3.Connection) -> SchedulerState:
        found = scheduler_tables.get(connection, experiment_id)
        if found is None:
            return SchedulerState(name=name, tables=[])
        return SchedulerState(
            name=name,
            tables=[SchedulerTable(**table) for table in found.tables],
            trial_ids=scheduler_tables.trial_ids(connection, found),
            updated_at=utc(found.updated_at),
        )

    return await context.manager.control.read(read)
