"""The tables that only grow (inputs, events), and the nodes."""

import sqlite3

import pytest

from proctor.manager.store import events, inputs, nodes
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import ExperimentRow, NodeRow


def test_inputs_keep_their_order_and_their_words(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    for position in (2, 1, 3):
        inputs.append(control, experiment.id, position, "TrialEnd", {"value": float("nan"), "n": position})
    rows = inputs.after(control, experiment.id, 1, 10)
    assert [(row.position, row.kind, row.payload) for row in rows] == [
        (2, "TrialEnd", {"value": "NaN", "n": 2}),
        (3, "TrialEnd", {"value": "NaN", "n": 3}),
    ]
    assert [row.position for row in inputs.after(control, experiment.id, 0, 2)] == [1, 2]


def test_a_position_is_taken_once(control: sqlite3.Connection, experiment: ExperimentRow) -> None:
    inputs.append(control, experiment.id, 1, "TrialEnd", {})
    with pytest.raises(sqlite3.IntegrityError):
        inputs.append(control, experiment.id, 1, "ImportData", {})


def _append(connection: sqlite3.Connection, experiment_id: str | None = None) -> int:
    return events.append(connection, time=1.0, kind=events.NOTICE, data={"text": "hm"}, experiment_id=experiment_id)


def test_events_are_read_from_an_id_on(control: sqlite3.Connection) -> None:
    assert (events.first_id(control), events.last_id(control)) == (1, 0)
    ids = [_append(control, "a"), _append(control, "b"), _append(control), _append(control, "a")]
    assert ids == [1, 2, 3, 4]
    assert [row.id for row in events.after(control, 1, limit=2)] == [2, 3]
    assert [row.id for row in events.after(control, 1, experiment_id="a", limit=9)] == [4]
    assert events.after(control, 4, limit=9) == []


def test_old_events_are_pruned_a_few_at_a_time_and_their_ids_never_return(control: sqlite3.Connection) -> None:
    for _ in range(10):
        _append(control)
    assert events.prune(control, 4, limit=5) == 5
    assert events.prune(control, 4, limit=5) == 1
    assert (events.first_id(control), events.last_id(control)) == (7, 10)
    assert events.prune(control, 0) == 4
    assert (events.first_id(control), events.last_id(control)) == (11, 10)
    assert _append(control) == 11


def test_a_node_is_replaced_by_what_is_known_later(control: sqlite3.Connection) -> None:
    nodes.upsert(control, NodeRow("n2", "remote", "READY"))
    nodes.upsert(control, NodeRow("n1", "local", "READY", facts={"devices": []}, seen_at=1.0))
    lost = NodeRow("n2", "remote", "LOST", "silent for 60 s", {"devices": [1]}, 2.0)
    nodes.upsert(control, lost)
    assert [row.id for row in nodes.all(control)] == ["n1", "n2"]
    assert nodes.get(control, "n2") == lost
    with pytest.raises(RowNotFound):
        nodes.get(control, "n3")
