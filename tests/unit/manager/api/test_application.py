"""Groups of routes are built when they are needed: once, in a thread, and for no request without a token."""

import asyncio
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from proctor.manager.api import application, description
from proctor.manager.api.application import Application
from proctor.manager.api.context import ApiContext
from proctor.manager.api.groups import DOCUMENT, GROUPS, RouteGroup, allowed_methods, group_of
from proctor.manager.api.guard import Guard
from proctor.manager.security import HostGuard, Tokens

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WITHOUT_THE_WEB_FRAMEWORK = """
import asyncio, sys
import httpx
from proctor.manager import app
from proctor.manager.api.application import Application
from proctor.manager.api.guard import Guard
from proctor.manager.api.keepers import PREFIX, keeper_application
from proctor.manager.process.server import HttpServer
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool

async def main():
    keepers = httpx.ASGITransport(keeper_application(KeeperHub(NodePool())))
    async with httpx.AsyncClient(transport=keepers, base_url="http://manager") as client:
        answer = await client.post(f"{PREFIX}node/hello", json={"nonce": "00"})
        print(answer.status_code, sorted({"fastapi", "pydantic", "ruamel"} & set(sys.modules)))

asyncio.run(main())
"""


class Builds:
    """Counts what is built; its applications say their group."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.threads: set[threading.Thread] = set()
        self.failures: list[Exception] = []

    def __call__(self, group: RouteGroup, context: ApiContext) -> ASGIApp:
        self.groups.append(group.location)
        self.threads.add(threading.current_thread())
        if self.failures:
            raise self.failures.pop()
        return PlainTextResponse(group.location)


@pytest.fixture
def builds() -> Builds:
    return Builds()


@pytest.fixture
def make_client(api: Any, builds: Builds) -> Callable[[], httpx.AsyncClient]:
    """Clients of an application that has built nothing."""
    named = api.context.named_tokens
    guard = Guard(
        Application(api.context, builds),
        tokens=Tokens(TOKEN, "another"),
        named_tokens=named,
        hosts=HostGuard(bound="127.0.0.1"),
    )
    return lambda: httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:8080")


@pytest.mark.slow
@pytest.mark.parametrize("group", [*GROUPS, DOCUMENT], ids=lambda group: group.location or "document")
def test_the_table_says_what_a_group_answers(group: RouteGroup) -> None:
    app = description.build_group(group, None)  # type: ignore[arg-type]
    routes = [route for route in app.routes if route.path != "/openapi.json"]  # type: ignore[attr-defined]
    declared: dict[str, list[str]] = {}
    for route in routes if group is not DOCUMENT else routes[:1]:
        declared.setdefault(route.path, []).extend(route.methods - {"HEAD"})  # type: ignore[attr-defined]
    listed = {group.prefix + path: sorted(methods) for path, methods in group.paths.items()}
    assert {path: sorted(methods) for path, methods in declared.items()} == listed
    assert list(declared) == list(listed)


def test_every_module_of_routes_is_in_a_group() -> None:
    declared = {
        f"{module}:{name}"
        for module in {group.location.partition(":")[0] for group in GROUPS}
        for name, _ in inspect.getmembers(
            import_module(f"proctor.manager.api.routes.{module}"),
            lambda value: isinstance(value, description.Routes),
        )
    }
    assert declared == {group.location for group in GROUPS}


@pytest.mark.parametrize(
    ("path", "method", "location"),
    [
        ("/api/v1/experiments/load", "POST", "experiments:routes"),
        ("/api/v1/experiments/load", "DELETE", "experiments:routes"),  # of an experiment with this id
        ("/api/v1/experiments/", "GET", "experiments:routes"),  # redirected
        ("/api/v1/experiments/x/views/a/b", "PUT", "saved_views:routes"),
        ("/api/v1/experiments/x/curve", "PUT", "results:routes"),  # refused by the group that knows the path
        ("/metrics", "GET", "system:root_routes"),
        ("/api/v1/openapi.json", "GET", ""),
    ],
)
def test_a_request_is_answered_by_the_group_of_its_path(path: str, method: str, location: str) -> None:
    found = group_of(path, method)
    assert found is not None
    assert found.location == location


def test_nothing_answers_elsewhere() -> None:
    assert group_of("/api/v1/nowhere", "GET") is None
    assert allowed_methods("/api/v1/nowhere") == []
    assert allowed_methods("/api/v1/experiments/load") == ["DELETE", "GET", "PATCH", "POST"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/experiments", {}, 401),
        ("/api/v1/experiments", {"Authorization": "Bearer wrong"}, 401),
        ("/api/v1/experiments", {**BEARER, "Host": "elsewhere.example"}, 403),
        ("/", {}, 401),
        ("/api/v1/openapi.json", {}, 401),
        ("/api/v1/health", {}, 200),
        ("/assets/nonesuch.js", {}, 404),
        ("/api/v1/nowhere", BEARER, 404),
        ("/", BEARER, 200),
    ],
)
async def test_a_request_that_needs_no_route_builds_nothing(
    make_client: Any, builds: Builds, path: str, headers: dict[str, str], status: int
) -> None:
    async with make_client() as client:
        assert (await client.get(path, headers=headers)).status_code == status
    assert builds.groups == []


async def test_each_group_is_built_once_in_a_thread_whoever_asks_first(make_client: Any, builds: Builds) -> None:
    paths = ["/api/v1/experiments", "/api/v1/nodes", "/api/v1/experiments/x"] * 4
    async with make_client() as client:
        answers = await asyncio.gather(*(client.get(path, headers=BEARER) for path in paths))
    assert [answer.text for answer in answers] == ["experiments:routes", "nodes:routes", "experiments:routes"] * 4
    assert sorted(builds.groups) == ["experiments:routes", "nodes:routes"]
    assert threading.current_thread() not in builds.threads


async def test_a_group_that_cannot_be_built_is_tried_again(make_client: Any, builds: Builds) -> None:
    builds.failures.append(OSError("no descriptors"))
    async with make_client() as client:
        failed = await client.get("/api/v1/nodes", headers=BEARER)
        assert (failed.status_code, failed.headers["content-type"]) == (500, "application/problem+json")
        assert "no descriptors" in failed.json()["detail"]
        assert (await client.get("/api/v1/nodes", headers=BEARER)).text == "nodes:routes"


async def test_the_rest_is_loaded_when_the_page_is_opened(
    api: Any, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "MOST_USED_SECONDS", 3600.0)
    app = Application(api.context, builds)
    builds.failures.append(OSError("no descriptors"))  # ends the loading, not the manager
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(app.load_rest(), name="loading")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://manager") as client:
            await client.get("/api/v1/health")
            assert builds.groups == []
            await client.get("/experiments/x")
        async with asyncio.timeout(60.0):
            await loading
        assert builds.groups == ["experiments:routes"]
        await app.load_rest()
    assert sorted(builds.groups[1:]) == sorted(group.location for group in GROUPS)


async def test_health_is_what_the_document_describes(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from proctor.manager.api.models import Health
    from proctor.manager.api.routes.system import get_health

    for problem in ("", "a disk is full: \ud800"):
        monkeypatch.setattr(type(api.manager), "problem", property(lambda manager, text=problem: text))
        answer = await api.anonymous.get("/api/v1/health")
        assert answer.content == (await get_health(api.context)).model_dump_json().encode()
        assert Health.model_validate(answer.json()).status == ("degraded" if problem else "ok")
    assert (await api.anonymous.head("/api/v1/health")).headers["allow"] == "GET"


@pytest.mark.slow
async def test_the_document_is_served_as_it_is_committed(api: Any) -> None:
    committed = (Path(__file__).parents[4] / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert json.dumps(await api.get("/api/v1/openapi.json")) == json.dumps(json.loads(committed))


@pytest.mark.slow
def test_keepers_are_answered_without_the_web_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_WEB_FRAMEWORK], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("200 []\n", "")
