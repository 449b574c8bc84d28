"""Dispatchers in this process that can be suspended, as processes can, and whose processor time is made up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proctor.manager.dispatcher.client.in_process import InProcessChannel
from proctor.manager.dispatcher.client.liveness import Patience, ProcessStats
from proctor.manager.dispatcher.protocol import Ping, decode


class SuspendableChannel(InProcessChannel):
    """What is sent to it while it is suspended is answered when it is resumed."""

    patience = Patience(60.0)

    def __init__(self, dispatchers: "SuspendableDispatchers") -> None:
        super().__init__()
        self._dispatchers = dispatchers
        self._held: list[bytes] = []

    async def send(self, data: bytes) -> None:
        if self._dispatchers.computing and isinstance(decode(data.rstrip(b"\n").rpartition(b"\n")[2]), Ping):
            await super().send(data)
            return
        self._held.append(data)
        await self.look()

    async def look(self) -> None:
        """Answer what is held, unless suspended."""
        while self._held and not self._dispatchers.suspended and not self._dispatchers.computing:
            await super().send(self._held.pop(0))

    def say(self, line: bytes) -> None:
        """Send the manager whatever this is."""
        self._answers.put_nowait(line)

    def process_stats(self) -> ProcessStats:
        return ProcessStats(self._dispatchers.processor_seconds(), suspended=self._dispatchers.suspended)

    async def kill(self) -> None:
        self._dispatchers.kills += 1
        self._dispatchers.killed.set()
        self._held.clear()
        self.close()
        await asyncio.Event().wait()


class SuspendableDispatchers:
    """Opens channels, one after the other."""

    def __init__(self) -> None:
        self.suspended = False
        self.computing = False
        """In its tuner: pings are answered, nothing else."""
        self.share = 0.0
        """Of a processor that is used."""
        self.channels: list[SuspendableChannel] = []
        self.kills = 0
        self.killed = asyncio.Event()
        self.obstacles: list[OSError] = []
        """Why the next ones cannot be started."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SuspendableChannel]:
        """An `Opener`."""
        if self.obstacles:
            raise self.obstacles.pop(0)
        channel = SuspendableChannel(self)
        self.channels.append(channel)
        try:
            yield channel
        finally:
            channel.close()

    def processor_seconds(self) -> float:
        """As if `share` had held since the beginning of time: right, as long as it is changed upwards only."""
        return self.share * asyncio.get_running_loop().time()

    async def go_on(self) -> None:
        """After SIGCONT, or when the tuner has come to an end."""
        self.suspended = self.computing = False
        await self.channels[-1].look()
