"""A whole API without a socket: a real manager and store, trials that follow a script in memory."""

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.built_routes import build_once
from fakes.node_provider import FakeProvider
from fakes.served_manager import open_manager, provider_of

from proctor.manager.api.application import Application
from proctor.manager.api.context import ApiContext
from proctor.manager.api.guard import Guard
from proctor.manager.engine.manager import Manager
from proctor.manager.named_tokens import NamedTokens
from proctor.manager.security import HostGuard, Tokens
from proctor.manager.settings import Home
from proctor.manager.store.tables import metrics
from proctor.manager.store.tables.journals import StoredChunk
from proctor.training_services.base import TrainingService
from proctor.training_services.in_memory.scripts import one_report
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.nodes.pool import NodePool
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


class Created(dict[str, Any]):
    """An experiment as the API answers it."""

    @property
    def path(self) -> str:
        """Its address."""
        return f"/api/v1/experiments/{self['id']}"


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
        return provider_of(self.manager)

    @property
    def manager(self) -> Manager:
        return self.context.manager

    async def request(self, method: str, path: str, *, status: int | None = None, **options: Any) -> Any:
        """The JSON of an answer, which has this status if one is given, or an empty body."""
        answer = await self.client.request(method, path, **options)
        assert status in (None, answer.status_code), f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    get = partialmethod(request, "GET")
    post = partialmethod(request, "POST")
    put = partialmethod(request, "PUT")
    patch = partialmethod(request, "PATCH")
    delete = partialmethod(request, "DELETE")

    async def create(self, **changes: object) -> Created:
        """A new experiment, as the API answers it."""
        body = {"config": {**CONFIG, **changes}, "directory": str(self.directory)}
        return Created(await self.post("/api/v1/experiments", json=body, status=201))

    async def ended(self, experiment_id: str) -> dict[str, object]:
        """The experiment once it is DONE, told by the feed."""
        while True:
            bell = self.manager.feed.next_change()
            body = await self.get(f"/api/v1/experiments/{experiment_id}")
            if body["status"] in ("DONE", "ERROR"):
                return dict(body)
            await bell.wait()

    async def bearer(self, name: str, access: str = "full") -> dict[str, str]:
        """The headers of a request with a new token of this name."""
        answer = await self.client.post("/api/v1/tokens", json={"name": name, "access": access})
        assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store"), answer.text
        return {"Authorization": f"Bearer {answer.json()['token']}"}

    async def pages(self, path: str) -> list[Any]:
        """All items of a list, read page by page. The path has a query."""
        page = await self.get(path, status=200)
        items = page["items"]
        while page["next_cursor"] is not None:
            page = await self.get(f"{path}&cursor={page['next_cursor']}", status=200)
            items += page["items"]
        return list(items)

    async def until(self, path: str, condition: Callable[[Any], bool]) -> None:
        """Read a resource after each change until it is so."""
        while True:
            changed = self.manager.feed.next_change()
            if condition(await self.get(path)):
                return
            await changed.wait()

    async def delete_ended(self, path: str) -> None:
        """Stop an experiment, and delete it as soon as that is possible."""
        await self.client.post(f"{path}/stop")
        await self.until(path, lambda found: found["status"] == "STOPPED")
        await self.delete(path)

    async def report(
        self,
        experiment_id: str,
        trial_id: str,
        values: Sequence[Any],
        *,
        steps: Sequence[int | None] | None = None,
        begin: float = 1.0,
        pause: float = 0.0,
        job: int = 1,
        member: int = 0,
        **place: int,
    ) -> StoredChunk:
        """Add intermediate metrics to the journal of a job of a trial: the first at `begin`, `pause` seconds apart."""
        lines = b""
        for number, (value, step) in enumerate(zip(values, steps or [None] * len(values), strict=True)):
            record = {"kind": "intermediate", "value": value, "time": begin + number * pause}
            lines += json.dumps(record if step is None else {**record, "step": step}).encode() + b"\n"

        def store(connection: sqlite3.Connection) -> StoredChunk:
            offset = metrics.offset_of(connection, trial_id, job, member)
            whole = {"trial_id": trial_id, "job": job, "member": member, **place}
            return metrics.store_chunk(connection, data=lines, offset=offset, **whole)

        return await (await self.manager.metrics(experiment_id)).write(store)

    async def ran(self, **changes: object) -> Ran:
        """A new experiment once it is DONE."""
        created = await self.create(**changes)
        await self.ended(created["id"])
        return Ran(created["id"], path := created.path, (await self.get(f"{path}/trials"))["items"])


@pytest.fixture
def service_class() -> type[InMemoryTrainingService]:
    """What the trials run on."""
    return InMemoryTrainingService


@pytest.fixture
async def api(tmp_path: Path, service_class: type[InMemoryTrainingService]) -> AsyncIterator[Api]:
    """A client with the full token, and one without any."""
    home = Home(tmp_path / "home")
    shutdowns: list[None] = []
    platforms: dict[str, InMemoryPlatform] = {}

    def create_service(platform: str, context: ServiceContext) -> TrainingService:
        memory = platforms.setdefault(context.experiment_id, InMemoryPlatform(time.time))
        return service_class(one_report, platform=memory, now=time.time)

    async with open_manager(home, NodePool(), create_service) as manager:
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
