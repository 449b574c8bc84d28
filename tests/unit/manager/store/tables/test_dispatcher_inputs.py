"""What requests for trials are answered by: new trials, and decisions on trials that exist."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proctor.manager.lifecycle.trial import DecisionKind
from proctor.manager.store.rows import DecisionRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, jobs, trials

E = "Ab3dE5f7"
MakeTrial = Callable[..., TrialRow]
MakeJob = Callable[..., TrialJobRow]
pytestmark = pytest.mark.usefixtures("experiment")


def test_answers_are_those_of_one_request(
    control: sqlite3.Connection, make_trial: MakeTrial, make_job: MakeJob
) -> None:
    for number, position in enumerate([7, 7, 8, None]):
        row = make_trial(number, position=position, parameter_id=10 - number, parameters={"x": number}, state=[number])
        trials.insert(control, row)
    dispatcher_inputs.append(control, E, 7, "RequestTrialJobs", {"parameter_ids": [9, 10, 11, 12, 13]})
    assert dispatcher_inputs.suggestions(control, E, 7) == [(9, {"x": 1}, [1]), (10, {"x": 0}, [0])]
    assert dispatcher_inputs.suggestions(control, E, 99) == []
    assert dispatcher_inputs.unanswered(control, E) == {11, 12, 13}


def test_requests_that_are_part_of_a_saved_state_are_answered(
    control: sqlite3.Connection, make_trial: MakeTrial, make_job: MakeJob
) -> None:
    """What had no answer by then was declined. The trials that those behind it began may have been cloned since."""
    first, second = (make_trial(number, position=7 + number, parameter_id=20 + number) for number in range(2))
    for row in (first, second):
        trials.insert(control, row)
    jobs.insert(control, make_job(second, parameter_id=21))
    dispatcher_inputs.append(control, E, 7, "RequestTrialJobs", {"parameter_ids": [20, 30]})
    dispatcher_inputs.append(control, E, 8, "RequestTrialJobs", {"parameter_ids": [21, 31]})
    dispatcher_inputs.append(control, E, 9, "RequestTrialJobs", {"parameter_ids": [22]})
    dispatcher_inputs.record(control, replace(_decision(22, second), position=9))
    trials.update(control, second.id, parameter_id=22)
    assert dispatcher_inputs.unanswered(control, E) == {30, 31}
    dispatcher_inputs.save_state(control, E, 7, "{}")
    assert dispatcher_inputs.unanswered(control, E) == {31}


def _decision(parameter_id: int, trial: TrialRow, **columns: Any) -> DecisionRow:
    return DecisionRow(E, parameter_id, 7, DecisionKind.CLONE, trial.id, 5.0, {"x": 9}, **columns)


def test_a_clone_answers_a_request_and_leaves_the_suggestion_it_replaces(
    control: sqlite3.Connection, make_trial: MakeTrial, make_job: MakeJob
) -> None:
    row = make_trial(0, position=7, parameter_id=10, parameters={"x": 0})
    trials.insert(control, row)
    jobs.insert(control, make_job(row, parameter_id=10, parameters={"x": 0}))
    dispatcher_inputs.append(control, E, 7, "RequestTrialJobs", {"parameter_ids": [10, 11, 12]})
    donor = {"donor_trial": "d", "donor_job": "d.1", "donor_checkpoint": "/d/1", "donor_sequence": 3}
    decision = _decision(11, row, state={"a": 1}, **donor)
    dispatcher_inputs.record(control, decision)
    with pytest.raises(sqlite3.IntegrityError):
        dispatcher_inputs.record(control, decision)
    assert dispatcher_inputs.decisions(control, E, 7) == [decision]
    assert dispatcher_inputs.pending(control, [row.id, "other"]) == {row.id: decision}
    assert dispatcher_inputs.newest_clone(control, row.id, 2) is None
    dispatcher_inputs.carry_out(control, decision, 2)
    trials.update(control, row.id, parameter_id=11, parameters={"x": 9})
    assert dispatcher_inputs.pending(control, [row.id]) == {}
    assert dispatcher_inputs.newest_clone(control, row.id, 2) == replace(decision, job=2)
    assert dispatcher_inputs.newest_clone(control, row.id, 1) is None, "it had not been cloned by then"
    assert dispatcher_inputs.suggestions(control, E, 7) == [(10, {"x": 0}, None)]
    assert dispatcher_inputs.unanswered(control, E) == {12}


def test_a_decision_that_came_too_late_is_not_pending(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    row = make_trial(0)
    trials.insert(control, row)
    dispatcher_inputs.record(control, _decision(11, row, job=0))
    assert dispatcher_inputs.pending(control, [row.id]) == {}
    assert dispatcher_inputs.newest_clone(control, row.id, 1) is None
