"""The door of an experiment's loop: messages in order, each with the future of whoever waits for its commit."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from proctor.manager.engine.messages import Message

LAZY_SECONDS = 0.02
"""How long a lazy message may wait for company, so that a metric and the exit right after it share a commit."""


@dataclass
class Letter:
    """A message and, when somebody waits for it, where its answer goes."""

    message: Message
    answer: asyncio.Future[Any] | None = None

    def resolve(self, value: Any) -> None:
        """Give the answer, if it is still wanted."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(value)

    def refuse(self, error: BaseException) -> None:
        """Give an error instead."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)


@dataclass
class Inbox:
    """Unbounded, but everything that fills it is paced by commits."""

    _letters: list[Letter] = field(default_factory=list)
    _taken: list[Letter] = field(default_factory=list)  # the loop handles them
    _bell: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: BaseException | None = None

    def post(self, message: Message, *, lazy: bool = False) -> None:
        """Leave a message. A lazy one is read with the next message, at the latest after LAZY_SECONDS."""
        self._letters.append(Letter(message))
        if lazy:
            asyncio.get_running_loop().call_later(LAZY_SECONDS, self._bell.set)
        else:
            self._bell.set()

    async def ask(self, message: Message) -> Any:
        """Leave a message and wait until what it led to is committed. Raises what its handler raised."""
        if self._closed is not None:
            raise self._closed
        letter = Letter(message, asyncio.get_running_loop().create_future())
        self._letters.append(letter)
        self._bell.set()
        return await letter.answer  # type: ignore[misc]

    async def take(self, timeout_seconds: float | None) -> list[Letter]:
        """Everything that has come; empty when the time is over. What was taken before is done with."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._bell.wait()
        self._bell.clear()
        self._taken, self._letters = self._letters, []
        return list(self._taken)

    def close(self, error: BaseException) -> None:
        """The loop has ended: `error` is the answer to every message that has none yet, also of those that the loop had
        taken, and to every later one. Idempotent: the first error stands."""
        self._closed = self._closed or error
        for letter in (*self._taken, *self._letters):
            letter.refuse(error)
        self._taken, self._letters = [], []
