"""Who held which GPU of a node when, over REST."""

import sqlite3
from typing import Any

import pytest

from proctor.manager.store.rows import TrialJobRow
from proctor.manager.store.tables import jobs
from proctor.training_services.base import EndReason, TrialJobStatus
from proctor.trial_keeper.protocol import Device, SystemLoad

pytestmark = pytest.mark.anyio


async def add_jobs(api: Any, spans: list[tuple[float, float | None, list[str] | None]]) -> str:
    """Jobs on node gpu-1 that started and ended so many seconds ago, with these GPUs; returns the experiment's id."""
    ran = await api.ran(max_trial_number=1)
    [trial] = ran.trials
    now = api.manager.clock.now()

    def write(connection: sqlite3.Connection) -> None:
        for number, (started, ended, gpus) in enumerate(spans, start=10):
            placed = None if gpus is None else [{"uuid": uuid, "slot": 0} for uuid in gpus]
            row = TrialJobRow(
                id=f"{trial['id']}.{number}",
                trial_id=trial["id"],
                experiment_id=ran.id,
                number=number,
                token="t",
                status=TrialJobStatus.RUNNING if ended is None else TrialJobStatus.ENDED,
                parameter_id=0,
                parameters={},
                end_reason=None if ended is None else EndReason.EXITED_OK,
                placement={"node_id": "gpu-1", "gpus": placed},
                node_id="gpu-1",
                started_at=now - started,
                ended_at=None if ended is None else now - ended,
            )
            jobs.insert(connection, row)

    await api.manager.control.write(write)
    return str(ran.id)


def connect(api: Any) -> None:
    pool = api.manager.pool
    pool.add("gpu-1", "remote")
    device = Device(0, "GPU-a", "H100", 81559, 4000, 90)
    pool.connect("gpu-1", [device], driver_note="", hostname="h", version="1", seen_at=1.0)
    pool.update("gpu-1", 1.0, system=SystemLoad(1.5, 8, 2000, 16000))


async def read(api: Any, query: str = "") -> dict[str, Any]:
    return dict(await api.get(f"/api/v1/nodes/gpu-1/occupancy{query}", status=200))


async def test_occupancy_names_the_jobs_of_a_stretch_of_time_with_their_gpus_and_the_load(api: Any) -> None:
    connect(api)
    await add_jobs(
        api, [(9000, 8000, ["GPU-a"]), (500, 100, ["GPU-a"]), (5000, 200, None), (90, None, ["GPU-a", "GPU-old"])]
    )
    api.manager.node_history.sample()
    body = await read(api)
    assert [(job["job_id"][-3:], job["gpus"], job["slot"], job["ended_at"] is None) for job in body["jobs"]] == [
        (".12", None, 0, False),
        (".11", ["GPU-a"], None, False),
        (".13", ["GPU-a", "GPU-old"], None, True),
    ]
    assert body["jobs"][0]["end_reason"] == "EXITED_OK"
    assert body["jobs"][0]["sequence_id"] == 0
    assert (body["load"], body["memory_used_mb"], body["cpus"], body["memory_total_mb"]) == ([1.5], [2000], 8, 16000)
    assert [(gpu["uuid"], gpu["index"], gpu["utilization"]) for gpu in body["gpus"]] == [
        ("GPU-a", 0, [90]),
        ("GPU-old", None, [None]),
    ]


async def test_occupancy_says_from_when_on_it_is_complete(api: Any) -> None:
    connect(api)
    await add_jobs(api, [(500, 400, []), (390, 300, []), (290, 200, [])])
    body = await read(api, "?limit=2")
    assert [job["job_id"][-3:] for job in body["jobs"]] == [".11", ".12"]
    assert body["complete_since"] == body["jobs"][0]["ended_at"]
    assert (await read(api, "?limit=3"))["complete_since"] is None


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("nodes/unknown/occupancy", 404, "there is no node unknown"),
        ("nodes/gpu-1/occupancy?since=2100-01-01T00:00:00Z", 400, "since"),
        ("nodes/gpu-1/occupancy?since=2020-01-01T00:00:00", 400, "offset"),
        ("nodes/gpu-1/occupancy?since=yesterday", 422, "since"),
        ("nodes/gpu-1/occupancy?points=100000", 422, "points"),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_the_place(api: Any, path: str, status: int, word: str) -> None:
    connect(api)
    answer = await api.client.get(f"/api/v1/{path}")
    assert answer.status_code in (status, 422)
    assert word in answer.text
