"""A whole API without a socket: a real manager and store, trials that follow a script in memory."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.built_routes import build_once
from fakes.node_provider import FakeProvider

from proctor.manager.api.application import Application
from proctor.manager.api.context import ApiContext
from proctor.manager.api.guard import Guard
from proctor.manager.clock import SystemClock
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.engine.manager import Manager
from proctor.manager.named_tokens import NamedTokens
from proctor.manager.security import HostGuard, Tokens
from proctor.manager.settings import Home
from proctor.manager.store.database import Database
from proctor.training_services.base import TrainingService
from proctor.training_services.in_memory.scripts import one_report
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext, Providers
from proctor.training_services.registry import ServiceContext

FULL = "the-full-token-of-this-test"
READ = "the-read-only-token-of-this-test"
CONFIG = {
    "search_space": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trial_command": "true",
    "trial_concurrency": 2,
    "max_trial_number": 3,
    "tuner": {"name": "Random", "class_args": {"optimize_mode": "minimize"}},
    "training_service": {"platform": "local"},
}


@dataclass(frozen=True)
class Ran:
    """An experiment that has run to its end."""

    id: str
    path: str
    """Its address."""
    trials: list[dict[str, Any]]
    """As the API shows them at its end."""


@dataclass
class Api:
    """The API under test."""

    client: httpx.AsyncClient
    anonymous: httpx.AsyncClient
    context: ApiContext
    directory: Path
    shutdowns: list[None]
    config: dict[str, object]

    @property
    def provider(self) -> FakeProvider:
        assert self.manager.providers is not None
        found = self.manager.providers.get("remote")
        assert isinstance(found, FakeProvider)
        return found

    @property
    def manager(self) -> Manager:
        return self.context.manager

    async def create(self, **changes: object) -> dict[str, object]:
        """A new experiment, as the API answers it."""
        body = {"config": {**CONFIG, **changes}, "directory": str(self.directory)}
        answer = await self.client.post("/api/v1/experiments", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def ended(self, experiment_id: str) -> dict[str, object]:
        """The experiment once it is DONE, told by the feed."""
        while True:
            bell = self.manager.feed.next_change()
            body = (await self.client.get(f"/api/v1/experiments/{experiment_id}")).json()
            if body["status"] in ("DONE", "ERROR"):
                return dict(body)
            await bell.wait()

    async def ran(self, **changes: object) -> Ran:
        """A new experiment once it is DONE."""
        created = str((await self.create(**changes))["id"])
        await self.ended(created)
        path = f"/api/v1/experiments/{created}"
        return Ran(created, path, (await self.client.get(f"{path}/trials")).json()["items"])


@asynccontextmanager
async def open_manager(
    home: Home, service_class: type[InMemoryTrainingService] = InMemoryTrainingService
) -> AsyncIterator[Manager]:
    platforms: dict[str, InMemoryPlatform] = {}

    def create_service(platform: str, context: ServiceContext) -> TrainingService:
        memory = platforms.setdefault(context.experiment_id, InMemoryPlatform(time.time))
        return service_class(one_report, platform=memory, now=time.time)

    home.prepare()
    async with await Database.open(str(home.control_database), "control") as control:
        pool = NodePool()
        hub = KeeperHub(pool)
        around = ProviderContext("0123abcd", home.nodes_directory, home.socket_pointer, pool, hub)
        manager = Manager(
            home=home,
            control=control,
            pool=pool,
            hub=hub,
            clock=SystemClock(),
            open_dispatcher=lambda row, config: open_in_process,
            create_service=create_service,
            providers=Providers(around, {"remote": FakeProvider}),
        )
        async with manager.serve():
            yield manager


@pytest.fixture
def service_class() -> type[InMemoryTrainingService]:
    """What the trials run on."""
    return InMemoryTrainingService


@pytest.fixture
async def api(tmp_path: Path, service_class: type[InMemoryTrainingService]) -> AsyncIterator[Api]:
    """A client with the full token, and one without any."""
    home = Home(tmp_path / "home")
    shutdowns: list[None] = []
    async with open_manager(home, service_class) as manager:
        named_tokens = NamedTokens.read(home.named_tokens_file, time.time)
        context = ApiContext(
            manager=manager,
            home=home,
            named_tokens=named_tokens,
            public_url="http://127.0.0.1:8080",
            started_at=1_764_000_000.0,
            request_shutdown=lambda: shutdowns.append(None),
        )
        tokens, hosts = Tokens(FULL, READ), HostGuard(bound="127.0.0.1")
        app = Guard(Application(context, build_once), tokens=tokens, named_tokens=named_tokens, hosts=hosts)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        base = "http://127.0.0.1:8080"
        bearer = {"Authorization": f"Bearer {FULL}"}
        async with (
            httpx.AsyncClient(transport=transport, base_url=base, headers=bearer) as client,
            httpx.AsyncClient(transport=transport, base_url=base) as anonymous,
        ):
            yield Api(client, anonymous, context, tmp_path, shutdowns, dict(CONFIG))
