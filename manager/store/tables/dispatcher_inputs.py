"""The dispatcher_inputs table: the total order of an experiment's inputs to its dispatcher."""

import sqlite3
from typing import Any

from proctor.manager.store.rows import InputRow
from proctor.manager.store.statements import encode, query


def append(
    connection: sqlite3.Connection, experiment_id: str, position: int, kind: str, payload: dict[str, Any]
) -> None:
    """Write down one input. Raises sqlite3.IntegrityError when the position is taken."""
    values = {"experiment_id": experiment_id, "position": position, "kind": kind, "payload": encode(payload)}
    connection.execute(query("inputs.append"), values)


def requested(connection: sqlite3.Connection, experiment_id: str) -> set[int]:
    """The parameter ids of every suggestion that the tuner was ever asked for."""
    return {row[0] for row in connection.execute(query("inputs.requested"), {"experiment_id": experiment_id})}


def after(connection: sqlite3.Connection, experiment_id: str, position: int, limit: int) -> list[InputRow]:
    """At most `limit` inputs behind `position`, in order."""
    values = {"experiment_id": experiment_id, "position": position, "limit": limit}
    return [InputRow.from_row(row) for row in connection.execute(query("inputs.after"), values)]
