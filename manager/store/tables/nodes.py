"""The nodes table: what the manager-wide pool remembers over a restart."""

import sqlite3

from proctor.manager.store.rows import NodeRow, get_row
from proctor.manager.store.statements import query


def upsert(connection: sqlite3.Connection, row: NodeRow) -> None:
    """Add a node, or replace what is known of it."""
    connection.execute(query("nodes.upsert"), row.to_columns())


def all(connection: sqlite3.Connection) -> list[NodeRow]:
    """Every node, by id."""
    return [NodeRow.from_row(row) for row in connection.execute(query("nodes.all"))]


def get(connection: sqlite3.Connection, node_id: str) -> NodeRow:
    """One node. Raises RowNotFound."""
    return get_row(connection, "nodes", NodeRow, node_id)
