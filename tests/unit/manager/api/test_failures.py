"""The causes of failed trials."""

import sqlite3
from typing import Any

import pytest

from proctor.manager.api.routes import failures
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import jobs, trials
from proctor.training_services.base import EndReason, TrialJobStatus

pytestmark = pytest.mark.anyio

FAILED, CANCELED = TrialStatus.FAILED, TrialStatus.SYS_CANCELED
ERROR, OUT_OF_MEMORY = EndReason.EXITED_ERROR, EndReason.OUT_OF_MEMORY


async def add_ended(api: Any, experiment_id: str, ends: list[tuple[TrialStatus, EndReason | None, str, str]]) -> None:
    """Trials that have ended so: status, end reason of the last job (None: without a job), node and reason."""

    def write(connection: sqlite3.Connection) -> None:
        for number, (status, end, node, reason) in enumerate(ends, start=100):
            identifier = f"ended{number}"
            last = 0 if end is None else 2
            trials.insert(
                connection,
                TrialRow(
                    identifier,
                    experiment_id,
                    number,
                    status,
                    number,
                    parameters={"x": 0.5},
                    created_at=1.0,
                    reason=reason,
                    jobs=last,
                ),
            )
            for job in range(1, last + 1):
                row = TrialJobRow(
                    id=f"{identifier}.{job}",
                    trial_id=identifier,
                    experiment_id=experiment_id,
                    number=job,
                    token="t",
                    status=TrialJobStatus.ENDED,
                    parameter_id=number,
                    parameters={"x": 0.5},
                    end_reason=end if job == last else EndReason.NODE_LOST,
                    node_id=node if job == last else "lost-node",
                )
                jobs.insert(connection, row)

    await api.manager.control.write(write)


async def read(api: Any, experiment_id: str, query: str = "") -> dict[str, Any]:
    return dict(await api.get(f"/api/v1/experiments/{experiment_id}/failures{query}", status=200))


async def test_failures_are_grouped_by_the_end_of_the_last_job_and_the_first_line_of_the_reason(api: Any) -> None:
    ran = await api.ran()
    await add_ended(
        api,
        ran.id,
        [
            (FAILED, ERROR, "gpu-1", "exit code 1: no file /data/17.npz\nfurther lines"),
            (FAILED, ERROR, "gpu-2", "exit code 1: no file /data/18.npz"),
            (FAILED, ERROR, "gpu-1", "exit code 1: no file /data/19.npz\nother lines"),
            (FAILED, OUT_OF_MEMORY, "gpu-1", "exit code 1: no file /data/20.npz"),
            (TrialStatus.USER_CANCELED, EndReason.USER_CANCELED, "gpu-1", "canceled by the user"),
            (CANCELED, None, "", "needs 9 GPUs"),
        ],
    )
    body = await read(api, ran.id)
    assert (body["failed"], body["counted"], body["cause_count"]) == (5, 5, 3)
    first, *others = body["causes"]
    assert first == {
        "end_reason": "EXITED_ERROR",
        "detail": "exit code 1: no file /data/19.npz",
        "trials": 3,
        "nodes": [{"node_id": "gpu-1", "trials": 2}, {"node_id": "gpu-2", "trials": 1}],
        "example": {
            "trial_id": "ended102",
            "sequence_id": 102,
            "reason": "exit code 1: no file /data/19.npz\nother lines",
        },
    }
    assert [(cause["end_reason"], cause["nodes"]) for cause in others] == [
        (None, [{"node_id": None, "trials": 1}]),
        ("OUT_OF_MEMORY", [{"node_id": "gpu-1", "trials": 1}]),
    ]
    assert (await read(api, ran.id, "?limit=1"))["causes"] == [first]


async def test_an_experiment_without_failures_has_no_causes(api: Any) -> None:
    ran = await api.ran()
    assert await read(api, ran.id) == {"failed": 0, "counted": 0, "cause_count": 0, "causes": []}
    await api.get(f"{ran.path}/failures?limit=0", status=422)


async def test_only_the_newest_failures_are_counted_and_that_is_said(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = await api.ran()
    ends = [(FAILED, ERROR, "gpu-1", "an old cause"), (CANCELED, None, "", "newer"), (FAILED, ERROR, "gpu-1", "newest")]
    await add_ended(api, ran.id, ends)
    monkeypatch.setattr(failures, "MOST_TRIALS", 2)
    body = await read(api, ran.id)
    assert (body["failed"], body["counted"]) == (3, 2)
    assert [cause["detail"] for cause in body["causes"]] == ["newest", "newer"]
