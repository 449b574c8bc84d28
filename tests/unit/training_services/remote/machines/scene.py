"""A scene under virtual time: the provider of remote nodes, whose machines are fakes."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

from fakes.fake_connection import FakeConnection, FakeMachine

from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import Node, NodePool
from proctor.training_services.providers import ProviderContext
from proctor.training_services.remote.machines.provider import RemoteProvider
from proctor.training_services.remote.machines.records import Claim
from proctor.training_services.ssh.errors import RemoteError, Unreachable
from proctor.training_services.ssh.route import RouteTrace

DAY = 86_400.0
UNREACHABLE = Unreachable("it does not answer")


class Scene:
    """A provider whose machines are fakes, by host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "nodes").mkdir(exist_ok=True)
        (folder / "socket").write_text("/run/manager.sock")
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool)
        self.machines: dict[str, FakeMachine] = {}
        self.provider = RemoteProvider(
            ProviderContext("m1", folder / "nodes", folder / "socket", self.pool, self.hub), connect=self._connect
        )
        self.changed = asyncio.Event()
        self.pool.on_change(self.changed.set)

    def machine(self, host: str) -> FakeMachine:
        """The machine behind a host name; new ones are well."""
        return self.machines.setdefault(host, FakeMachine(self.pool, host))

    def claim(self, *hosts: str, by: str = "E1", secrets_file: Path | None = None, **more: Any) -> None:
        """An experiment wants machines."""
        for host in hosts:
            self.machine(host)
        settings = {"machine_list": [{"host": host} for host in hosts], **more}
        self.provider.claim(by, settings, {}, secrets_file=secrets_file)

    async def connect(self, *hosts: str, by: str = "E1", **more: Any) -> FakeMachine:
        """An experiment wants machines, and they are connected; the first of them."""
        self.claim(*hosts, by=by, **more)
        for host in hosts:
            await self.until_status(host, "CONNECTED")
        return self.machine(hosts[0])

    async def lose(self, host: str, failure: RemoteError = UNREACHABLE) -> None:
        """A connection breaks, and another one cannot be made."""
        self.machine(host).failure = failure
        self.machine(host).cut()
        await self.until_status(host, "FAILED")

    async def until_forgotten(self, host: str) -> None:
        """Wait until the provider does not know a machine any more."""
        await self.until(lambda: not self.provider.has(host))

    async def until(self, look: Callable[[], Any]) -> Any:
        """Wait, in virtual time, until there is something."""
        async with asyncio.timeout(DAY):
            while not (found := look()):
                self.changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await self.changed.wait()
        return found

    async def until_status(self, node_id: str, status: str, reason: str = "") -> Node:
        def look() -> Node | None:
            node = self.pool.node(node_id)
            return node if node.status == status and reason in node.reason else None

        return await self.until(look)

    def _connect(self, claim: Claim, trace: RouteTrace | None) -> AbstractAsyncContextManager[FakeConnection]:
        return self.machine(claim.machine.host).connect(claim, trace)


def play(
    folder: Path, act: Callable[[Scene], Awaitable[None]], *, prepare: Callable[[Scene], None] | None = None
) -> None:
    """Run a scene, with its provider at work."""

    async def main(loop: VirtualTimeLoop) -> None:
        scene = Scene(folder)
        if prepare is not None:
            prepare(scene)
        async with running(scene):
            await act(scene)

    run_virtual(main)


def played(act: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a scene; it gets the scene first, and then what else it asks for."""

    @wraps(act)
    def test(tmp_path: Path, **given: Any) -> None:
        play(tmp_path, partial(act, **given))

    return declared(test, act, skipped=1)


def declared(test: Callable[..., None], act: Callable[..., Awaitable[None]], *, skipped: int) -> Callable[..., None]:
    """A test that asks for a folder, and for what `act` asks for after so many parameters."""
    asked = list(inspect.signature(act).parameters.values())[skipped:]
    parameters = [inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD), *asked]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return test


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(scene.provider.run())
        try:
            yield
        finally:
            task.cancel()
            scene.hub.close()
