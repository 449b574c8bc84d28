"""The part of a manager that remote nodes need, inside a test: pool, hub, the keepers' socket, and a provider."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.keeper_listeners import listening

from proctor.training_services.base import JournalChunk, StatusChange, TrialJobStatus
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.keepers.reports import HubClient
from proctor.training_services.nodes.pool import Node, NodePool
from proctor.training_services.providers import ProviderContext
from proctor.training_services.remote.machines.provider import RemoteProvider
from proctor.trial_keeper.protocol import Launch

PATIENCE_SECONDS = 90.0
EXPERIMENT = "Experim1"


class Listener(HubClient):
    """An experiment that takes everything keepers say about its jobs."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.changes: list[StatusChange] = []
        self.stored: dict[tuple[str, int], bytes] = {}
        self._changed = changed

    async def store_chunks(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        self.stored.update({(chunk.job_id, chunk.member): chunk.data for chunk in chunks})
        return {(chunk.job_id, chunk.member): chunk.end for chunk in chunks}

    async def deliver_changes(self, changes: Sequence[StatusChange]) -> None:
        self.changes.extend(changes)
        self._changed()

    def queue_change(self, change: StatusChange) -> None:
        self.changes.append(change)
        self._changed()

    def of(self, job_id: str, status: TrialJobStatus) -> StatusChange | None:
        """The first change of a job to a status."""
        return next((c for c in self.changes if c.job_id == job_id and c.status is status), None)


class HubManager:
    """Made by `open_hub_manager`."""

    def __init__(self, home: Path, *, manager_id: str, heartbeat_seconds: float) -> None:
        self.home = home
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, heartbeat_seconds=heartbeat_seconds)
        self.pointer = home / "run" / "socket"
        self.context = ProviderContext(manager_id, home / "nodes", self.pointer, self.pool, self.hub)
        self.provider = RemoteProvider(self.context)
        self._changed = asyncio.Event()
        self.pool.on_change(self._changed.set)
        self.listener = Listener(self._changed.set)
        self.hub.attach(EXPERIMENT, self.listener)

    async def until(self, look: Callable[[], Any], what: str) -> Any:
        """Wait until there is something, looking after every change and, for what tells of none, now and then."""
        gives_up = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not (found := look()):
            assert asyncio.get_running_loop().time() < gives_up, f"waited in vain for {what}; {self.pool.nodes()}"
            self._changed.clear()
            try:
                async with asyncio.timeout(0.25):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return found

    async def until_status(self, node_id: str, *statuses: str, reason: str = "") -> Node:
        """A node, once it is in one of these statuses, with this in its reason."""

        def look() -> Node | None:
            found = self.pool.node(node_id)
            return found if found.status in statuses and reason in found.reason else None

        return await self.until(look, f"node {node_id} to be {statuses} {reason}")

    async def until_job(self, job_id: str, status: TrialJobStatus) -> StatusChange:
        """The change of a job to a status, once it is there."""
        return await self.until(lambda: self.listener.of(job_id, status), f"job {job_id} to be {status}")

    def launch(self, node_id: str, job_id: str, command: str) -> Launch:
        """Have a node run a command as a job."""
        token = f"token of {job_id}"
        directory = f"experiments/{EXPERIMENT}/trials/{job_id}"
        made = Launch(job_id, token, EXPERIMENT, job_id, 0, directory, command, ".", "{}", None)
        self.hub.expect(job_id, token, EXPERIMENT)
        self.hub.send(node_id, made)
        return made


@asynccontextmanager
async def open_hub_manager(
    home: Path, *, manager_id: str = "0123abcd", heartbeat_seconds: float = 0.5, ready: bool = True
) -> AsyncIterator[HubManager]:
    """A manager that serves keepers. On leaving, keepers and jobs keep running."""
    (home / "nodes").mkdir(parents=True, exist_ok=True)
    (home / "run").mkdir(exist_ok=True)
    manager = HubManager(home, manager_id=manager_id, heartbeat_seconds=heartbeat_seconds)
    path = home / "run" / "m.sock"
    async with listening(manager.hub, path):
        manager.pointer.write_text(str(path))
        if ready:
            await manager.hub.mark_reattached()
        async with asyncio.TaskGroup() as group:
            provider = group.create_task(manager.provider.run(), name="provider")
            try:
                yield manager
            finally:
                provider.cancel()


def remote_settings(machines: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A `trainingService` section as the engine hands it over, keys in snake_case."""
    return json.loads(json.dumps({"platform": "remote", "machine_list": list(machines), **more}))
