"""What trials have used, and what Prometheus reads."""

import sqlite3
from typing import Any

import pytest

from proctor.manager.store.tables import jobs
from proctor.training_services.base import TrialJobStatus

pytestmark = pytest.mark.anyio


async def test_what_was_used_is_in_rest_and_in_prometheus(api: Any) -> None:
    created = await api.create(trial_gpu_number=2, max_trial_number=1, max_gpu_hours=10, priority=3, preemptible=True)
    assert created["priority"] == 3
    await api.ended(created["id"])
    [trial] = (await api.get(f"{created.path}/trials"))["items"]
    job, node = f"{trial['id']}.1", trial["node_id"]
    api.manager.pool.add(node, "remote")

    def rewrite(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM job_usage")
        connection.execute("UPDATE trial_jobs SET status = 'RUNNING' WHERE id = ?", (job,))
        row = jobs.get(connection, job)
        used = {"started_at": 1000.0, "ended_at": 9999.0, "cpu_seconds": 9000.0, "run_seconds": 5400.0}
        ended, running = TrialJobStatus.ENDED, [TrialJobStatus.RUNNING]
        jobs.move(connection, job, token=row.token, expected=running, status=ended, time=1.0, **used)

    await api.manager.control.write(rewrite)
    used = {"gpu_hours": 3.0, "cpu_hours": 2.5, "unmeasured_jobs": 0}
    for path in (f"experiments/{created['id']}", f"trials/{trial['id']}", f"nodes/{node}"):
        assert (await api.get(f"/api/v1/{path}"))["usage"] == pytest.approx(used), path
    [row] = (await api.get(f"/api/v1/trials/{trial['id']}/jobs"))["items"]
    assert (row["counted_gpus"], row["cpu_seconds"], row["run_seconds"]) == (2.0, 9000.0, 5400.0)
    assert (await api.get(f"/api/v1/trials/{trial['id']}"))["run_seconds"] == 5400.0
    labels = f'{{experiment="{created["id"]}",node="{node}"}}'
    text = (await api.client.get("/metrics")).text
    assert f"proctor_gpu_seconds{labels} 10800.0" in text
    assert f"proctor_cpu_seconds{labels} 9000.0" in text
    await api.manager.control.write(lambda c: c.execute("UPDATE job_usage SET unmeasured_jobs = 1"))
    assert (await api.get(created.path))["usage"] == pytest.approx({**used, "unmeasured_jobs": 1})


async def test_what_running_trials_use_does_not_change_when_the_clock_is_set(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await api.create(trial_gpu_number=2, max_trial_number=1)
    await api.ended(created["id"])
    [trial] = (await api.get(f"{created.path}/trials"))["items"]
    clock = api.manager.clock
    since, started_at = clock.steady() - 36.0, clock.now() - 36.0
    await api.manager.control.write(
        lambda c: c.execute(
            "UPDATE trial_jobs SET status = 'RUNNING', ended_at = NULL, run_seconds = NULL, started_at = ?, "
            "runs_since = ?",
            (started_at, since),
        )
    )
    await api.manager.control.write(lambda c: c.execute("DELETE FROM job_usage"))
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + 3600.0)
    api.manager.pool.add(trial["node_id"], "remote")
    assert (await api.get(f"/api/v1/trials/{trial['id']}"))["run_seconds"] == pytest.approx(36.0, abs=10.0)
    [job] = (await api.get(f"/api/v1/trials/{trial['id']}/jobs"))["items"]
    assert job["run_seconds"] == pytest.approx(36.0, abs=10.0)
    for path in (f"experiments/{created['id']}", f"trials/{trial['id']}", f"nodes/{trial['node_id']}"):
        assert (await api.get(f"/api/v1/{path}"))["usage"]["gpu_hours"] == pytest.approx(0.02, abs=0.01), path
    [row] = (await api.get(f"{created.path}/trials?filter=time<60"))["items"]
    assert row["id"] == trial["id"]


async def test_prometheus_counts_every_start_once(api: Any) -> None:
    assert "proctor_trial_start_latency_seconds_count 0.0" in (await api.client.get("/metrics")).text
    await api.ran()
    for _ in range(2):
        assert "proctor_trial_start_latency_seconds_count 3.0" in (await api.client.get("/metrics")).text


async def test_prometheus_reads_counts_and_health(api: Any) -> None:
    ran = await api.ran()
    text = (await api.client.get("/metrics")).text
    assert f'proctor_trials_total{{experiment="{ran.id}",status="SUCCEEDED"}} 3.0' in text
    assert "proctor_trials_running 0.0" in text
    assert "proctor_store_healthy 1.0" in text
    for name in ("proctor_trial_start_latency_seconds_bucket", "proctor_loop_lag_seconds_bucket", "proctor_build_info"):
        assert name in text
