"""Experiments and what comes out of them, over REST."""

import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.api.resources import reason_of
from proctor.manager.config.loading import load_experiment_mapping
from proctor.manager.dispatcher.algorithms.registered import RegisteredAlgorithm, register
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.database import HEALTHY
from proctor.manager.store.rows import TrialRow, update_row
from proctor.manager.store.tables import dispatcher_inputs, events, metrics, trials

pytestmark = pytest.mark.anyio


async def test_what_an_earlier_version_has_stored_keeps_nothing_from_being_answered(api: Any) -> None:
    ran = await api.ran()
    [trial, *_] = (await api.get(f"{ran.path}/trials"))["items"]

    def spoil(connection: sqlite3.Connection) -> None:
        notice = {"text": "lost \ud800"}
        events.append(connection, time=1.0, kind=events.NOTICE, data=notice, experiment_id=ran.id)
        connection.execute("UPDATE experiments SET created_at = -1e18, started_at = 1e300")
        connection.execute("UPDATE trials SET ended_at = 1e18")

    await api.manager.control.write(spoil)
    addresses = [
        "/api/v1/experiments",
        ran.path,
        f"{ran.path}/trials",
        f"/api/v1/trials/{trial['id']}",
        f"{ran.path}/export",
    ]
    for address in addresses:
        assert (await api.client.get(address)).status_code == 200, address
    assert (await api.get(ran.path))["notices"][-1] == "lost \\ud800"


async def test_an_experiment_is_created_runs_and_shows_its_best(api: Any) -> None:
    created = await api.create(experiment_name="first")
    assert created["name"] == "first"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", created["created_at"])
    assert created["objective"] == {"metric": "default", "direction": "minimize"}
    assert created["config"]["objective"] == created["objective"]
    assert created["url"] == f"http://127.0.0.1:8080/experiments/{created['id']}"
    body = await api.ended(created["id"])
    assert body["status"] == "DONE"
    assert body["trial_counts"] == {"SUCCEEDED": 3}
    trials = (await api.get(f"{created.path}/trials?sort=value"))["items"]
    assert body["best"]["value"] == trials[0]["final_value"] == min(trial["final_value"] for trial in trials)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "direction"),
    [
        ({"tuner": {"name": "TPE"}}, "minimize"),
        ({"tuner": {"name": "TPE"}, "objective": {"direction": "maximize"}}, "maximize"),
        ({"tuner": {"name": "Random"}, "objective": {"direction": "minimize"}}, "minimize"),
        ({"tuner": {"name": "Random"}}, "maximize"),
    ],
)
async def test_the_best_the_curve_and_the_order_follow_the_direction(
    api: Any, changes: dict[str, Any], direction: str
) -> None:
    created = await api.create(max_trial_number=5, **changes)
    body = await api.ended(created["id"])
    assert body["objective"]["direction"] == direction
    values = [trial["final_value"] for trial in (await api.get(f"{created.path}/trials"))["items"]]
    assert len(set(values)) == 5
    ordered = sorted(values, reverse=direction == "maximize")
    assert body["best"]["value"] == (await api.get(f"{created.path}/best"))["value"] == ordered[0]
    bests = [point["best"] for point in (await api.get(f"{created.path}/curve"))["items"]]
    assert (len(bests), bests[-1]) == (5, ordered[0])
    assert bests == sorted(bests, reverse=direction == "minimize")
    for sort, expected in (("best", ordered), ("-best", ordered[::-1])):
        first = await api.get(f"{created.path}/trials?sort={sort}&limit=3")
        rest = await api.get(f"{created.path}/trials?sort={sort}&cursor={first['next_cursor']}")
        assert [trial["final_value"] for trial in first["items"] + rest["items"]] == expected


async def test_an_experiment_from_before_there_were_objectives_keeps_the_direction_of_its_tuner(api: Any) -> None:
    created = await api.create(tuner={"name": "TPE"}, objective={"direction": "maximize"})
    config = {key: value for key, value in created["config"].items() if key != "objective"}
    await api.ended(created["id"])
    statement = "UPDATE experiments SET config = ? WHERE id = ?"
    await api.manager.control.write(lambda c: c.execute(statement, (json.dumps(config), created["id"])).rowcount)
    body = await api.get(created.path)
    values = [trial["final_value"] for trial in (await api.get(f"{created.path}/trials"))["items"]]
    assert (body["objective"]["direction"], body["best"]["value"]) == ("minimize", min(values))


async def test_lists_are_paged_without_gaps_or_repeats(api: Any) -> None:
    ids = [(await api.create())["id"] for _ in range(5)]
    assert [item["id"] for item in await api.pages("/api/v1/experiments?limit=2")] == ids[::-1]


async def test_a_dry_run_writes_nothing(api: Any) -> None:
    body = {"config": api.config, "directory": str(api.directory), "dry_run": True}
    await api.post("/api/v1/experiments", json=body, status=200)
    assert (await api.get("/api/v1/experiments"))["items"] == []


async def test_a_limit_is_changed_and_taken_away(api: Any) -> None:
    ran = await api.ran(max_trial_number=1)
    raised = await api.patch(ran.path, json={"max_trial_number": 4, "max_trial_duration_seconds": 60})
    assert raised["max_trial_number"] == 4
    assert raised["max_trial_duration_seconds"] == 60
    cleared = await api.patch(ran.path, json={"max_trial_duration_seconds": None})
    assert cleared["max_trial_duration_seconds"] is None
    assert cleared["max_trial_number"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        *({}, {"nonsense": 1}, {"priority": None}, {"search_space": None}, {"trial_concurrency": None}),
        *({"trial_concurrency": 0}, {"trial_concurrency": 2_936_544}, {"trial_concurrency": 2**63}),
        *({"max_trial_number": 2**63}, {"max_experiment_duration_seconds": 1e303}),
        {"max_trial_duration_seconds": 1e303},
    ],
)
async def test_an_update_that_says_nothing_sensible_is_refused(api: Any, body: dict[str, Any]) -> None:
    answer = await api.client.patch((await api.create()).path, json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.slow
async def test_a_stopped_experiment_is_deleted_with_its_folder(api: Any) -> None:
    created, provider = await api.create(), api.provider
    assert (await api.client.delete(created.path)).status_code == 409
    assert provider.forgotten == []
    assert (await api.client.post(f"{created.path}/stop")).status_code == 202
    while (await api.get(created.path))["status"] != "STOPPED":
        await api.manager.feed.wait(5)
    deleted = await api.client.delete(created.path)
    assert (deleted.status_code, deleted.json()) == (200, {"left": []})
    assert (await api.client.get(created.path)).status_code == 404
    assert provider.forgotten == [created["id"]]  # nothing of it is collected any more


async def test_the_reason_of_an_experiment_that_is_being_stopped_is_what_it_waits_for(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await api.create()
    monkeypatch.setattr(api.manager, "awaited", lambda row: f"waits for 1 trial of {row.id}")
    for body in (await api.get(created.path), (await api.get("/api/v1/experiments"))["items"][0]):
        assert body["reason"] == f"waits for 1 trial of {created['id']}"


async def test_an_export_holds_every_trial_that_has_ended_and_an_import_skips_those_without_a_value(api: Any) -> None:
    ran = await api.ran(max_trial_number=7)
    ids = [trial["id"] for trial in ran.trials]
    changes: list[dict[str, Any]] = [
        {},
        {"status": TrialStatus.FAILED, "reason": "exit code 1", "final_value": None, "final_data": None},
        {"status": TrialStatus.EARLY_STOPPED, "latest_value": 0.25, "final_value": None, "final_data": None},
        {"status": TrialStatus.USER_CANCELED},
        {"final_value": None, "final_data": None},
        {"status": TrialStatus.RUNNING, "final_value": None, "final_data": None},
        {"status": TrialStatus.WAITING, "final_value": None, "final_data": None},
    ]
    for trial_id, columns in zip(ids, changes, strict=True):
        await api.manager.control.write(lambda c, i=trial_id, new=columns: update_row(c, "trials", TrialRow, i, new))
    first = await api.get(f"{ran.path}/export?limit=3")
    rest = await api.get(f"{ran.path}/export?cursor={first['next_cursor']}")
    rows = first["items"] + rest["items"]
    assert [(row["sequence_id"], row["status"], row["value"] is None) for row in rows] == [
        (0, "SUCCEEDED", False),
        (1, "FAILED", True),
        (2, "EARLY_STOPPED", True),
        (3, "USER_CANCELED", False),
        (4, "SUCCEEDED", True),
    ]
    assert rest["next_cursor"] is None
    assert (rows[1]["reason"], rows[2]["latest_value"]) == ("exit code 1", 0.25)
    succeeded = (await api.get(f"{ran.path}/export?status=SUCCEEDED"))["items"]
    assert [row["sequence_id"] for row in succeeded] == [0, 4]
    other = await api.create(max_trial_number=1)
    answer = await api.post(f"/api/v1/experiments/{other['id']}/import", json=rows)
    assert answer == {"imported": 2, "skipped": 3, "outside": 0}
    log = await api.manager.control.read(lambda c: dispatcher_inputs.after(c, other["id"], 0, 100))
    shown = [row.payload["rows"] for row in log if row.kind == "ImportData"]
    assert shown == [[{"parameter": rows[n]["parameter"], "value": rows[n]["value"]} for n in (0, 3)]]


async def test_an_import_without_any_value_tells_the_tuner_nothing(api: Any) -> None:
    created = await api.create()
    answer = await api.post(f"{created.path}/import", json=[{"parameter": {"x": 0.5}, "value": None}])
    assert answer == {"imported": 0, "skipped": 1, "outside": 0}
    log = await api.manager.control.read(lambda c: dispatcher_inputs.after(c, created["id"], 0, 100))
    assert "ImportData" not in [row.kind for row in log]


async def test_there_is_no_best_before_the_first_result(api: Any) -> None:
    ran = await api.ran()
    for trial in ran.trials:
        await api.manager.control.write(
            lambda c, id=trial["id"]: trials.update(c, id, final_value=None, final_data=None)
        )
    assert "has reported a final metric" in (await api.get(f"{ran.path}/best", status=404))["detail"]


async def test_a_trial_is_read_with_its_jobs_and_metrics(api: Any) -> None:
    trial = (await api.ran()).trials[0]
    assert await api.get(f"/api/v1/trials/{trial['id']}") == {**trial, "decisions": []}
    jobs = (await api.get(f"/api/v1/trials/{trial['id']}/jobs"))["items"]
    assert [job["id"] for job in jobs] == [f"{trial['id']}.1"]
    assert "token" not in jobs[0]
    finals = (await api.get(f"/api/v1/trials/{trial['id']}/metrics?kind=final"))["items"]
    assert [final["value"] for final in finals] == [trial["final_value"]]


async def test_a_trials_curve_continues_over_its_jobs_page_by_page(api: Any) -> None:
    ran = await api.ran()
    trial = ran.trials[0]
    for job, first, values in ((2, 0, [0.1, 0.2, 0.3]), (3, 2, [1.3, 1.4])):
        await api.report(ran.id, trial["id"], values, job=job, first_sequence=first)
    points = await api.pages(f"/api/v1/trials/{trial['id']}/curve?limit=3")
    found = [(point["job"], point["sequence"], point["value"]) for point in points]
    assert found == [(2, 0, 0.1), (2, 1, 0.2), (3, 2, 1.3), (3, 3, 1.4)]
    assert (await api.client.get(f"/api/v1/trials/{trial['id']}/curve?cursor=x")).status_code == 422


async def test_an_export_has_the_steps_of_intermediate_metrics_where_they_are_asked_for(api: Any) -> None:
    ran = await api.ran(max_trial_number=1)
    [trial] = ran.trials
    values = [0.5, {"default": 0.75, "loss": 2}]
    await api.report(ran.id, trial["id"], values, steps=[10, None], job=2, first_sequence=0)
    [row] = (await api.get(f"{ran.path}/export?intermediate=true"))["items"]
    assert (row["intermediate"], row["intermediate_steps"]) == (values, [10, None])
    [row] = (await api.get(f"{ran.path}/export"))["items"]
    assert (row["intermediate"], row["intermediate_steps"]) == (None, None)


async def test_the_checkpoints_of_a_trial_are_listed_page_by_page(api: Any) -> None:
    ran = await api.ran(max_trial_number=1)
    [trial] = ran.trials
    path = f"/api/v1/trials/{trial['id']}/checkpoints"
    assert await api.get(path) == {"items": [], "next_cursor": None}
    lines = [f'{{"kind":"checkpoint","path":"output/checkpoints/{n}","step":{n},"time":1.0}}\n' for n in (1, 2, 3)]
    lines[1] = lines[1].replace("}", f',"bytes":4096,"manifest":"{"0f" * 32}"}}')
    data = '{"kind":"intermediate","value":0.5,"time":1.0}\n' + "".join(lines)
    chunk = {"trial_id": trial["id"], "job": 1, "member": 1, "offset": 0, "data": data.encode()}
    await (await api.manager.metrics(ran.id)).write(lambda c: metrics.store_chunk(c, **chunk))
    (Path(trial["directory"]) / "jobs" / "1" / "output" / "checkpoints" / "2").mkdir(parents=True)
    first = await api.get(f"{path}?limit=2")
    assert [(row["path"], row["step"], row["sequence"], row["is_here"]) for row in first["items"]] == [
        ("output/checkpoints/1", 1, 1, False),
        ("output/checkpoints/2", 2, 1, True),
    ]
    assert [(row["size_bytes"], row["manifest"]) for row in first["items"]] == [(None, None), (4096, "0f" * 32)]
    last = await api.get(f"{path}?limit=2&cursor={first['next_cursor']}")
    assert ([row["step"] for row in last["items"]], last["next_cursor"]) == ([3], None)


async def test_reports_of_every_rank_are_read_and_those_that_count_are_marked(api: Any) -> None:
    ran = await api.ran(report_from=1)
    trial = ran.trials[0]
    for member in (1, 2):
        await api.report(ran.id, trial["id"], [member], job=2, member=member)

    async def read(path: str) -> list[tuple[int, bool, float]]:
        items = (await api.get(f"/api/v1/trials/{trial['id']}/{path}"))["items"]
        return [(item["member"], item["counts"], item["value"]) for item in items if item["job"] == 2]

    assert await read("metrics") == [(1, True, 1.0), (2, False, 2.0)]
    assert await read("metrics?member=2") == [(2, False, 2.0)]
    assert await read("curve") == [(1, True, 1.0)]
    assert await read("curve?member=2") == [(2, False, 2.0)]


async def test_a_trial_is_paused_and_resumed(api: Any) -> None:
    created = await api.create(max_trial_number=None)  # one that has no more trials cannot be paused
    bell = api.manager.feed.next_change()
    while (await api.client.post(f"{created.path}/pause")).status_code == 409:  # it is INITIALIZED
        await bell.wait()
        bell = api.manager.feed.next_change()
    added = await api.post(f"{created.path}/trials", json={"parameters": {"x": 0.5}})
    trial = f"/api/v1/trials/{added['id']}"
    assert (
        await api.client.patch(created.path, json={"max_trial_number": added["sequence_id"] + 1})
    ).status_code == 200
    paused = await api.client.post(f"{trial}/pause")
    assert (paused.status_code, paused.json()["status"]) == (202, "PAUSED")
    resumed = await api.client.post(f"{trial}/resume")
    assert (resumed.status_code, resumed.json()["status"]) == (202, "WAITING")
    again = await api.client.post(f"{trial}/resume")
    assert (again.status_code, again.json()["title"]) == (409, "Conflict")
    assert "is WAITING; only a PAUSED trial can be resumed" in again.json()["detail"]
    await api.client.post(f"{trial}/pause")
    assert (await api.client.post(f"{created.path}/resume?trials=true")).status_code == 202
    assert (await api.get(trial))["paused_by"] == "USER", "it was not paused with the experiment"
    assert (await api.client.post(f"{trial}/resume")).status_code == 202
    await api.ended(created["id"])
    assert (await api.get(trial))["status"] == "SUCCEEDED"
    for verb in ("pause", "kill"):
        await api.post(f"{trial}/{verb}", status=409)


async def test_a_word_stands_for_a_number_that_is_not_finite(api: Any) -> None:
    trial = (await api.ran()).trials[0]
    nan = float("nan")
    await api.manager.control.write(lambda c: trials.update(c, trial["id"], final_value=None, final_data=nan))
    assert (await api.get(f"/api/v1/trials/{trial['id']}"))["final_value"] == "NaN"


async def test_what_a_configuration_asks_in_vain_is_shown_as_a_notice(api: Any) -> None:
    created = await api.create(debug=True, experiment_name="noticed", use_annotation=False)
    assert all(isinstance(text, str) for text in created["notices"])
    expected = load_experiment_mapping(
        {**api.config, "debug": True, "experiment_name": "noticed", "use_annotation": False}, api.directory
    ).notices
    assert expected
    assert created["notices"] == [str(notice) for notice in expected]


async def test_a_registered_algorithm_is_known_by_its_name(api: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    register(api.context.home.path, RegisteredAlgorithm("Mine", "tuner", "mine.Mine", str(tmp_path)))
    body = {"config": {**api.config, "tuner": {"name": "mine"}}, "directory": str(tmp_path), "dry_run": True}
    answer = await api.post("/api/v1/experiments", json=body, status=200)
    assert answer["config"]["tuner"]["class_name"] == "mine.Mine"


VALIDATOR = """
import os
from nni.utils import ClassArgsValidator

class Mine: ...

class Strict(ClassArgsValidator):
    def validate_class_args(self, **kwargs):
        raise ValueError(f"nothing is good enough for {os.environ.get('WHO')}")
"""


@pytest.mark.parametrize("dry_run", [True, False])
async def test_the_validator_of_a_registered_algorithm_is_asked_in_the_callers_environment(
    api: Any, tmp_path: Path, dry_run: bool
) -> None:
    (tmp_path / "mine.py").write_text(VALIDATOR)
    register(api.context.home.path, RegisteredAlgorithm("Mine", "tuner", "mine.Mine", str(tmp_path), "mine.Strict"))
    (api.context.home.incoming_directory / "h.json").write_text('{"environment": {"WHO": "Ada"}}')
    config = {**api.config, "tuner": {"name": "mine"}}
    body = {"config": config, "directory": str(tmp_path), "handover": "h.json", "dry_run": dry_run}
    answer = await api.client.post("/api/v1/experiments", json=body)
    (problem,) = answer.json()["problems"]
    assert (answer.status_code, problem["key"]) == (422, "tuner.classArgs")
    assert "mine.Strict refuses them: nothing is good enough for Ada" in problem["message"]
    assert list(api.context.home.experiments_directory.iterdir()) == []


async def test_registered_algorithms_that_cannot_be_read_are_said(api: Any) -> None:
    (api.context.home.path / "algorithms.json").write_text("{")
    answer = await api.post("/api/v1/experiments", json={"config": api.config, "directory": "/"}, status=503)
    assert "algorithms.json is damaged" in answer["detail"]


async def test_while_nothing_can_be_written_what_goes_on_says_why_it_does_not(api: Any) -> None:
    ran = await api.ran()
    row = await api.manager.experiment(ran.id)
    running = replace(row, status=ExperimentStatus.RUNNING, reason="")
    assert reason_of(api.context, running) == ""
    api.manager.control.health = "The database control.db cannot be written: disk full."
    assert reason_of(api.context, running) == f"no new trials are started: {api.manager.control.health}"
    assert reason_of(api.context, row) == row.reason
    api.manager.control.health = HEALTHY
    (await api.manager.metrics(ran.id)).health = "The database metrics.db cannot be written: disk full."
    assert "metrics.db" in reason_of(api.context, running)
    assert reason_of(api.context, replace(running, id="another")) == ""


async def test_a_search_space_is_changed_by_its_text(api: Any) -> None:
    made = await api.create()
    path = f"/api/v1/experiments/{made['id']}"
    text = "x:\n  _type: uniform\n  _value: [0, 2]  # wider\n"
    answer = await api.patch(path, json={"search_space_text": text})
    assert answer["search_space"] == {"x": {"_type": "uniform", "_value": [0, 2]}}
    wrong = await api.patch(path, json={"search_space_text": "x:\n  _type: unifrom\n  _value: [0, 2]"}, status=422)
    assert wrong["problems"][0]["key"].startswith("x")
    malformed = await api.patch(path, json={"search_space_text": "x:\n  - a\n b: ["}, status=422)
    assert malformed["problems"][0]["line"] >= 2
    assert "both" in (await api.patch(path, json={"search_space_text": text, "search_space": {}}))["detail"]
