"""The machines of a configuration, over REST, and platforms that installed packages bring."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.training_services import providers, registry
from proctor.training_services.providers import CheckStep, CheckVerdict

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


REFUSAL = CheckStep("here/ml", "objects", CheckVerdict.FAIL, "the cluster refuses it", "give another one")
WARNING = CheckStep("here/ml", "objects", CheckVerdict.NOTE, "the cluster warns")


@pytest.mark.parametrize("is_dry", [True, False])
async def test_an_experiment_whose_platform_refuses_its_trials_is_not_begun(api: Any, is_dry: bool) -> None:
    api.provider.previewed = [WARNING, REFUSAL]
    body = body_of(api, dry_run=is_dry)
    refused = await api.post("/api/v1/experiments", json=body, status=422)
    words = "the experiment cannot run on platform remote: here/ml: the cluster refuses it; give another one"
    assert refused["detail"] == words
    assert (await api.get("/api/v1/experiments"))["items"] == []
    assert (api.directory / "home" / "incoming" / "handed.json").exists()  # for another try


async def test_what_a_platform_says_of_a_new_experiment_is_a_notice(api: Any) -> None:
    api.provider.previewed = [WARNING]
    created = await api.post("/api/v1/experiments", json=body_of(api), status=201)
    assert created["notices"][-1] == "here/ml: the cluster warns"


async def test_a_missing_library_says_what_to_install(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(kind: str) -> None:
        raise ImportError("No module named 'asyncssh': pip install 'proctor[remote]'")

    monkeypatch.setattr(api.manager.providers, "get", missing)
    assert "pip install 'proctor[remote]'" in (await post(api, "check", body_of(api), 503))["detail"]


MODULE = """\
import asyncio

from proctor.training_services.in_memory.service import InMemoryTrainingService
from proctor.training_services.providers import CheckStep, CheckVerdict, Provider

asked = []


class Cluster(InMemoryTrainingService):
    def __init__(self, context):
        super().__init__()
        asked.append(dict(context.settings))


def broken(context):
    raise ValueError("no queue is named")


class ClusterProvider(Provider):
    def __init__(self, context):
        pass

    async def run(self):
        await asyncio.Event().wait()

    async def inspect(self, settings, secrets, *, trial_gpu_number=None):
        return [CheckStep(settings["queue_name"], "queue", CheckVerdict.OK, f"{trial_gpu_number} GPUs")]

    async def clean(self, settings, secrets):
        return [CheckStep(settings["queue_name"], "queue", CheckVerdict.FAIL, "in use", "stop it")]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small package that brings two platforms; one of them can never be made."""
    folder = tmp_path / "site"
    information = folder / "small_cluster-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "small_cluster.py").write_text(MODULE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: small-cluster\nVersion: 1.0\n")
    entries = "cluster = small_cluster:Cluster\nbroken = small_cluster:broken\nmissing = small_cluster:nothing\n"
    made_by = "cluster = small_cluster:ClusterProvider\nmissing = small_cluster:nothing\n"
    (information / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINT_GROUP}]\n{entries}\n[{providers.ENTRY_POINT_GROUP}]\n{made_by}"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("small_cluster", None)


@pytest.fixture
def real(api: Any, package: Path) -> Any:
    """The API of a manager that makes its services by the registry."""
    supervisor = api.manager._supervisor
    supervisor._context = replace(supervisor._context, create_service=registry.create)
    return api


async def test_an_experiment_runs_on_the_platform_of_a_package(real: Any) -> None:
    created = await real.create(training_service={"platform": "cluster", "queueName": "long"})
    ended = await real.ended(created["id"])
    assert ended["trial_counts"] == {"SUCCEEDED": 3}
    assert ended["config"]["training_service"] == {"platform": "cluster", "queue_name": "long"}
    from small_cluster import asked  # type: ignore[import-not-found]

    assert asked[0] == {"platform": "cluster", "queue_name": "long"}


@pytest.mark.parametrize(("platform", "why"), [("broken", "no queue is named"), ("missing", "could not be loaded")])
async def test_a_service_that_cannot_be_made_leaves_no_experiment_behind(real: Any, platform: str, why: str) -> None:
    config = {**real.config, "training_service": {"platform": platform}}
    body: dict[str, Any] = {"config": config, "directory": str(real.directory)}
    answer = await real.post("/api/v1/experiments", json={**body, "experiment_id": "Ab3dE5f7"}, status=422)
    assert why in answer["detail"]
    assert (await real.get("/api/v1/experiments"))["items"] == []
    assert not real.manager.home.experiment_directory("Ab3dE5f7").exists()
    body["config"] = {**real.config, "training_service": {"platform": "cluster"}}
    await real.post("/api/v1/experiments", json={**body, "experiment_id": "Ab3dE5f7"}, status=201)
    await real.ended("Ab3dE5f7")


async def test_a_platform_that_nobody_brings_is_refused_with_those_that_are_known(real: Any) -> None:
    body = {"config": {**real.config, "training_service": {"platform": "moonbase"}}, "directory": str(real.directory)}
    answer = await real.post("/api/v1/experiments", json=body, status=422)
    assert "local or remote or kubernetes or broken or cluster or missing" in answer["detail"]


async def _ask(real: Any, what: str, platform: str, status: int = 200) -> Any:
    section = {"platform": platform, "queueName": "long"}
    config = {**real.config, "trial_gpu_number": 2, "training_service": section}
    body = {"config": config, "directory": str(real.directory)}
    return await real.post(f"/api/v1/platforms/{what}", json=body, status=status)


async def test_the_provider_of_a_package_checks_and_cleans_its_platform(real: Any) -> None:
    checked, cleaned = [await _ask(real, what, "cluster") for what in ("check", "clean")]
    found = [(step["machine"], step["verdict"], step["found"]) for step in checked["items"]]
    assert found == [("long", "ok", "2 GPUs")]
    assert [(step["verdict"], step["advice"]) for step in cleaned["items"]] == [("fail", "stop it")]


async def test_a_platform_without_a_provider_names_those_that_have_one(real: Any) -> None:
    detail = (await _ask(real, "check", "broken", 422))["detail"]
    assert "those that have: remote, kubernetes" in detail
    assert "cluster" in detail


async def test_a_provider_that_cannot_be_loaded_is_named(real: Any) -> None:
    assert "platform missing cannot be used" in (await _ask(real, "check", "missing", 503))["detail"]
