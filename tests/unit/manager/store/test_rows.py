"""Rows mirror the tables and keep what they were given."""

import dataclasses
import sqlite3
from collections.abc import Callable

import pytest

from proctor.manager.store.rows import (
    CheckpointRow,
    EventRow,
    ExperimentRow,
    InputRow,
    MetricRow,
    NodeRow,
    Row,
    TrialJobRow,
    TrialRow,
    bind,
)
from proctor.manager.store.statements import query_with
from proctor.training_services.base import EndReason, TrialJobStatus

CONTROL_TABLES: dict[str, type[Row]] = {
    "experiments": ExperimentRow,
    "trials": TrialRow,
    "trial_jobs": TrialJobRow,
    "dispatcher_inputs": InputRow,
    "events": EventRow,
    "nodes": NodeRow,
}
METRICS_TABLES: dict[str, type[Row]] = {"metrics": MetricRow, "checkpoints": CheckpointRow}


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


@pytest.mark.parametrize("table", CONTROL_TABLES)
def test_a_row_has_the_columns_of_its_control_table_in_order(control: sqlite3.Connection, table: str) -> None:
    assert [item.name for item in dataclasses.fields(CONTROL_TABLES[table])] == _columns(control, table)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", METRICS_TABLES)
def test_a_row_has_the_columns_of_its_metrics_table_in_order(metrics_database: sqlite3.Connection, table: str) -> None:
    assert [item.name for item in dataclasses.fields(METRICS_TABLES[table])] == _columns(metrics_database, table)  # type: ignore[arg-type]


def test_a_job_with_everything_set_comes_back_as_it_was(
    control: sqlite3.Connection,
    experiment: ExperimentRow,
    make_trial: Callable[..., TrialRow],
    make_job: Callable[..., TrialJobRow],
) -> None:
    trial = make_trial(0, state={"generation": [1, 2]}, final_data={"default": 0.5, "loss": [1, 2]}, final_value=0.5)
    job = make_job(
        trial,
        members=2,
        status=TrialJobStatus.ENDED,
        stop_reason=EndReason.USER_CANCELED,
        end_reason=EndReason.SIGNALED,
        placement={"node_id": "n1", "gpus": [["GPU-1", 0]]},
        exit_code=None,
        signal=9,
        submitted_at=1.5,
    )
    for table, row in (("trials", trial), ("jobs", job)):
        columns = row.to_columns()
        control.execute(query_with(f"{table}.insert", columns), columns)
    assert TrialRow.from_row(control.execute("SELECT * FROM trials").fetchone()) == trial
    found = TrialJobRow.from_row(control.execute("SELECT * FROM trial_jobs").fetchone())
    assert found == job
    assert isinstance(found.end_reason, EndReason)
    assert isinstance(found.status, TrialJobStatus)


def test_numbers_that_json_lacks_are_stored_as_words(make_trial: Callable[..., TrialRow]) -> None:
    row = make_trial(0, final_data={"default": float("nan"), "rest": [float("inf"), -float("inf"), 1.0]})
    assert row.to_columns()["final_data"] == '{"default":"NaN","rest":["Infinity","-Infinity",1.0]}'


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(TypeError, match="TrialRow has no column 'finalvalue'"):
        bind(TrialRow, {"finalvalue": 1.0})


def test_a_metric_says_what_was_reported() -> None:
    plain = MetricRow(1, "t", 1, 0, 0, "final", 0, None, 0.5)
    rich = dataclasses.replace(plain, data={"default": 0.5, "loss": 1})
    unwritten = dataclasses.replace(plain, value=None, data="NaN")
    assert [row.reported for row in (plain, rich, unwritten)] == [0.5, {"default": 0.5, "loss": 1}, "NaN"]
