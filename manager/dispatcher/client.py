"""The manager's end of a dispatcher process: starts it, tells it the input log, restarts it when it dies.

The store's input log is the truth. `tell` is called after an input was committed; whoever comes late (a dispatcher
that has just been started) is brought up to date from the log, so an input is never told twice and never skipped.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.protocol import FromDispatcher, ToDispatcher
from proctor.sdk.failpoints import failpoint

log = logging.getLogger(__name__)

PAGE = 500
RESTART_DELAYS_SECONDS = (0.0, 0.25, 1.0, 4.0, 10.0)
"""Before the next start, by how many dispatchers in a row have ended without a suggestion."""


class Channel(ABC):
    """One conversation with one dispatcher: lines there, lines back."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send whole lines. Raises ConnectionError when the dispatcher is gone."""

    @abstractmethod
    def lines(self) -> AsyncIterator[bytes]:
        """The dispatcher's lines until it closes its end."""

    @abstractmethod
    def epitaph(self) -> str:
        """Why the conversation ended, for people: exit status and the last of the log."""


Opener = Callable[[], AbstractAsyncContextManager[Channel]]
"""Starts a dispatcher and ends it on leaving."""

InputReader = Callable[[int, int], Awaitable[Sequence[ToDispatcher]]]
"""(after position, limit) → the next inputs of the log, requests with the answers that are already stored."""

Receiver = Callable[[FromDispatcher], None]


class DispatcherGone(Exception):
    """The dispatcher ended again and again."""


class DispatcherClient:
    """Keeps one experiment's dispatcher alive and informed."""

    def __init__(
        self,
        *,
        open_channel: Opener,
        initialize: Callable[[], protocol.Initialize],
        read_inputs: InputReader,
        receive: Receiver,
        restarted: Callable[[str], None],
    ) -> None:
        self._open_channel = open_channel
        self._initialize = initialize
        self._read_inputs = read_inputs
        self._receive = receive
        self._restarted = restarted
        self._late: list[ToDispatcher] = []  # told since the conversation began, not sent yet
        self._told = 0
        self._has_suggested = False
        self._bell = asyncio.Event()

    def tell(self, messages: Sequence[ToDispatcher]) -> None:
        """Committed inputs in the order of their positions. Returns at once; never raises."""
        self._late.extend(messages)
        self._bell.set()

    async def run(self) -> None:
        """Serve until cancelled. Raises DispatcherGone when it cannot be kept alive."""
        fruitless = 0
        while True:
            self._has_suggested = False
            epitaph = await self._converse()
            fruitless = 0 if self._has_suggested else fruitless + 1
            if fruitless >= len(RESTART_DELAYS_SECONDS):
                raise DispatcherGone(f"the dispatcher ended {fruitless} times in a row: {epitaph}")
            log.warning("dispatcher ended, starting it again: %s", epitaph, extra={"action": "dispatcher.restart"})
            self._restarted(epitaph)
            await asyncio.sleep(RESTART_DELAYS_SECONDS[fruitless])

    async def _converse(self) -> str:
        """One dispatcher's life; returns why it ended."""
        self._told = 0
        self._late.clear()
        async with self._open_channel() as channel:
            async with asyncio.TaskGroup() as group:
                speaker = group.create_task(self._speak(channel), name="dispatcher speaker")
                async for line in channel.lines():
                    failpoint("manager.dispatcher.receive.before")
                    message = protocol.decode(line)
                    self._has_suggested = self._has_suggested or isinstance(message, protocol.NewTrial)
                    self._receive(message)  # type: ignore[arg-type]
                speaker.cancel()
        return channel.epitaph()

    async def _speak(self, channel: Channel) -> None:
        with suppress(ConnectionError):
            await channel.send(protocol.encode(self._initialize()))
            while page := await self._read_inputs(self._told, PAGE):
                await self._send(channel, page)
            while True:
                late, self._late = self._late, []
                await self._send(channel, late)
                if not self._late:
                    self._bell.clear()
                    await self._bell.wait()

    async def _send(self, channel: Channel, messages: Sequence[ToDispatcher]) -> None:
        news = [message for message in messages if getattr(message, "position", 0) > self._told]
        if not news:
            return
        failpoint("manager.dispatcher.send.before")
        await channel.send(b"".join(protocol.encode(message) for message in news))
        self._told = news[-1].position  # type: ignore[union-attr]
        failpoint("manager.dispatcher.send.after")
