"""An SSH connection as its users see it, without the SSH library: what it can do, and what its sessions return.

`NodeConnection` is the border to the SSH library: `connection.Connection` implements it with asyncssh, which no module
outside of this package has to load. `SessionSlots` limits how many sessions are open at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

MOST_SESSIONS = 6  # sshd allows 10 (MaxSessions); a relay has four of its own
TAIL_BYTES = 4096

ProgressCallback = Callable[[int, int], None]
"""Called with the bytes that have arrived and the bytes in all."""


@dataclass(frozen=True)
class CompletedCommand:
    """A command that has run to its end."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_line(self) -> str:
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


class NodeConnection(Protocol):
    """An open SSH connection to one machine. Every method raises ConnectionEnded once the connection has ended."""

    peer: str
    """Where it leads, for people: "bob@10.0.0.3:22 through bastion"."""

    async def run(
        self, command: Sequence[str], *, input: bytes = b"", timeout_seconds: float = 60.0
    ) -> CompletedCommand:
        """Run a command to its end. Raises CommandFailed when a signal or the time limit ends it (it is then asked to
        end, and may run on), never for its exit code.

        :param command: words, which mean the same to every login shell.
        """

    def start_process(
        self, command: Sequence[str], *, is_lasting: bool = False
    ) -> AbstractAsyncContextManager[Process]:
        """Run a command and exchange data with it; leaving the context closes its pipes and its session. Raises
        CommandFailed where the login shell runs no command, SessionRefused where the server opens no session.

        :param is_lasting: the session is needed for as long as the connection, and opened beside the `MOST_SESSIONS`
            that come and go.
        """

    def start_python(self, python: str, source: str) -> AbstractAsyncContextManager[Process]:
        """Run a Python source with the interpreter of this name or path, as `start_process`, whatever the login shell.
        A missing interpreter is an exit code."""

    async def upload(
        self, source: Path | bytes, target: str, *, on_progress: ProgressCallback | None = None, resume: bool = True
    ) -> None:
        """Write a file, mode 0600; a relative target is below the home directory.

        A shorter file of that name is assumed to be an earlier attempt and continued, so verify what has arrived by its
        hash. Raises NoRoom, NotWritable (also where SFTP is switched off), OSError for the source.
        """

    async def forward(self, remote_socket: str, local_socket: str) -> None:
        """Forward connections to a Unix socket on the machine to one of this host, until this connection ends. The
        folder there must exist and the socket must not. Raises ForwardingRefused."""

    async def until_ended(self) -> str:
        """Wait until the connection has ended; returns a clause that says why."""


class SessionSlots:
    """Keeps the number of sessions of a connection below what its SSH server allows, and lowers the limit when the
    server refuses one."""

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
        """Hold one slot; waits until one is free."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._open < self._limit)
            self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            await self._notify()

    async def give_way(self) -> bool:
        """The server refused one more session: lower the limit and wait until another session has ended. False: there
        is no other, and waiting cannot help."""
        if self._open <= 1:
            return False
        self._open -= 1
        self._limit = min(self._limit, self._open)
        await self._notify()
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._open < self._limit)
        finally:
            self._open += 1  # also when canceled: `take` gives it back
        return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
