"""The columns of the table, and filters and orders of them as SQL with bound values.

A column is one of COLUMNS, `parameter.<name>` (nested choices with dots: `parameter.model`, `parameter.model.lr`),
`value.<key>` (what a final metric has beside its number), or `curve.best` or `curve.at.<step>`, whose values are read
from another database before (`tables/curves.py`). A bare name that is none of COLUMNS is a parameter's. What kind of
values a parameter has is looked up in the trials, so that a name that none of them has is an error.
"""

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum
from itertools import combinations
from typing import Any

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.errors import QueryRefused
from proctor.manager.store.rows import SqlValue
from proctor.manager.store.statements import decode, query
from proctor.manager.store.trial_table.filters import (
    COMPARISONS,
    AllOf,
    AnyOf,
    ColumnName,
    Comparison,
    Filter,
    IsNull,
    Literal,
    Membership,
    Not,
    columns_of,
    parse,
    refuse,
)
from proctor.sdk.client.flattening import flatten, metric_fields

PARAMETER, METRIC = "parameter", "value"
"""The columns of the parameters begin with the first word, those of a metric's further keys with the second."""
CURVE = "curve"
CURVE_BEST = f"{CURVE}.best"
_AT_STEP = re.compile(rf"{CURVE}\.at\.(\d{{1,15}})")
MOST_CURVE_COLUMNS = 20
"""Of one query."""
CurveValues = Mapping[str, Mapping[str, float]]
"""Of each column of curves that a query names, the values by the ids of the trials."""
_SEARCHED_TRIALS = 200
"""The newest ones: whose names are offered where one is unknown."""
_MOST_OFFERED = 40
_MOST_PLACES = 5
"""Dots in a name; of one with more, only the two places are looked at in which all or none of them divide."""


class Kind(Enum):
    """What a column holds; null is possible in all."""

    NUMBER = "number"
    TEXT = "text"
    TIME = "time"
    STATUS = "status"
    ANY = "any"


@dataclass(frozen=True)
class SqlColumn:
    """A column as an expression over the row `t` of `trials`; `name` is in full."""

    name: str
    kind: Kind
    sql: str


_USED = "SELECT total({what}) / 3600.0 FROM trial_jobs WHERE trial_id = t.id AND started_at IS NOT NULL"
_SO_FAR = ":now - coalesce(runs_since, started_at)"
_RUN_SECONDS = f"coalesce(run_seconds, max(coalesce(ended_at - started_at, {_SO_FAR}), 0))"
_GPU_SECONDS = f"counted_gpus * {_RUN_SECONDS}"
_TIME = f"SELECT sum({_RUN_SECONDS}) FROM trial_jobs WHERE trial_id = t.id AND started_at IS NOT NULL"

COLUMNS: Mapping[str, SqlColumn] = {
    column.name: column
    for column in (
        SqlColumn("no", Kind.NUMBER, "t.sequence_id"),
        SqlColumn("id", Kind.TEXT, "t.id"),
        SqlColumn("status", Kind.STATUS, "t.status"),
        SqlColumn("reason", Kind.TEXT, "nullif(t.reason, '')"),
        SqlColumn("value", Kind.NUMBER, "t.final_value"),
        SqlColumn("latest", Kind.NUMBER, "t.latest_value"),
        SqlColumn("reports", Kind.NUMBER, "t.intermediate_count"),
        SqlColumn("node", Kind.TEXT, "(SELECT node_id FROM trial_jobs WHERE trial_jobs.id = t.id || '.' || t.jobs)"),
        SqlColumn("jobs", Kind.NUMBER, "t.jobs"),
        SqlColumn("source", Kind.TEXT, "t.source"),
        SqlColumn("origin", Kind.TEXT, "coalesce(t.origin_job, t.origin_trial)"),
        SqlColumn("paused-by", Kind.TEXT, "t.paused_by"),
        SqlColumn("created", Kind.TIME, "t.created_at"),
        SqlColumn("started", Kind.TIME, "t.started_at"),
        SqlColumn("ended", Kind.TIME, "t.ended_at"),
        SqlColumn("time", Kind.NUMBER, f"({_TIME})"),
        SqlColumn("gpu-hours", Kind.NUMBER, f"({_USED.format(what=_GPU_SECONDS)})"),
        SqlColumn("cpu-hours", Kind.NUMBER, f"({_USED.format(what='cpu_seconds')})"),
    )
}
COMPUTED = ("time", "gpu-hours", "cpu-hours")
"""Columns that are not stored: they are in a table only where they are asked for."""


class SqlQuery:
    """The SQL of a query of one experiment's trials: expressions of columns, conditions, and the values they bind.

    :param now: Unix time by the steady clock.
    :param curve_values: what `curve_columns` has found in the query.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        experiment_id: str,
        now: float,
        curve_values: CurveValues | None = None,
    ) -> None:
        self.experiment_id = experiment_id
        self._curve_values = curve_values or {}
        if self._curve_values:
            connection.create_function("curve_value", 2, self._curve_value, deterministic=True)
        self._connection = connection
        self.values: dict[str, SqlValue] = {"experiment_id": experiment_id, "now": now}
        self._known: dict[str, SqlColumn] = dict(COLUMNS)
        self._has_trials = bool(connection.execute(query("trials.exist"), self.values).fetchone()[0])

    def bind(self, value: SqlValue) -> str:
        """The placeholder of a value."""
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f":{name}"

    def column(self, name: str, key: str, position: int) -> SqlColumn:
        """The column of a name. Raises QueryRefused for one that no trial has, with `key` and `position`."""
        if name not in self._known:
            self._known[name] = self._find(name, key, position)
        return self._known[name]

    def is_stored(self, name: str) -> bool:
        """Whether a column has a place of its own in a row, other than a key of parameters or of a metric."""
        return name in COLUMNS or name in self._curve_values

    def order(self, sort: str) -> tuple[SqlColumn, bool]:
        """The column of a sort order, and whether the greatest come first: `-value`. Raises QueryRefused."""
        name = sort.removeprefix("-")
        return self.column(name, "sort", len(sort) - len(name)), sort.startswith("-")

    def condition(self, node: Filter) -> str:
        """The SQL of a filter: true or false for each trial, never null. Raises QueryRefused."""
        match node:
            case AllOf(operands):
                return "(" + " AND ".join(self.condition(each) for each in operands) + ")"
            case AnyOf(operands):
                return "(" + " OR ".join(self.condition(each) for each in operands) + ")"
            case Not(operand):
                return f"(NOT {self.condition(operand)})"
            case IsNull(name):
                return f"({self._filtered(name).sql} IS NULL)"
            case Membership(name, values):
                column = self._filtered(name)
                found = ", ".join(self.bind(_read_value(column, value)) for value in values)
                return f"(({column.sql} IN ({found})) IS TRUE)"
            case Comparison():
                return self._comparison(node)

    def _filtered(self, name: ColumnName) -> SqlColumn:
        return self.column(name.name, "filter", name.position)

    def _comparison(self, node: Comparison) -> str:
        column, operator = self._filtered(node.column), node.operator
        _check_operator(column, node)
        if operator == "~":
            value = self.bind(node.value.text)
            return f"((typeof({column.sql}) = 'text' AND instr(lower({column.sql}), lower({value}))) IS TRUE)"
        read = _read_value(column, node.value)
        comparison = f"{column.sql} {operator} {self.bind(read)}"
        if column.kind is Kind.ANY and operator not in ("=", "!="):
            types = "('text')" if isinstance(read, str) else "('integer', 'real')"
            comparison += f" AND typeof({column.sql}) IN {types}"  # SQLite compares values of all types
        return f"(({comparison}) IS TRUE)"

    # ---- parameters, and further keys of metrics

    def _curve_value(self, name: str, trial_id: str) -> float | None:
        return self._curve_values[name].get(trial_id)

    def _find(self, name: str, key: str, position: int) -> SqlColumn:
        if name in self._curve_values:
            return SqlColumn(name, Kind.NUMBER, f"curve_value({self.bind(name)}, t.id)")
        root, dot, rest = name.partition(".")
        if not name or (dot and not rest):
            raise self._unknown(name, key, position)
        if root == METRIC and rest:
            source, full = "t.final_data", name
        else:
            is_full = root == PARAMETER
            source, full = "t.parameters", name if is_full else f"{PARAMETER}.{name}"
            rest = rest if is_full else name
        places = [_JsonPlace.of(source, steps, self.bind) for steps in _divisions(rest)]
        found = self._types(places)
        if self._has_trials and not any(found):
            raise self._unknown(name, key, position)
        present = [_value_sql(place, types) for place, types in zip(places, found, strict=True) if types]
        sql = "NULL" if not present else present[0] if len(present) == 1 else f"coalesce({', '.join(present)})"
        return SqlColumn(full, Kind.ANY, sql)

    def _types(self, places: list["_JsonPlace"]) -> list[set[str]]:
        """Of each place, the JSON types that trials have there."""
        types = ", ".join(place.type_sql for place in places)
        statement = f"SELECT DISTINCT {types} FROM trials AS t WHERE t.experiment_id = :experiment_id"
        rows = self._connection.execute(statement, self.values).fetchall()
        return [{row[index] for row in rows if row[index] is not None} for index in range(len(places))]

    def _unknown(self, name: str, key: str, position: int) -> QueryRefused:
        values = {"experiment_id": self.experiment_id, "limit": _SEARCHED_TRIALS}
        named: dict[str, None] = {}
        for parameters, metric in self._connection.execute(query("trials.newest_documents"), values):
            named |= dict.fromkeys(flatten({PARAMETER: decode(parameters)}))
            named |= dict.fromkeys(metric_fields(decode(metric or "null")))
        named.pop(METRIC, None)
        known = [*COLUMNS, CURVE_BEST, *named, *(each.removeprefix(f"{PARAMETER}.") for each in named)]
        near = next(iter(get_close_matches(name, known, n=1, cutoff=0.6)), None)
        expected = "a column" if near else f"one of the columns {', '.join([*COLUMNS, *named][:_MOST_OFFERED])}"
        return QueryRefused(key, position=position, expected=expected, found=repr(name), nearest=near)


def curve_columns(filter: str | None, sort: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns of curves that a query names, each once. Raises QueryRefused for a filter that cannot be read, and
    for too many of them."""
    names = [*(() if filter is None else columns_of(parse(filter))), *(each.removeprefix("-") for each in sort)]
    found = list(dict.fromkeys(name for name in (*names, *columns) if name == CURVE_BEST or _AT_STEP.fullmatch(name)))
    if len(found) > MOST_CURVE_COLUMNS:
        expected = f"at most {MOST_CURVE_COLUMNS} columns of curves"
        raise QueryRefused("columns", position=0, expected=expected, found=str(len(found)))
    return found


def step_of(name: str) -> int | None:
    """The step of `curve.at.<step>`; None for the best value."""
    found = _AT_STEP.fullmatch(name)
    return None if found is None else int(found[1])


@dataclass(frozen=True)
class _JsonPlace:
    """A place in a JSON document: the SQL of the value there, of its JSON type, and of the name of a nested choice."""

    value_sql: str
    type_sql: str
    choice_sql: str

    @classmethod
    def of(cls, source: str, steps: tuple[str, ...], bind: Callable[[SqlValue], str]) -> "_JsonPlace":
        if all(_is_plain(step) for step in steps):
            path = "$" + "".join(f'."{step}"' for step in steps)
            place, choice = bind(path), bind(f"{path}._name")
            return cls(
                f"json_extract({source}, {place})",
                f"json_type({source}, {place})",
                f"json_extract({source}, {choice})",
            )
        for step in steps[:-1]:
            source = f"(SELECT value FROM json_each({source}) WHERE key = {bind(step)} AND type = 'object')"
        member = f"FROM json_each({source}) WHERE key = {bind(steps[-1])}"
        value = f"(SELECT value {member})"
        inner = f"(SELECT value {member} AND type = 'object')"
        return cls(value, f"(SELECT type {member})", f"json_extract({inner}, '$._name')")


def _is_plain(step: str) -> bool:
    """Whether SQLite finds a key by a path: it compares the texts of both as they are written, escapes included."""
    return step.isascii() and step.isprintable() and not set(step) & {'"', "\\"}


def _divisions(name: str) -> list[tuple[str, ...]]:
    """The places that a dotted name can mean: of `a.b` the key b of a, and the key `a.b`. None for "": the whole."""
    if not name:
        return [()]
    parts = name.split(".")
    inner = range(1, len(parts))
    sizes = inner if len(parts) <= _MOST_PLACES else (len(parts) - 1,)
    cuts = [(), *(cut for size in sizes for cut in combinations(inner, size))]
    return [
        tuple(".".join(parts[begin:end]) for begin, end in zip((0, *cut), (*cut, len(parts)), strict=True))
        for cut in cuts
    ]


def _value_sql(place: _JsonPlace, types: set[str]) -> str:
    """Of a nested choice its name; other objects are columns only by their members."""
    if types == {"object"}:
        return place.choice_sql
    if "object" in types:
        return f"CASE {place.type_sql} WHEN 'object' THEN {place.choice_sql} ELSE {place.value_sql} END"
    return place.value_sql


# ---- what values mean -----------------------------------------------------------------------------------------------

_OPERATORS = {
    Kind.NUMBER: ("=", "!=", "<", "<=", ">", ">="),
    Kind.TIME: ("=", "!=", "<", "<=", ">", ">="),
    Kind.STATUS: ("=", "!=", "~"),
    Kind.TEXT: COMPARISONS,
    Kind.ANY: COMPARISONS,
}
_TRUTHS = {"true": 1, "false": 0}


def _check_operator(column: SqlColumn, node: Comparison) -> None:
    known = _OPERATORS[column.kind]
    if node.operator not in known:
        raise refuse(node.operator_position, f"one of {' '.join(known)} after {column.name}", repr(node.operator))


def _read_value(column: SqlColumn, literal: Literal) -> Any:
    """The value of a literal in a test of a column. Raises QueryRefused for one of another kind."""
    match column.kind:
        case Kind.NUMBER:
            if literal.number is None:
                raise refuse(literal.position, f"a number for {column.name}", repr(literal.text))
            return literal.number
        case Kind.TIME:
            return _read_time(column, literal)
        case Kind.STATUS:
            return _read_status(literal)
        case Kind.TEXT:
            return literal.text
        case Kind.ANY:
            if literal.number is not None:
                return literal.number
            return _TRUTHS.get(literal.text, literal.text) if literal.is_word else literal.text


def _read_time(column: SqlColumn, literal: Literal) -> float:
    try:
        moment = datetime.fromisoformat(literal.text)
    except ValueError:
        expected = f"a time for {column.name}, such as 2026-11-24 or 2026-11-24T10:30:00Z"
        raise refuse(literal.position, expected, repr(literal.text)) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _read_status(literal: Literal) -> str:
    try:
        return TrialStatus(literal.text.upper()).value
    except ValueError:
        known = [status.value for status in TrialStatus]
        near = get_close_matches(literal.text.upper(), known, n=1)
        expected = f"a status: {', '.join(known)}"
        raise refuse(literal.position, expected, repr(literal.text), nearest=next(iter(near), None)) from None
