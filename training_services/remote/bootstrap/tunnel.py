"""The connection from a machine to the manager's Unix socket: a reverse forward of the SSH connection, or a relay over
the stdio of one more session where the machine's SSH server forbids forwarding.

The node's end of a relay is the command `relay` of the keeper archive; see `trial_keeper/relay/node.py`.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper
from proctor.training_services.ssh.base import NodeConnection
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded, ForwardingRefused
from proctor.trial_keeper.errors import RelayBroken
from proctor.trial_keeper.relay.channels import Connection, Relay, WireReader, WireWriter

__all__ = ["connect_to_manager", "open_relay", "serve_relay", "try_relay"]

log = logging.getLogger(__name__)

_STREAM_LIMIT = 256 * 1024


async def open_relay(
    writer: WireWriter, reader: asyncio.StreamReader, socket: str, *, timeout_seconds: float = 30.0
) -> None:
    """Make the command `relay` listen on `socket` on the machine; it does when this returns.

    :param writer: the command's standard input.
    :param reader: the command's standard output, an asyncio stream or one of the SSH library.
    :raises CommandFailed: it cannot listen there; the text is the machine's own.
    :raises ConnectionEnded: it ended, or has not answered within `timeout_seconds`.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            writer.write(json.dumps({"socket": socket}).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
    except TimeoutError as error:
        raise ConnectionEnded(f"the relay on it has not answered within {timeout_seconds:g} s") from error
    except OSError as error:
        raise ConnectionEnded(f"the relay on it cannot be reached: {error}") from error
    if not line:
        raise ConnectionEnded("the relay on it ended before it listened")
    try:
        answer = json.loads(line)
    except ValueError:
        answer = {"error": f"the relay answers {line[:100]!r}"}
    if answer != {"socket": socket}:
        raise CommandFailed(str(answer.get("error", answer) if isinstance(answer, dict) else answer))


async def serve_relay(writer: WireWriter, reader: WireReader, local_socket: str) -> None:
    """Relay every connection that the machine's end accepts to the Unix socket `local_socket` of this host. Returns
    when the command's output ends; all connections are closed then. Call it after `open_relay`.

    :raises ConnectionEnded: the session broke, or what it delivered is not the relay's protocol.
    """

    async def connect() -> Connection:
        return await asyncio.open_unix_connection(local_socket, limit=_STREAM_LIMIT)

    try:
        await Relay(reader, writer, connect).run()
    except (RelayBroken, OSError) as error:
        raise ConnectionEnded(f"its relay has ended: {error}") from error


async def connect_to_manager(
    connection: NodeConnection, keeper: NodeKeeper, *, socket: str, manager: str
) -> Callable[[], Awaitable[str]]:
    """Connect `socket` on the machine to the manager's. Returns a function to await for as long as that is needed: it
    returns when the tunnel has ended, with a clause that says why. Raises ConnectionEnded."""
    try:
        await connection.forward(socket, manager)
    except ForwardingRefused as error:
        log.info("%s: %s; a relay is used instead", connection.peer, error, extra={"action": "node.relay"})
        return lambda: _relay(connection, keeper, socket=socket, manager=manager)
    return connection.until_ended


async def try_relay(connection: NodeConnection, keeper: NodeKeeper, *, socket: str) -> None:
    """Check that a relay can be started there. Raises CommandFailed, ConnectionEnded."""
    async with connection.start_process(keeper.words("relay")) as process:
        await open_relay(process.stdin, process.stdout, socket)


async def _relay(connection: NodeConnection, keeper: NodeKeeper, *, socket: str, manager: str) -> str:
    """Raises CommandFailed where it cannot be started."""
    async with connection.start_process(keeper.words("relay")) as process:
        await open_relay(process.stdin, process.stdout, socket)
        await serve_relay(process.stdin, process.stdout, manager)
        said = process.stderr_tail.decode(errors="replace").strip()
        return f"its relay has ended{': ' if said else ''}{said}"
