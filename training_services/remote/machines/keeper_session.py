"""The uses of a connection to one machine: its keeper is connected to the manager, started and watched; or, once no
experiment uses the machine, its trials are ended and everything of this manager is removed from it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext
from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper, PreparedNode
from proctor.training_services.remote.bootstrap.node import Site, detach, open_contact
from proctor.training_services.remote.bootstrap.tunnel import connect_to_manager
from proctor.training_services.ssh.base import NodeConnection
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded
from proctor.trial_keeper.linux.tasks import until_first_ends

__all__ = ["KeeperSession", "end_remote_jobs", "remove_keeper"]

log = logging.getLogger(__name__)

REGISTRATION_SECONDS = 60.0
T = TypeVar("T")


class KeeperSession:
    """A connection through which a machine's keeper, which is installed and prepared, serves the manager.

    :param keeper: its commands; usable for as long as the connection lasts.
    :param secret: of the node's keeper.
    :param until_tunnel_ends: as `connect_to_manager` returns it.
    """

    def __init__(
        self,
        site: Site,
        keeper: NodeKeeper,
        prepared: PreparedNode,
        *,
        pool: NodePool,
        secret: str,
        until_tunnel_ends: Callable[[], Awaitable[str]],
    ) -> None:
        self.keeper = keeper
        self.prepared = prepared
        self._site = site
        self._pool = pool
        self._secret = secret
        self._until_tunnel_ends = until_tunnel_ends

    @classmethod
    async def open(
        cls, connection: NodeConnection, site: Site, keeper: NodeKeeper, *, context: ProviderContext, secret: str
    ) -> "KeeperSession":
        """Make the folders of an installed keeper, and connect its socket to the manager's. Files can be copied there
        from now on. Raises RemoteError."""
        prepared = await keeper.prepare()
        manager = context.socket_pointer.read_text(encoding="utf-8").strip()
        tunnel = await connect_to_manager(connection, keeper, socket=prepared.socket, manager=manager)
        return cls(site, detach(keeper), prepared, pool=context.pool, secret=secret, until_tunnel_ends=tunnel)

    async def start(self, keeper: NodeKeeper | None = None) -> None:
        """Start the keeper if it does not run. Raises RemoteError.

        :param keeper: its commands in a Python that runs there already.
        """
        await (keeper or self.keeper).start(
            node_id=self._site.node_id,
            secret=self._secret,
            socket=self.prepared.socket,
            search_path=self._site.python_path or "",
        )

    async def hold(self, *, until: asyncio.Event, on_registered: Callable[[], None]) -> None:
        """Watch the keeper until an event. Raises ConnectionEnded, or whatever makes the keeper unusable.

        :param on_registered: called whenever the keeper has registered.
        """
        await until_first_ends(serve=self._until_broken(), watch=self._watch(on_registered), until=until.wait())

    async def _until_broken(self) -> None:
        raise ConnectionEnded(await self._until_tunnel_ends())

    async def _watch(self, on_registered: Callable[[], None]) -> None:
        """Start a keeper again that has no session or is silent; if it runs, nothing happens."""
        node_id = self._site.node_id
        while True:
            await self._until_registered()
            on_registered()
            await self._pool.wait_disconnected(node_id)
            extra = {"action": "keeper.start", "node_id": node_id}
            log.warning("the keeper of node %s is silent; it is started again if it has ended", node_id, extra=extra)
            await self.start()

    async def _until_registered(self) -> None:
        """Raises CommandFailed when the keeper runs and never registers, not even after a restart."""
        for is_last in (False, True):
            try:
                async with asyncio.timeout(REGISTRATION_SECONDS):
                    return await self._pool.wait_connected(self._site.node_id)
            except TimeoutError:
                if not is_last:
                    await self.keeper.stop()
                    await self.start()
        raise CommandFailed(
            f"its keeper runs there and does not reach the manager; see {self.keeper.directory}/log on the machine"
        )


async def end_remote_jobs(connection: NodeConnection, site: Site, *, now: Callable[[], float]) -> Sequence[str] | None:
    """End the keeper and all jobs there; files stay. Returns as `NodeKeeper.end_jobs`. Raises RemoteError."""
    return await _carry_out(NodeKeeper.end_jobs, connection, site, now=now, if_missing=())


async def remove_keeper(connection: NodeConnection, site: Site, *, now: Callable[[], float]) -> str:
    """Remove the keeper with its jobs and its directory; returns what is left and why, or "". Raises RemoteError."""
    return await _carry_out(NodeKeeper.remove, connection, site, now=now, if_missing="")


async def _carry_out(
    command: Callable[[NodeKeeper], Awaitable[T]],
    connection: NodeConnection,
    site: Site,
    *,
    now: Callable[[], float],
    if_missing: T,
) -> T:
    """The answer to a command of a keeper that may be there; its disk may be full, and any version can end itself."""
    async with open_contact(connection, site.key, python_path=site.python_path, now=now) as contact:
        facts = contact.facts
        if not facts.exists:
            return if_missing
        if site.archive.name in facts.archives or not facts.archives:
            return await command(await contact.install_keeper(site.archive))
    path = f"{facts.directory}/{facts.archives[-1]}"
    return await command(NodeKeeper(connection, facts.python, path, facts.directory))
