"""One connection to one machine, from the login to its end: a keeper is brought, started and looked after; or, when
nobody wants the machine any more, everything of ours is taken away."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from proctor.training_services.nodes.pool import NodePool, StatusWatch, watch_status
from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper, PreparedNode
from proctor.training_services.remote.bootstrap.node import NodeConnection, Site, arrive, open_door, shut
from proctor.training_services.remote.bootstrap.tunnel import lead_to_manager
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded
from proctor.trial_keeper.linux.tasks import until_first_ends

__all__ = ["KeeperSession", "is_there", "leave"]

log = logging.getLogger(__name__)

REGISTRATION_SECONDS = 60.0


class KeeperSession:
    """A connection through which a machine's keeper serves the manager.

    :param secret: of the node's keeper.
    :param socket_pointer: the file that holds the path of the manager's socket.
    """

    def __init__(
        self, connection: NodeConnection, site: Site, *, pool: NodePool, secret: str, socket_pointer: Path
    ) -> None:
        self._connection = connection
        self._site = site
        self._pool = pool
        self._secret = secret
        self._socket_pointer = socket_pointer
        self._serve: Callable[[], Awaitable[str]]
        self.keeper: NodeKeeper
        self.prepared: PreparedNode

    async def open(
        self,
        *,
        now: Callable[[], float],
        tell: Callable[[str], None],
        enter: Callable[[], None],
        unlock: Callable[[], None],
        for_files_only: bool = False,
    ) -> None:
        """Bring the keeper, lead its socket to the manager, start it. Raises RemoteError, and what `enter` raises.

        :param tell: given a clause before something that takes its time.
        :param enter: called before the first thing is brought there; when it raises, nothing is.
        :param unlock: called before the keeper is started: whatever its trials need can be brought from now on.
        :param for_files_only: no trial shall run there: those that do are ended first, and it need not be fit for any.
        """
        async with arrive(
            self._connection, self._site, now=now, tell=tell, enter=enter, check=not for_files_only
        ) as keeper:
            self.keeper = shut(keeper)
            if for_files_only:
                tell("its trials are being stopped")
                if left := await keeper.end_jobs():
                    raise CommandFailed(f"its trials cannot be stopped: {left}")
            tell("its keeper is being started")
            self.prepared = await keeper.prepare()
            manager = self._socket_pointer.read_text(encoding="utf-8").strip()
            self._serve = await lead_to_manager(self._connection, keeper, socket=self.prepared.socket, manager=manager)
            unlock()
            await self._start(keeper)

    async def hold(self, *, until: Callable[[], Awaitable[None]], on_session: Callable[[], None]) -> None:
        """Look after the keeper until `until` returns. Raises ConnectionEnded, or whatever makes the keeper unusable.

        :param on_session: called whenever the keeper has registered.
        """
        with watch_status(self._pool, self._site.node_id) as status:
            await until_first_ends(
                serve=self._until_broken(), mind=self._mind(status, on_session), until=_finish(until)
            )

    async def _until_broken(self) -> None:
        raise ConnectionEnded(await self._serve())

    async def _mind(self, status: StatusWatch, on_session: Callable[[], None]) -> None:
        """A keeper that has no session or has fallen silent is started again; if it runs, nothing happens."""
        while True:
            await self._until_registered(status)
            on_session()
            await status.until(is_connected=False)
            extra = {"action": "keeper.start", "node_id": self._site.node_id}
            log.warning(
                "the keeper of node %s is silent; it is started again if need be", self._site.node_id, extra=extra
            )
            await self._start(self.keeper)

    async def _until_registered(self, status: StatusWatch) -> None:
        """Raises CommandFailed when the keeper runs and yet never comes, even after it was started anew."""
        for is_last in (False, True):
            try:
                async with asyncio.timeout(REGISTRATION_SECONDS):
                    return await status.until(is_connected=True)
            except TimeoutError:
                if not is_last:
                    await self.keeper.stop()
                    await self._start(self.keeper)
        raise CommandFailed(
            f"its keeper runs there and does not reach the manager; see {self.keeper.directory}/log on the machine"
        )

    async def _start(self, keeper: NodeKeeper) -> None:
        await keeper.start(
            node_id=self._site.node_id,
            secret=self._secret,
            socket=self.prepared.socket,
            search_path=self._site.python_path or "",
        )


async def is_there(connection: NodeConnection, site: Site, *, now: Callable[[], float]) -> bool:
    """Whether anything of ours is on the machine. Raises RemoteError."""
    async with open_door(connection, site.key, python_path=site.python_path, now=now) as door:
        return door.facts.exists


async def leave(connection: NodeConnection, site: Site, *, now: Callable[[], float]) -> str:
    """Take away everything of ours, jobs included; returns what is left and why, or "". Raises RemoteError."""
    async with open_door(connection, site.key, python_path=site.python_path, now=now) as door:
        facts = door.facts
        if not facts.exists:
            return ""
        if site.archive.name in facts.archives or not facts.archives:
            return await (await door.bring(site.archive)).remove()
    path = f"{facts.directory}/{facts.archives[-1]}"  # its disk may be full, and any version can take itself away
    return await NodeKeeper(connection, facts.python, path, facts.directory).remove()


async def _finish(wait: Callable[[], Awaitable[None]]) -> None:
    await wait()
