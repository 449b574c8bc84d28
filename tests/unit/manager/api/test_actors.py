"""Every event says who has caused it."""

from typing import Any

import pytest

from proctor.manager.actors import ASSESSOR, MANAGER, Actor, Way
from proctor.manager.api.stream import _event
from proctor.manager.store.rows import EventRow
from proctor.manager.store.tables import events
from proctor.training_services.providers import UncollectedFiles

pytestmark = pytest.mark.anyio


async def found(api: Any, kind: str) -> list[EventRow]:
    rows = await api.manager.control.read(lambda c: events.after(c, 0, limit=1000))
    return [row for row in rows if row.kind == kind]


def test_an_actor_is_read_back_from_its_text() -> None:
    for actor in (MANAGER, ASSESSOR, *(Actor("alice", way) for way in Way)):
        assert Actor.from_text(actor.to_text()) == actor
    assert Actor("alice", Way.PAGE).in_words == "alice (page)"
    assert Actor("owner", Way.CLI).in_words == "the user"
    assert MANAGER.in_words == "the manager"


async def test_what_a_person_does_has_the_persons_name_to_its_end(api: Any) -> None:
    alice = {**await api.bearer("alice"), "User-Agent": "proctor-cli"}
    body = {"config": {**api.config, "max_trial_number": 100}, "directory": str(api.directory)}
    made = (await api.anonymous.post("/api/v1/experiments", json=body, headers=alice)).json()
    path = f"/api/v1/experiments/{made['id']}"
    await api.until(f"{path}/trials", lambda page: any(row["started_at"] is not None for row in page["items"]))
    await api.anonymous.patch(path, json={"tags": ["paper"]}, headers=alice)
    await api.anonymous.patch(path, json={"max_trial_number": 50}, headers=alice)
    await api.anonymous.post(f"{path}/pause", headers=alice)
    assert (await api.get(path))["reason"] == "paused by alice (cli)"
    await api.anonymous.post(f"{path}/stop", headers=alice)
    await api.until(path, lambda found: found["status"] == "STOPPED")
    assert (await api.get(path))["reason"] == "stopped by alice (cli)"
    assert {row.actor for kind in ("labels", "limits") for row in await found(api, kind)} == {"alice@cli"}
    statuses = [(row.data["status"], row.actor) for row in await found(api, "experiment.status")]
    assert statuses[0] == ("INITIALIZED", "alice@cli")
    assert ("RUNNING", "manager") in statuses
    assert ("PAUSED", "alice@cli") in statuses
    assert ("STOPPING", "alice@cli") in statuses
    assert {row.actor for row in await found(api, "trial.status")} >= {"tuner", "manager"}
    running = [row for kind in ("trial.status", "job.status") for row in await found(api, kind)]
    assert {row.actor for row in running if row.data["status"] == "RUNNING"} == {"manager"}
    await api.anonymous.delete(path, headers=alice)
    assert [row.actor for row in await found(api, "experiment.deleted")] == ["alice@cli"]


async def test_what_is_requested_of_a_machine_is_an_event_with_the_persons_name(api: Any) -> None:
    alice = {**await api.bearer("alice"), "User-Agent": "proctor-cli"}
    experiment_id = (await api.ran()).id
    api.provider.add("gpu-3", "bob@gpu-3:2222")
    assert (await api.anonymous.post("/api/v1/nodes/gpu-3/collect", headers=alice)).text == ""
    await api.client.post(f"/api/v1/experiments/{experiment_id}/stop")
    await api.until(f"/api/v1/experiments/{experiment_id}", lambda found: found["status"] == "STOPPED")
    api.provider.left.append(UncollectedFiles(experiment_id, "gpu-3", "on bob@gpu-3", "the machine is unreachable"))
    api.provider.collect("gpu-3", experiment_id).ended.set()
    for verb in ("check", "collect", "forget"):
        assert (await api.anonymous.post(f"/api/v1/nodes/gpu-3/{verb}", headers=alice)).is_success
    requests = [
        (row.data["node_id"], row.data["request"], row.actor)
        for row in await found(api, "node")
        if "request" in row.data
    ]
    assert requests == [("gpu-3", verb, "alice@cli") for verb in ("check", "collect", "forget")]
    assert (await api.client.post("/api/v1/nodes/gpu-3/check")).status_code == 404
    assert len([row for row in await found(api, "node") if "request" in row.data]) == 3


def test_the_stream_names_the_actor_and_none_for_events_of_older_managers() -> None:
    row = EventRow(1, 1.0, None, None, None, "notice", {"text": "x"}, "alice@page")
    assert b'"actor":{"name":"alice","via":"page"}' in _event(row)
    assert b'"actor":{"name":"manager","via":null}' in _event(
        EventRow(2, 1.0, None, None, None, "notice", {}, "manager")
    )
    assert b'"actor":null' in _event(EventRow(3, 1.0, None, None, None, "notice", {}, None))
