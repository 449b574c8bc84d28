"""One registration of one keeper, with the commands that it has not taken yet."""

import asyncio
import secrets
from collections import deque

from proctor.trial_keeper.protocol import Cancel, Command, Launch, Registration, Shutdown, Update, to_json

Order = Launch | Cancel | Update | Shutdown


class Session:
    """One registration of one keeper: numbered commands, kept until the keeper says that it has taken them."""

    def __init__(self, registration: Registration) -> None:
        self.id = secrets.token_hex(16)
        self.jobs = {job.job_id: job for job in registration.jobs}
        self.is_closed = False
        self._commands: deque[Command] = deque()
        self._number = 0
        self._wake = asyncio.Event()

    def push(self, order: Order) -> None:
        """Add an order; a waiting poll is answered at once."""
        self._number += 1
        self._commands.append(Command(self._number, type(order).__name__, to_json(order)))
        self._wake.set()

    def withdraw(self, job_id: str) -> None:
        """Take back the orders for a job that were not handed over."""
        self._commands = deque(command for command in self._commands if command.order.get("job_id") != job_id)

    def close(self) -> None:
        """A newer session has taken its place; a waiting poll is answered at once."""
        self.is_closed = True
        self._wake.set()

    async def after(self, cursor: int, wait_seconds: float) -> list[Command]:
        """The commands after `cursor`, once there are any; those up to it are dropped. Empty when the wait is over."""
        while self._commands and self._commands[0].number <= cursor:
            self._commands.popleft()
        if not self._commands and not self.is_closed:
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return []
        return list(self._commands)
