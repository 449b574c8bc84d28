"""Guarded changes: one statement that names what it expects to find. No row changed means stale, and that raises."""

import sqlite3
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, TypeVar

from proctor.manager.store.errors import RowNotFound, StaleWrite
from proctor.manager.store.json_columns import encode
from proctor.manager.store.queries import query, query_with
from proctor.manager.store.rows import Row, SqlValue, bind

R = TypeVar("R", bound=Row)


def insert_row(connection: sqlite3.Connection, table: str, row: Row) -> None:
    """Insert a whole row. Raises sqlite3.IntegrityError when its id is taken."""
    columns = row.to_columns()
    connection.execute(query_with(f"{table}.insert", columns), columns)


def get_row(connection: sqlite3.Connection, table: str, row_type: type[R], row_id: str) -> R:
    """Raises RowNotFound."""
    found = connection.execute(query(f"{table}.get"), {"id": row_id}).fetchone()
    if found is None:
        raise _not_found(table, row_id)
    return row_type.from_row(found)


def move_row(
    connection: sqlite3.Connection,
    table: str,
    row_type: type[R],
    row_id: str,
    *,
    expected: Collection[Enum],
    columns: Mapping[str, Any],
    token: str | None = None,
) -> R:
    """Change `columns` if the row's status is an expected one (and its token is `token`); return the new row.

    Raises StaleWrite or RowNotFound.
    """
    values: dict[str, SqlValue] = bind(row_type, columns)
    statement = query_with(f"{table}.move", values)
    values |= {"id": row_id, "expected": encode([status.value for status in expected]), "fencing_token": token}
    rows = connection.execute(statement, values).fetchall()
    if not rows:
        raise _stale(connection, table, row_type, row_id, expected, token)
    return row_type.from_row(rows[0])


def update_row(
    connection: sqlite3.Connection,
    table: str,
    row_type: type[R],
    row_id: str,
    columns: Mapping[str, Any],
    token: str | None = None,
) -> None:
    """Change columns that are no status and need no event. Raises RowNotFound, or StaleWrite for an old token."""
    if not columns:
        return
    values = bind(row_type, columns)
    statement = query_with(f"{table}.update", values)
    if connection.execute(statement, values | {"id": row_id, "fencing_token": token}).rowcount == 0:
        raise _stale(connection, table, row_type, row_id, (), token)


def _stale(
    connection: sqlite3.Connection,
    table: str,
    row_type: type[R],
    row_id: str,
    expected: Collection[Enum],
    token: str | None,
) -> RowNotFound | StaleWrite:
    found = connection.execute(query(f"{table}.get"), {"id": row_id}).fetchone()
    if found is None:
        return _not_found(table, row_id)
    row: Any = row_type.from_row(found)
    if token is not None and row.token != token:
        return StaleWrite(f"{_name(table, row_id)} has another fencing token: this is about an older attempt.")
    wanted = " or ".join(status.value for status in expected)
    return StaleWrite(f"{_name(table, row_id)} was expected to be {wanted}; it is {row.status.value}.")


def _not_found(table: str, row_id: str) -> RowNotFound:
    return RowNotFound(f"{_name(table, row_id)} is not in the store.")


def _name(table: str, row_id: str) -> str:
    return {"experiments": "Experiment", "trials": "Trial", "jobs": "Trial job"}.get(table, table) + f" {row_id}"
