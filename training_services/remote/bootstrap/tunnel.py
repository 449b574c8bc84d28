"""The connection from a machine to the manager's Unix socket: a reverse forward of the SSH connection, or a relay where
the machine's SSH server forbids forwarding. A relay has a session that listens on the machine, and one for each of the
connections of its keeper.

The machine's end of a relay is the command `relay` of the keeper archive, see `trial_keeper/relay.py`.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper
from proctor.training_services.ssh.base import NodeConnection, Process
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded, ForwardingRefused, SessionRefused
from proctor.trial_keeper.linux.tasks import TaskGroup, until_first_ends

__all__ = ["Relay", "connect_to_manager"]

log = logging.getLogger(__name__)

_CONNECTIONS = 3  # of a keeper: commands, reports, answers
_SESSIONS = 1 + _CONNECTIONS + 1  # with one for commands and uploads
_START_SECONDS = 30.0
_REFUSED_SECONDS = 5.0
_READ_BYTES = 256 * 1024


async def connect_to_manager(
    connection: NodeConnection, keeper: NodeKeeper, *, socket: str, manager: str
) -> Callable[[], Awaitable[str]]:
    """Connect `socket` on the machine to the manager's. Returns a function to await for as long as that is needed: it
    returns when the tunnel has ended, with a clause that says why; or raises as `Relay.run`. Raises ConnectionEnded."""
    try:
        await connection.forward(socket, manager)
    except ForwardingRefused as error:
        log.info("%s: %s; a relay is used instead", connection.peer, error, extra={"action": "node.relay"})
        return Relay(connection, keeper, socket=socket, manager=manager).run
    return connection.until_ended


class Relay:
    """Carries the connections that are made to `socket` on the machine to the Unix socket `manager` of this host, each
    over an SSH session."""

    def __init__(self, connection: NodeConnection, keeper: NodeKeeper, *, socket: str, manager: str) -> None:
        self._connection = connection
        self._keeper = keeper
        self._socket = socket
        self._manager = manager
        self._waiting = 0
        self._has_all_sessions = asyncio.Event()
        self._is_open = asyncio.Event()

    async def check(self) -> None:
        """Open it and close it again. Raises as `run`."""

        async def run() -> None:
            raise ConnectionEnded(await self.run())

        await until_first_ends(run=run(), open=self.until_open())

    async def until_open(self) -> None:
        """Wait until it listens and has all its sessions."""
        await self._is_open.wait()

    async def run(self) -> str:
        """Serve until it ends; returns a clause that says why. All connections are closed then.

        :raises CommandFailed: it cannot be started; the text is the machine's own. SessionRefused where the machine's
            SSH server has no room for its sessions.
        :raises ConnectionEnded: a session broke or did not answer.
        """
        try:
            async with self._start(carry=False) as listening, TaskGroup() as group:
                for number in range(_CONNECTIONS):
                    group.start(self._carry_connections(), f"relay: connection {number}")
                group.start(self._find_room(), "relay: a session for commands")
                group.start(listening.stdout.read(), "relay: its end", ends_group=True)
        except SessionRefused as error:
            raise SessionRefused(
                f"its SSH server forbids forwarding, and refuses the {_SESSIONS} sessions at once that a relay needs; "
                "allow AllowStreamLocalForwarding or raise MaxSessions in its sshd_config"
            ) from error
        return _ended(listening)

    @asynccontextmanager
    async def _start(self, *, carry: bool) -> AsyncIterator[Process]:
        """A session of the relay that has confirmed its request."""
        words = self._keeper.words("relay")
        async with self._connection.start_process(words, is_lasting=True) as process:
            try:
                async with asyncio.timeout(_START_SECONDS):
                    process.stdin.write(json.dumps({"socket": self._socket, "carry": carry}).encode() + b"\n")
                    await process.stdin.drain()
                    answer = _read(await process.stdout.readline())
            except TimeoutError as error:
                raise ConnectionEnded(f"the relay on it has not answered within {_START_SECONDS:g} s") from error
            except OSError as error:
                raise ConnectionEnded(f"the relay on it cannot be reached: {error}") from error
            if answer is None:
                raise ConnectionEnded(f"the relay on it ended before it listened{_said(process)}")
            if answer != {"socket": self._socket}:
                raise CommandFailed(str(answer.get("error", answer) if isinstance(answer, dict) else answer))
            yield process

    async def _carry_connections(self) -> None:
        """One connection after another, each over a session that waits for it."""
        while True:
            try:
                async with self._start(carry=True) as session:
                    self._waiting += 1
                    if self._waiting == _CONNECTIONS:
                        self._has_all_sessions.set()
                    await self._carry(session)
            except SessionRefused:
                if not self._is_open.is_set():
                    raise
                await asyncio.sleep(_REFUSED_SECONDS)  # uploads have taken its place, until they end

    async def _find_room(self) -> None:
        """Raises SessionRefused where no command can run beside the relay."""
        await self._has_all_sessions.wait()
        try:
            await self._connection.run(["true"])
        except SessionRefused:
            raise
        except CommandFailed:  # it has waited for other commands, so there is room
            pass
        self._is_open.set()

    async def _carry(self, session: Process) -> None:
        """Wait for a connection and carry it until both of its directions have ended, or it is broken."""
        line = await session.stdout.readline()
        if _read(line) != {"connection": True}:
            raise ConnectionEnded(_ended(session))
        with suppress(OSError):  # no manager listens, or either end is gone: the keeper connects again
            reader, writer = await asyncio.open_unix_connection(self._manager)
            try:
                async with TaskGroup() as group:
                    group.start(_copy(reader, session.stdin), "relay: to the keeper")
                    group.start(_deliver(session, writer), "relay: to the manager", ends_group=True)
            except BaseException:
                writer.transport.abort()
                raise
            writer.close()


async def _deliver(session: Process, writer: asyncio.StreamWriter) -> None:
    """Ends with the process, which ends when it has also delivered what goes the other way, or cannot."""
    await _copy(session.stdout, writer)
    await session.wait()


async def _copy(reader: Any, writer: Any) -> None:
    """From an asyncio stream to one of an SSH library, or the other way."""
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):  # its reader has closed altogether; what goes the other way is still delivered
        writer.write_eof()


def _read(line: bytes) -> Any:
    """None for no line."""
    try:
        return json.loads(line) if line else None
    except ValueError:
        return {"error": f"the relay answers {line[:100]!r}"}


def _ended(process: Process) -> str:
    return f"its relay has ended{_said(process)}"


def _said(process: Process) -> str:
    said = process.stderr_tail.decode(errors="replace").strip()
    return f": {said}" if said else ""
