"""The filter of a table lets through what the same filter in Python does, for any trials, and orders them alike."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.migrations import migrate
from proctor.manager.store.rows import ExperimentRow, TrialRow
from proctor.manager.store.tables import experiments, trials
from proctor.manager.store.trial_table import table
from proctor.manager.store.trial_table.columns import COLUMNS, COMPUTED
from proctor.manager.store.trial_table.filters import (
    AllOf,
    AnyOf,
    Comparison,
    Filter,
    IsNull,
    Literal,
    Membership,
    Not,
    parse,
)
from proctor.sdk.client.flattening import flatten

EXPERIMENT = ExperimentRow("e", "e", ExperimentStatus.RUNNING, {}, {}, "/e", 0, 0.0, 1)
NAMES = ("lr", "größe", "a b", "dotted.name", 'quo"te', "model", "flag")
NUMBERS = st.integers(-3, 3) | st.sampled_from([-0.5, 0.25, 1e-3, 1e300, 2.5])
TEXTS = st.sampled_from(["adam", "Adam", "sgd", "", "a \"b'", "ünï", "true", "2"])
SCALARS = NUMBERS | TEXTS | st.booleans() | st.none()
NESTED = st.fixed_dictionaries({"_name": st.sampled_from(["mlp", "cnn"])}, optional={"lr": SCALARS, "größe": SCALARS})
PARAMETERS = st.dictionaries(st.sampled_from(NAMES), SCALARS | NESTED, min_size=1)
METRICS = st.none() | NUMBERS | st.dictionaries(st.sampled_from(["default", "loss", "a b"]), NUMBERS)
FIRST = {
    "lr": 1,
    "größe": 1,
    "a b": 1,
    "dotted.name": 1,
    'quo"te': 1,
    "model": {"_name": "mlp", "lr": 1, "größe": 1},
    "flag": True,
}
"""So that every name is known."""

ROWS = st.lists(
    st.builds(
        lambda status, parameters, value, data, reason, started: {
            "status": status,
            "parameters": parameters,
            "final_value": value,
            "final_data": data,
            "reason": reason,
            "started_at": started,
        },
        st.sampled_from(TrialStatus),
        PARAMETERS,
        st.none() | NUMBERS.map(float),
        METRICS,
        TEXTS,
        st.none() | st.sampled_from([0.0, 86_400.0, 1e9]),
    ),
    max_size=6,
)


def in_backticks(name: str) -> str:
    return f"`{name}`"


ANY_NAMES = st.sampled_from(
    [*NAMES, *(f"parameter.{name}" for name in NAMES), "model.lr", "parameter.model.größe", "value.loss", "value.a b"]
).map(in_backticks)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


VALUES = NUMBERS.map(repr) | TEXTS.map(quoted) | st.sampled_from(["true", "false", "adam"])
OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
TESTS = st.one_of(
    st.builds("{} {} {}".format, ANY_NAMES, OPERATORS, VALUES),
    st.builds("{} ~ {}".format, ANY_NAMES, TEXTS.map(quoted)),
    st.builds("{} in ({})".format, ANY_NAMES, st.lists(VALUES, min_size=1, max_size=3).map(", ".join)),
    st.builds("{} not in ({})".format, ANY_NAMES, VALUES),
    st.builds("{} is {}".format, ANY_NAMES, st.sampled_from(["null", "not null"])),
    st.builds("status = {}".format, st.sampled_from([status.lower() for status in TrialStatus])),
    st.builds("{} {} {}".format, st.sampled_from(["value", "no"]), OPERATORS, NUMBERS.map(repr)),
    st.builds("reason ~ {}".format, TEXTS.map(quoted)),
    st.builds("reason {} {}".format, OPERATORS, TEXTS.map(quoted)),
    st.builds("started {} {}".format, OPERATORS, st.sampled_from(["1970-01-02", "1970-01-01T00:00:00Z"])),
    st.just("reason is null"),
)
FILTERS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("{} or {}".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=5,
)


# ---- the same in Python ---------------------------------------------------------------------------------------------

TIMES = {"1970-01-02": 86_400.0, "1970-01-01T00:00:00Z": 0.0}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def value_of(row: TrialRow, name: str) -> Any:
    """What a trial has in a column."""
    data = row.final_data if isinstance(row.final_data, dict) else {}
    columns = {
        "no": row.sequence_id,
        "status": row.status.value,
        "value": row.final_value,
        "reason": row.reason or None,
        "started": row.started_at,
        **flatten({key: item for key, item in data.items() if key != "default"}, "value"),
        **flatten(row.parameters, "parameter"),
    }
    return columns.get(name, columns.get(f"parameter.{name}"))


def literal_of(name: str, literal: Literal) -> Any:
    if name == "status":
        return literal.text.upper()
    if name == "started":
        return TIMES[literal.text]
    if name == "reason":
        return literal.text
    if literal.number is not None:
        return literal.number
    return {"true": True, "false": False}.get(literal.text, literal.text) if literal.is_word else literal.text


def are_alike(one: Any, other: Any) -> bool:
    return isinstance(one, str) == isinstance(other, str)


def lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def lets_through(node: Filter, row: TrialRow) -> bool:
    match node:
        case AllOf(operands):
            return all(lets_through(each, row) for each in operands)
        case AnyOf(operands):
            return any(lets_through(each, row) for each in operands)
        case Not(operand):
            return not lets_through(operand, row)
        case IsNull(column):
            return value_of(row, column.name) is None
        case Membership(column, values):
            found = value_of(row, column.name)
            return found is not None and found in [literal_of(column.name, each) for each in values]
        case Comparison(column, operator, _, value):
            found = value_of(row, column.name)
            if operator == "~":
                return isinstance(found, str) and lower(value.text) in lower(found)
            wanted = literal_of(column.name, value)
            if found is None:
                return False
            if operator in ("=", "!="):
                return COMPARE[operator](found, wanted)
            return are_alike(found, wanted) and COMPARE[operator](found, wanted)


@cache
def empty_database() -> bytes:
    """A control database with the experiment."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, 0, "control")
        experiments.insert(connection, EXPERIMENT)
        return connection.serialize()


def stored(connection: sqlite3.Connection, rows: list[dict[str, Any]]) -> list[TrialRow]:
    """The rows as they are read again, after one that has every parameter and key."""
    connection.deserialize(empty_database())
    first = {"status": TrialStatus.WAITING, "parameters": FIRST, "final_data": {"loss": 1, "a b": 1}}
    for number, columns in enumerate([first, *rows]):
        row = TrialRow(f"t{number}", "e", number, parameter_id=number, created_at=0.0, **columns)
        trials.insert(connection, row)
    return trials.page(connection, "e").items


@pytest.mark.slow
@given(ROWS, FILTERS)
@settings(deadline=None)
def test_a_filter_lets_through_what_the_same_filter_in_python_does(rows: list[dict[str, Any]], text: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        found = stored(connection, rows)
        expected = [row.sequence_id for row in found if lets_through(parse(text), row)]
        read = table.read(connection, "e", now=0.0, filter=text, columns=["no"], limit=100)
        assert read.columns[0].values == expected
        assert (read.matched, read.total) == (len(expected), len(found))


def rank(value: Any) -> tuple[bool, Any]:
    """Numbers come before texts."""
    return isinstance(value, str), value.encode() if isinstance(value, str) else value


@pytest.mark.slow
@given(ROWS, st.sampled_from([*NAMES, "model.lr", "value.loss", "value", "reason", "started"]), st.booleans())
@settings(deadline=None)
def test_any_column_orders_trials_those_without_a_value_last(
    rows: list[dict[str, Any]], name: str, backwards: bool
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        found = stored(connection, rows)
        valued = [row for row in found if value_of(row, name) is not None]
        # Backwards, too, the first of equals comes first.
        ordered = sorted(valued, key=lambda row: rank(value_of(row, name)), reverse=backwards)
        expected = [row.sequence_id for row in (*ordered, *(row for row in found if row not in valued))]
        sort = f"-{name}" if backwards else name
        read = table.read(connection, "e", now=0.0, sort=[sort], columns=["no"], limit=100)
        assert read.columns[0].values == expected
        page = table.page(connection, "e", now=0.0, sort=sort, limit=2)
        paged = page.items
        while page.next_cursor is not None:
            page = table.page(connection, "e", now=0.0, sort=sort, cursor=page.next_cursor, limit=2)
            paged += page.items
        assert [row.sequence_id for row in paged] == expected


@pytest.mark.slow
@given(ROWS)
@settings(deadline=None)
def test_a_table_has_the_flattened_parameters_and_metrics_of_its_trials(rows: list[dict[str, Any]]) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        found = stored(connection, rows)
        read = table.read(connection, "e", now=0.0, limit=100)
        named = {column.name: column for column in read.columns}
        assert set(COLUMNS) - set(COMPUTED) <= named.keys()
        for name, column in named.items():
            if name.startswith(("parameter.", "value.")):
                values = [value_of(row, name) for row in found]
                assert json.dumps(column.values) == json.dumps(values)
                kinds = {type(value) for value in values if value is not None}
                is_number = bool(kinds) and kinds <= {int, float}
                assert column.type == ("number" if is_number else "text" if kinds == {str} else "json")
