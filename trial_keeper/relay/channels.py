"""The channels of a relay: connections of one end carried to the other, neither able to hold up the others.

The reader of the wire never waits for a channel: what arrives lies in the channel's queue, which its window bounds.
The server of a channel waits for the wire, in turn with the other channels. So a connection that is not read from
holds at most one window of memory at each end, and the wire always moves.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from proctor.trial_keeper.errors import RelayBroken
from proctor.trial_keeper.linux.tasks import TaskGroup, until_first_ends
from proctor.trial_keeper.relay.frames import (
    LONGEST_PAYLOAD,
    WINDOW_BYTES,
    Frame,
    FrameDecoder,
    Kind,
    encode,
    encode_credit,
)

_READ_BYTES = 256 * 1024
_CREDIT_STEP = WINDOW_BYTES // 4
_CHANNEL_NUMBERS = 2**32

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class WireReader(Protocol):
    """What arrives from the other end: an asyncio stream or one of an SSH library."""

    async def read(self, n: int, /) -> bytes:
        """Some bytes, at most `n`; none at the end."""
        ...


class WireWriter(Protocol):
    """What goes to the other end."""

    def write(self, data: bytes, /) -> None:
        """Send bytes some time."""
        ...

    async def drain(self) -> None:
        """Wait until not too much is waiting to be sent."""
        ...


class Relay:
    """One end of a relay.

    :param connect: makes the local connection for a channel that the other end opens (raises OSError); None where only
        this end opens channels.
    """

    def __init__(
        self, reader: WireReader, writer: WireWriter, connect: Callable[[], Awaitable[Connection]] | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connect = connect
        self._sending = asyncio.Lock()
        self._channels: dict[int, _Channel] = {}
        self._tasks = TaskGroup()
        self._last = 0

    async def run(self) -> None:
        """Serve until the wire ends; all local connections are closed then.

        :raises RelayBroken: what arrives is no relay's.
        :raises OSError: the wire broke.
        """
        async with self._tasks as tasks:
            tasks.start(self._read_wire(), "relay: the wire", ends_group=True)

    def carry(self, connection: Connection) -> None:
        """Open a channel for a connection that was accepted at this end."""
        channel = self._add(self._next_number())
        self._tasks.start(self._serve(channel, connection, opens=True), f"relay: channel {channel.number}")

    def _add(self, number: int) -> "_Channel":
        self._channels[number] = channel = _Channel(number, self._send)
        return channel

    def _next_number(self) -> int:
        while True:
            self._last = (self._last + 1) % _CHANNEL_NUMBERS
            if self._last not in self._channels:
                return self._last

    async def _read_wire(self) -> None:
        decoder = FrameDecoder()
        while data := await self._reader.read(_READ_BYTES):
            for frame in decoder.feed(data):
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        channel = self._channels.get(frame.channel)
        if frame.kind is Kind.OPEN:
            if channel is not None or self._connect is None:
                raise RelayBroken(f"channel {frame.channel} was opened twice, or by the wrong end; the relay is ended")
            channel = self._add(frame.channel)
            self._tasks.start(self._accept(channel, self._connect), f"relay: channel {channel.number}")
        elif channel is not None:
            channel.take(frame)

    async def _accept(self, channel: "_Channel", connect: Callable[[], Awaitable[Connection]]) -> None:
        try:
            connection = await connect()
        except OSError:
            del self._channels[channel.number]
            await self._send(encode(channel.number, Kind.RESET))
            return
        await self._serve(channel, connection, opens=False)

    async def _serve(self, channel: "_Channel", connection: Connection, *, opens: bool) -> None:
        try:
            if opens:
                await self._send(encode(channel.number, Kind.OPEN))
            whole = await channel.serve(*connection)
        finally:
            del self._channels[channel.number]
            if channel.is_whole:
                connection[1].close()  # what was delivered still leaves its buffer
            else:
                connection[1].transport.abort()
        if not whole:
            await self._send(encode(channel.number, Kind.RESET))

    async def _send(self, data: bytes) -> None:
        async with self._sending:  # in turn, and only one waits for the wire at a time
            self._writer.write(data)
            await self._writer.drain()


class _Channel:
    """One connection's two directions."""

    def __init__(self, number: int, send: Callable[[bytes], Awaitable[None]]) -> None:
        self.number = number
        self._send = send
        self._granted = WINDOW_BYTES
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = 0
        self._unacknowledged = 0
        self._ended = False
        self._reset = asyncio.Event()
        self._news = asyncio.Event()
        self._credit = asyncio.Event()
        self.is_whole = False

    def take(self, frame: Frame) -> None:
        """What the other end says; never waits. Raises RelayBroken when it sends more than was granted."""
        if frame.kind is Kind.DATA:
            self._arrived.append(frame.payload)
            self._arrived_bytes += len(frame.payload)
            if self._arrived_bytes + self._unacknowledged > WINDOW_BYTES:
                raise RelayBroken(f"more came over channel {self.number} than was granted; the relay is ended")
        elif frame.kind is Kind.CREDIT:
            self._granted += frame.credit
            self._credit.set()
        elif frame.kind is Kind.END:
            self._ended = True
        else:
            self._reset.set()
        self._news.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Carry both ways until both have ended (true), or the connection or its other end is gone (false when the
        other end does not know yet)."""
        try:
            await until_first_ends(both=self._both(reader, writer), reset=self._wait_for_reset())
        except OSError:
            return self._reset.is_set()
        return self.is_whole or self._reset.is_set()

    async def _both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with TaskGroup() as group:
            group.start(self._pass_on(reader), "relay: to the wire")
            group.start(self._deliver(writer), "relay: from the wire")
        self.is_whole = True

    async def _wait_for_reset(self) -> None:
        await self._reset.wait()

    async def _pass_on(self, reader: asyncio.StreamReader) -> None:
        while True:
            while not self._granted:
                self._credit.clear()
                await self._credit.wait()
            data = await reader.read(min(LONGEST_PAYLOAD, self._granted))
            if not data:
                await self._send(encode(self.number, Kind.END))
                return
            self._granted -= len(data)
            await self._send(encode(self.number, Kind.DATA, data))

    async def _deliver(self, writer: asyncio.StreamWriter) -> None:
        while True:
            while not self._arrived and not self._ended:
                self._news.clear()
                await self._news.wait()
            if not self._arrived:
                with contextlib.suppress(OSError):  # the other side has closed it altogether
                    writer.write_eof()
                return
            data = self._arrived.popleft()
            self._arrived_bytes -= len(data)
            self._unacknowledged += len(data)
            writer.write(data)
            await writer.drain()
            if self._unacknowledged >= _CREDIT_STEP:
                number, self._unacknowledged = self._unacknowledged, 0
                await self._send(encode_credit(self.number, number))
