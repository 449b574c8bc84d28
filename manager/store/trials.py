"""The trials table: one trial at a time, and what is known of all trials of an experiment."""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store import events
from proctor.manager.store.changes import get_row, insert_row, move_row, update_row
from proctor.manager.store.queries import query
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.trial_pages import page

__all__ = [
    "CurvePoint",
    "a_final_metric",
    "answers",
    "best",
    "best_curve",
    "counts",
    "find_by_prefix",
    "get",
    "insert",
    "live",
    "move",
    "newest_reasons",
    "page",
    "parameter_ids",
    "update",
]

_TABLE = "trials"

RANKED = (TrialStatus.SUCCEEDED, TrialStatus.EARLY_STOPPED)  # whose final metric may be the best


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A trial that ended with a value, and the best value of all that had ended by then."""

    sequence_id: int
    ended_at: float | None
    value: float
    best: float
    place: int  # among all trials that have ended, with a value or without, from 1


def insert(connection: sqlite3.Connection, row: TrialRow, *, time: float | None = None) -> None:
    """Add a trial, with its event (of `time`, or of its creation). Raises sqlite3.IntegrityError when its id or
    sequence id is taken."""
    insert_row(connection, _TABLE, row)
    _append_event(connection, row, row.created_at if time is None else time)


def get(connection: sqlite3.Connection, trial_id: str) -> TrialRow:
    """One trial. Raises RowNotFound."""
    return get_row(connection, _TABLE, TrialRow, trial_id)


def find_by_prefix(connection: sqlite3.Connection, prefix: str, *, limit: int = 20) -> list[TrialRow]:
    """The trials of all experiments whose ids begin with `prefix`, by id."""
    return _select(connection, "trials.find_by_prefix", prefix=prefix, limit=limit)


def live(connection: sqlite3.Connection, experiment_id: str) -> list[TrialRow]:
    """The trials that have not ended, by sequence id."""
    return _select(connection, "trials.live", experiment_id=experiment_id)


def counts(connection: sqlite3.Connection, experiment_id: str) -> dict[TrialStatus, int]:
    """How many trials are in each status; statuses without any are left out. Costs the same however many there are."""
    rows = connection.execute(query("trials.counts"), {"experiment_id": experiment_id})
    return {TrialStatus(status): number for status, number in rows if number}


def best(connection: sqlite3.Connection, experiment_id: str, maximize: bool) -> TrialRow | None:
    """The trial with the best final value among those that succeeded or were stopped early; the earliest of equals."""
    name = "trials.highest" if maximize else "trials.lowest"
    found = [row for status in RANKED for row in _select(connection, name, experiment_id=experiment_id, status=status)]
    return min(found, key=lambda row: _rank(row, maximize), default=None)


def best_curve(connection: sqlite3.Connection, experiment_id: str, maximize: bool) -> list[CurvePoint]:
    """One point for every such trial with a value, in the order of their ends."""
    better = max if maximize else min
    points: list[CurvePoint] = []
    for sequence_id, ended_at, value, place in connection.execute(
        query("trials.values_in_time"), {"experiment_id": experiment_id}
    ):
        top = better(points[-1].best, value) if points else value
        points.append(CurvePoint(sequence_id, ended_at, value, top, place))
    return points


def a_final_metric(
    connection: sqlite3.Connection, experiment_id: str, status: TrialStatus, *, limit: int
) -> TrialRow | None:
    """The newest trial in this status that has reported a final metric, a number or not, among its newest `limit`."""
    found = _select(connection, "trials.a_final_metric", experiment_id=experiment_id, status=status, limit=limit)
    return found[0] if found else None


def newest_reasons(
    connection: sqlite3.Connection, experiment_id: str, *, statuses: Collection[TrialStatus], limit: int
) -> list[str]:
    """The reasons of at most `limit` trials in these statuses, those with the greatest sequence ids first."""
    found: list[tuple[int, str]] = []
    for status in statuses:
        values = {"experiment_id": experiment_id, "status": status.value, "limit": limit}
        found += connection.execute(query("trials.newest_reasons"), values).fetchall()
    return [reason for _, reason in sorted(found, reverse=True)[:limit]]


def move(
    connection: sqlite3.Connection,
    trial_id: str,
    *,
    expected: Collection[TrialStatus],
    status: TrialStatus,
    reason: str,
    time: float,
    **columns: Any,
) -> TrialRow:
    """Change the status if it is an expected one, with its event; other columns as given.

    Raises StaleWrite: let it pass, so that nothing else of the step is applied. Raises RowNotFound.
    """
    changes = {"status": status, "reason": reason, **columns}
    row = move_row(connection, _TABLE, TrialRow, trial_id, expected=expected, columns=changes)
    _append_event(connection, row, time)
    return row


def update(connection: sqlite3.Connection, trial_id: str, **columns: Any) -> None:
    """Change columns that need no event (metrics, counters). Raises RowNotFound; TypeError for the status."""
    if "status" in columns:
        raise TypeError("a trial's status is changed by move()")
    update_row(connection, _TABLE, TrialRow, trial_id, columns)


def answers(connection: sqlite3.Connection, experiment_id: str, position: int) -> list[TrialRow]:
    """The trials that answered the request at `position`, by parameter id."""
    return _select(connection, "trials.answers", experiment_id=experiment_id, position=position)


def parameter_ids(connection: sqlite3.Connection, experiment_id: str) -> set[int]:
    """Every parameter id that a trial of the experiment has. For a restart: it is as long as the experiment."""
    return {row[0] for row in connection.execute(query("trials.parameter_ids"), {"experiment_id": experiment_id})}


def _select(connection: sqlite3.Connection, name: str, **values: Any) -> list[TrialRow]:
    return [TrialRow.from_row(row) for row in connection.execute(query(name), values)]


def _rank(row: TrialRow, maximize: bool) -> tuple[float, int]:
    assert row.final_value is not None
    return (-row.final_value if maximize else row.final_value), row.sequence_id


def _append_event(connection: sqlite3.Connection, row: TrialRow, time: float) -> None:
    data = {"status": row.status.value, "reason": row.reason, "sequence_id": row.sequence_id}
    events.append(
        connection,
        time=time,
        kind=events.TRIAL_STATUS,
        data=data,
        experiment_id=row.experiment_id,
        trial_id=row.id,
    )
