"""Nodes over REST: what they show, and what can be requested of them."""

import asyncio
import json
from typing import Any

import pytest

from proctor.manager.api.routes import nodes as routes
from proctor.manager.store.tables import nodes
from proctor.training_services.base import NodePlacement
from proctor.training_services.capacity import SharingPolicy
from proctor.training_services.providers import UncollectedFiles
from proctor.trial_keeper.protocol import Device, DeviceProcess, GpuSlot, Lease

pytestmark = pytest.mark.anyio


async def post(api: Any, path: str, body: Any = None) -> Any:
    answer = await api.client.post(f"/api/v1{path}", json=body)
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


async def stored_hold(api: Any, node_id: str) -> str:
    return str((await api.manager.control.read(lambda c: nodes.get(c, node_id))).hold)


async def test_a_node_tells_its_address_and_who_holds_what(api: Any) -> None:
    pool = api.manager.pool
    api.provider.add("gpu-3", "bob@gpu-3:2222")
    lease = Lease(0, "user eve, manager far:/home/eve", "else.1", 77, "2026-01-02T03:04:05Z", max_trials_per_gpu=2)
    device = Device(0, "GPU-a", "fake", 100, 1, 0, leases=[lease])
    pool.connect("gpu-3", [device], driver_note="", hostname="gpu-3.lan", version="1", seen_at=5.0)
    placement = NodePlacement("gpu-3", (GpuSlot("GPU-a", 1),))
    pool.reserve("t.1", "token", "trial 0 of experiment e", placement, SharingPolicy(max_trials_per_gpu=2))
    found = await api.get("/api/v1/nodes/gpu-3")
    assert (found["address"], found["hold"], found["experiments"]) == ("bob@gpu-3:2222", "", [])
    assert found["reservations"] == [
        {"job_id": "t.1", "holder": "trial 0 of experiment e", "gpus": [{"uuid": "GPU-a", "slot": 1}]}
    ]
    [reported] = found["facts"]["devices"]
    assert reported["leases"][0]["holder"] == lease.holder
    assert "trial 0 of experiment e" in reported["held_by"]
    assert any("eve" in holder for holder in reported["held_by"])
    assert "token" not in str(found)
    assert found in (await api.get("/api/v1/nodes"))["items"]


async def test_a_gpu_shows_who_holds_it(api: Any) -> None:
    pool = api.manager.pool
    pool.add("local", "local")
    others = [DeviceProcess(4242, 300), DeviceProcess(17, 5, "p3kV9xQa.1")]
    gpus = [Device(0, "GPU-a", "H200", 100, 5, 3), Device(1, "GPU-b", "H200", 100, 5, 3, others)]
    pool.connect("local", gpus, driver_note="", hostname="h", version="1", seen_at=1.0)
    pool.reserve("p3kV9xQa.1", "t", "trial 17 of experiment Ab3dE5f7", NodePlacement("local", (GpuSlot("GPU-a", 0),)))
    [node] = (await api.get("/api/v1/nodes"))["items"]
    held = [device["held_by"] for device in node["facts"]["devices"]]
    assert held == [["trial 17 of experiment Ab3dE5f7"], ["another process (pid 4242, 300 MiB)"]]
    assert [[each["pid"] for each in device["foreign"]] for device in node["facts"]["devices"]] == [[], [4242]]


async def test_an_unknown_node_is_not_found_whatever_is_asked_of_it(api: Any) -> None:
    for path in ("/check", "/drain", "/resume", "/collect", "/forget"):
        answer = await api.post(f"/api/v1/nodes/unknown{path}", status=404)
        assert "there is no node unknown" in answer["detail"]


async def test_a_drained_node_is_written_down_when_the_answer_comes(api: Any) -> None:
    api.provider.add("gpu-3", "gpu-3")
    drained = await post(api, "/nodes/gpu-3/drain", {"reason": " its disk\nis replaced "})
    assert drained["hold"] == "drained: its disk is replaced"
    assert await stored_hold(api, "gpu-3") == drained["hold"]
    assert "drained" in api.manager.pool.obstacle("gpu-3")
    assert (await post(api, "/nodes/gpu-3/resume"))["hold"] == await stored_hold(api, "gpu-3") == ""
    assert "drained" not in api.manager.pool.obstacle("gpu-3")


async def test_a_reason_is_not_needed_and_asking_twice_is_no_error(api: Any) -> None:
    api.provider.add("gpu-3", "gpu-3")
    for _ in range(2):
        assert (await post(api, "/nodes/gpu-3/drain"))["hold"] == "drained"
    for _ in range(2):
        assert (await post(api, "/nodes/gpu-3/resume"))["hold"] == ""


async def test_a_node_that_is_simply_there_can_neither_be_tried_nor_given_up(api: Any) -> None:
    api.manager.pool.add("local", "local")
    assert (await api.get("/api/v1/nodes/local"))["address"] == ""
    for path in ("/check", "/forget"):
        answer = await api.post(f"/api/v1/nodes/local{path}", status=409)
        assert "not reached over a network" in answer["detail"]


async def test_a_node_that_cannot_be_left_is_given_up_unless_an_experiment_needs_it(api: Any) -> None:
    api.provider.add("gpu-3", "gpu-3")
    api.provider.used.add("gpu-3")
    assert "proctor stop E1" in (await api.post("/api/v1/nodes/gpu-3/forget", status=409))["detail"]
    api.provider.used.clear()
    answer = await api.client.post("/api/v1/nodes/gpu-3/forget")
    assert (answer.status_code, answer.content) == (204, b"")
    assert (await api.client.get("/api/v1/nodes/gpu-3")).status_code == 404


async def stopped_with_files_on(api: Any, *node_ids: str) -> str:
    """An experiment that was stopped, and whose jobs ran on the first of these nodes; all may have files of it."""
    ran = await api.ran()
    for node_id in node_ids:
        api.provider.add(node_id, f"bob@{node_id}")
        left = UncollectedFiles(
            ran.id, node_id, f"on bob@{node_id} in ~/.proctor/nodes/x", "the machine is unreachable"
        )
        api.provider.left.append(left)
    await api.manager.control.write(lambda c: c.execute("UPDATE trial_jobs SET node_id = ?", node_ids[:1]))
    await post(api, f"/experiments/{ran.id}/stop")
    await api.until(ran.path, lambda found: any("not collected" in text for text in found["notices"]))
    return str(ran.id)


async def test_an_experiment_tells_which_files_were_not_collected_and_what_to_do(api: Any) -> None:
    experiment_id = await stopped_with_files_on(api, "gpu-3", "gpu-4")
    found = await api.get(f"/api/v1/experiments/{experiment_id}")
    assert found["status"] == "STOPPED"
    assert found["reason"].endswith("; files were not collected from node gpu-3: `proctor nodes collect gpu-3`")
    assert found["notices"][-1] == (
        "when it was stopped, files on node gpu-3 were not collected: the machine is unreachable; they stay there, on "
        "bob@gpu-3 in ~/.proctor/nodes/x, until `proctor nodes collect gpu-3` fetches them or the experiment is deleted"
    )
    assert [left.node_id for left in api.provider.left] == ["gpu-3"], "no job of it ran on gpu-4"
    assert (await api.get("/api/v1/nodes/gpu-3"))["uncollected"] == [experiment_id]
    assert (await api.get("/api/v1/nodes/gpu-4"))["uncollected"] == []


async def test_a_collection_tells_how_far_it_is_until_it_has_ended(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "PROGRESS_SECONDS", 0.05)
    experiment_id = await stopped_with_files_on(api, "gpu-3")
    collection = api.provider.collect("gpu-3", experiment_id)
    has_told, describe = asyncio.Event(), routes.collection_resource

    def tell(told: Any) -> Any:
        has_told.set()
        return describe(told)

    monkeypatch.setattr(routes, "collection_resource", tell)

    async def copy() -> None:
        collection.files, collection.total_files, collection.bytes, collection.total_bytes = 1, 2, 10, 20
        await has_told.wait()
        collection.files, collection.bytes = 2, 20
        collection.ended.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(copy())
        answer = await api.client.post("/api/v1/nodes/gpu-3/collect", params={"experiment_id": experiment_id})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) > 1
    assert not lines[0]["is_finished"]
    assert lines[-1] == {
        "experiment_id": experiment_id,
        "files": 2,
        "total_files": 2,
        "bytes": 20,
        "total_bytes": 20,
        "problem": "",
        "is_finished": True,
    }


async def test_who_resumes_an_experiment_ends_the_collection_of_its_files(api: Any) -> None:
    experiment_id = await stopped_with_files_on(api, "gpu-3")
    await post(api, f"/experiments/{experiment_id}/resume")
    assert api.provider.ended_collections == [experiment_id]
