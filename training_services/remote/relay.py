"""The manager's end of a relay: its keeper socket, reached from a machine whose SSH server forbids forwarding.

The node's end is the command `relay` of the keeper's archive, run over the same SSH connection; see
`trial_keeper/relay/node.py`.
"""

import asyncio
import json
from typing import Protocol

from proctor.training_services.remote.errors import CommandFailed, ConnectionEnded
from proctor.trial_keeper.errors import RelayBroken
from proctor.trial_keeper.relay.channels import Connection, Relay, WireReader, WireWriter

__all__ = ["LineReader", "open_relay", "serve_relay"]

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
