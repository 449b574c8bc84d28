"""From a login to a machine on which the keeper's one file lies: the first look, and the file where it is missing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from proctor.training_services.remote.delivery import Archive, Carrier, deliver_archive
from proctor.training_services.remote.look import look, require_usable
from proctor.training_services.remote.node_keeper import NodeKeeper

__all__ = ["Arrival", "NodeConnection", "Site", "arrive"]


class NodeConnection(Carrier, Protocol):
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


@dataclass(frozen=True)
class Arrival:
    """A machine on which the keeper's file lies."""

    keeper: NodeKeeper
    exists: bool  # whether anything of ours was there before


async def arrive(
    connection: NodeConnection, site: Site, *, now: Callable[[], float], tell: Callable[[str], None], check: bool = True
) -> Arrival:
    """Look at the machine and bring the keeper's file. Raises RemoteError.

    :param tell: given a clause before something that takes its time.
    :param check: refuse a machine on which no trial could run; without it only Python is needed.
    """
    facts = await look(connection, site.key, python_path=site.python_path, now=now())
    if check:
        require_usable(facts)
    if site.archive.name not in facts.archives:
        tell("the keeper is being copied there")
    path = await deliver_archive(connection, facts, site.archive)
    return Arrival(NodeKeeper(connection, facts.python, path, facts.directory), facts.exists)
