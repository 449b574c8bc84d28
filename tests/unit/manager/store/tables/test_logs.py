"""The tables that only grow (inputs, events), and the nodes."""

import sqlite3

import pytest

from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import ExperimentRow, NodeRow
from proctor.manager.store.tables import dispatcher_inputs, events, experiments, nodes


def test_inputs_keep_their_order_and_their_words(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    for position in (2, 1, 3):
        dispatcher_inputs.append(control, experiment.id, position, "TrialEnd", {"value": float("nan"), "n": position})
    rows = dispatcher_inputs.after(control, experiment.id, 1, 10)
    assert [(row.position, row.kind, row.payload) for row in rows] == [
        (2, "TrialEnd", {"value": "NaN", "n": 2}),
        (3, "TrialEnd", {"value": "NaN", "n": 3}),
    ]
    assert [row.position for row in dispatcher_inputs.after(control, experiment.id, 0, 2)] == [1, 2]


def test_a_position_is_taken_once(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    dispatcher_inputs.append(control, experiment.id, 1, "TrialEnd", {})
    with pytest.raises(sqlite3.IntegrityError):
        dispatcher_inputs.append(control, experiment.id, 1, "ImportData", {})


def _append(connection: sqlite3.Connection, experiment_id: str | None = None) -> int:
    return events.append(connection, time=1.0, kind=events.NOTICE, data={"text": "hm"}, experiment_id=experiment_id)


def test_events_are_read_from_an_id_on(control: sqlite3.Connection) -> None:
    assert (events.pruned_to(control), events.last_id(control)) == (0, 0)
    ids = [_append(control, "a"), _append(control, "b"), _append(control), _append(control, "a")]
    assert ids == [1, 2, 3, 4]
    assert [row.id for row in events.after(control, 1, limit=2)] == [2, 3]
    assert [row.id for row in events.after(control, 1, experiment_id="a", limit=9)] == [4]
    assert events.after(control, 4, limit=9) == []


def _move(connection: sqlite3.Connection, experiment_id: str | None = None) -> int:
    return events.append(connection, time=1.0, kind=events.TRIAL_STATUS, data={}, experiment_id=experiment_id)


def _ids(connection: sqlite3.Connection) -> list[int]:
    return [row.id for row in events.after(connection, 0, limit=100_000)]


def test_old_events_are_pruned_a_few_at_a_time_and_their_ids_never_return(control: sqlite3.Connection) -> None:
    for _ in range(10):
        _move(control, "a")
    assert events.prune(control, 4, limit=5)
    assert (_ids(control), events.pruned_to(control)) == ([6, 7, 8, 9, 10], 5)
    assert not events.prune(control, 4, limit=5)
    assert (_ids(control), events.pruned_to(control)) == ([7, 8, 9, 10], 6)
    assert not events.prune(control, 4, limit=5)
    assert (_ids(control), events.pruned_to(control)) == ([7, 8, 9, 10], 6)
    assert not events.prune(control, 0, limit=5)
    assert (_ids(control), events.pruned_to(control), events.last_id(control)) == ([], 10, 10)
    assert _move(control) == 11


def test_pruning_passes_over_what_went_with_its_experiment(
    control: sqlite3.Connection, experiment: ExperimentRow
) -> None:
    for _ in range(10):
        _move(control, experiment.id)
    experiments.delete(control, experiment.id, time=2.0)
    _move(control, "b")
    last = events.last_id(control)
    assert events.prune(control, 1, limit=last - 2)
    assert not events.prune(control, 1, limit=last - 2)
    assert (_ids(control), events.pruned_to(control)) == ([last], last - 1)


def test_an_experiments_newest_notices_outlive_all_other_events(
    control: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEPT_NOTICES", 3)
    kept = [_append(control, "few")]
    noticed = [_append(control, "many") for _ in range(10)]
    _append(control)  # of no experiment: shown nowhere
    for _ in range(20):
        _move(control, "few")
    while events.prune(control, 0, limit=5):
        pass
    assert _ids(control) == [*kept, *noticed[-3:]]
    noticed += [_append(control, "many") for _ in range(2)]
    assert not events.prune(control, 0, limit=5)
    assert _ids(control) == [*kept, *noticed[-3:]]
    assert events.notices(control, "few") == ["hm"]


def test_one_pruning_costs_the_same_however_much_was_pruned_before(control: sqlite3.Connection) -> None:
    for index in range(3000):
        _append(control, f"e{index % 500}")
        _move(control)
    steps = []
    for _ in range(4):
        count = 0

        def step() -> None:
            nonlocal count
            count += 1

        control.set_progress_handler(step, 100)
        assert events.prune(control, 0, limit=500)
        control.set_progress_handler(None, 0)
        steps.append(count)
    assert steps[3] < 2 * steps[1]


def test_a_node_is_replaced_by_what_is_known_later(control: sqlite3.Connection) -> None:
    nodes.upsert(control, NodeRow("n2", "remote", "READY"))
    nodes.upsert(control, NodeRow("n1", "local", "READY", facts={"devices": []}, seen_at=1.0))
    lost = NodeRow("n2", "remote", "LOST", "silent for 60 s", {"devices": [1]}, 2.0)
    nodes.upsert(control, lost)
    assert [row.id for row in nodes.all(control)] == ["n1", "n2"]
    assert nodes.get(control, "n2") == lost
    with pytest.raises(RowNotFound):
        nodes.get(control, "n3")
