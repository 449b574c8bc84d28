"""Reading an experiment's metrics database: what was reported, the visible curve, checkpoints, how far journals are.

`insert` writes the metrics of an experiment that was saved elsewhere, without the journals they came from.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from proctor.manager.store.rows import CheckpointRow, MetricRow
from proctor.manager.store.statements import query
from proctor.manager.store.tables.journals import (
    KIND_UNREADABLE,
    StoredChunk,
    seconds_before,
    split_value,
    store_chunk,
    store_lines,
)
from proctor.sdk.protocol import KIND_FINAL, KIND_INTERMEDIATE, KIND_LOST

__all__ = [
    "KINDS",
    "RankSummary",
    "StoredChunk",
    "VisiblePoint",
    "checkpoints",
    "checkpoints_of_job",
    "curve",
    "finals",
    "has_progress",
    "intermediates_between",
    "last_id",
    "latest_checkpoint",
    "latest_intermediate",
    "newest_checkpoints",
    "newest_job",
    "offset_of",
    "offsets",
    "page",
    "points",
    "ranks",
    "store_chunk",
    "store_lines",
]


_SAME_CALL_SECONDS = 0.001
"""At most so much later than a checkpoint's record is one that an earlier version of the SDK made in the same call."""

KINDS = (KIND_INTERMEDIATE, KIND_FINAL, KIND_LOST, KIND_UNREADABLE)
_AT_ONCE = 10_000
_COUNTER = {
    KIND_INTERMEDIATE: "intermediates",
    KIND_FINAL: "finals",
    KIND_LOST: "losses",
    KIND_UNREADABLE: "unreadables",
}
Journals = dict[tuple[str, int, int], dict[str, int]]


def offset_of(connection: sqlite3.Connection, trial_id: str, job: int, member: int = 0) -> int:
    """The byte up to which a member's journal is stored; 0 when nothing is."""
    return offsets(connection, trial_id, job).get(member, 0)


def offsets(connection: sqlite3.Connection, trial_id: str, job: int) -> dict[int, int]:
    """The same for every member of a job of which something is stored."""
    return dict(connection.execute(query("journals.of_job"), {"trial_id": trial_id, "job": job}).fetchall())


def page(
    connection: sqlite3.Connection,
    trial_id: str,
    *,
    kind: str | None = None,
    member: int | None = None,
    after_id: int = 0,
    limit: int,
) -> list[MetricRow]:
    """At most `limit` records of a trial (all jobs) with a greater id, in the order of storing. The next page begins
    after the last one's id."""
    kinds = KINDS if kind is None else (kind,)
    values = {"trial_id": trial_id, "after_id": after_id, "member": member, "limit": limit}
    statement = query("metrics.page_of_kind")
    stretches = [connection.execute(statement, values | {"kind": name}) for name in kinds]
    return [MetricRow.from_row(row) for row in islice(merge(*stretches), limit)]


def curve(
    connection: sqlite3.Connection,
    trial_id: str,
    *,
    member: int = 0,
    after_id: int = 0,
    limit: int | None = None,
) -> list[MetricRow]:
    """The visible curve of a member: the intermediates of the newest job that has reported, and before the point at
    which it resumed those of the job from whose checkpoint it continues, and so on. `sequence` counts its points from
    0. With a `limit` at most so many points whose id is greater than `after_id`: a job's points are stored before those
    of the jobs that continue from it."""
    key = {"trial_id": trial_id, "member": member}
    ends = _ends(connection, key)
    rows = map(MetricRow.from_row, connection.execute(query("metrics.intermediates"), key | {"after_id": after_id}))
    return list(islice((row for row in rows if row.sequence < ends.get(row.job, 0)), limit))


class VisiblePoint(NamedTuple):
    """A point of a visible curve, without what else was reported with it."""

    step: int
    value: float | None
    time: float


def points(connection: sqlite3.Connection, trial_id: str, *, member: int = 0) -> list[VisiblePoint]:
    """The points of `curve`, at a tenth of its cost."""
    key = {"trial_id": trial_id, "member": member}
    ends = _ends(connection, key)
    return [
        VisiblePoint(sequence if step is None else step, value, time)
        for job, sequence, step, value, time in connection.execute(query("metrics.points"), key)
        if sequence < ends.get(job, 0)
    ]


def _ends(connection: sqlite3.Connection, key: Mapping[str, object]) -> dict[int, float]:
    """By job: where its part of the visible curve ends."""
    ends: dict[int, float] = {}
    continued: int | None = None  # the job whose part comes next, on the way back to the first point
    end = 0.0
    for job, first_sequence, resumed_from, has_reported in connection.execute(query("journals.lineage"), key):
        if not ends and has_reported:
            end = float("inf")
        elif end == 0 or continued not in (None, job):
            continue
        ends[job] = end
        end, continued = min(end, first_sequence), resumed_from
    return ends


def latest_intermediate(connection: sqlite3.Connection, trial_id: str, *, member: int = 0) -> MetricRow | None:
    """The intermediate of a member that was stored last."""
    row = connection.execute(query("metrics.latest_intermediate"), {"trial_id": trial_id, "member": member}).fetchone()
    return None if row is None else MetricRow.from_row(row)


def has_progress(connection: sqlite3.Connection, trial_id: str, job: int) -> bool:
    """Whether a job has reported an intermediate metric or registered a checkpoint."""
    found = connection.execute(query("journals.has_progress"), {"trial_id": trial_id, "job": job}).fetchone()
    return bool(found[0])


def damaged_checkpoints(connection: sqlite3.Connection, trial_id: str, job: int) -> list[str]:
    """The checkpoints that a job was handed and has found to be damaged, one for each member that has found one."""
    return [path for (path,) in connection.execute(query("journals.damaged"), {"trial_id": trial_id, "job": job})]


def finals(connection: sqlite3.Connection, trial_id: str) -> list[MetricRow]:
    """Every final metric of a trial, of all its jobs and members, in the order of storing."""
    return [MetricRow.from_row(row) for row in connection.execute(query("metrics.finals"), {"trial_id": trial_id})]


@dataclass(frozen=True)
class RankSummary:
    """What one rank has reported in the trial's newest job that has reported: how many intermediates, and the last one;
    its first final metric."""

    member: int
    intermediates: int
    latest: MetricRow | None
    final: MetricRow | None


def ranks(connection: sqlite3.Connection, trial_id: str) -> list[RankSummary]:
    """Every rank of a trial's newest job that has reported."""
    journals = connection.execute(query("journals.of_trial"), {"trial_id": trial_id}).fetchall()
    if len(journals) == 0:
        return []
    newest = journals[0][0]
    found = finals(connection, trial_id)
    return [
        RankSummary(
            member,
            intermediates,
            latest_intermediate(connection, trial_id, member=member) if intermediates else None,
            next((row for row in found if (row.job, row.member) == (job, member)), None),
        )
        for job, member, intermediates, reported_finals in journals
        if job == newest and intermediates + reported_finals
    ]


def intermediates_between(
    connection: sqlite3.Connection, first_id: int, last_id: int, *, member: int = 0
) -> list[tuple[MetricRow, float | None]]:
    """The intermediates of a member with these ids, of every trial, in the order of storing; each with how many seconds
    its trial had run (None: not known)."""
    values = {"first_id": first_id, "last_id": last_id, "member": member}
    rows = connection.execute(query("metrics.intermediates_between"), values)
    return [(MetricRow.from_row(row[:-1]), row[-1]) for row in rows]


def newest_job(connection: sqlite3.Connection, trial_id: str) -> int:
    """The number of the newest job of which something is stored; 0 for none."""
    row = connection.execute(query("journals.lineage"), {"trial_id": trial_id, "member": 0}).fetchone()
    return 0 if row is None else int(row[0])


def last_id(connection: sqlite3.Connection) -> int:
    """The id of the record that was stored last; 0 when there is none."""
    row = connection.execute(query("metrics.last_id")).fetchone()
    return 0 if row is None else int(row[0])


def checkpoints(connection: sqlite3.Connection, trial_id: str, *, after_id: int = 0, limit: int) -> list[CheckpointRow]:
    """At most `limit` checkpoints of a trial (all jobs and members) with a greater id, in the order of storing."""
    values = {"trial_id": trial_id, "after_id": after_id, "limit": limit}
    return [CheckpointRow.from_row(row) for row in connection.execute(query("checkpoints.page"), values)]


def newest_checkpoints(
    connection: sqlite3.Connection, trial_id: str, *, member: int = 0, limit: int
) -> list[CheckpointRow]:
    """The checkpoints of a trial that were not deleted, newest first: those of its newest job, among them first those
    of the member whose curve is the trial's.

    Their `sequence` is that of the member's curve, with the metric that was reported together with the checkpoint.
    """
    values = {"trial_id": trial_id, "member": member, "limit": limit}
    found = connection.execute(query("checkpoints.newest"), values).fetchall()
    return [_in_curve(connection, CheckpointRow.from_row(row), member) for row in found]


def latest_checkpoint(connection: sqlite3.Connection, trial_id: str, *, member: int = 0) -> CheckpointRow | None:
    """The first of `newest_checkpoints`."""
    return next(iter(newest_checkpoints(connection, trial_id, member=member, limit=1)), None)


def checkpoints_of_job(connection: sqlite3.Connection, trial_id: str, job: int) -> list[CheckpointRow]:
    """All that a job has registered, as stored."""
    rows = connection.execute(query("checkpoints.of_job"), {"trial_id": trial_id, "job": job})
    return [CheckpointRow.from_row(row) for row in rows]


def _in_curve(connection: sqlite3.Connection, checkpoint: CheckpointRow, member: int) -> CheckpointRow:
    """A checkpoint with its place in a member's curve."""
    if checkpoint.member != member:
        return replace(checkpoint, sequence=_points_until(connection, checkpoint, member))
    is_behind_its_metric = checkpoint.with_metric is not None or not _metric_follows(connection, checkpoint)
    return checkpoint if is_behind_its_metric else replace(checkpoint, sequence=checkpoint.sequence + 1)


def _points_until(connection: sqlite3.Connection, checkpoint: CheckpointRow, member: int) -> int:
    """How many points another member's curve had when the checkpoint was registered, by the times of the records."""
    key = {"trial_id": checkpoint.trial_id, "job": checkpoint.job}
    members = (member, checkpoint.member)
    journals = [connection.execute(query("journals.get"), {**key, "member": one}).fetchone() for one in members]
    first: int = next((journal[1] for journal in journals if journal is not None), 0)
    values = {**key, "member": member, "time": checkpoint.time}
    return first + int(connection.execute(query("metrics.points_until"), values).fetchone()[0])


def _metric_follows(connection: sqlite3.Connection, checkpoint: CheckpointRow) -> bool:
    """Whether the metric that was reported together with a checkpoint stands behind it, where earlier versions of the
    SDK wrote it, in the same moment and with the same step."""
    names = ("trial_id", "job", "member", "sequence")
    values = {name: getattr(checkpoint, name) for name in names}
    rows = map(MetricRow.from_row, connection.execute(query("checkpoints.metric_after"), values))
    return any(row.step == checkpoint.step and 0 <= row.time - checkpoint.time <= _SAME_CALL_SECONDS for row in rows)


class JournalStart(NamedTuple):
    """Where a job began: `sequence` is the point of its trial's curve, `resumed_from` the number of the job whose part
    it continues; `started_at`, Unix time, is None where that is not known."""

    sequence: int = 0
    resumed_from: int | None = None
    started_at: float | None = None


def insert(
    connection: sqlite3.Connection,
    rows: Iterable[MetricRow],
    *,
    starts: Mapping[tuple[str, int], JournalStart],
) -> int:
    """Write the records of jobs that are over; returns the greatest id. `row.data` is what was reported.

    :param starts: by (trial id, job number).
    Raises sqlite3.IntegrityError for an id that is taken.
    """
    journals: Journals = {}
    remaining, last = iter(rows), 0
    while batch := list(islice(remaining, _AT_ONCE)):
        connection.executemany(query("metrics.insert"), [_values(row, journals) for row in batch])
        last = max(last, *(row.id for row in batch))
    for (trial_id, job, member), counts in sorted(journals.items(), key=lambda item: item[0]):
        key = {"trial_id": trial_id, "job": job, "member": member}
        start = starts.get((trial_id, job), JournalStart())
        columns = {
            "first_sequence": start.sequence,
            "resumed_from": start.resumed_from,
            "started_at": start.started_at,
            "first_seconds": None
            if start.started_at is None
            else seconds_before(connection, key, start.sequence, start.resumed_from),
        }
        connection.execute(query("journals.advance"), {**key, **counts, **columns, "damaged": None})
    return last


def _values(row: MetricRow, journals: Journals) -> tuple[Any, ...]:
    """A row to insert. It gets a place of its own in its journal, which is no longer here."""
    counts = journals.setdefault(
        (row.trial_id, row.job, row.member), {"offset": 0, **dict.fromkeys(_COUNTER.values(), 0)}
    )
    value, data, _ = split_value(row.data)
    place = counts["offset"]
    counts["offset"] += 1
    counts[_COUNTER[row.kind]] += 1
    return (
        row.id, row.trial_id, row.job, row.member, place, row.kind, row.sequence, row.step, value, data, row.time,
        row.seconds,
    )  # fmt: skip
