"""The saved_views table: addresses of an experiment's pages under names. They go with their experiment."""

import sqlite3

from proctor.manager.actors import Actor
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import SavedViewRow
from proctor.manager.store.statements import query
from proctor.manager.store.tables import events


def of_experiment(connection: sqlite3.Connection, experiment_id: str) -> list[SavedViewRow]:
    """The saved views of an experiment, by name."""
    rows = connection.execute(query("saved_views.of_experiment"), {"experiment_id": experiment_id})
    return [SavedViewRow.from_row(row) for row in rows]


def upsert(connection: sqlite3.Connection, row: SavedViewRow) -> None:
    """Add a view, or replace the one of this name, without an event. Raises sqlite3.IntegrityError where there is no
    such experiment."""
    connection.execute(query("saved_views.upsert"), row.to_columns())


def save(connection: sqlite3.Connection, row: SavedViewRow, *, actor: Actor) -> None:
    """The same with an event."""
    upsert(connection, row)
    data = {"name": row.name, "page": row.page}
    events.append(
        connection, time=row.saved_at, kind=events.VIEW, data=data, actor=actor, experiment_id=row.experiment_id
    )


def delete(connection: sqlite3.Connection, experiment_id: str, name: str, *, time: float, actor: Actor) -> None:
    """Delete a view, with an event. Raises RowNotFound."""
    values = {"experiment_id": experiment_id, "name": name}
    if connection.execute(query("saved_views.delete"), values).rowcount == 0:
        raise RowNotFound(f"Experiment {experiment_id} has no saved view {name!r}.")
    data = {"name": name, "page": None}
    events.append(connection, time=time, kind=events.VIEW, data=data, actor=actor, experiment_id=experiment_id)
