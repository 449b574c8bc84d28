"""The table: its columns, orders and pages. tests/property/test_trial_filters.py compares filters with Python."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.errors import BadCursor, QueryRefused
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import events, experiments, jobs, trials
from proctor.manager.store.trial_table import table
from proctor.manager.store.trial_table.filters import MAX_TESTS

E = "Ab3dE5f7"
NOW = 5000.0


@pytest.fixture
def filled(
    control: sqlite3.Connection,
    make_experiment: Callable[..., ExperimentRow],
    make_trial: Callable[..., TrialRow],
    make_job: Callable[..., TrialJobRow],
) -> sqlite3.Connection:
    """Four trials of one experiment, one of another."""
    experiments.insert(control, make_experiment())
    experiments.insert(control, make_experiment("0therOne"))
    shared: dict[str, Any] = {"jobs": 1, "started_at": 1000.0}
    rows = [
        make_trial(
            0,
            status=TrialStatus.SUCCEEDED,
            parameters={"lr": 0.1, "model": {"_name": "mlp", "width": 64}},
            final_value=0.9,
            final_data={"default": 0.9, "loss": 0.3},
            ended_at=1060.0,
            **shared,
        ),
        make_trial(
            1,
            status=TrialStatus.FAILED,
            parameters={"lr": 0.01, "model": {"_name": "cnn"}},
            reason="exit code 1",
            ended_at=1010.0,
            **shared,
        ),
        make_trial(
            2, status=TrialStatus.RUNNING, parameters={"lr": 0.2, "model": {"_name": "mlp", "width": 32}}, **shared
        ),
        make_trial(3, status=TrialStatus.WAITING, parameters={"lr": 0.2, "model": {"_name": "cnn"}}),
    ]
    for row in rows:
        trials.insert(control, row)
        if row.jobs:
            node = f"node-{row.sequence_id % 2}"
            made = make_job(row, node_id=node, started_at=1000.0, ended_at=row.ended_at, counted_gpus=2.0)
            jobs.insert(control, made)
    trials.insert(control, replace(make_trial(9), experiment_id="0therOne", parameters={"other": 1}))
    return control


def read(connection: sqlite3.Connection, **asked: Any) -> table.TrialTable:
    return table.read(connection, E, now=NOW, **{"limit": 100, **asked})


def column(found: table.TrialTable, name: str) -> list[Any]:
    return next(each.values for each in found.columns if each.name == name)


def numbers(connection: sqlite3.Connection, **asked: Any) -> list[int]:
    return column(read(connection, columns=["no"], **asked), "no")


def test_all_that_is_stored_is_in_it_nested_choices_by_dotted_names(filled: sqlite3.Connection) -> None:
    found = read(filled)
    assert [each.name for each in found.columns] == [
        *("no", "id", "status", "reason", "value", "latest", "reports", "node", "jobs", "source", "origin"),
        *("paused-by", "created", "started", "ended"),
        *("parameter.lr", "parameter.model", "parameter.model.width", "value.loss"),
    ]  # fmt: skip
    assert (found.total, found.matched, found.rows) == (4, 4, 4)
    assert column(found, "parameter.model") == ["mlp", "cnn", "mlp", "cnn"]
    assert column(found, "parameter.model.width") == [64, None, 32, None]
    assert column(found, "value.loss") == [0.3, None, None, None]
    assert column(found, "reason") == [None, "exit code 1", None, None]
    assert column(found, "node") == ["node-0", "node-1", "node-0", None]
    same = [each.name for each in found.columns if not each.varies]
    assert same == ["latest", "reports", "source", "origin", "paused-by"]
    assert found.running == {2: column(found, "id")[2]}


def test_columns_are_those_that_are_named_in_their_order(filled: sqlite3.Connection) -> None:
    found = read(filled, columns=["model", "time", "no", "value.*", "gpu-hours", "no"])
    assert [each.name for each in found.columns] == ["parameter.model", "time", "no", "value.loss", "gpu-hours"]
    assert column(found, "time") == [60.0, 10.0, 4000.0, None]
    assert column(found, "gpu-hours") == [120 / 3600, 20 / 3600, 8000 / 3600, 0.0]


def test_the_revision_grows_with_every_change_of_the_experiment_alone(filled: sqlite3.Connection) -> None:
    before = read(filled).revision
    events.append(filled, time=1.0, kind=events.NOTICE, data={"text": "x"}, experiment_id="0therOne")
    assert read(filled).revision == before
    events.append(filled, time=1.0, kind=events.NOTICE, data={"text": "x"}, experiment_id=E)
    assert read(filled).revision > before


def test_some_trials_are_found_by_their_ids_and_only_those_of_the_experiment(filled: sqlite3.Connection) -> None:
    statements: list[str] = []
    filled.set_trace_callback(statements.append)
    found = read(filled, trial_ids=["trial0002", "trial0000", "trial0009", "nonesuch"], columns=["no"])
    filled.set_trace_callback(None)
    assert (column(found, "no"), found.matched, found.total) == ([0, 2], 2, 4)
    [statement] = [each for each in statements if "json_each" in each]
    plan = [row[3] for row in filled.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert plan[0] == "SEARCH t USING INDEX sqlite_autoindex_trials_1 (id=?)"


def test_equals_are_in_the_order_of_their_numbers_and_what_is_missing_comes_last(filled: sqlite3.Connection) -> None:
    assert numbers(filled, sort=["-lr"]) == [2, 3, 0, 1]
    assert numbers(filled, sort=["model", "-no"]) == [3, 1, 2, 0]
    assert numbers(filled, sort=["value"]) == numbers(filled, sort=["-value"]) == [0, 1, 2, 3]
    assert numbers(filled, sort=["model.width"]) == [2, 0, 1, 3]


def test_a_part_of_the_table_says_how_many_there_are(filled: sqlite3.Connection) -> None:
    found = read(filled, filter="lr > 0.05", sort=["no"], columns=["no"], offset=1, limit=1)
    assert (found.total, found.matched, column(found, "no")) == (4, 3, [2])
    assert read(filled, offset=10).matched == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status = succeeded", [0]),
        ("status in (RUNNING, waiting)", [2, 3]),
        ("node = node-0 and not status = RUNNING", [0]),
        ("time > 3600", [2]),
        ("gpu-hours > 1", [2]),
        ("ended < 1970-01-01T00:17:00Z", [1]),
        ("ended < '1970-01-01T01:17:00+01:00'", [1]),
        ("id ~ 0003", [3]),
        ("id ~ TRIAL", [0, 1, 2, 3]),
        ("reason ~ 'EXIT code'", [1]),
        ("model = mlp and model.width >= 64", [0]),
        ("parameter.model.width is null", [1, 3]),
        ("value.loss < 0.5", [0]),
        ("lr != 0.2", [0, 1]),
        ("not value < 0.5", [0, 1, 2, 3]),
    ],
)
def test_filters(filled: sqlite3.Connection, text: str, expected: list[int]) -> None:
    assert numbers(filled, filter=text) == expected


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("status = SUCCEDED", 9, "expected a status: WAITING, .*found 'SUCCEDED'; did you mean SUCCEEDED?"),
        ("no = 1 and lrr < 1", 11, "filter: expected a column, found 'lrr'; did you mean lr\\? .position 11."),
        (
            "zzz = 3",
            0,
            "expected one of the columns no, id, .*parameter.lr, .*value.loss, found 'zzz'",
        ),
        ("modl.width = 3", 0, "did you mean model.width?"),
        ("parameter.lrr = 3", 0, "did you mean parameter.lr?"),
        ("value.los = 3", 0, "did you mean value.loss?"),
        ("value = high", 8, "expected a number for value, found 'high'"),
        ("value = '0.5'", 8, "expected a number for value, found '0.5'"),
        ("value ~ 5", 6, "expected one of = != < <= > >= after value, found '~'"),
        ("status < RUNNING", 7, "expected one of = != ~ after status, found '<'"),
        ("created > yesterday", 10, "expected a time for created, such as 2026-11-24 or"),
        ("created > 12", 10, "expected a time for created"),
        ("value in (1, x)", 13, "expected a number for value, found 'x'"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused_with_its_place(
    filled: sqlite3.Connection, text: str, position: int, message: str
) -> None:
    with pytest.raises(QueryRefused, match=message) as refused:
        read(filled, filter=text)
    assert (refused.value.key, refused.value.position) == ("filter", position)


@pytest.mark.parametrize(
    ("asked", "key", "position"),
    [({"sort": ["no", "-lrr"]}, "sort", 1), ({"columns": ["no", "value.*", "lrr"]}, "columns", 11)],
)
def test_an_unknown_column_is_refused_wherever_it_is_named(
    filled: sqlite3.Connection, asked: dict[str, Any], key: str, position: int
) -> None:
    with pytest.raises(QueryRefused, match=r"did you mean lr\?") as refused:
        read(filled, **asked)
    assert (refused.value.key, refused.value.position) == (key, position)


def test_without_trials_every_name_is_accepted(
    control: sqlite3.Connection, make_experiment: Callable[..., ExperimentRow]
) -> None:
    experiments.insert(control, make_experiment())
    found = read(control, filter="lr < 1 or value.loss is null", sort=["-momentum"], columns=["no", "lr"])
    assert (found.rows, found.total, found.matched) == (0, 0, 0)
    assert [each.name for each in found.columns] == ["no", "parameter.lr"]


def test_a_long_filter_is_within_what_sqlite_takes(filled: sqlite3.Connection) -> None:
    assert numbers(filled, filter=" or ".join(["lr = 0.1"] * MAX_TESTS)) == [0]
    assert numbers(filled, filter="(" * 50 + "lr = 0.1" + ")" * 50) == [0]
    assert numbers(filled, filter="no in (" + ", ".join(["0"] * 1000) + ")") == [0]


def test_parameters_that_are_no_mapping_are_one_column(
    control: sqlite3.Connection, make_experiment: Callable[..., ExperimentRow], make_trial: Callable[..., TrialRow]
) -> None:
    experiments.insert(control, make_experiment())
    for number, parameters in enumerate([[1, "two"], 0.5, None, {"lr": 1}, "word"]):
        trials.insert(control, make_trial(number, parameters=parameters))
    found = read(control)
    assert column(found, "parameter") == [[1, "two"], 0.5, None, None, "word"]
    assert column(found, "parameter.lr") == [None, None, None, 1, None]
    assert numbers(control, filter="parameter < 1") == [1]


def test_numbers_that_are_not_finite_are_missing(
    control: sqlite3.Connection, make_experiment: Callable[..., ExperimentRow], make_trial: Callable[..., TrialRow]
) -> None:
    experiments.insert(control, make_experiment())
    for number, rate in enumerate([0.5, float("nan"), float("-inf")]):
        data = {"default": rate, "loss": rate}
        trials.insert(control, make_trial(number, parameters={"lr": rate}, final_data=data))
    found = {each.name: each for each in read(control).columns}
    assert (found["parameter.lr"].type, found["parameter.lr"].values) == ("number", [0.5, None, None])
    assert (found["value.loss"].type, found["value.loss"].values) == ("number", [0.5, None, None])


def test_a_flood_of_names_does_not_become_a_flood_of_columns(
    control: sqlite3.Connection, make_experiment: Callable[..., ExperimentRow], make_trial: Callable[..., TrialRow]
) -> None:
    experiments.insert(control, make_experiment())
    for number in range(5):
        parameters = {f"p{number}_{place}": place for place in range(300)}
        trials.insert(control, make_trial(number, parameters=parameters))
    found = read(control, columns=["parameter.*"])
    assert len(found.columns) == table.MAX_COLUMNS
    assert {len(each.values) for each in found.columns} == {5}


def test_pages_with_a_filter_follow_each_other_whatever_the_order(filled: sqlite3.Connection) -> None:
    asked: dict[str, Any] = {"now": NOW, "filter": "lr > 0.05", "sort": "-lr", "limit": 2}
    first = table.page(filled, E, **asked)
    assert [row.sequence_id for row in first.items] == [2, 3]
    rest = table.page(filled, E, **asked, cursor=first.next_cursor)
    assert ([row.sequence_id for row in rest.items], rest.next_cursor) == ([0], None)
    narrowed = table.page(filled, E, **asked, statuses=[TrialStatus.WAITING])
    assert [row.sequence_id for row in narrowed.items] == [3]


@pytest.mark.parametrize("cursor", ["x", "e30", "WyItbHIiLCAxLCAtNV0", "WyItbHIiLCAxLCBudWxsXQ"])
def test_a_cursor_from_elsewhere_is_refused(filled: sqlite3.Connection, cursor: str) -> None:
    with pytest.raises(BadCursor):
        table.page(filled, E, now=NOW, sort="-lr", cursor=cursor, limit=2)
