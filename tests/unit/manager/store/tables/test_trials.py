"""The trials table: guarded moves, counts, the best, curves, answers."""

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.connections import open_writer
from proctor.manager.store.errors import RowNotFound, StaleWrite
from proctor.manager.store.rows import ExperimentRow, TrialRow
from proctor.manager.store.tables import events, experiments, trials

MakeTrial = Callable[..., TrialRow]
E = "Ab3dE5f7"

pytestmark = pytest.mark.usefixtures("experiment")


def _finished(make_trial: MakeTrial, sequence_id: int, value: float | None, **columns: object) -> TrialRow:
    fixed = {"status": TrialStatus.SUCCEEDED, "final_value": value, "final_data": value, "ended_at": 5000.0}
    return make_trial(sequence_id, **(fixed | columns))


def test_a_trial_comes_back_as_it_was_inserted_and_its_sequence_id_is_given_once(
    control: sqlite3.Connection, make_trial: MakeTrial
) -> None:
    row = make_trial(3, state={"seen": 1}, position=4)
    trials.insert(control, row)
    assert trials.get(control, row.id) == row
    event = events.after(control, 1, limit=10)[0]
    assert (event.kind, event.trial_id, event.data["sequence_id"]) == ("trial.status", row.id, 3)
    with pytest.raises(sqlite3.IntegrityError):
        trials.insert(control, make_trial(3, id="another"))


def test_a_move_changes_the_row_and_tells_of_it(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    trials.insert(control, make_trial(0))
    trials.move(
        control,
        "trial0000",
        expected={TrialStatus.WAITING},
        status=TrialStatus.RUNNING,
        reason="on node n1",
        time=7.0,
        started_at=6.5,
        jobs=1,
    )
    row = trials.get(control, "trial0000")
    assert (row.status, row.reason, row.started_at, row.jobs) == (TrialStatus.RUNNING, "on node n1", 6.5, 1)
    event = events.after(control, 2, limit=10)[0]
    assert (event.time, event.data) == (7.0, {"status": "RUNNING", "reason": "on node n1", "sequence_id": 0})


def test_nothing_leaves_a_status_that_was_not_expected(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    trials.insert(control, make_trial(0, status=TrialStatus.SUCCEEDED))
    with pytest.raises(StaleWrite, match="Trial trial0000 was expected to be WAITING or RUNNING; it is SUCCEEDED"):
        trials.move(
            control,
            "trial0000",
            expected=[TrialStatus.WAITING, TrialStatus.RUNNING],
            status=TrialStatus.FAILED,
            reason="",
            time=7.0,
        )
    assert trials.get(control, "trial0000").status is TrialStatus.SUCCEEDED


def test_an_update_needs_its_trial_and_leaves_the_status_alone(
    control: sqlite3.Connection, make_trial: MakeTrial
) -> None:
    trials.insert(control, make_trial(0))
    last = events.last_id(control)
    trials.update(control, "trial0000", intermediate_count=4, latest_value=0.25)
    trials.update(control, "trial0000")
    row = trials.get(control, "trial0000")
    assert (row.intermediate_count, row.latest_value, events.last_id(control)) == (4, 0.25, last)
    with pytest.raises(RowNotFound):
        trials.update(control, "unknown", intermediate_count=1)
    with pytest.raises(TypeError, match="move"):
        trials.update(control, "trial0000", status=TrialStatus.FAILED)


def test_the_live_ones_have_neither_ended_nor_been_paused(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    for number, status in enumerate(TrialStatus):
        trials.insert(control, make_trial(number, status=status))
    found = [row.status for row in trials.live(control, E)]
    assert found == [TrialStatus.WAITING, TrialStatus.RUNNING]
    ids = [make_trial(number).id for number, _ in enumerate(TrialStatus)]
    (paused,) = trials.paused(control, E, ids)
    assert paused.status is TrialStatus.PAUSED
    assert trials.paused(control, E, ["trial0000"]) == []


def test_paused_trials_are_found_by_who_has_paused_them(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    for number, paused_by in enumerate(PausedBy):
        trials.insert(control, make_trial(number, status=TrialStatus.PAUSED, paused_by=paused_by))
        trials.insert(control, make_trial(10 + number, status=TrialStatus.RUNNING, paused_by=paused_by))
        assert trials.count_paused_by(control, E, paused_by) == 1
    (with_experiment,) = trials.paused_with_experiment(control, E)
    (by_scheduler,) = trials.paused_by_scheduler(control, E, 10)
    assert (with_experiment.paused_by, by_scheduler.paused_by) == (PausedBy.EXPERIMENT, PausedBy.SCHEDULER)
    assert trials.is_paused_otherwise(control, E)


def test_ids_are_found_by_prefix(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    for number in (1, 2, 11):
        trials.insert(control, make_trial(number))
    assert [row.sequence_id for row in trials.find_by_prefix(control, "trial000")] == [1, 2]


_STATUSES = st.sampled_from(list(TrialStatus))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 9), _STATUSES),
        st.tuples(st.just("move"), st.integers(0, 9), _STATUSES),
        st.tuples(st.just("undo"), st.integers(0, 9), _STATUSES),
        st.tuples(st.just("delete"), st.integers(0, 9), _STATUSES),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 5)
@given(steps=_STEPS)
def test_counts_are_right_whatever_happens_to_trials(
    steps: list[tuple[str, int, TrialStatus]],
    make_experiment: Callable[..., ExperimentRow],
    make_trial: MakeTrial,
) -> None:
    there: dict[int, TrialStatus] = {}
    with tempfile.TemporaryDirectory() as folder:
        connection = open_writer(f"{folder}/control.db", "control")
        experiments.insert(connection, make_experiment())
        for action, number, status in steps:
            if action == "insert" and number not in there:
                trials.insert(connection, make_trial(number, status=status))
                there[number] = status
            elif action == "move" and number in there:
                _move(connection, number, there[number], status)
                there[number] = status
            elif action == "undo" and number in there:
                connection.execute("SAVEPOINT here")
                _move(connection, number, there[number], status)
                connection.execute("ROLLBACK TO here")
                connection.execute("RELEASE here")
            elif action == "delete":
                connection.execute("DELETE FROM trials WHERE id = ?", (f"trial{number:04d}",))
                there.pop(number, None)
            assert trials.counts(connection, E) == Counter(there.values())
        connection.close()


def _move(connection: sqlite3.Connection, number: int, old: TrialStatus, new: TrialStatus) -> None:
    trials.move(connection, f"trial{number:04d}", expected=[old], status=new, reason="", time=1.0)


@pytest.mark.parametrize(("maximize", "expected"), [(True, "trial0002"), (False, "trial0001")])
def test_the_best_is_the_earliest_of_the_best_that_may_be(
    control: sqlite3.Connection, make_trial: MakeTrial, maximize: bool, expected: str
) -> None:
    for number, (value, status) in enumerate(
        [
            (0.5, TrialStatus.SUCCEEDED),
            (0.1, TrialStatus.EARLY_STOPPED),
            (0.9, TrialStatus.EARLY_STOPPED),
            (0.9, TrialStatus.SUCCEEDED),
            (0.1, TrialStatus.SUCCEEDED),
            (99.0, TrialStatus.FAILED),
            (-99.0, TrialStatus.RUNNING),
        ]
    ):
        trials.insert(control, _finished(make_trial, number, value, status=status))
    trials.insert(control, _finished(make_trial, 7, None, final_data="NaN"))
    best = trials.best(control, E, maximize)
    assert best is not None
    assert best.id == expected


def test_without_values_there_is_no_best(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    trials.insert(control, _finished(make_trial, 0, None))
    assert trials.best(control, E, True) is None
    assert trials.best_curve(control, E, True) == []


def test_the_curve_follows_the_ends_of_trials(control: sqlite3.Connection, make_trial: MakeTrial) -> None:
    for number, (ended_at, value) in enumerate([(30.0, 0.2), (10.0, 0.5), (20.0, 0.4), (40.0, 0.6)]):
        trials.insert(control, _finished(make_trial, number, value, ended_at=ended_at))
    trials.insert(control, _finished(make_trial, 4, 0.9, ended_at=35.0, status=TrialStatus.FAILED))
    trials.insert(control, _finished(make_trial, 5, None, ended_at=15.0, status=TrialStatus.EARLY_STOPPED))
    trials.insert(control, make_trial(6))
    curve = trials.best_curve(control, E, True)
    assert [(point.sequence_id, point.place, point.value, point.best) for point in curve] == [
        (1, 1, 0.5, 0.5),
        (2, 3, 0.4, 0.5),
        (0, 4, 0.2, 0.5),
        (3, 6, 0.6, 0.6),
    ]
    assert [point.best for point in trials.best_curve(control, E, False)] == [0.5, 0.4, 0.2, 0.2]
