"""Saved experiments, taken in over REST: all of one or nothing."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def read_all(api: Any, path: str) -> list[dict[str, Any]]:
    return list((await api.get(f"/api/v1{path}"))["items"])


async def save(api: Any, experiment: dict[str, Any]) -> dict[str, Any]:
    """The records of an experiment, as `proctor experiment save` reads them."""
    trials = await read_all(api, f"/experiments/{experiment['id']}/trials?limit=1000")
    return {
        "proctor.json": {"format": 1, "experiment": experiment},
        "trials.jsonl": trials,
        "jobs.jsonl": [job for trial in trials for job in await read_all(api, f"/trials/{trial['id']}/jobs")],
        "metrics.jsonl": [row for trial in trials for row in await read_all(api, f"/trials/{trial['id']}/metrics")],
    }


def hand_over(api: Any, records: dict[str, Any]) -> None:
    with zipfile.ZipFile(api.context.home.incoming_directory / "x.zip", "w") as file:
        for name, content in records.items():
            lines = content if name.endswith(".jsonl") else [content]
            file.writestr(name, "".join(json.dumps(line) + "\n" for line in lines))


async def gone(api: Any) -> dict[str, Any]:
    """The records of an experiment that has ended and is deleted."""
    ran = await api.ran(max_trial_number=4)
    await api.client.patch(ran.path, json={"search_space": {"x": {"_type": "uniform", "_value": [2, 3]}}})
    records = await save(api, await api.get(ran.path))
    await api.delete_ended(ran.path)
    return records


def left(api: Any) -> list[Path]:
    return list(api.context.home.experiments_directory.iterdir())


async def load(api: Any, status: int = 201, **body: Any) -> Any:
    return await api.post("/api/v1/experiments/load", json={"archive": "x.zip", **body}, status=status)


async def test_everything_is_as_it_was_and_its_tuner_goes_on_with_what_it_knows(api: Any) -> None:
    records = await gone(api)
    before = records["proctor.json"]["experiment"]
    before["tags"] = ["paper", "base line"]
    hand_over(api, records)
    loaded = await load(api)
    assert loaded["status"] == "STOPPED"
    same = ("id", "name", "tags", "config", "search_space", "trial_counts", "best", "created_at", "active_seconds")
    assert {name: loaded[name] for name in same} == {name: before[name] for name in same}
    assert await save(api, before) == records
    assert loaded["notices"] == ["loaded from an archive, with 4 trials"]
    path = f"/api/v1/experiments/{loaded['id']}"
    assert (await api.client.post(f"{path}/resume")).status_code == 202
    await api.client.patch(path, json={"max_trial_number": 6})
    await api.until(path, lambda found: found["trial_counts"].get("SUCCEEDED") == 6)
    trials = (await save(api, before))["trials.jsonl"]
    assert [trial["sequence_id"] for trial in trials] == [*range(6)]
    assert [trial["parameter_id"] for trial in trials] == [*range(6)]
    assert trials[:4] == records["trials.jsonl"]
    assert all(2 <= trial["parameters"]["x"] <= 3 for trial in trials[4:])


async def test_saved_views_are_loaded(api: Any) -> None:
    records = await gone(api)
    view = {"name": "best", "page": "trials", "query": "sort=-value", "saved_at": "2026-11-24T10:30:00Z"}
    records["proctor.json"]["experiment"]["views"] = [view, {**view, "page": "curves"}]
    hand_over(api, records)
    loaded = await load(api)
    found = (await api.get(f"/api/v1/experiments/{loaded['id']}/views"))["items"]
    assert [(row["name"], row["page"], row["query"], row["saved_by"]) for row in found] == [
        ("best", "curves", "sort=-value", "")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"page": "../nodes"}, {"name": "a\x1bb"}, {"query": "a b"}, {"saved_at": "soon"}])
async def test_a_view_that_could_not_have_been_saved_is_not_loaded(api: Any, changes: dict[str, Any]) -> None:
    records = await gone(api)
    view = {"name": "best", "page": "trials", "query": "sort=-value", "saved_at": "2026-11-24T10:30:00Z"}
    records["proctor.json"]["experiment"]["views"] = [{**view, **changes}]
    hand_over(api, records)
    await load(api, 422)
    assert left(api) == []


async def test_one_saved_before_there_were_objectives_has_the_direction_that_its_tuner_used(api: Any) -> None:
    records = await gone(api)
    del records["proctor.json"]["experiment"]["objective"]
    config = records["proctor.json"]["experiment"]["config"]
    del config["objective"]
    config["tuner"] = {**config["tuner"], "name": "TPE", "class_args": {}}
    hand_over(api, records)
    loaded = await load(api)
    assert loaded["objective"]["direction"] == loaded["config"]["objective"]["direction"] == "minimize"
    assert loaded["best"]["value"] == min(trial["final_value"] for trial in records["trials.jsonl"])


async def test_parameter_ids_that_never_became_trials_are_not_waited_for(api: Any) -> None:
    records = await gone(api)
    del records["trials.jsonl"][1:3]
    kept = {trial["id"] for trial in records["trials.jsonl"]}
    for name in ("jobs.jsonl", "metrics.jsonl"):
        records[name] = [row for row in records[name] if row["trial_id"] in kept]
    hand_over(api, records)
    path = f"/api/v1/experiments/{(await load(api))['id']}"
    await api.client.post(f"{path}/resume")
    await api.until(path, lambda found: found["trial_counts"].get("SUCCEEDED") == 4)
    trials = await read_all(api, path.removeprefix("/api/v1") + "/trials")
    assert [trial["parameter_id"] for trial in trials] == [0, 3, 4, 5]


async def test_another_id_may_be_chosen(api: Any) -> None:
    hand_over(api, await gone(api))
    body = {"archive": "x.zip", "experiment_id": "again"}
    answer = await api.client.post("/api/v1/experiments/load", json=body)
    assert (answer.json()["id"], answer.headers["location"]) == ("again", "again")
    assert [folder.name for folder in left(api)] == ["again"]
    assert not (left(api)[0] / "loading").exists()


async def test_ids_in_use_are_refused_and_nothing_is_left(api: Any) -> None:
    ran = await api.ran()
    hand_over(api, await save(api, await api.get(ran.path)))
    assert f"experiment {ran.id} already exists" in (await load(api, 409))["detail"]
    assert f"already exists, in experiment {ran.id}" in (await load(api, 409, experiment_id="again"))["detail"]
    assert [folder.name for folder in left(api)] == [ran.id]
    assert (await api.client.get("/api/v1/experiments/again")).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line", "sentence"),
    [
        ("metrics.jsonl", {"trial_id": "unknown"}, "has no trial unknown"),
        ("metrics.jsonl", {}, "two of its metrics have the same id"),
        ("metrics.jsonl", {"kind": "guess"}, "metrics.jsonl:"),
        ("trials.jsonl", {}, "two of its trials have the same id"),
        ("trials.jsonl", {"id": "another"}, "two of its trials have the same sequence_id"),
        ("jobs.jsonl", {"trial_id": "unknown"}, "its job of trial unknown has no trial"),
    ],
)
async def test_an_archive_that_is_not_sound_leaves_nothing(
    api: Any, name: str, line: dict[str, Any], sentence: str
) -> None:
    records = await gone(api)
    records[name].append({**records[name][0], **line})
    hand_over(api, records)
    assert sentence in (await load(api, 422))["detail"]
    assert left(api) == []
    assert (await api.get("/api/v1/experiments"))["items"] == []


async def test_a_configuration_that_is_not_understood_and_a_missing_folder_are_named(api: Any) -> None:
    records = await gone(api)
    hand_over(api, records)
    answer = await load(api, 422, code_directory="/no/such/folder")
    assert "code_directory: expected the absolute path of a folder" in answer["detail"]
    records["proctor.json"]["experiment"]["config"]["trial_concurrency"] = "many"
    hand_over(api, records)
    answer = await load(api, 422)
    assert "the saved configuration cannot be used by this version: trial_concurrency" in answer["detail"]
    assert left(api) == []


@pytest.mark.parametrize("archive", ["none.zip", "..", "a/b", ""])
async def test_only_a_file_that_was_handed_over_is_loaded(api: Any, archive: str) -> None:
    await load(api, 422, archive=archive)
