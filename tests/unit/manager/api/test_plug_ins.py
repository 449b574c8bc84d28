"""An experiment on the platform of an installed package."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.training_services import providers, registry

pytestmark = pytest.mark.anyio

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
