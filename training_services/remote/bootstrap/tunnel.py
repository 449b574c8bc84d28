"""The manager's end of a relay: its keeper socket, reached from a machine whose SSH server forbids forwarding.

The node's end is the command `relay` of the keeper's archive, run over the same SSH connection; see
`trial_keeper/relay/node.py`.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper
from proctor.training_services.remote.bootstrap.node import NodeConnection
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded, ForwardingRefused
from proctor.trial_keeper.errors import RelayBroken
from proctor.trial_keeper.relay.channels import Connection, Relay, WireReader, WireWriter

__all__ = ["LineReader", "lead_to_manager", "open_relay", "serve_relay", "try_relay"]


_STREAM_LIMIT = 256 * 1024


class LineReader(WireReader, Protocol):
    """What arrives from the command: an asyncio stream or one of an SSH library, of bytes."""

    async def readline(self) -> bytes:
        """A line with its end; less at the end of everything."""
        ...


async def open_relay(writer: WireWriter, reader: LineReader, socket: str, *, timeout_seconds: float = 30.0) -> None:
    """Have the command `relay` listen on `socket` on the machine; it does when this returns.

    :param writer: the command's standard input.
    :param reader: the command's standard output.
    :raises CommandFailed: it cannot listen there; carries its sentence.
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
    """Carry every connection that the machine's end accepts to the Unix socket `local_socket` of this host. Returns
    when the command's output ends; all connections are closed then. Call it after `open_relay`.

    :raises ConnectionEnded: the wire broke, or what came over it is no relay's.
    """

    async def connect() -> Connection:
        return await asyncio.open_unix_connection(local_socket, limit=_STREAM_LIMIT)

    try:
        await Relay(reader, writer, connect).run()
    except (RelayBroken, OSError) as error:
        raise ConnectionEnded(f"its relay has ended: {error}") from error


# ---- manager socket -------------------------------------------------------------------------------------------------
# The way from a machine to the manager's Unix socket: a reverse forward of the SSH connection, or a relay over the
# stdio of one more session where the machine's SSH server forbids forwarding.

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
