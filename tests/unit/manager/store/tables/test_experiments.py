"""The experiments table: guarded moves, counters, limits, pages, deletion."""

import sqlite3
from collections.abc import Callable
from functools import partial

import pytest

from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store.errors import RowNotFound, StaleWrite
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, experiments, jobs, trials

MakeExperiment = Callable[..., ExperimentRow]
RUNNING = ExperimentStatus.RUNNING


def test_an_experiment_comes_back_as_it_was_inserted_and_its_first_status_is_told(
    control: sqlite3.Connection, experiment: ExperimentRow
) -> None:
    assert experiments.get(control, experiment.id) == experiment
    [event] = events.after(control, 0, limit=10)
    assert (event.kind, event.experiment_id, event.data["status"]) == ("experiment.status", experiment.id, "RUNNING")


def test_a_used_id_is_refused(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        experiments.insert(control, experiment)


def test_a_move_changes_the_row_and_tells_of_it(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    row = experiments.move(
        control,
        experiment.id,
        expected={ExperimentStatus.RUNNING},
        status=ExperimentStatus.ERROR,
        reason="the tuner raised",
        time=2000.0,
        error="Traceback",
        ended_at=2000.0,
    )
    assert (row.status, row.reason, row.error, row.ended_at) == ("ERROR", "the tuner raised", "Traceback", 2000.0)
    assert experiments.get(control, experiment.id) == row
    event = events.after(control, 1, limit=10)[0]
    assert (event.time, event.data) == (2000.0, {"status": "ERROR", "reason": "the tuner raised"})


def test_a_move_from_another_status_changes_nothing(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    with pytest.raises(StaleWrite, match="Experiment Ab3dE5f7 was expected to be PAUSED; it is RUNNING"):
        experiments.move(
            control,
            experiment.id,
            expected={ExperimentStatus.PAUSED},
            status=ExperimentStatus.RUNNING,
            reason="",
            time=1.0,
        )
    assert experiments.get(control, experiment.id) == experiment
    assert events.last_id(control) == 1


def test_counters_are_set_without_an_event_and_are_not_a_way_around_the_guard(
    control: sqlite3.Connection, experiment: ExperimentRow
) -> None:
    experiments.set_counters(control, experiment.id, next_sequence_id=5, active_seconds=1.5)
    row = experiments.get(control, experiment.id)
    assert (row.next_sequence_id, row.active_seconds, row.next_position) == (5, 1.5, 1)
    assert events.last_id(control) == 1
    with pytest.raises(TypeError, match="'status' cannot be set here"):
        experiments.set_counters(control, experiment.id, status=ExperimentStatus.DONE)


def test_limits_count_their_revisions_and_tell_of_them(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    row = experiments.set_limits(control, experiment.id, time=3.0, max_trial_number=9, search_space={"x": 1})
    assert (row.max_trial_number, row.search_space, row.revision) == (9, {"x": 1}, 2)
    assert experiments.set_limits(control, experiment.id, time=4.0, max_trial_number=None).max_trial_number is None
    reported = events.after(control, 1, limit=10)
    assert [event.kind for event in reported] == ["limits", "limits"]
    assert reported[0].data == {"max_trial_number": 9, "search_space": {"x": 1}, "revision": 2}


@pytest.mark.parametrize(
    "act",
    [
        experiments.get,
        partial(experiments.move, expected=[RUNNING], status=RUNNING, reason="", time=1.0),
        partial(experiments.set_limits, time=1.0, max_trial_number=1),
        partial(experiments.delete, time=9.0),
    ],
    ids=["get", "move", "set limits", "delete"],
)
def test_an_unknown_experiment_is_named(control: sqlite3.Connection, act: Callable[..., object]) -> None:
    with pytest.raises(RowNotFound, match="Experiment unknown is not in the store"):
        act(control, "unknown")


def test_the_active_ones_are_those_an_engine_works_on(
    control: sqlite3.Connection, make_experiment: MakeExperiment
) -> None:
    for status in ExperimentStatus:
        experiments.insert(control, make_experiment(status.value, status=status))
    found = {row.status for row in experiments.active(control)}
    assert found == {status for status in ExperimentStatus if status.is_active}


@pytest.mark.parametrize(("prefix", "found"), [("ab", ["ab1", "ab2"]), ("ab1", ["ab1"]), ("b", []), ("a%", [])])
def test_ids_are_found_by_prefix(
    control: sqlite3.Connection, make_experiment: MakeExperiment, prefix: str, found: list[str]
) -> None:
    for experiment_id in ("AB0", "ab1", "ab2", "ac3"):
        experiments.insert(control, make_experiment(experiment_id))
    assert [row.id for row in experiments.find_by_prefix(control, prefix)] == found


def test_pages_hold_every_experiment_once_newest_first(
    control: sqlite3.Connection, make_experiment: MakeExperiment
) -> None:
    for number in range(10):  # two of each age
        experiments.insert(control, make_experiment(f"e{number}", created_at=100.0 + number // 2))
    first = experiments.page(control, limit=4)
    experiments.insert(control, make_experiment("new", created_at=200.0))
    second = experiments.page(control, cursor=first.next_cursor, limit=4)
    third = experiments.page(control, cursor=second.next_cursor, limit=4)
    assert "".join(row.id for page in (first, second, third) for row in page.items) == "e9e8e7e6e5e4e3e2e1e0"
    assert third.next_cursor is None


def test_pages_can_be_of_some_statuses_and_of_a_name(
    control: sqlite3.Connection, make_experiment: MakeExperiment
) -> None:
    experiments.insert(control, make_experiment("a", status=ExperimentStatus.DONE))
    experiments.insert(control, make_experiment("b", status=ExperimentStatus.DONE, name="other"))
    experiments.insert(control, make_experiment("c"))
    done = experiments.page(control, statuses=[ExperimentStatus.DONE], limit=10)
    assert {row.id for row in done.items} == {"a", "b"}
    named = experiments.page(control, statuses=[ExperimentStatus.DONE], name="digits", limit=10)
    assert ([row.id for row in named.items], named.next_cursor) == (["a"], None)


def test_deleting_leaves_nothing_but_the_news(
    control: sqlite3.Connection,
    experiment: ExperimentRow,
    make_experiment: MakeExperiment,
    make_trial: Callable[..., TrialRow],
    make_job: Callable[..., TrialJobRow],
) -> None:
    experiments.insert(control, make_experiment("kept"))
    for owner, trial in ((experiment.id, make_trial(0)), ("kept", make_trial(1, experiment_id="kept"))):
        trials.insert(control, trial)
        jobs.insert(control, make_job(trial))
        dispatcher_inputs.append(control, owner, 1, "RequestTrialJobs", {})
    experiments.delete(control, experiment.id, time=9.0)
    for table in ("trials", "trial_jobs", "dispatcher_inputs", "trial_counts"):
        assert control.execute(f"SELECT DISTINCT experiment_id FROM {table}").fetchall() == [("kept",)]
    [event] = events.after(control, 0, experiment_id=experiment.id, limit=10)
    assert (event.kind, event.time) == ("experiment.deleted", 9.0)
