"""The nodes table: what the manager-wide pool remembers over a restart. And how busy nodes were in each minute of the
last day: a bounded number of small rows, written once a minute."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from proctor.manager.store.rows import NodeRow, get_row
from proctor.manager.store.statements import decode, encode, query

KEPT_MINUTES = 24 * 60
"""Of each node."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """How busy a GPU was. Utilization in percent."""

    uuid: str
    utilization: int
    memory_used_mb: int


@dataclass(frozen=True, slots=True)
class NodeSample:
    """How busy a node was at a moment (Unix time). Load and memory are None where its keeper does not report them."""

    time: float
    load: float | None = None
    memory_used_mb: int | None = None
    gpus: tuple[GpuSample, ...] = field(default=())

    @property
    def minute(self) -> int:
        """The minute in which it was taken, since 1970."""
        return int(self.time // 60)


def upsert(connection: sqlite3.Connection, row: NodeRow) -> None:
    """Add a node, or replace what is known of it."""
    connection.execute(query("nodes.upsert"), row.to_columns())


def all(connection: sqlite3.Connection) -> list[NodeRow]:
    """Every node, by id."""
    return [NodeRow.from_row(row) for row in connection.execute(query("nodes.all"))]


def get(connection: sqlite3.Connection, node_id: str) -> NodeRow:
    """One node. Raises RowNotFound."""
    return get_row(connection, "nodes", NodeRow, node_id)


def write_samples(connection: sqlite3.Connection, node_id: str, samples: Iterable[NodeSample]) -> None:
    """Write down what was measured, each minute in place of what is there of it, and delete what is too old."""
    minutes: dict[int, list[NodeSample]] = {}
    for sample in samples:
        minutes.setdefault(sample.minute, []).append(sample)
    for minute, found in minutes.items():
        values = {"node_id": node_id, "minute": minute, "samples": encode([_to_json(each) for each in found])}
        connection.execute(query("nodes.write_samples"), values)
    if minutes:
        connection.execute(
            query("nodes.delete_samples"), {"node_id": node_id, "minute": max(minutes) - KEPT_MINUTES + 1}
        )


def delete_old_samples(connection: sqlite3.Connection, *, now: float) -> None:
    """Delete what is too old, also of nodes that are not there any more."""
    connection.execute(query("nodes.delete_all_samples"), {"minute": int(now // 60) - KEPT_MINUTES + 1})


def samples(connection: sqlite3.Connection, node_id: str, *, since: float, until: float) -> list[NodeSample]:
    """What was measured on a node between two times (Unix time), in order."""
    values = {"node_id": node_id, "first": int(since // 60), "last": int(until // 60)}
    rows = connection.execute(query("nodes.samples"), values)
    found = [_from_json(body) for row in rows for body in decode(row[0])]
    return [sample for sample in found if since <= sample.time <= until]


def _to_json(sample: NodeSample) -> list[object]:
    """Without names: there are thousands of them."""
    gpus = [[gpu.uuid, gpu.utilization, gpu.memory_used_mb] for gpu in sample.gpus]
    return [round(sample.time, 1), sample.load, sample.memory_used_mb, gpus]


def _from_json(body: list) -> NodeSample:  # type: ignore[type-arg]
    time, load, memory, gpus = body
    return NodeSample(time, load, memory, tuple(GpuSample(*gpu) for gpu in gpus))
