"""The machines of a configuration, over REST."""

import json
from typing import Any

import pytest

from proctor.training_services.providers import CheckVerdict

pytestmark = pytest.mark.anyio

MACHINES = [
    {"host": "a", "password_env": "A"},
    {"host": "b"},
    {"host": "c", "password": "inline", "ssh_passphrase_prompt": True},
]
SECRETS = {
    "training_service.machine_list.0.password": "of a",
    "training_service.machine_list.2.ssh_passphrase": "of c",
}


def body_of(api: Any, **changes: Any) -> dict[str, Any]:
    (api.directory / "home" / "incoming" / "handed.json").write_text(json.dumps({"secrets": SECRETS}))
    config = {**api.config, "training_service": {"platform": "remote", "machine_list": MACHINES}}
    return {"config": config, "directory": str(api.directory), "handover": "handed.json", **changes}


async def post(api: Any, verb: str, body: dict[str, Any], status: int = 200) -> Any:
    return await api.post(f"/api/v1/platforms/{verb}", json=body, status=status)


@pytest.mark.parametrize(("verb", "asked"), [("check", "inspect"), ("clean", "clean")])
async def test_all_machines_are_asked_about_with_their_secrets(api: Any, verb: str, asked: str) -> None:
    api.provider.verdicts["b"] = CheckVerdict.FAIL
    found = await post(api, verb, body_of(api))
    assert [(step["machine"], step["verdict"]) for step in found["items"]] == [("a", "ok"), ("b", "fail"), ("c", "ok")]
    [(what, settings, secrets)] = api.provider.asked
    assert what == asked
    assert [machine["host"] for machine in settings["machine_list"]] == ["a", "b", "c"]
    assert secrets == {**SECRETS, "training_service.machine_list.2.password": "inline"}
    assert not (api.directory / "home" / "incoming" / "handed.json").exists()


async def test_one_machine_is_asked_about_with_its_own_secrets(api: Any) -> None:
    await post(api, "check", body_of(api, machine=2))
    [(_, settings, secrets)] = api.provider.asked
    assert [machine["host"] for machine in settings["machine_list"]] == ["c"]
    assert secrets == {
        "training_service.machine_list.0.password": "inline",
        "training_service.machine_list.0.ssh_passphrase": "of c",
    }


@pytest.mark.parametrize("machine", [None, 1])
async def test_machines_are_checked_for_the_gpus_that_a_trial_needs(api: Any, machine: int | None) -> None:
    body = body_of(api, machine=machine)
    await post(api, "check", {**body, "config": {**body["config"], "trial_gpu_number": 4}})
    assert api.provider.trial_gpu_number == 4


async def test_a_machine_beyond_the_list_is_refused(api: Any) -> None:
    assert "expected 0 to 2, found 3" in (await post(api, "check", body_of(api, machine=3), 422))["detail"]


async def test_a_platform_without_machines_is_refused(api: Any) -> None:
    body = {"config": api.config, "directory": str(api.directory)}
    assert "'local' has no machines" in (await post(api, "clean", body, 422))["detail"]


async def test_a_configuration_that_is_not_valid_is_refused_with_its_problems(api: Any) -> None:
    config = {**api.config, "training_service": {"platform": "remote"}}
    found = await post(api, "check", {"config": config, "directory": str(api.directory)}, 422)
    assert [problem["key"] for problem in found["problems"]] == ["training_service.machineList"]


async def test_secrets_that_were_not_handed_over_are_named(api: Any) -> None:
    found = await post(api, "check", body_of(api, handover=None), 422)
    assert "password of a" in found["detail"]
    assert "passphrase of c" in found["detail"]


async def test_an_experiment_without_its_secrets_is_not_begun(api: Any) -> None:
    body = body_of(api, handover=None)
    assert "password of a" in (await api.post("/api/v1/experiments", json=body, status=422))["detail"]
    assert (await api.get("/api/v1/experiments"))["items"] == []


async def test_a_missing_library_says_what_to_install(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(kind: str) -> None:
        raise ImportError("No module named 'asyncssh': pip install 'proctor[remote]'")

    monkeypatch.setattr(api.manager.providers, "get", missing)
    assert "pip install 'proctor[remote]'" in (await post(api, "check", body_of(api), 503))["detail"]
