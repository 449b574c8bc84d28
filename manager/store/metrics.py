"""Reading an experiment's metrics database: what was reported, the visible curve, checkpoints, how far journals are."""

import sqlite3
from heapq import merge
from itertools import islice

from proctor.manager.store.journals import KIND_UNREADABLE, StoredChunk, store_chunk
from proctor.manager.store.queries import query
from proctor.manager.store.rows import CheckpointRow, MetricRow
from proctor.sdk.protocol import KIND_FINAL, KIND_INTERMEDIATE, KIND_LOST

__all__ = [
    "KINDS",
    "StoredChunk",
    "curve",
    "last_id",
    "latest_checkpoint",
    "latest_intermediate",
    "offset_of",
    "offsets",
    "page",
    "rows_between",
    "store_chunk",
]

KINDS = (KIND_INTERMEDIATE, KIND_FINAL, KIND_LOST, KIND_UNREADABLE)


def offset_of(connection: sqlite3.Connection, trial_id: str, job: int, member: int = 0) -> int:
    """The byte up to which a member's journal is stored; 0 when nothing is."""
    return offsets(connection, trial_id, job).get(member, 0)


def offsets(connection: sqlite3.Connection, trial_id: str, job: int) -> dict[int, int]:
    """The same for every member of a job of which something is stored."""
    return dict(connection.execute(query("journals.of_job"), {"trial_id": trial_id, "job": job}).fetchall())


def page(
    connection: sqlite3.Connection, trial_id: str, *, kind: str | None = None, after_id: int = 0, limit: int
) -> list[MetricRow]:
    """At most `limit` records of a trial (all jobs) with a greater id, in the order of storing. The next page begins
    after the last one's id."""
    kinds = KINDS if kind is None else (kind,)
    values = {"trial_id": trial_id, "after_id": after_id, "limit": limit}
    statement = query("metrics.page_of_kind")
    stretches = [connection.execute(statement, values | {"kind": name}) for name in kinds]
    return [MetricRow.from_row(row) for row in islice(merge(*stretches), limit)]


def curve(connection: sqlite3.Connection, trial_id: str, *, member: int = 0) -> list[MetricRow]:
    """The visible curve: the intermediates of the newest job that has reported, and before the point at which it
    resumed those of the jobs before it. `sequence` counts its points from 0."""
    key = {"trial_id": trial_id, "member": member}
    ends: dict[int, float] = {}  # by job: where its part of the curve ends
    end = float("inf")
    for job, first_sequence in connection.execute(query("journals.of_member"), key):
        ends[job] = end
        end = min(end, first_sequence)
    rows = map(MetricRow.from_row, connection.execute(query("metrics.intermediates"), key))
    return sorted((row for row in rows if row.sequence < ends[row.job]), key=lambda row: row.sequence)


def latest_intermediate(connection: sqlite3.Connection, trial_id: str) -> MetricRow | None:
    """The intermediate that was stored last."""
    row = connection.execute(query("metrics.latest_intermediate"), {"trial_id": trial_id}).fetchone()
    return None if row is None else MetricRow.from_row(row)


def rows_between(connection: sqlite3.Connection, first_id: int, last_id: int) -> list[MetricRow]:
    """The records with these ids, both ends included, in the order of storing; of every trial and kind."""
    rows = connection.execute(query("metrics.between"), {"first_id": first_id, "last_id": last_id})
    return [MetricRow.from_row(row) for row in rows]


def last_id(connection: sqlite3.Connection) -> int:
    """The id of the record that was stored last; 0 when there is none."""
    row = connection.execute(query("metrics.last_id")).fetchone()
    return 0 if row is None else int(row[0])


def latest_checkpoint(connection: sqlite3.Connection, trial_id: str) -> CheckpointRow | None:
    """The checkpoint that the trial's newest job with one has registered last."""
    row = connection.execute(query("checkpoints.latest"), {"trial_id": trial_id}).fetchone()
    return None if row is None else CheckpointRow.from_row(row)
