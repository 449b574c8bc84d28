"""From a login to a machine on which the keeper's one file lies: the first look, and the file where it is missing."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from proctor.training_services.remote.cargo import Carrier
from proctor.training_services.remote.door import Archive, Knocker, open_door
from proctor.training_services.remote.look import require_usable
from proctor.training_services.remote.node_keeper import NodeKeeper

__all__ = ["NodeConnection", "Site", "arrive"]


class NodeConnection(Carrier, Knocker, Protocol):
    """The SSH connection of one machine: `connection.Connection`."""

    peer: str
    """Whom it leads to: "bob@10.0.0.3:22"."""

    async def forward(self, remote_socket: str, local_socket: str) -> None:
        """Lead connections to a Unix socket there to one here. Raises ForwardingRefused, ConnectionEnded."""

    def start_process(self, command: Sequence[str]) -> AbstractAsyncContextManager[Any]:
        """Run a program and talk with it (`sessions.Process`). Raises CommandFailed, ConnectionEnded."""

    async def until_ended(self) -> str:
        """Wait for its end; a clause says why."""


@dataclass(frozen=True)
class Site:
    """What to bring, and where to: the same for every connection to one machine."""

    node_id: str
    key: str  # the name of the keeper's directory below ~/.proctor/nodes
    python_path: str | None
    archive: Archive


@asynccontextmanager
async def arrive(
    connection: NodeConnection,
    site: Site,
    *,
    now: Callable[[], float],
    tell: Callable[[str], None],
    enter: Callable[[], None],
    check: bool = True,
) -> AsyncIterator[NodeKeeper]:
    """Look at the machine and bring the keeper's file; what is asked of the keeper inside goes through the same door.
    Raises RemoteError, and what `enter` raises.

    :param tell: given a clause before something that takes its time.
    :param enter: called before the first thing is brought there; when it raises, nothing is.
    :param check: refuse a machine on which no trial could run; without it only Python is needed.
    """
    async with open_door(connection, site.key, python_path=site.python_path, now=now) as door:
        if check:
            require_usable(door.facts)
        enter()
        if site.archive.name not in door.facts.archives:
            tell("the keeper is being copied there")
        yield await door.bring(site.archive)
