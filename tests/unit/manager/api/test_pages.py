"""The pages, as a browser gets them."""

import re
import sqlite3
from html.parser import HTMLParser
from typing import Any

import pytest

from proctor.manager.errors import Unavailable
from proctor.manager.store.tables import experiments, jobs, trials
from proctor.manager.store.tables.metrics import store_chunk
from proctor.training_services.base import NodePlacement, TrialJobStatus
from proctor.training_services.nodes.pool import NodeStatus
from proctor.trial_keeper.protocol import Device, DeviceProcess, GpuSlot

pytestmark = pytest.mark.anyio


class Page(HTMLParser):
    """What a page refers to, and the ids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.styles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.targets.append(value)
            if name == "id" and value is not None:
                self.ids.append(value)
            if name == "style" or name.startswith("on"):
                self.styles.append(f"{tag} {name}")


async def visit(api: Any, path: str) -> tuple[str, Page]:
    answer = await api.client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text, Page(answer.text)


async def test_every_page_keeps_to_its_policy_and_works_under_any_prefix(api: Any) -> None:
    created = await api.create(experiment_name="quad")
    await api.ended(created["id"])
    best = (await api.client.get(f"/api/v1/experiments/{created['id']}/best")).json()
    for path in ("/", f"/experiments/{created['id']}", f"/trials/{best['trial_id']}", "/nodes"):
        _, page = await visit(api, path)
        assert page.styles == []
        assert len(set(page.ids)) == len(page.ids)
        for target in page.targets:
            assert re.match(r"(\./|\.\./|\?|#|data:,$|[a-z]+/|nodes$)", target), target


async def test_every_link_of_a_page_leads_somewhere(api: Any) -> None:
    created = await api.create()
    await api.ended(created["id"])
    place = f"/experiments/{created['id']}"
    _, page = await visit(api, place)
    for target in page.targets:
        if not target.startswith(("#", "data:")):
            answer = await api.client.get(api.client.base_url.join(place).join(target))
            assert answer.status_code == 200, target


async def test_the_experiments_page_shows_results_and_trials(api: Any) -> None:
    created = await api.create(experiment_name="quad")
    await api.ended(created["id"])
    text, _ = await visit(api, f"/experiments/{created['id']}")
    assert "<title>quad · Proctor</title>" in text
    assert 'aria-label="Best value so far"' in text
    assert text.count('<th scope="row">') == 3
    assert "maxTrialNumber" in text


async def test_the_page_says_the_time_that_the_api_says(api: Any) -> None:
    created = await api.create(max_experiment_duration=7200)
    await api.ended(created["id"])
    await api.manager.stop_experiment(created["id"])
    while (await api.manager.experiment(created["id"])).status != "STOPPED":
        await api.manager.feed.wait(5)
    await api.manager.control.write(lambda c: experiments.set_counters(c, created["id"], active_seconds=3725.0))
    assert (await api.client.get(f"/api/v1/experiments/{created['id']}")).json()["active_seconds"] == 3725.0
    text, _ = await visit(api, f"/experiments/{created['id']}")
    assert "<dt>elapsed</dt><dd>1 h 2 min of 2 h 0 min</dd>" in text


async def test_what_was_used_is_in_rest_on_the_pages_and_in_prometheus(api: Any) -> None:
    created = await api.create(trial_gpu_number=2, max_trial_number=1, max_gpu_hours=10, priority=3, preemptible=True)
    assert created["priority"] == 3
    await api.ended(created["id"])
    [trial] = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"]
    job, node = f"{trial['id']}.1", trial["node_id"]
    api.manager.pool.add(node, "remote")

    def rewrite(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM job_usage")
        connection.execute("UPDATE trial_jobs SET status = 'RUNNING' WHERE id = ?", (job,))
        row = jobs.get(connection, job)
        used = {"started_at": 1000.0, "ended_at": 6400.0, "cpu_seconds": 9000.0}
        ended, running = TrialJobStatus.ENDED, [TrialJobStatus.RUNNING]
        jobs.move(connection, job, token=row.token, expected=running, status=ended, time=1.0, **used)

    await api.manager.control.write(rewrite)
    used = {"gpu_hours": 3.0, "cpu_hours": 2.5, "unmeasured_jobs": 0}
    for path in (f"experiments/{created['id']}", f"trials/{trial['id']}", f"nodes/{node}"):
        found = (await api.client.get(f"/api/v1/{path}")).json()["usage"]
        assert found == pytest.approx(used), path
    [row] = (await api.client.get(f"/api/v1/trials/{trial['id']}/jobs")).json()["items"]
    assert (row["counted_gpus"], row["cpu_seconds"]) == (2.0, 9000.0)
    of_experiment, _ = await visit(api, f"/experiments/{created['id']}")
    assert "<dt>GPU-hours</dt><dd>3 of 10</dd>" in of_experiment
    assert "<dt>priority</dt><dd>3, preemptible</dd>" in of_experiment
    for place in (f"/experiments/{created['id']}", f"/trials/{trial['id']}", "/nodes"):
        text, _ = await visit(api, place)
        assert "<dt>CPU-hours</dt><dd>2.5</dd>" in text, place
    labels = f'{{experiment="{created["id"]}",node="{node}"}}'
    text = (await api.client.get("/metrics")).text
    assert f"proctor_gpu_seconds{labels} 10800.0" in text
    assert f"proctor_cpu_seconds{labels} 9000.0" in text
    await api.manager.control.write(lambda c: c.execute("UPDATE job_usage SET unmeasured_jobs = 1"))
    text, _ = await visit(api, f"/experiments/{created['id']}")
    assert "<dt>CPU-hours</dt><dd>at least 2.5</dd>" in text
    await api.manager.control.write(lambda c: c.execute("UPDATE job_usage SET cpu_seconds = 0.07"))
    text, _ = await visit(api, f"/experiments/{created['id']}")
    assert "<dt>CPU-hours</dt><dd>at least &lt;0.01</dd>" in text


async def test_trials_are_filtered_and_sorted(api: Any) -> None:
    created = await api.create(max_trial_number=5)
    await api.ended(created["id"])
    trials_of = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials?sort=value")).json()["items"]
    text, page = await visit(api, f"/experiments/{created['id']}?sort=value")
    opened = [name.removeprefix("open-") for name in page.ids if name.startswith("open-") and name != "open-best"]
    assert opened == [trial["id"] for trial in trials_of]
    text, _ = await visit(api, f"/experiments/{created['id']}?status=FAILED")
    assert "No trials that are failed" in text


async def test_what_users_wrote_is_escaped(api: Any) -> None:
    created = await api.create(experiment_name="<script>alert(1)</script>")
    await api.ended(created["id"])
    row = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"][0]
    bad = {"<img src=x>": "<b>"}
    await api.manager.control.write(lambda c: trials.update(c, row["id"], parameters=bad))
    for path in ("/", f"/experiments/{created['id']}", f"/trials/{row['id']}"):
        text, _ = await visit(api, path)
        assert "<script>alert" not in text
        assert "<img src" not in text


async def test_a_failed_tuner_shows_its_traceback(api: Any) -> None:
    from proctor.manager.lifecycle.states import ExperimentStatus

    created = await api.create(max_trial_number=1)
    await api.ended(created["id"])
    await api.manager.control.write(
        lambda c: experiments.move(
            c,
            created["id"],
            expected=tuple(ExperimentStatus),
            status=ExperimentStatus.ERROR,
            reason="the tuner failed",
            time=1.0,
            error="Traceback: out of ideas",
        )
    )
    text, _ = await visit(api, f"/experiments/{created['id']}")
    assert "Traceback: out of ideas" in text


@pytest.mark.parametrize("path", ["/experiments/nonesuch", "/trials/nonesuch"])
async def test_what_is_not_there_is_said_on_a_page(api: Any, path: str) -> None:
    answer = await api.client.get(path)
    assert answer.status_code == 404
    assert "nonesuch" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


async def test_an_empty_manager_says_how_to_begin(api: Any) -> None:
    text, _ = await visit(api, "/")
    assert "proctor create experiment.yml" in text
    text, _ = await visit(api, "/nodes")
    assert "No nodes yet" in text


async def test_prometheus_counts_every_start_once(api: Any) -> None:
    assert "proctor_trial_start_latency_seconds_count 0.0" in (await api.client.get("/metrics")).text
    created = await api.create()
    await api.ended(created["id"])
    for _ in range(2):
        assert "proctor_trial_start_latency_seconds_count 3.0" in (await api.client.get("/metrics")).text


async def test_prometheus_reads_counts_and_health(api: Any) -> None:
    created = await api.create()
    await api.ended(created["id"])
    text = (await api.client.get("/metrics")).text
    assert f'proctor_trials_total{{experiment="{created["id"]}",status="SUCCEEDED"}} 3.0' in text
    assert "proctor_trials_running 0.0" in text
    assert "proctor_store_healthy 1.0" in text
    for name in ("proctor_trial_start_latency_seconds_bucket", "proctor_loop_lag_seconds_bucket", "proctor_build_info"):
        assert name in text


async def test_a_gpu_shows_who_holds_it(api: Any) -> None:
    pool = api.manager.pool
    pool.add("local", "local")
    others = [DeviceProcess(4242, 300), DeviceProcess(17, 5, "p3kV9xQa.1")]
    gpus = [Device(0, "GPU-a", "H200", 100, 5, 3), Device(1, "GPU-b", "H200", 100, 5, 3, others)]
    pool.connect("local", gpus, driver_note="", hostname="h", version="1", seen_at=1.0)
    pool.reserve("p3kV9xQa.1", "t", "trial 17 of experiment Ab3dE5f7", NodePlacement("local", (GpuSlot("GPU-a", 0),)))
    [node] = (await api.client.get("/api/v1/nodes")).json()["items"]
    held = [device["held_by"] for device in node["facts"]["devices"]]
    assert held == [["trial 17 of experiment Ab3dE5f7"], ["another process (pid 4242, 300 MiB)"]]
    text, _ = await visit(api, "/nodes")
    for [phrase] in held:
        assert phrase in text


async def test_a_node_shows_how_it_is_reached_and_why_it_gets_no_jobs(api: Any) -> None:
    api.provider.add("gpu-3", "bob@gpu-3:2222")
    api.manager.pool.set_status("gpu-3", NodeStatus.FAILED, "its <b>disk</b> is full")
    text, _ = await visit(api, "/nodes")
    assert "bob@gpu-3:2222" in text
    assert "its &lt;b&gt;disk&lt;/b&gt; is full" in text
    assert "has not reported its GPUs yet" in text
    assert "Gets no new jobs" not in text
    await api.manager.nodes.drain("gpu-3", "new disk")
    text, _ = await visit(api, "/nodes")
    assert '<span class="badge HELD">drained</span>' in text
    assert "Gets no new jobs: drained: new disk." in text
    assert "proctor nodes resume gpu-3" in text


async def test_a_node_leads_to_the_experiments_that_may_use_it(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    created = await api.create()
    api.provider.add("gpu-3", "gpu-3")
    monkeypatch.setattr(api.manager, "experiments_on", lambda node_id: [created["id"]])
    _, page = await visit(api, "/nodes")
    assert f"./experiments/{created['id']}" in page.targets
    await api.ended(created["id"])


async def test_a_trial_shows_where_each_attempt_began_and_why(api: Any) -> None:
    created = await api.create(max_trial_number=1)
    await api.ended(created["id"])
    [trial] = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"]
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert '<td class="reason">–</td>' in text
    job = await api.manager.control.read(lambda c: jobs.get(c, f"{trial['id']}.1"))
    reason = "from checkpoint 3 of job 1, fetched from node <gpu-1>"
    await api.manager.control.write(lambda c: jobs.update(c, job.id, token=job.token, start_reason=reason))
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert '<td class="reason">from checkpoint 3 of job 1, fetched from node &lt;gpu-1&gt;</td>' in text


async def test_a_trial_whose_machine_is_away_is_shown_without_its_output(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await api.create(max_trial_number=1)
    await api.ended(created["id"])
    [trial] = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"]

    async def away(*_: object) -> None:
        raise Unavailable("node gpu-3 is silent")

    monkeypatch.setattr(api.manager, "list_job_files", away)
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert "(node gpu-3 is silent)" in text
    assert "Intermediate metrics" in text


async def test_a_list_of_trials_shows_the_first_of_many_parameters(api: Any) -> None:
    created = await api.create(max_trial_number=1)
    await api.ended(created["id"])
    [trial] = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"]
    many = {f"p{number}": number for number in range(30)}
    await api.manager.control.write(lambda c: trials.update(c, trial["id"], parameters=many, final_value=None))
    text, _ = await visit(api, f"/experiments/{created['id']}")
    assert "<i>p7</i>" in text
    assert "<i>p8</i>" not in text
    assert "and 22 more" in text
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert "p29" in text


async def test_a_trial_says_which_reports_are_lost(api: Any) -> None:
    created = await api.create(max_trial_number=1)
    await api.ended(created["id"])
    [trial] = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"]
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert 'class="notice"' not in text
    lines = b'{"kind": "lost", "count": 7}\n{"kind": "lost", "why": "cut <back>"}\nnonsense\n'
    database = await api.manager.metrics(created["id"])
    await database.write(lambda c: store_chunk(c, trial_id=trial["id"], job=2, member=0, offset=0, data=lines))
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert "Job 2: 7 reports lost: the trial&#39;s disk was full" in text
    assert "Job 2: cut &lt;back&gt;" in text
    assert "Job 2: a line of its journal is not a valid record: nonsense" in text


async def test_reports_that_are_no_numbers_are_not_said_to_be_missing(api: Any) -> None:
    created = await api.create(max_trial_number=1)
    await api.ended(created["id"])
    [trial] = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"]
    lines = b'{"kind": "intermediate", "value": "NaN", "time": 1.0}\n' * 2
    database = await api.manager.metrics(created["id"])
    await database.write(lambda c: store_chunk(c, trial_id=trial["id"], job=2, member=0, offset=0, data=lines))
    columns = {"intermediate_count": 2, "latest_value": None}
    await api.manager.control.write(lambda c: trials.update(c, trial["id"], **columns))
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert "None of the reports is a finite number." in text
    assert "<dt>latest</dt><dd>NaN</dd>" in text


async def test_a_trial_of_several_ranks_shows_what_each_has_reported(api: Any) -> None:
    created = await api.create(max_trial_number=1)
    await api.ended(created["id"])
    [trial] = (await api.client.get(f"/api/v1/experiments/{created['id']}/trials")).json()["items"]
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert '<th scope="col">rank</th>' not in text
    database = await api.manager.metrics(created["id"])
    for member in (0, 1):
        data = b'{"kind":"intermediate","value":%d.25,"time":1.0}\n' % member
        data += b'{"kind":"final","value":%d.5,"time":2.0}\n' % member
        chunk = {"trial_id": trial["id"], "job": 2, "member": member, "offset": 0, "data": data}
        await database.write(lambda c, chunk=chunk: store_chunk(c, **chunk))
    text, _ = await visit(api, f"/trials/{trial['id']}")
    assert '<th scope="row">0 (counts)</th><td>1</td><td>0.25</td><td>0.5</td>' in text
    assert '<th scope="row">1</th><td>1</td><td>1.25</td><td>1.5</td>' in text
