"""`keeper-<hash>.pyz relay`: the node's end of a relay, for machines whose SSH server forbids forwarding.

Standard input begins with one line of JSON, {"socket": path} (a path that `prepare` gave); standard output begins with
{"socket": path}, or {"error": sentence} with exit code 1. From then on both carry frames (`relay/frames.py`): every
connection that the keeper makes to the socket is a channel. The relay ends, and removes its socket, when standard input
ends; also when somebody else has removed the socket, which is how `point` and `remove` dismiss a relay whose SSH
connection has died without a word.
"""

import asyncio
import json
import os
import socket
import stat
import sys

from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.commands.main import read_object
from proctor.trial_keeper.errors import TrialKeeperError
from proctor.trial_keeper.linux.files import remove_file
from proctor.trial_keeper.linux.tasks import until_first_ends
from proctor.trial_keeper.relay.channels import Relay

_LOOK_SECONDS = 2.0
_STREAM_LIMIT = 256 * 1024
_WAITING_CONNECTIONS = 128


def main() -> int:
    """Serve standard input and output until they end; returns the exit code."""
    try:
        with open(0, "rb", buffering=0, closefd=False) as source:  # frames may follow: not a byte more
            path = CommandInput("relay", read_object(source), source).text("socket")
        listener = _listen(path)
    except (TrialKeeperError, OSError) as error:
        _answer({"error": f"the relay cannot listen: {error}"})
        return 1
    try:
        _answer({"socket": path})
        asyncio.run(_serve(listener, path))
    except (TrialKeeperError, OSError) as error:
        print(f"the relay has ended: {error}", file=sys.stderr)
        return 1
    finally:
        listener.close()
        remove_file(path)
    return 0


def _answer(body: dict[str, str]) -> None:
    os.write(1, json.dumps(body).encode() + b"\n")


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(_WAITING_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise OSError(f"{path}: {error.strerror or error}") from error
    return listener


async def _serve(listener: socket.socket, path: str) -> None:
    reader, writer = await _open_wire()
    relay = Relay(reader, writer)
    server = await asyncio.start_unix_server(
        lambda *connection: relay.carry(connection), sock=listener, limit=_STREAM_LIMIT
    )
    try:
        await until_first_ends(relay=relay.run(), dismissed=_until_removed(path))
    finally:
        server.close()
        writer.transport.abort()


async def _until_removed(path: str) -> None:
    mine = os.stat(path).st_ino
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            if os.stat(path).st_ino != mine:
                return
        except OSError:
            return


async def _open_wire() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Standard input and output as streams. SSH servers give pipes, or one socket for both: then asyncio's pipes would
    take what arrives for the other side's end."""
    if stat.S_ISSOCK(os.fstat(0).st_mode) and os.path.sameopenfile(0, 1):
        return await asyncio.open_connection(sock=socket.socket(fileno=os.dup(0)), limit=_STREAM_LIMIT)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_STREAM_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(os.dup(1), "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
