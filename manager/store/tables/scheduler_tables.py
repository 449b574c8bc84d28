"""The scheduler_tables table: what people see of each experiment's trial scheduler. It goes with its experiment.

A scheduler names a trial by the id of its first parameters. They are replaced by the trials' numbers when the tables
are written: the trials are known by then, and what is read is ready to be shown.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from proctor.manager.store.rows import SchedulerTablesRow
from proctor.manager.store.statements import encode, query

Tables = Sequence[dict[str, Any]]


def get(connection: sqlite3.Connection, experiment_id: str) -> SchedulerTablesRow | None:
    """The newest tables of an experiment; None where there were none."""
    row = connection.execute(query("scheduler_tables.get"), {"experiment_id": experiment_id}).fetchone()
    return None if row is None else SchedulerTablesRow.from_row(row)


def upsert(connection: sqlite3.Connection, row: SchedulerTablesRow) -> None:
    """Replace the tables of an experiment, without an event. Raises sqlite3.IntegrityError where there is no such
    experiment."""
    connection.execute(query("scheduler_tables.upsert"), row.to_columns())


def replace_described(connection: sqlite3.Connection, experiment_id: str, tables: Tables, *, time: float) -> None:
    """The same with what a scheduler has described: a trial of which nothing is stored becomes null."""
    values = {"experiment_id": experiment_id, "ids": encode(_named_trials(tables))}
    numbers = dict(connection.execute(query("scheduler_tables.numbers"), values).fetchall())
    numbered = [{**table, "rows": [list(row) for row in table["rows"]]} for table in tables]
    for row, column in _cells_of_trials(numbered):
        row[column] = numbers.get(row[column])
    upsert(connection, SchedulerTablesRow(experiment_id, numbered, time))


def trial_ids(connection: sqlite3.Connection, row: SchedulerTablesRow) -> dict[int, str]:
    """The ids of the trials that stored tables name, by number."""
    values = {"experiment_id": row.experiment_id, "numbers": encode(_named_trials(row.tables))}
    return dict(connection.execute(query("scheduler_tables.trial_ids"), values).fetchall())


def _named_trials(tables: Tables) -> list[int]:
    named = {row[column] for row, column in _cells_of_trials(tables)}
    return sorted(item for item in named if isinstance(item, int) and not isinstance(item, bool))


def _cells_of_trials(tables: Tables) -> Iterator[tuple[list[Any], int]]:
    for table in tables:
        for row in table["rows"]:
            for column in table["trial_columns"]:
                yield row, column
