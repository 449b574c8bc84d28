"""The way from a machine to the manager's Unix socket: a reverse forward of the SSH connection, or a relay over the
stdio of one more session where the machine's SSH server forbids forwarding."""

import logging
from collections.abc import Awaitable, Callable

from proctor.training_services.remote.bootstrap import NodeConnection
from proctor.training_services.remote.errors import ForwardingRefused
from proctor.training_services.remote.node_keeper import NodeKeeper
from proctor.training_services.remote.relay import open_relay, serve_relay

__all__ = ["lead_to_manager", "try_relay"]

log = logging.getLogger(__name__)


async def lead_to_manager(
    connection: NodeConnection, keeper: NodeKeeper, *, socket: str, manager: str
) -> Callable[[], Awaitable[str]]:
    """Lead `socket` on the machine to the manager's. Returns what is to be awaited for as long as it is needed: it ends
    with the way, and its result is a clause that says why. Raises ConnectionEnded."""
    try:
        await connection.forward(socket, manager)
    except ForwardingRefused as error:
        log.info("%s: %s; a relay is used instead", connection.peer, error, extra={"action": "node.relay"})
        return lambda: _relay(connection, keeper, socket=socket, manager=manager)
    return connection.until_ended


async def try_relay(connection: NodeConnection, keeper: NodeKeeper, *, socket: str) -> None:
    """See whether a relay can be started there. Raises CommandFailed, ConnectionEnded."""
    async with connection.start_process(keeper.words("relay")) as process:
        await open_relay(process.stdin, process.stdout, socket)


async def _relay(connection: NodeConnection, keeper: NodeKeeper, *, socket: str, manager: str) -> str:
    """Raises CommandFailed where it cannot be started."""
    async with connection.start_process(keeper.words("relay")) as process:
        await open_relay(process.stdin, process.stdout, socket)
        await serve_relay(process.stdin, process.stdout, manager)
        said = process.stderr_tail.decode(errors="replace").strip()
        return f"its relay has ended{': ' if said else ''}{said}"
