"""How the API fails."""

from typing import Any

import pytest

from proctor.manager.api.errors import describe_items
from proctor.manager.config.errors import ConfigProblem, SourcePosition
from proctor.sdk.space.parameters import SpaceProblem

pytestmark = pytest.mark.anyio


FAILURES = [
    ("GET", "/api/v1/experiments/nonesuch", 404),
    ("GET", "/api/v1/trials/nonesuch", 404),
    ("GET", "/api/v1/trials/nonesuch/logs", 404),
    ("GET", "/api/v1/trials/nonesuch/checkpoints", 404),
    ("GET", "/api/v1/experiments/nonesuch/changes?after=0", 404),
    ("GET", "/api/v1/experiments/nonesuch/curves?ids=0", 404),
    ("GET", "/api/v1/experiments/nonesuch/curves/density", 404),
    ("GET", "/api/v1/experiments/nonesuch/curves/keys", 404),
    ("GET", "/api/v1/experiments/nonesuch/events", 404),
    ("GET", "/api/v1/experiments/nonesuch/failures", 404),
    ("GET", "/api/v1/experiments/nonesuch/importance", 404),
    ("GET", "/api/v1/experiments/nonesuch/scheduler", 404),
    ("GET", "/api/v1/experiments/nonesuch/table", 404),
    ("GET", "/api/v1/nodes/nonesuch", 404),
    ("DELETE", "/api/v1/tokens/nonesuch", 404),
    ("DELETE", "/api/v1/tokens/owner", 404),
    ("POST", "/api/v1/trials/nonesuch/kill", 404),
    ("GET", "/api/v1/nowhere", 404),
    ("PUT", "/api/v1/experiments", 405),
    ("GET", "/api/v1/experiments?limit=0", 422),
    ("GET", "/api/v1/experiments?limit=many", 422),
    ("GET", "/api/v1/experiments?cursor=%00%ff", 422),
    ("GET", "/api/v1/experiments?status=SLEEPING", 422),
    ("GET", "/api/v1/events?after=-1", 422),
]


async def test_every_failure_is_a_problem_document(api: Any) -> None:
    for method, path, status in FAILURES:
        answer = await api.client.request(method, path)
        body = answer.json()
        assert (answer.status_code, body["status"]) == (status, status), path
        assert answer.headers["content-type"] == "application/problem+json"
        assert body["detail"]


async def test_a_body_that_is_no_json_is_refused(api: Any) -> None:
    answer = await api.post(
        "/api/v1/experiments", content=b'{"config": ', headers={"Content-Type": "application/json"}, status=422
    )
    assert "not valid JSON" in answer["detail"]


async def test_an_unknown_key_is_named(api: Any) -> None:
    body = {"config": {}, "directory": "/", "dryrun": True}
    problems = (await api.post("/api/v1/experiments", json=body))["problems"]
    assert [problem["key"] for problem in problems] == ["dryrun"]


async def test_an_unknown_query_parameter_is_named(api: Any) -> None:
    answer = await api.client.get("/api/v1/experiments?limits=3&tag=a&shown=x")
    body = answer.json()
    assert (answer.status_code, [item["key"] for item in body["problems"]]) == (422, ["query limits", "query shown"])
    assert "there is no query parameter of this name; expected archived, cursor, id_prefix" in body["detail"]
    answer = await api.client.get("/api/v1/experiments/nonesuch/best?token=x")
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "query token: there is no query parameter of this name; this address takes none",
    )
    answer = await api.client.post("/api/v1/trials/nonesuch/kill?now=true")
    assert answer.status_code == 422


async def test_a_last_event_id_that_is_no_number_is_refused(api: Any) -> None:
    assert (await api.client.get("/api/v1/events", headers={"Last-Event-ID": "x1"})).status_code == 422


async def test_a_fault_of_ours_is_a_problem_document_too(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(experiment_id: str) -> None:
        raise RuntimeError("out of paper")

    monkeypatch.setattr(api.manager, "experiment", fail)
    assert "out of paper" in (await api.get("/api/v1/experiments/x", status=500))["detail"]


def test_problems_of_every_kind_become_items() -> None:
    items = describe_items(
        [
            ConfigProblem(
                SourcePosition("e.yml", 3, 5), "tuner.name", expected="a tuner", found="'TPF'", nearest="TPE"
            ),
            SpaceProblem(("lr", "_value", 0), "expected a number"),
            "a plain sentence",
        ]
    )
    assert [item["key"] for item in items] == ["tuner.name", "lr._value.0", ""]
    assert items[0]["line"] == 3
    assert items[0]["message"] == "expected a tuner, found 'TPF'; did you mean TPE?"
    assert items[2]["message"] == "a plain sentence"


async def test_a_fault_in_a_configuration_names_its_key_and_what_was_found(api: Any) -> None:
    config = {**api.config, "trialConcurency": 2, "max_trial_number": "many"}
    answer = await api.post("/api/v1/experiments", json={"config": config, "directory": str(api.directory)}, status=422)
    problems = {problem["key"]: problem for problem in answer["problems"]}
    assert problems["trialConcurency"]["nearest"] == "trialConcurrency"
    assert "many" in problems["max_trial_number"]["found"]
    assert problems["max_trial_number"]["expected"]
    assert "max_trial_number: expected " in answer["detail"]


async def test_a_fault_in_a_new_search_space_names_its_place(api: Any) -> None:
    created = await api.create()
    space = {"x": {"_type": "uniform", "_value": [1, 0]}}
    answer = await api.patch(created.path, json={"search_space": space}, status=422)
    [problem] = answer["problems"]
    assert problem["key"].startswith("x._value")
    assert problem["message"] in answer["detail"]
