"""What has changed since an event, over REST. tests/unit/manager/test_changes.py follows a whole experiment."""

from typing import Any

import pytest

from proctor.manager.store.tables import events
from proctor.manager.store.trial_table import changes

pytestmark = pytest.mark.anyio


async def report(api: Any, experiment_id: str, trial_id: str, values: list[Any], *, job: int = 1) -> None:
    """Store intermediates of a job, with their event."""
    stored = (await api.report(experiment_id, trial_id, values, job=job)).intermediates
    data = {"first": stored[0][0], "last": stored[-1][0]}
    await api.manager.control.write(
        lambda c: events.append(c, time=1.0, kind=events.METRICS, data=data, experiment_id=experiment_id)
    )


async def ended(api: Any) -> tuple[str, list[str], int]:
    """An experiment with three trials: its address, their ids, and the revision of its table."""
    ran = await api.ran()
    body = await api.get(f"{ran.path}/table?columns=id")
    return ran.path, [row[0] for row in body["rows"]], body["revision"]


async def test_nothing_has_changed_after_the_newest_event(api: Any) -> None:
    path, _, revision = await ended(api)
    body = await api.get(f"{path}/changes?after={revision}")
    assert body == {
        "revision": revision,
        "reset": False,
        "experiment": None,
        "rows": None,
        "filtered_out": [],
        "points": [],
    }


async def test_from_the_beginning_every_trial_has_changed(api: Any) -> None:
    path, ids, revision = await ended(api)
    body = await api.get(f"{path}/changes?after=0")
    assert body["experiment"] == await api.get(path)
    whole = await api.get(f"{path}/table")
    assert body["rows"] == whole
    assert len(ids) == whole["matched"] == 3
    assert body["revision"] == revision


async def test_new_points_come_with_the_rows_of_their_trials(api: Any) -> None:
    path, ids, revision = await ended(api)
    experiment_id = path.rpartition("/")[2]
    await report(api, experiment_id, ids[1], [0.1, {"default": 0.2, "loss": 3.0}])
    await report(api, experiment_id, ids[0], [float("nan")])
    await report(api, experiment_id, ids[1], [0.3])
    body = await api.get(f"{path}/changes?after={revision}&columns=no,id")
    assert body["points"] == [
        {"no": 1, "from": 0, "steps": [0, 1, 2], "values": [0.1, 0.2, 0.3]},
        {"no": 0, "from": 0, "steps": [0], "values": [None]},
    ]
    assert body["rows"]["rows"] == [[0, ids[0]], [1, ids[1]]]
    await report(api, experiment_id, ids[1], [0.4])
    body = await api.get(f"{path}/changes?after={body['revision']}&columns=id")
    assert body["points"] == [{"no": 1, "from": 3, "steps": [3], "values": [0.4]}]
    assert body["rows"]["rows"] == [[ids[1]]]


async def test_a_trial_that_was_started_again_has_its_whole_curve(api: Any) -> None:
    path, ids, _ = await ended(api)
    experiment_id = path.rpartition("/")[2]
    await report(api, experiment_id, ids[0], [0.1, 0.2, 0.3])
    body = await api.get(f"{path}/changes?after=0")
    await report(api, experiment_id, ids[0], [0.5], job=2)
    await report(api, experiment_id, ids[0], [0.35], job=1)  # it came late
    body = await api.get(f"{path}/changes?after={body['revision']}")
    assert body["points"] == [{"no": 0, "from": 0, "steps": [0], "values": [0.5]}]


@pytest.mark.parametrize("limit", ["MAX_TRIALS", "MAX_POINTS", "_MAX_EVENTS"])
async def test_too_much_is_a_reset_from_which_a_reader_continues(
    api: Any, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    path, ids, revision = await ended(api)
    experiment_id = path.rpartition("/")[2]
    monkeypatch.setattr(changes, limit, 2)
    for trial_id in ids:
        await report(api, experiment_id, trial_id, [0.1])
    body = await api.get(f"{path}/changes?after={revision}")
    assert body == {
        "revision": body["revision"],
        "reset": True,
        "experiment": None,
        "rows": None,
        "filtered_out": [],
        "points": [],
    }
    assert body["revision"] == (await api.get(f"{path}/table"))["revision"] > revision
    assert not (await api.get(f"{path}/changes?after={body['revision']}"))["reset"]


async def test_a_long_curve_of_a_restarted_trial_is_a_reset(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ids, revision = await ended(api)
    experiment_id = path.rpartition("/")[2]
    await report(api, experiment_id, ids[0], [0.1] * 5, job=2)
    body = await api.get(f"{path}/changes?after={revision}")
    assert len(body["points"][0]["values"]) == 5
    await report(api, experiment_id, ids[0], [0.2], job=2)
    monkeypatch.setattr(changes, "MAX_POINTS", 4)
    assert (await api.get(f"{path}/changes?after={body['revision']}"))["reset"]


async def test_after_events_that_were_deleted_and_after_one_of_another_store_there_is_a_reset(api: Any) -> None:
    path, _, revision = await ended(api)
    ahead = await api.get(f"{path}/changes?after={revision + 1000}")
    assert (ahead["reset"], ahead["revision"]) == (True, revision)
    await api.manager.control.write(lambda c: events.prune(c, 2, limit=1000))
    behind = await api.get(f"{path}/changes?after=1")
    assert (behind["reset"], behind["revision"]) == (True, revision)
    assert not (await api.get(f"{path}/changes?after={revision}"))["reset"]
    await api.manager.control.write(lambda c: events.prune(c, 0, limit=1000))
    assert (await api.get(f"{path}/table"))["revision"] == 0
    behind = await api.get(f"{path}/changes?after=0")
    assert behind["reset"]
    again = await api.get(f"{path}/changes?after={behind['revision']}")
    assert (again["reset"], again["revision"]) == (False, behind["revision"])


async def test_what_cannot_be_asked_is_refused(api: Any) -> None:
    path, _, _ = await ended(api)
    for query in ("", "after=-1", "after=x", "after=9223372036854775808", "after=0&columns=nonesuch"):
        assert (await api.get(f"{path}/changes?{query}", status=422))["problems"]


async def test_a_filter_leaves_out_rows_and_names_the_trials_that_it_does_not_let_through(api: Any) -> None:
    path, _, revision = await ended(api)
    body = await api.get(f"{path}/changes?after=0&columns=no&filter=no%20%3E%200")
    assert [row[0] for row in body["rows"]["rows"]] == [1, 2]
    assert body["filtered_out"] == [0]
    none = await api.get(f"{path}/changes?after={revision}&filter=no%20%3E%200")
    assert (none["rows"], none["filtered_out"]) == (None, [])
