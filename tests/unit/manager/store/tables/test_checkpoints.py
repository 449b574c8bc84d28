"""Checkpoints as their retention sees them: their metrics, what is kept, what all take, deletion in two steps."""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proctor.manager.lifecycle.checkpoints import Expendability
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import CheckpointRow, DecisionRow, ExperimentRow, TrialRow
from proctor.manager.store.tables import checkpoints, dispatcher_inputs, metrics, trials


def register(connection: sqlite3.Connection, *records: dict[str, Any], job: int = 1, **names: Any) -> Any:
    """Store records of a job in one chunk; returns what was new."""
    member, trial_id = names.pop("member", 0), names.pop("trial_id", "t0")
    data = "".join(json.dumps({"time": 1.0, **record}) + "\n" for record in records).encode()
    offset = metrics.offset_of(connection, trial_id, job, member)
    where: dict[str, Any] = {"trial_id": trial_id, "job": job, "member": member, "offset": offset}
    return metrics.store_chunk(connection, **where, data=data, **names)


def metric(value: Any) -> dict[str, Any]:
    return {"kind": "intermediate", "value": value}


def saved(number: int, size: int | None = 100) -> dict[str, Any]:
    named = {} if size is None else {"bytes": size}
    return {"kind": "checkpoint", "path": f"output/checkpoints/{number}", **named}


def ids(rows: list[CheckpointRow]) -> list[int]:
    return [row.id for row in rows]


def test_a_checkpoint_has_the_value_of_the_metric_before_it(metrics_database: sqlite3.Connection) -> None:
    chunk = register(metrics_database, saved(1), metric(0.5), saved(2), metric({"default": 0.7, "loss": 3}), saved(3))
    assert [row.value for row in chunk.checkpoints] == [None, 0.5, 0.7]
    assert [row.value for row in register(metrics_database, saved(4)).checkpoints] == [0.7]  # of an earlier chunk
    assert [row.value for row in register(metrics_database, metric("NaN"), saved(5)).checkpoints] == [None]
    assert [row.value for row in register(metrics_database, saved(1), job=1, member=1).checkpoints] == [None]
    register(metrics_database, metric(0.9))
    assert [row.value for row in register(metrics_database, saved(2), member=1).checkpoints] == [0.9]


def test_a_resumed_job_begins_with_the_value_before_its_point(metrics_database: sqlite3.Connection) -> None:
    register(metrics_database, metric(0.1), metric(0.2), metric(0.3))
    chunk = register(metrics_database, saved(1), job=2, first_sequence=2)
    assert [row.value for row in chunk.checkpoints] == [0.2]


def test_all_records_of_a_folder_are_deleted_together_and_the_total_shrinks(
    metrics_database: sqlite3.Connection,
) -> None:
    register(metrics_database, saved(1, 10), saved(2, 20), saved(2, 20), saved(3, None))
    register(metrics_database, saved(1, 5), trial_id="t1")
    assert checkpoints.total_bytes(metrics_database) == 55
    rows = checkpoints.kept(metrics_database, "t0")
    checkpoints.delete(metrics_database, [rows[1], rows[3]], time=7.0)
    checkpoints.delete(metrics_database, [rows[1]], time=8.0)
    assert ids(checkpoints.kept(metrics_database, "t0")) == [1]
    assert [row.deleted_at for row in metrics.checkpoints(metrics_database, "t0", limit=9)] == [None, 7.0, 7.0, 7.0]
    assert checkpoints.total_bytes(metrics_database) == 15
    assert ids(checkpoints.to_remove(metrics_database)) == [2, 3, 4]
    checkpoints.confirm_removal(metrics_database, rows[2], time=9.0)
    checkpoints.confirm_removal(metrics_database, rows[0], time=9.0)  # not deleted: nothing to confirm
    assert ids(checkpoints.to_remove(metrics_database)) == [4]
    assert checkpoints.get(metrics_database, 2).removed_at == 9.0
    assert checkpoints.get(metrics_database, 1).removed_at is None
    with pytest.raises(RowNotFound):
        checkpoints.get(metrics_database, 99)


def test_what_was_not_decided_over_is_found_by_its_trial(metrics_database: sqlite3.Connection) -> None:
    for number in range(4):
        register(metrics_database, saved(1), trial_id=f"t{number}")
    ranks = [Expendability.OF_ENDED, Expendability.NEVER, Expendability.BEST_OF_ENDED, None]
    decided = {number: rank for number, rank in enumerate(ranks, start=1) if rank is not None}
    checkpoints.set_expendable(metrics_database, decided)
    assert sorted(checkpoints.undecided(metrics_database)) == ["t1", "t3"]
    assert ids(checkpoints.expendable(metrics_database, Expendability.OF_ENDED, limit=5)) == [1]
    checkpoints.delete(metrics_database, checkpoints.kept(metrics_database, "t0"), time=1.0)
    assert checkpoints.expendable(metrics_database, Expendability.OF_ENDED, limit=5) == []


def test_the_best_is_the_one_with_the_best_value(metrics_database: sqlite3.Connection) -> None:
    assert checkpoints.best(metrics_database, maximize=True) is None
    register(metrics_database, saved(1), metric(0.5), saved(2), metric(0.9), saved(3), metric(0.7), saved(4))
    assert checkpoints.best(metrics_database, maximize=True) == 3
    assert checkpoints.best(metrics_database, maximize=False) == 2
    checkpoints.delete(metrics_database, [checkpoints.get(metrics_database, 3)], time=1.0)
    assert checkpoints.best(metrics_database, maximize=True) == 4


def test_origins_are_those_of_trials_that_have_not_ended(
    control: sqlite3.Connection, experiment: ExperimentRow, make_trial: Callable[..., TrialRow]
) -> None:
    clone = make_trial(
        1, origin_trial="donor", origin_job="donor.1", origin_checkpoint="/e/1", status=TrialStatus.PAUSED
    )
    ended = replace(clone, id="trial2", sequence_id=2, origin_checkpoint="/e/2", status=TrialStatus.SUCCEEDED)
    retried = replace(clone, id="trial3", sequence_id=3, origin_job=None, origin_checkpoint=None)
    for row in (clone, ended, retried):
        trials.insert(control, row)
    assert trials.origins(control, ["donor", "other"]) == {("donor", "/e/1")}
    assert trials.origins(control, []) == set()


def test_what_a_trial_last_continued_from_by_decision_is_an_origin(
    control: sqlite3.Connection, experiment: ExperimentRow, make_trial: Callable[..., TrialRow]
) -> None:
    trial = make_trial(1)
    trials.insert(control, trial)

    def decide(parameter_id: int, donor: str | None, job: int | None) -> None:
        row = DecisionRow(experiment.id, parameter_id, parameter_id, DecisionKind.CLONE, trial.id, 1.0, job=job)
        if donor is not None:
            row = replace(row, donor_trial="x", donor_job=f"{donor}.3", donor_checkpoint=f"/e/{parameter_id}")
        dispatcher_inputs.record(control, row)

    decide(1, "donor1", 2)
    decide(2, "donor2", 3)
    decide(3, "donor3", 0)  # it came too late
    decide(4, None, 4)  # from the start
    donors = ["donor1", "donor2", "donor3", "donor4"]
    assert trials.origins(control, donors) == {("donor2", "/e/2")}
    decide(5, "donor4", None)  # to be carried out
    assert trials.origins(control, donors) == {("donor2", "/e/2"), ("donor4", "/e/5")}
    assert sorted(trials.donors(control, [trial.id])) == donors
    trials.move(control, trial.id, expected=list(TrialStatus), status=TrialStatus.FAILED, reason="", time=2.0)
    assert trials.origins(control, donors) == set()
