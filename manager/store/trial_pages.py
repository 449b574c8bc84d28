"""Pages of an experiment's trials in four orders.

Every status has its own stretch of an index in the order asked for, so a page is the merge of at most nine of them and
costs the same at the beginning and at the end of the list, whatever the filter.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from typing import Any

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.errors import BadCursor
from proctor.manager.store.pages import Page, decode_cursor, encode_cursor
from proctor.manager.store.queries import query
from proctor.manager.store.rows import TrialRow

SORTS = ("sequence_id", "-sequence_id", "value", "-value")

_INFINITY = float("inf")
_LAST = 2**62


def page(
    connection: sqlite3.Connection,
    experiment_id: str,
    *,
    statuses: Collection[TrialStatus] | None = None,
    sort: str = "sequence_id",
    cursor: str | None = None,
    limit: int = 100,
) -> Page[TrialRow]:
    """Trials in the order of `sort` ("-": descending; trials without a value come last, by sequence id).

    Raises BadCursor; ValueError for another order.
    """
    if sort not in SORTS:
        raise ValueError(f"trials are sorted by {', '.join(SORTS)}; found {sort!r}")
    wanted = list(TrialStatus) if statuses is None else list(dict.fromkeys(statuses))
    walk = _walk_sequence if sort.endswith("sequence_id") else _walk_value
    rows = list(islice(walk(_Stretches(connection, experiment_id, wanted), sort, cursor), limit + 1))
    if len(rows) <= limit:
        return Page(rows)
    last = rows[limit - 1]
    return Page(rows[:limit], encode_cursor(sort, (last.final_value, last.sequence_id)))


class _Stretches:
    """The same query for each status, merged; rows are read only as they are taken."""

    def __init__(self, connection: sqlite3.Connection, experiment_id: str, statuses: Iterable[TrialStatus]) -> None:
        self._connection = connection
        self._experiment_id = experiment_id
        self._statuses = statuses

    def merge(self, name: str, key: Callable[[TrialRow], Any], reverse: bool, **values: Any) -> Iterator[TrialRow]:
        return merge(*[self._read(name, status, values) for status in self._statuses], key=key, reverse=reverse)

    def _read(self, name: str, status: TrialStatus, values: dict[str, Any]) -> Iterator[TrialRow]:
        fixed = {"experiment_id": self._experiment_id, "status": status.value}
        return map(TrialRow.from_row, self._connection.execute(query(name), fixed | values))


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
