"""Machines that a stopped experiment is still leaving."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proctor.manager.engine import platforms
from proctor.training_services.base import SupportsNodes
from proctor.training_services.in_memory.service import InMemoryTrainingService
from proctor.training_services.providers import CheckVerdict

pytestmark = pytest.mark.anyio


class SlowToLeave(InMemoryTrainingService, SupportsNodes):
    """Uses node b, and leaves it when a test lets it."""

    may_leave: asyncio.Event
    is_leaving: asyncio.Event

    def node_ids(self) -> tuple[str, ...]:
        return ("b",)

    async def clean_up(self) -> None:
        self.is_leaving.set()
        await self.may_leave.wait()
        await super().clean_up()


@pytest.fixture
async def service_class() -> AsyncIterator[type[SlowToLeave]]:
    SlowToLeave.may_leave, SlowToLeave.is_leaving = asyncio.Event(), asyncio.Event()
    yield SlowToLeave
    SlowToLeave.may_leave.set()


async def stopped(api: Any) -> str:
    """An experiment that is STOPPED and has not left its machine."""
    created = await api.create()
    await api.post(f"{created.path}/stop", status=202)
    await asyncio.wait_for(SlowToLeave.is_leaving.wait(), 60)
    assert (await api.get(created.path))["status"] == "STOPPED"
    return str(created["id"])


async def clean(api: Any) -> list[Any]:
    service = {"platform": "remote", "machine_list": [{"host": "a"}, {"host": "b"}]}
    body = {"config": {**api.config, "training_service": service}, "directory": str(api.directory)}
    return list((await api.post("/api/v1/platforms/clean", json=body, status=200))["items"])


async def test_cleaning_waits_until_a_stopped_experiment_has_left(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "LEAVING_SECONDS", 60.0)
    await stopped(api)
    waits = asyncio.Event()
    until_left = api.manager._supervisor.until_left

    async def note(*arguments: Any) -> None:
        waits.set()
        await until_left(*arguments)

    monkeypatch.setattr(api.manager._supervisor, "until_left", note)
    async with asyncio.TaskGroup() as group:
        cleaning = group.create_task(clean(api), name="clean")
        await asyncio.wait_for(waits.wait(), 60)
        assert api.provider.asked == []
        SlowToLeave.may_leave.set()
    assert [(step["machine"], step["verdict"]) for step in cleaning.result()] == [("a", "ok"), ("b", "ok")]


async def test_a_machine_that_is_not_left_in_time_is_told_with_the_experiment_that_is_leaving_it(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platforms, "LEAVING_SECONDS", 0.0)
    identifier = await stopped(api)
    api.provider.verdicts = {"a": CheckVerdict.FAIL, "b": CheckVerdict.FAIL}
    first, second = await clean(api)
    assert first["name"] == "clean"
    assert (second["name"], second["verdict"]) == ("leaving", "fail")
    assert second["found"].startswith(f"experiment {identifier} was stopped and is leaving it")
    assert second["advice"] == "try again after it has released the node"


async def test_a_running_experiment_is_not_waited_for(api: Any) -> None:
    await api.create()
    api.provider.verdicts = {"b": CheckVerdict.FAIL}
    _, step = await asyncio.wait_for(clean(api), 60)
    assert step["name"] == "clean"


async def test_a_node_that_is_being_left_is_not_forgotten_and_says_why(api: Any) -> None:
    api.provider.add("b", "bob@b")
    identifier = await stopped(api)
    answer = await api.post("/api/v1/nodes/b/forget", status=409)
    assert f"experiment {identifier} was stopped and is leaving it" in answer["detail"]
