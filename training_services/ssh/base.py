"""What runs inside one SSH connection: how many sessions at a time, and what they give back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from proctor.training_services.ssh.errors import CommandFailed

MOST_SESSIONS = 6  # sshd allows 10 (MaxSessions); its users' own tools may share them
TAIL_BYTES = 4096


@dataclass(frozen=True)
class CompletedCommand:
    """A command that has run to its end."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        """The last line it wrote, to stderr or else to stdout, for people."""
        text = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return text.splitlines()[-1][-300:] if text else "nothing"


class Process:
    """A command that is running. Belongs to `Connection.start_process`, which ends it."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.stdin = process.stdin
        """Takes bytes: write(), drain(), write_eof()."""
        self.stdout = process.stdout
        """Gives bytes: read(), readexactly(), readuntil(); empty or asyncio.IncompleteReadError at the end."""

    @property
    def stderr_tail(self) -> bytes:
        """The last 4 KiB it wrote to stderr until now."""
        return bytes(self._process.tail)

    async def wait(self) -> int | None:
        """Wait until it ends; its exit code, None where a signal or the end of the connection has ended it."""
        await self._process.wait_closed()
        code: int | None = self._process.exit_status
        return code if code is None or code >= 0 else None


class SessionSlots:
    """Keeps the number of sessions of a connection below what its SSH server allows, and learns that it allows less."""

    def __init__(self, limit: int = MOST_SESSIONS) -> None:
        self._limit = limit
        self._open = 0
        self._changed = asyncio.Condition()

    @property
    def limit(self) -> int:
        """How many may be open at a time."""
        return self._limit

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Hold one session's place; waits for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._open < self._limit)
            self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            await self._notify()

    async def give_way(self) -> bool:
        """The server would not open one more: wait until another session has ended. Whether there was another; if not,
        waiting cannot help."""
        if self._open <= 1:
            return False
        self._open -= 1
        self._limit = min(self._limit, self._open)
        await self._notify()
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._open < self._limit)
        finally:
            self._open += 1  # also when cancelled: `take` gives it back
        return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def strip_talk(stdout: bytes, mark: bytes, finished: CompletedCommand) -> CompletedCommand:
    """The output after the mark. Raises CommandFailed where there is no mark: the login shell ran nothing."""
    _, found, rest = stdout.partition(mark)
    if not found:
        raise CommandFailed(
            f"its login shell ran no command; it said: {finished.said}; give the account a shell that runs commands",
            finished.code,
        )
    return CompletedCommand(finished.code, rest, finished.stderr)
