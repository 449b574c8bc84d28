"""The two ends of a relay over a wire in memory: everything arrives, and no connection holds up another."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from proctor.trial_keeper.errors import RelayBroken
from proctor.trial_keeper.relay.channels import Connection, Relay
from proctor.trial_keeper.relay.frames import WINDOW_BYTES, Kind, encode

pytestmark = pytest.mark.anyio

SECONDS = 60.0
WIRE_BYTES = 64 * 1024
MUCH = 32 * WINDOW_BYTES
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Wire:
    """One direction of a wire that holds only so much: `drain` waits as a full pipe does."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._changed = asyncio.Event()
        self.most = 0

    def write(self, data: bytes, /) -> None:
        self._data += data
        self.most = max(self.most, len(self._data))
        self._tell()

    def end(self) -> None:
        self._ended = True
        self._tell()

    async def drain(self) -> None:
        while len(self._data) > WIRE_BYTES and not self._ended:
            await self._wait()

    async def read(self, n: int, /) -> bytes:
        while not self._data and not self._ended:
            await self._wait()
        data = bytes(self._data[:n])
        del self._data[:n]
        self._tell()
        return data

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self) -> None:
        await self._changed.wait()


@dataclass
class Pair:
    """A node's end that listens on `path`, and a manager's end."""

    path: str
    up: Wire
    down: Wire

    async def connect(self) -> Connection:
        return await asyncio.open_unix_connection(self.path)


@asynccontextmanager
async def open_pair(folder: Path, handler: Handler) -> AsyncIterator[Pair]:
    """A relay whose manager's end leads to `handler`."""
    local = str(folder / "manager.sock")
    pair = Pair(str(folder / "node.sock"), Wire(), Wire())
    node = Relay(pair.down, pair.up)
    manager = Relay(pair.up, pair.down, lambda: asyncio.open_unix_connection(local))
    accepted: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)

    handlers = await asyncio.start_unix_server(handle, local)
    listener = await asyncio.start_unix_server(lambda *connection: node.carry(connection), pair.path)
    try:
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            group.create_task(node.run())
            group.create_task(manager.run())
            yield pair
            listener.close()
            pair.up.end()
            pair.down.end()
    finally:
        listener.close()
        handlers.close()
        for writer in accepted:
            writer.transport.abort()
        await asyncio.sleep(0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def exchange(connection: Connection, data: bytes) -> bytes:
    """Send everything, half-close, and read until the end."""
    reader, writer = connection

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        answer = group.create_task(reader.read(-1))
    writer.close()
    return answer.result()


async def test_many_connections_at_once_get_their_own_bytes_back(tmp_path: Path) -> None:
    async with open_pair(tmp_path, echo) as pair:
        sent = [os.urandom(1 + 40_000 * number) for number in range(20)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(exchange(await pair.connect(), data)) for data in sent]
        assert [task.result() for task in tasks] == sent


async def test_a_connection_that_is_not_read_from_holds_up_no_other_and_no_memory(tmp_path: Path) -> None:
    stuck = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(4) == b"hold":
            await stuck.wait()
            writer.write((await reader.readexactly(MUCH))[-4:])
        else:
            await echo(reader, writer)
        writer.close()

    async with open_pair(tmp_path, handle) as pair:
        reader, writer = await pair.connect()
        writer.write(b"hold" + b"\1" * (MUCH - 4) + b"last")
        assert await exchange(await pair.connect(), b"pass" + b"x" * 1_000_000) == b"x" * 1_000_000
        assert pair.up.most < 2 * WIRE_BYTES
        assert writer.transport.get_write_buffer_size() > MUCH // 2, "what nobody reads stays with its sender"
        stuck.set()
        assert await reader.read(-1) == b"last"
        writer.close()


async def test_a_connection_that_is_closed_is_closed_at_the_other_end(tmp_path: Path) -> None:
    closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        closed.set()
        writer.close()

    async with open_pair(tmp_path, handle) as pair:
        reader, writer = await pair.connect()
        writer.close()
        await closed.wait()
        assert await reader.read(-1) == b""


async def test_a_connection_that_breaks_at_one_end_breaks_at_the_other(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.transport.abort()

    async with open_pair(tmp_path, handle) as pair:
        reader, writer = await pair.connect()
        writer.write(b"x" * WINDOW_BYTES * 4)
        with suppress(ConnectionError):  # the kernel's word for it when something was not read
            assert await reader.read(-1) == b""
        writer.close()


async def test_a_connection_that_nobody_takes_is_closed(tmp_path: Path) -> None:
    async with open_pair(tmp_path, echo) as pair:
        (tmp_path / "manager.sock").unlink()
        reader, writer = await pair.connect()
        assert await reader.read(-1) == b""
        writer.close()


async def test_the_end_of_the_wire_closes_every_connection(tmp_path: Path) -> None:
    async with open_pair(tmp_path, echo) as pair:
        reader, writer = await pair.connect()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        pair.up.end()
        pair.down.end()
        with suppress(ConnectionError):
            assert await reader.read(-1) == b""
        writer.close()


async def test_more_than_was_granted_ends_the_relay(tmp_path: Path) -> None:
    wire, back = Wire(), Wire()

    async def connect() -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    relay = Relay(wire, back, connect)
    wire.write(encode(1, Kind.OPEN))
    for _ in range(WINDOW_BYTES // 32768 + 1):
        wire.write(encode(1, Kind.DATA, b"x" * 32768))
    with pytest.raises(RelayBroken, match="more came over channel 1 than was granted"):
        await asyncio.wait_for(relay.run(), SECONDS)


async def test_only_the_nodes_end_opens_channels() -> None:
    wire = Wire()
    wire.write(encode(1, Kind.OPEN))
    with pytest.raises(RelayBroken, match="wrong end"):
        await asyncio.wait_for(Relay(wire, Wire()).run(), SECONDS)


async def test_frames_of_a_channel_that_is_gone_are_left() -> None:
    wire = Wire()
    wire.write(encode(9, Kind.DATA, b"late") + encode(9, Kind.RESET))
    wire.end()
    await asyncio.wait_for(Relay(wire, Wire()).run(), SECONDS)
