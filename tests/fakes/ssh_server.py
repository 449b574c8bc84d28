"""An SSH server in this process, with the login that a test chooses; commands run in a shell as whoever runs the tests.

Two raw servers beside it do what no proper one does: hang up at once, or say nothing.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

HOST = "127.0.0.1"


@dataclass
class Wanted:
    """What the server asks for, and what it allows."""

    passwords: Mapping[str, str] = field(default_factory=dict)
    questions: Sequence[tuple[str, bool]] = ()
    """Keyboard-interactive: the prompts; the first answer must be the password."""
    takes_password: bool = True
    keys: Sequence[Any] = ()
    takes_keys: bool = True
    forwarding: bool = True
    sftp: bool = True
    most_sessions: int = 100
    most_keys: int = 100
    """After so many refused keys it ends the connection."""
    login_talk: str = ""
    """What its users' shells print before they run anything."""
    shell: Sequence[str] = ("/bin/sh", "-c")


@dataclass
class FakeSshServer:
    """A server that listens."""

    port: int
    host_key: Any
    tried: list[str] = field(default_factory=list)
    """Every way of logging in that was tried, in order."""
    most_open: int = 0
    """The largest number of sessions that were open at a time."""
    open_sessions: int = 0
    connections: list[Any] = field(default_factory=list)

    @property
    def public_key(self) -> str:
        """Its host key, as in known_hosts."""
        return " ".join(self.host_key.export_public_key("openssh").decode().split()[:2])

    @property
    def line(self) -> str:
        """The line of known_hosts that makes it known."""
        return f"[{HOST}]:{self.port} {self.public_key}"

    def hang_up(self) -> None:
        """End every connection at once."""
        for connection in self.connections:
            connection.abort()


class _Session(asyncssh.SSHServer):  # type: ignore[misc]
    def __init__(self, server: FakeSshServer, wanted: Wanted) -> None:
        self._server = server
        self._wanted = wanted
        self._connection: Any = None
        self._keys_tried = 0

    def connection_made(self, conn: Any) -> None:
        self._connection = conn
        self._server.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return self._wanted.takes_keys

    def validate_public_key(self, username: str, key: Any) -> bool:
        self._server.tried.append(f"key {key.get_fingerprint()}")
        self._keys_tried += 1
        if self._keys_tried > self._wanted.most_keys:
            self._connection.disconnect(asyncssh.DISC_PROTOCOL_ERROR, "Too many authentication failures")
        return key in self._wanted.keys

    def password_auth_supported(self) -> bool:
        return bool(self._wanted.passwords) and self._wanted.takes_password

    def validate_password(self, username: str, password: str) -> bool:
        self._server.tried.append("password")
        return self._wanted.passwords.get(username) == password

    def kbdint_auth_supported(self) -> bool:
        return bool(self._wanted.questions)

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        return ("", "", "", list(self._wanted.questions)) if self._wanted.questions else False

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> bool:
        self._server.tried.append("answers")
        return bool(responses) and self._wanted.passwords.get(username) == responses[0]

    def session_requested(self) -> Any:
        if self._server.open_sessions >= self._wanted.most_sessions:
            return False
        return self._connection.create_server_channel(None), _Process(self._server, self._wanted)

    def unix_server_requested(self, listen_path: str) -> bool:
        return self._wanted.forwarding

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


class _Process(asyncssh.SSHServerProcess):  # type: ignore[misc]
    """A session, counted while it is open."""

    def __init__(self, server: FakeSshServer, wanted: Wanted) -> None:
        async def serve(process: Any) -> None:
            await _run(process, wanted)

        super().__init__(serve, asyncssh.SFTPServer if wanted.sftp else None, 3, False)
        self._server = server
        server.open_sessions += 1
        server.most_open = max(server.most_open, server.open_sessions)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open_sessions -= 1
        super().connection_lost(exc)


@asynccontextmanager
async def ssh_server(wanted: Wanted, *, host_key: Any = None) -> AsyncIterator[FakeSshServer]:
    """A server on a port of its own."""
    server = FakeSshServer(0, host_key or asyncssh.generate_private_key("ssh-ed25519"))
    acceptor = await asyncssh.listen(
        HOST,
        0,
        server_factory=lambda: _Session(server, wanted),
        server_host_keys=[server.host_key],
    )
    server.port = acceptor.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        acceptor.close()
        server.hang_up()
        await acceptor.wait_closed()
        for connection in server.connections:
            await connection.wait_closed()


async def _run(process: Any, wanted: Wanted) -> None:
    process.stdout.write(wanted.login_talk.encode())
    child = await asyncio.create_subprocess_exec(
        *wanted.shell,
        process.command or "",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    feeding = asyncio.ensure_future(_feed(process.stdin, child.stdin))
    try:
        await asyncio.gather(_pour(child.stdout, process.stdout), _pour(child.stderr, process.stderr))
        code = await child.wait()
        process.exit(code) if code >= 0 else process.exit_with_signal(signal.Signals(-code).name[3:])
    finally:
        feeding.cancel()
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def _feed(source: Any, sink: Any) -> None:
    with suppress(OSError, asyncssh.Error):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    with suppress(OSError):
        sink.close()


async def _pour(source: Any, sink: Any) -> None:
    with suppress(OSError, asyncssh.Error):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def raw_server(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Any]) -> AsyncIterator[int]:
    """A TCP server; its port. `answer` gets each connection and its number, from 0."""
    number = iter(range(1_000_000))
    served: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(writer)
        with suppress(ConnectionError):
            await answer(reader, writer, next(number))
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in served:
            writer.transport.abort()
        await server.wait_closed()


async def pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, *, flows: asyncio.Event
) -> None:
    """Connect a client with another server, while `flows` is set; then nothing passes, nothing is closed."""
    inner_reader, inner_writer = await asyncio.open_connection(HOST, port)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await flows.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))


def write_key(path: Path, *, passphrase: str | None = None) -> Any:
    """Make a private key with its public half beside it; returns the public half."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Each use of a key with the usual 128 rounds costs a processor more than a second.
    key.write_private_key(str(path), passphrase=passphrase, rounds=1, ignore_few_rounds=True)
    path.chmod(0o600)
    key.write_public_key(f"{path}.pub")
    return key.convert_to_public()
