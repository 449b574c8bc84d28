"""A dispatcher inside the manager's own process and thread, for simulations and benchmarks with built-in algorithms."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import LineChannel
from proctor.manager.dispatcher.host.session import HostSession


class InProcessChannel(LineChannel):
    """Answers every line before `send` returns. A user's own algorithms, which answer from threads, are served too."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._session = HostSession(self._answer)
        self.is_closed = False

    async def send(self, data: bytes) -> None:
        for line in data.splitlines():
            message = protocol.decode(line)
            if isinstance(message, protocol.Terminate):
                self.close()
            else:
                self._session.handle(message)

    async def lines(self) -> AsyncIterator[bytes]:
        while (line := await self._answers.get()) is not None:
            yield line

    def exit_message(self) -> str:
        return "the dispatcher in the manager's own process was closed"

    def close(self) -> None:
        """End the conversation. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._session.close()
            self._answers.put_nowait(None)

    def _answer(self, message: protocol.FromDispatcher) -> None:
        line = protocol.encode(message)
        if asyncio._get_running_loop() is self._loop:
            self._answers.put_nowait(line)
        else:
            self._loop.call_soon_threadsafe(self._answers.put_nowait, line)


@asynccontextmanager
async def open_in_process() -> AsyncIterator[InProcessChannel]:
    """Open a channel to a dispatcher that lives in this process; close it on leaving."""
    channel = InProcessChannel()
    try:
        yield channel
    finally:
        channel.close()
