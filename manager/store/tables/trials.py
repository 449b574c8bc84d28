"""The trials table: one trial at a time, what is known of all trials of an experiment, and pages of them."""

import base64
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, Self, TypeVar

from proctor.manager.actors import MANAGER, Actor
from proctor.manager.lifecycle.experiment_failures import FailedTrial
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.errors import BadCursor
from proctor.manager.store.rows import TrialRow, get_row, insert_row, move_row, update_row
from proctor.manager.store.statements import query
from proctor.manager.store.tables import events

__all__ = [
    "CurvePoint",
    "TrialStart",
    "TrialStarts",
    "a_final_metric",
    "best",
    "best_curve",
    "counts",
    "donors",
    "failed",
    "find_by_prefix",
    "get",
    "insert",
    "live",
    "move",
    "named",
    "newest_reasons",
    "origins",
    "page",
    "results",
    "update",
]

T = TypeVar("T")
SortKey = tuple[str | int | float | None, ...]

_TABLE = "trials"
RANKED = tuple(status for status in TrialStatus if status.has_result)
SORTS = ("sequence_id", "-sequence_id", "value", "-value")
_INFINITY = float("inf")
_LAST = 2**62


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A trial that ended with a value, and the best value of all that had ended by then."""

    sequence_id: int
    ended_at: float | None
    value: float
    best: float
    place: int  # among all trials that have ended, with a value or without, from 1


def insert(connection: sqlite3.Connection, row: TrialRow, *, time: float | None = None, actor: Actor = MANAGER) -> None:
    """Add a trial, with its event (of `time`, or of its creation). Raises sqlite3.IntegrityError when its id or
    sequence id is taken."""
    insert_row(connection, _TABLE, row)
    data = {"status": row.status.value, "reason": row.reason, "sequence_id": row.sequence_id}
    _append_event(connection, data, row.experiment_id, row.id, row.created_at if time is None else time, actor)


def get(connection: sqlite3.Connection, trial_id: str) -> TrialRow:
    """One trial. Raises RowNotFound."""
    return get_row(connection, _TABLE, TrialRow, trial_id)


def find_by_prefix(connection: sqlite3.Connection, prefix: str, *, limit: int = 20) -> list[TrialRow]:
    """The trials of all experiments whose ids begin with `prefix`, by id."""
    return _select(connection, "trials.find_by_prefix", prefix=prefix, limit=limit)


class TrialStart(NamedTuple):
    """Which trial it is, and when (Unix time) its first job began; None: it has not."""

    id: str
    sequence_id: int
    started_at: float | None


@dataclass(frozen=True)
class TrialStarts:
    """Many of them by columns: another process receives these lists in a hundredth of the time."""

    ids: Sequence[str] = ()
    sequence_ids: Sequence[int] = ()
    started_at: Sequence[float | None] = ()

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, float | None]]) -> Self:
        """Of ids, sequence ids and starts."""
        return cls(*zip(*rows, strict=True))

    def __iter__(self) -> Iterator[TrialStart]:
        return map(TrialStart, self.ids, self.sequence_ids, self.started_at)


def starts(connection: sqlite3.Connection, experiment_id: str) -> TrialStarts:
    """All trials of an experiment, by sequence id."""
    return TrialStarts.of(connection.execute(query("trials.starts"), {"experiment_id": experiment_id}))


def named(connection: sqlite3.Connection, experiment_id: str, words: Collection[str]) -> dict[str, TrialStart]:
    """Those of an experiment's trials that words name: a word of digits is a sequence id."""
    values = {"experiment_id": experiment_id, "words": json.dumps(list(words))}
    return {word: TrialStart(*row) for word, *row in connection.execute(query("trials.named"), values)}


def live(connection: sqlite3.Connection, experiment_id: str) -> list[TrialRow]:
    """The trials that are WAITING or RUNNING, by sequence id."""
    return _select(connection, "trials.live", experiment_id=experiment_id)


def paused(connection: sqlite3.Connection, experiment_id: str, trial_ids: Collection[str]) -> list[TrialRow]:
    """Those of these trials that are PAUSED, by sequence id."""
    return _select(connection, "trials.paused_of", experiment_id=experiment_id, ids=json.dumps(list(trial_ids)))


def paused_with_experiment(connection: sqlite3.Connection, experiment_id: str) -> list[TrialRow]:
    """The trials that are PAUSED because their experiment was paused together with them, by sequence id."""
    return _select(connection, "trials.paused_with_experiment", experiment_id=experiment_id)


def paused_by_scheduler(connection: sqlite3.Connection, experiment_id: str, limit: int) -> list[TrialRow]:
    """At most so many of the trials that their trial scheduler has paused, by sequence id."""
    return _select(connection, "trials.paused_by_scheduler", experiment_id=experiment_id, limit=limit)


def count_paused_by(connection: sqlite3.Connection, experiment_id: str, paused_by: PausedBy) -> int:
    """How many trials are PAUSED by this one."""
    values = {"experiment_id": experiment_id, "paused_by": paused_by.value}
    return int(connection.execute(query("trials.count_paused_by"), values).fetchone()[0])


def is_paused_otherwise(connection: sqlite3.Connection, experiment_id: str) -> bool:
    """Whether any trial is PAUSED, but not by its trial scheduler."""
    row = connection.execute(query("trials.paused_otherwise"), {"experiment_id": experiment_id}).fetchone()
    return bool(row[0])


def held_by_scheduler(connection: sqlite3.Connection, trial_ids: Collection[str]) -> set[str]:
    """Those of these trials whose newest job was paused by their trial scheduler, whoever else has paused them."""
    rows = connection.execute(query("trials.held_by_scheduler"), {"ids": json.dumps(list(trial_ids))})
    return {trial_id for (trial_id,) in rows}


def origins(connection: sqlite3.Connection, trial_ids: Collection[str]) -> set[tuple[str, str]]:
    """(trial id, absolute path) of the checkpoints of these trials from which trials continue that have not ended."""
    ids = json.dumps(list(trial_ids))
    return set(connection.execute(query("trials.origins"), {"ids": ids}).fetchall())


def donors(connection: sqlite3.Connection, trial_ids: Collection[str]) -> list[str]:
    """The trials from whose checkpoints their trial scheduler had these continue."""
    ids = json.dumps(list(trial_ids))
    return [donor for (donor,) in connection.execute(query("trials.donors"), {"ids": ids})]


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


def failed(connection: sqlite3.Connection, experiment_id: str, *, limit: int) -> list[FailedTrial]:
    """At most `limit` of the trials that have failed, those with the greatest sequence ids first."""
    found: list[FailedTrial] = []
    for status in TrialStatus:
        if status.has_failed:
            values = {"experiment_id": experiment_id, "status": status.value, "limit": limit}
            found += (FailedTrial(*row) for row in connection.execute(query("trials.failed"), values))
    return sorted(found, key=lambda trial: -trial.sequence_id)[:limit]


def results(connection: sqlite3.Connection, experiment_id: str, *, limit: int) -> list[str]:
    """Of at most `limit` of the trials that succeeded or were stopped early, those with the greatest sequence ids
    first: parameters, final number and final metric, as the text of a JSON array."""
    values = {"experiment_id": experiment_id, "limit": limit}
    return [text for (text,) in connection.execute(query("trials.results"), values)]


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
    actor: Actor = MANAGER,
    **columns: Any,
) -> None:
    """Change the status if it is an expected one, with its event; other columns as given.

    Raises StaleWrite: let it pass, so that nothing else of the step is applied. Raises RowNotFound.
    """
    changes = {"status": status, "reason": reason, **columns}
    experiment_id, sequence_id = move_row(connection, _TABLE, TrialRow, trial_id, expected=expected, columns=changes)
    data = {"status": status.value, "reason": reason, "sequence_id": sequence_id}
    _append_event(connection, data, experiment_id, trial_id, time, actor)


def update(connection: sqlite3.Connection, trial_id: str, **columns: Any) -> None:
    """Change columns that need no event (metrics, counters). Raises RowNotFound; TypeError for the status."""
    if "status" in columns:
        raise TypeError("a trial's status is changed by move()")
    update_row(connection, _TABLE, TrialRow, trial_id, columns)


def _select(connection: sqlite3.Connection, name: str, **values: Any) -> list[TrialRow]:
    return [TrialRow.from_row(row) for row in connection.execute(query(name), values)]


def _rank(row: TrialRow, maximize: bool) -> tuple[float, int]:
    assert row.final_value is not None
    return (-row.final_value if maximize else row.final_value), row.sequence_id


def _append_event(
    connection: sqlite3.Connection, data: dict[str, Any], experiment_id: str, trial_id: str, time: float, actor: Actor
) -> None:
    ids = {"experiment_id": experiment_id, "trial_id": trial_id}
    events.append(connection, time=time, kind=events.TRIAL_STATUS, data=data, actor=actor, **ids)


# ---- pages in four orders -------------------------------------------------------------------------------------------
# Every status has its own stretch of an index in the order asked for, so a page is the merge of at most nine of them
# and costs the same at the beginning and at the end of the list, whatever the filter. A cursor says after which row the
# next page begins, so rows that come and go shift nothing.


@dataclass(frozen=True, slots=True)
class TrialPage(Generic[T]):
    """Some rows of a list in its order; `next_cursor` None: these were the last."""

    items: list[T]
    next_cursor: str | None = None


def encode_cursor(order: str, key: SortKey) -> str:
    """An opaque, URL-safe text for the sort key of a page's last row in the named order."""
    return base64.urlsafe_b64encode(json.dumps([order, *key]).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, order: str, length: int) -> SortKey:
    """The sort key in a cursor. Raises BadCursor when it is not one of this order."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        found, *key = parts
    except (ValueError, TypeError) as error:
        raise BadCursor(f"The cursor {cursor[:80]!r} was not made here. Start again without a cursor.") from error
    if found != order or len(key) != length or not all(isinstance(part, str | int | float | None) for part in key):
        raise BadCursor(f"The cursor {cursor[:80]!r} belongs to another list or order than {order!r}. Start again.")
    return tuple(key)


def page(
    connection: sqlite3.Connection,
    experiment_id: str,
    *,
    statuses: Collection[TrialStatus] | None = None,
    sort: str = "sequence_id",
    cursor: str | None = None,
    limit: int = 100,
) -> TrialPage[TrialRow]:
    """Trials in the order of `sort` ("-": descending; trials without a value come last, by sequence id).

    Raises BadCursor; ValueError for another order.
    """
    if sort not in SORTS:
        raise ValueError(f"trials are sorted by {', '.join(SORTS)}; found {sort!r}")
    wanted = list(TrialStatus) if statuses is None else list(dict.fromkeys(statuses))
    walk = _walk_sequence if sort.endswith("sequence_id") else _walk_value
    rows = list(islice(walk(_Stretches(connection, experiment_id, wanted), sort, cursor), limit + 1))
    if len(rows) <= limit:
        return TrialPage(rows)
    last = rows[limit - 1]
    return TrialPage(rows[:limit], encode_cursor(sort, (last.final_value, last.sequence_id)))


class _Stretches:
    """The same query for each status, merged; rows are read only as they are taken."""

    def __init__(self, connection: sqlite3.Connection, experiment_id: str, statuses: Iterable[TrialStatus]) -> None:
        self._connection = connection
        self._experiment_id = experiment_id
        self._statuses = statuses

    def merge(self, name: str, key: Callable[[TrialRow], Any], reverse: bool, **values: Any) -> Iterator[TrialRow]:
        values["experiment_id"] = self._experiment_id
        found = [self._connection.execute(query(name), values | {"status": status.value}) for status in self._statuses]
        return merge(*[map(TrialRow.from_row, rows) for rows in found], key=key, reverse=reverse)


def _walk_sequence(stretches: _Stretches, sort: str, cursor: str | None) -> Iterator[TrialRow]:
    backwards = sort.startswith("-")
    after = _read_cursor(cursor, sort)[1] if cursor else (_LAST if backwards else -1)
    name = "trials.page_by_sequence_backwards" if backwards else "trials.page_by_sequence"
    return stretches.merge(name, lambda row: row.sequence_id, backwards, sequence_id=after)


def _walk_value(stretches: _Stretches, sort: str, cursor: str | None) -> Iterator[TrialRow]:
    backwards = sort.startswith("-")
    value, after = (_INFINITY, _LAST) if backwards else (-_INFINITY, -1)
    without_value_after = -1
    valued = True
    if cursor:
        found, after = _read_cursor(cursor, sort)
        valued = found is not None
        if found is None:
            without_value_after = after
        else:
            value = found
    return chain(
        _walk_valued(stretches, backwards, value, after) if valued else (),
        _walk_unvalued(stretches, without_value_after),
    )


def _walk_valued(stretches: _Stretches, backwards: bool, value: float, after: int) -> Iterator[TrialRow]:
    name = "trials.page_by_value_backwards" if backwards else "trials.page_by_value"
    return stretches.merge(
        name, lambda row: (row.final_value, row.sequence_id), backwards, value=value, sequence_id=after
    )


def _walk_unvalued(stretches: _Stretches, after: int) -> Iterator[TrialRow]:
    """A generator, so that its queries begin only when the trials with a value are used up."""
    yield from stretches.merge("trials.page_without_value", lambda row: row.sequence_id, False, sequence_id=after)


def _read_cursor(cursor: str, sort: str) -> tuple[float | None, int]:
    value, sequence_id = decode_cursor(cursor, sort, 2)
    if not (isinstance(value, float | None) and isinstance(sequence_id, int) and 0 <= sequence_id <= _LAST):
        raise BadCursor(f"The cursor {cursor[:80]!r} was not made here. Start again without a cursor.")
    return value, sequence_id
