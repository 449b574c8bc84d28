"""Reading the table: the trials that a filter lets through, in any order, by columns or as pages of rows."""

import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.errors import BadCursor
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.statements import encode
from proctor.manager.store.tables import events, trials
from proctor.manager.store.tables.trials import TrialPage, decode_cursor, encode_cursor
from proctor.manager.store.trial_table.columns import (
    COLUMNS,
    COMPUTED,
    METRIC,
    PARAMETER,
    CurveValues,
    Kind,
    SqlColumn,
    SqlQuery,
)
from proctor.manager.store.trial_table.filters import parse
from proctor.sdk.client.flattening import flatten
from proctor.sdk.metrics import DEFAULT_KEY, JSON_WORDS

ColumnType = Literal["number", "text", "time", "json"]

ALL, ALL_PARAMETERS, ALL_METRICS = "*", f"{PARAMETER}.*", f"{METRIC}.*"
_SOURCES = {PARAMETER: "t.parameters", METRIC: "t.final_data"}
MAX_ROWS = 100_000
"""Of one reading."""
MAX_COLUMNS = 1_000
"""Of the parameters, and of the keys of metrics: those that trials have had first."""
_AT_ONCE = 500
"""Rows that are parsed in one go: other threads wait for it."""
_STORED = tuple(name for name in COLUMNS if name not in COMPUTED)
_TYPES: dict[Kind, ColumnType] = {
    Kind.NUMBER: "number",
    Kind.TEXT: "text",
    Kind.STATUS: "text",
    Kind.TIME: "time",
}


@dataclass
class TableColumn:
    """One column. Numbers are finite, times Unix seconds; None stands for whatever a trial does not have."""

    name: str
    type: ColumnType
    values: list[Any]

    @property
    def varies(self) -> bool:
        """Whether two of its values differ."""
        values = iter(self.values)
        first = next(values, None)
        return any(value != first for value in values)


@dataclass
class TrialTable:
    """Some trials by columns.

    `total` counts the experiment's trials, `matched` those that the filter lets through; `revision` is the id of its
    newest event. `running` are the ids of those trials that are RUNNING, by their place in the columns.
    """

    columns: list[TableColumn]
    rows: int
    total: int
    matched: int
    revision: int
    running: dict[int, str] = field(default_factory=dict)


def read(
    connection: sqlite3.Connection,
    experiment_id: str,
    *,
    now: float,
    filter: str | None = None,
    sort: Sequence[str] = (),
    columns: Sequence[str] = (ALL,),
    trial_ids: Collection[str] | None = None,
    curve_values: CurveValues | None = None,
    offset: int = 0,
    limit: int,
) -> TrialTable:
    """At most `limit` trials after the first `offset`, in the order of `sort` and then of their numbers.

    :param sort: columns, with a "-" for the greatest first. Trials without a value come last.
    :param columns: names; `*` for all that are stored, `parameter.*`, `value.*`.
    :param trial_ids: only these trials.
    :param curve_values: of the columns that `curve_columns` finds in the query.
    :param now: Unix time by the steady clock, for how long running trials have run.
    Raises QueryRefused.
    """
    query = SqlQuery(connection, experiment_id, now, curve_values)
    condition = "" if filter is None else f" AND {query.condition(parse(filter))}"
    experiment = "t.experiment_id = :experiment_id"
    if trial_ids is not None:
        # "+": they are looked up by their ids, instead of walking through all trials of the experiment
        experiment = f"+{experiment} AND t.id IN (SELECT value FROM json_each({query.bind(encode(sorted(trial_ids)))}))"
    found = _Reading(query, columns)
    order = ", ".join((*(_order(query, each) for each in sort), "t.sequence_id"))
    where = f"FROM trials AS t WHERE {experiment}{condition}"
    page = f"LIMIT {query.bind(limit)} OFFSET {query.bind(offset)}"
    cursor = connection.execute(f"SELECT {', '.join(found.sql)} {where} ORDER BY {order} {page}", query.values)
    while chunk := cursor.fetchmany(_AT_ONCE):
        found.add(chunk)
    total, matched = _count(connection, query, where, rows=found.rows, is_whole=offset == 0 and found.rows < limit)
    return TrialTable(
        columns=found.columns(),
        rows=found.rows,
        total=total,
        matched=matched,
        revision=events.revision(connection, experiment_id),
        running=found.running,
    )


def page(
    connection: sqlite3.Connection,
    experiment_id: str,
    *,
    now: float,
    filter: str | None = None,
    statuses: Collection[TrialStatus] | None = None,
    sort: str = "no",
    cursor: str | None = None,
    curve_values: CurveValues | None = None,
    limit: int,
) -> TrialPage[TrialRow]:
    """As `tables.trials.page`, with a filter and in the order of any column. Raises QueryRefused and BadCursor.

    A page costs a look at all trials: `tables.trials.page` has the orders that do not.
    """
    query = SqlQuery(connection, experiment_id, now, curve_values)
    column, backwards = query.order(sort)
    conditions = ["t.experiment_id = :experiment_id"]
    if filter is not None:
        conditions.append(query.condition(parse(filter)))
    if statuses is not None:
        conditions.append(f"t.status IN ({', '.join(query.bind(status.value) for status in statuses)})")
    if cursor is not None:
        conditions.append(_after(query, column, decode_cursor(cursor, sort, 2), backwards=backwards))
    statement = (
        f"SELECT t.*, {column.sql} FROM trials AS t WHERE {' AND '.join(conditions)} "
        f"ORDER BY {_order(query, sort)}, t.sequence_id LIMIT {query.bind(limit + 1)}"
    )
    found = connection.execute(statement, query.values).fetchall()
    rows = [TrialRow.from_row(row[:-1]) for row in found[:limit]]
    following = encode_cursor(sort, (found[limit - 1][-1], rows[-1].sequence_id)) if len(found) > limit else None
    return TrialPage(rows, following)


def _order(query: SqlQuery, sort: str) -> str:
    column, backwards = query.order(sort)
    return f"{column.sql} {'DESC' if backwards else 'ASC'} NULLS LAST"


def _after(query: SqlQuery, column: SqlColumn, key: Sequence[Any], *, backwards: bool) -> str:
    """The condition for what comes after the row of a cursor; rows without a value come last."""
    value, number = key
    if not isinstance(number, int) or not 0 <= number < 2**63:
        raise BadCursor("The cursor was not made here. Start again without a cursor.")
    later = f"t.sequence_id > {query.bind(number)}"
    if value is None:
        return f"({column.sql} IS NULL AND {later})"
    bound = query.bind(value)
    further = f"{column.sql} {'<' if backwards else '>'} {bound}"
    return f"({further} OR ({column.sql} = {bound} AND {later}) OR {column.sql} IS NULL)"


def _count(
    connection: sqlite3.Connection, query: SqlQuery, where: str, *, rows: int, is_whole: bool
) -> tuple[int, int]:
    """How many trials there are, and how many `where` finds; `is_whole`: that is the number of `rows`."""
    total = sum(trials.counts(connection, query.experiment_id).values())
    if is_whole:
        return total, rows
    return total, int(connection.execute(f"SELECT count(*) {where}", query.values).fetchone()[0])


# ---- columns --------------------------------------------------------------------------------------------------------


class _Reading:
    """The columns that were asked for, filled row by row."""

    def __init__(self, query: SqlQuery, names: Sequence[str]) -> None:
        self._names = list(dict.fromkeys(_in_full(query, names)))
        self._stored = [query.column(name, "columns", 0) for name in self._names if query.is_stored(name)]
        roots = {name.partition(".")[0] for name in self._names if not query.is_stored(name)}
        self._documents = [_Documents(root, source) for root, source in _SOURCES.items() if root in roots]
        self._values: list[list[Any]] = [[] for _ in self._stored]
        self.rows = 0
        self.running: dict[int, str] = {}

    @property
    def sql(self) -> list[str]:
        """The expressions that `add` takes the values of, in their order."""
        return ["t.id", "t.status", *(each.source for each in self._documents), *(each.sql for each in self._stored)]

    def add(self, chunk: list[tuple[Any, ...]]) -> None:
        """Take some rows."""
        ids, statuses, *others = zip(*chunk, strict=True)
        for place, status in enumerate(statuses, start=self.rows):
            if status == TrialStatus.RUNNING:
                self.running[place] = ids[place - self.rows]
        for document, texts in zip(self._documents, others, strict=False):
            document.add(texts)
        for values, found in zip(self._values, others[len(self._documents) :], strict=True):
            values.extend(found)
        self.rows += len(chunk)

    def columns(self) -> list[TableColumn]:
        """The columns, in the order in which they were named."""
        stored = {
            column.name: TableColumn(column.name, _TYPES[column.kind], values)
            for column, values in zip(self._stored, self._values, strict=True)
        }
        members = {document.root: document.columns() for document in self._documents}
        found: dict[str, TableColumn] = {}
        for name in self._names:
            root, _, rest = name.partition(".")
            if name in stored:
                found[name] = stored[name]
            elif rest == "*":
                found |= {key: column for key, column in members[root].items() if key not in found}
            else:
                found[name] = members[root].get(name) or TableColumn(name, "json", [None] * self.rows)
        return list(found.values())


def _in_full(query: SqlQuery, names: Sequence[str]) -> Iterator[str]:
    """The names of columns in full; only `parameter.*` and `value.*` stand for several. Raises QueryRefused."""
    position = 0
    for name in names:
        if name == ALL:
            yield from (*_STORED, ALL_PARAMETERS, ALL_METRICS)
        elif name in (ALL_PARAMETERS, ALL_METRICS):
            yield name
        else:
            yield query.column(name, "columns", position).name
        position += len(name) + 1


class _Documents:
    """A JSON column of the trials, whose members are columns of the table."""

    def __init__(self, root: str, source: str) -> None:
        self.root = root
        self.source = source
        self._values: dict[str, list[Any]] = {}
        self._rows = 0

    def add(self, texts: Sequence[str | None]) -> None:
        """Take the documents of some rows."""
        found = json.loads(f"[{','.join(text or 'null' for text in texts)}]")
        rows = [self._members(value, text) for value, text in zip(found, texts, strict=True)]
        for row in rows:
            if not row.keys() <= self._values.keys():
                for name in list(row)[: MAX_COLUMNS - len(self._values)]:
                    self._values.setdefault(name, [None] * self._rows)
        for name, values in self._values.items():
            values.extend([row.get(name) for row in rows])
        self._rows += len(rows)

    def columns(self) -> dict[str, TableColumn]:
        """The columns by their full names, in the order in which trials have had them."""
        names = {f"{self.root}.{name}" if name else self.root: values for name, values in self._values.items()}
        shown_as_value = (METRIC, f"{METRIC}.{DEFAULT_KEY}")
        return {name: _typed(name, values) for name, values in names.items() if name not in shown_as_value}

    def _members(self, value: Any, text: str | None) -> dict[str, Any]:
        """The columns of one document: nested ones by dotted names, what is no mapping as a whole."""
        if not isinstance(value, dict):
            return {} if value is None else {"": value}
        return value if (text or "").find("{", 1) < 0 else flatten(value)


def _typed(name: str, values: list[Any]) -> TableColumn:
    """A column with what all its values are; numbers that are not finite are None."""
    kinds = set(map(type, values)) - {NoneType}
    if kinds and kinds <= {int, float}:
        return TableColumn(name, "number", values)
    if kinds == {str}:
        return TableColumn(name, "text", values)
    if str in kinds and kinds <= {int, float, str}:
        finite = [None if type(value) is str and value in JSON_WORDS else value for value in values]
        if str not in set(map(type, finite)):
            return TableColumn(name, "number", finite)
    return TableColumn(name, "json", values)
