"""A keeper that finds its manager through a relay: the command `relay` on the node, over pipes, over one socket, and
over the sessions of OpenSSH's own server."""

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.archive_node import ArchiveNode, open_archive_node
from fakes.openssh import descendants, missing, openssh_server

from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper
from proctor.training_services.remote.bootstrap.tunnel import Relay
from proctor.training_services.ssh.base import CompletedCommand
from proctor.training_services.ssh.connection import HostKeys, open_connection
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded
from proctor.training_services.ssh.settings import Login, MachineSettings

pytestmark = pytest.mark.anyio

SECONDS = 120.0
MUCH = 12 * 1024 * 1024
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


class LocalProcess:
    """A process with what an SSH server gives as standard input and output: two pipes, or one socket."""

    def __init__(self, process: asyncio.subprocess.Process, reader: Any, writer: Any) -> None:
        self.process, self.stdout, self.stdin = process, reader, writer
        self.stderr_tail = b""

    async def wait(self) -> int:
        """Its exit code; what it wrote to stderr is there then."""
        assert self.process.stderr is not None
        self.stderr_tail += await self.process.stderr.read()
        return await self.process.wait()

    def close(self) -> None:
        """Both pipes, as an SSH server does with those of a session that was closed."""
        for transport in (self.stdin.transport, getattr(self.stdout, "_transport", None)):
            if transport is not None and not transport.is_closing():
                transport.close()


class LocalConnection:
    """The sessions of a `NodeConnection`, on this host."""

    def __init__(self, wire: str) -> None:
        self.peer = "here"
        self.sessions: list[LocalProcess] = []
        self._wire = wire

    @asynccontextmanager
    async def start_process(self, command: Sequence[str], *, is_lasting: bool = False) -> AsyncIterator[Any]:
        """As over SSH: leaving ends the session, not the process."""
        assert is_lasting
        if self._wire == "pipes":
            process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, stderr=-1, env={})
            session = LocalProcess(process, process.stdout, process.stdin)
        else:
            ours, theirs = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                with theirs:
                    process = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=theirs, stderr=-1)
            except BaseException:
                writer.close()
                raise
            session = LocalProcess(process, reader, writer)
        self.sessions.append(session)
        try:
            yield session
        finally:
            session.close()

    async def run(self, command: Sequence[str]) -> CompletedCommand:
        """Nothing: there is always room."""
        return CompletedCommand(0, b"", b"")

    async def until_ended(self) -> list[int]:
        """The exit codes of all processes, once they have ended."""
        return [await asyncio.wait_for(session.process.wait(), SECONDS) for session in self.sessions]


@asynccontextmanager
async def connect(wire: str, folder: Path) -> AsyncIterator[Any]:
    """A connection to the node: over pipes or sockets, or to an SSH server that forbids forwarding."""
    if wire != "sshd":
        connection = LocalConnection(wire)
        yield connection
        await connection.until_ended()
        return
    with openssh_server(Path(tempfile.mkdtemp(dir=folder)), "DisableForwarding yes") as server:
        entry = {"host": server.host, "port": server.port, "user": server.user, "trust_on_first_use": True}
        async with open_connection(
            MachineSettings.read({**entry, "ssh_key_file": str(server.client_key)}),
            Login(),
            host_keys=HostKeys(folder / "known_hosts"),
            keep_alive_seconds=30,
            timeout_seconds=SECONDS,
        ) as there:
            yield there
            await until(lambda: len(descendants(server.pid)) <= 2)  # the server's own: every relay has ended


@dataclass
class RunningRelay:
    """A relay from `path` on the node."""

    path: str
    connection: LocalConnection  # or an SSH connection
    running: "asyncio.Task[str]"

    @property
    def listening(self) -> LocalProcess:
        """The session that listens."""
        return self.connection.sessions[0]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection as the keeper makes it."""
        return await asyncio.open_unix_connection(self.path)


@asynccontextmanager
async def run_relay(node: ArchiveNode, wire: str, path: str, manager: str) -> AsyncIterator[RunningRelay]:
    """A relay that listens; it is closed at the end as when a manager leaves."""
    async with asyncio.timeout(SECONDS), connect(wire, node.home.parent) as connection:
        keeper = NodeKeeper(connection, node.python, str(node.directory / node.archive.name), str(node.directory))
        relay = Relay(connection, keeper, socket=path, manager=manager)
        running = asyncio.ensure_future(relay.run())
        opening = asyncio.ensure_future(relay.until_open())
        await asyncio.wait([running, opening], return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        try:
            yield RunningRelay(path, connection, running)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running


@asynccontextmanager
async def relay_to(handler: Handler, folder: Path, wire: str) -> AsyncIterator[RunningRelay]:
    """A relay whose manager is `handler`."""
    async with open_archive_node(folder) as node:
        await node.bring()
        path = (await node.command("prepare"))["socket"]
        server = await asyncio.start_unix_server(handler, str(folder / "sock"))
        async with run_relay(node, wire, path, str(folder / "sock")) as relay:
            yield relay
        server.close()
        assert not os.path.exists(path)
        assert (await node.remove())["removed"]
        assert os.listdir(node.home) == []


SSHD = pytest.param("sshd", marks=pytest.mark.skipif(bool(missing()), reason=missing() or "OpenSSH is there"))


@pytest.fixture(params=["pipes", "socket", SSHD])
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - other processes change it
        await asyncio.sleep(0.01)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_a_keeper_works_through_a_relay_and_through_the_next_one(tmp_path: Path, wire: str) -> None:
    async with open_archive_node(tmp_path) as node:
        await node.bring()
        manager = node.manager.pointer.read_text()
        first = (await node.command("prepare"))["socket"]
        async with run_relay(node, wire, first, manager) as relay:
            await node.start(socket=first)
            await node.manager.command(node.launch("T.1", "echo 1 >> $PROCTOR_JOB_DIR/journal; sleep 600"))
            await asyncio.wait_for(node.manager.start_of("T.1"), SECONDS)
        assert not Path(first).exists()

        second = (await node.command("prepare"))["socket"]
        async with run_relay(node, wire, second, manager) as relay:
            assert await node.command("point", socket=second) == {"socket": second}
            await node.manager.until(lambda: len(node.manager.registrations) == 2, seconds=SECONDS)
            assert (await node.remove())["removed"]
            with contextlib.suppress(ConnectionEnded):
                await relay.running  # its socket was removed: it leaves
        assert os.listdir(node.home) == []
        assert not node.manager.overlaps


@pytest.mark.thorough
async def test_a_relay_whose_connection_has_died_without_a_word_leaves_when_another_counts(tmp_path: Path) -> None:
    async with open_archive_node(tmp_path) as node:
        await node.bring()
        first = (await node.command("prepare"))["socket"]
        async with run_relay(node, "pipes", first, "/nowhere") as relay:
            second = (await node.command("prepare"))["socket"]
            await node.command("point", socket=first)
            assert os.listdir(os.path.dirname(first)) != []
            await node.command("point", socket=second)
            await relay.connection.until_ended()
            assert relay.listening.process.returncode == 0
        assert (await node.remove())["removed"]


async def test_a_socket_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    async with open_archive_node(tmp_path) as node:
        await node.bring()
        async with run_relay(node, "pipes", "/nowhere/sock", "/nowhere") as relay:
            with pytest.raises(CommandFailed, match="the relay cannot listen: /nowhere/sock: No such file"):
                await relay.running
            assert await relay.connection.until_ended() == [1]
        for request in ({}, {"socket": "/nowhere/sock", "carry": True}):
            command = [node.python, str(node.directory / node.archive.name), "relay"]
            process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)
            printed, _ = await process.communicate(json.dumps(request).encode() + b"\n")
            assert "cannot listen" in json.loads(printed)["error"]
            assert process.returncode == 1
        assert (await node.remove())["removed"]


async def test_what_comes_after_the_request_ends_the_relay(tmp_path: Path) -> None:
    async with relay_to(echo, tmp_path, "pipes") as relay:
        relay.listening.stdin.write(b"what a shell prints")
        with contextlib.suppress(
            ConnectionEnded
        ):  # where a session that waits for a connection is the first to end with it
            await relay.running
        assert await relay.listening.wait() == 1
        assert b"more than its request" in relay.listening.stderr_tail


@pytest.mark.thorough
async def test_much_goes_both_ways_at_once_and_a_half_closed_connection_is_answered(tmp_path: Path, wire: str) -> None:
    data = random.Random(1).randbytes(MUCH)

    async def carry(relay: RunningRelay) -> None:
        reader, writer = await relay.connect()
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == data
        writer.close()

    async with relay_to(echo, tmp_path, wire) as relay:
        await asyncio.gather(*(carry(relay) for _ in range(5)))  # two of them wait for a session


@pytest.mark.thorough
async def test_a_connection_that_is_not_read_from_holds_up_its_sender_and_nothing_else(
    tmp_path: Path, wire: str
) -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"w":
            await go_on.wait()
        await echo(reader, writer)

    async with relay_to(serve, tmp_path, wire) as relay:
        slow_reader, slow = await relay.connect()
        slow.write(b"w" + bytes(MUCH))
        quick_reader, quick = await relay.connect()
        quick.write(b"q" + bytes(MUCH))
        assert await quick_reader.readexactly(MUCH) == bytes(MUCH)
        assert slow.transport.get_write_buffer_size() > MUCH // 2
        go_on.set()
        assert await slow_reader.readexactly(MUCH) == bytes(MUCH)
        slow.close()
        quick.close()


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["keeper", "manager"])
async def test_a_connection_that_breaks_is_gone_at_the_other_end(tmp_path: Path, wire: str, who: str) -> None:
    ended: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(5) == b"hello"
        writer.write(b"welcome")
        if who == "manager":
            await writer.drain()
            writer.transport.abort()
        ended.put_nowait(await reader.read())
        writer.close()

    async with relay_to(serve, tmp_path, wire) as relay:
        for _ in range(6):  # sessions are replaced
            reader, writer = await relay.connect()
            writer.write(b"hello")
            assert await reader.readexactly(7) == b"welcome"
            if who == "keeper":
                writer.transport.abort()
            else:
                assert await reader.read() == b""
            assert await ended.get() == b""
            writer.close()


@pytest.mark.thorough
async def test_sessions_that_are_killed_end_their_connections_and_the_relay(tmp_path: Path) -> None:
    async with relay_to(echo, tmp_path, "pipes") as relay:
        reader, writer = await relay.connect()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        for session in relay.connection.sessions[1:]:
            session.process.kill()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        with pytest.raises(ConnectionEnded, match="its relay has ended"):
            await relay.running
        writer.close()


@pytest.mark.thorough
async def test_a_manager_that_does_not_listen_yet_is_found_later(tmp_path: Path) -> None:
    async with relay_to(echo, tmp_path / "there", "pipes") as relay:
        place = tmp_path / "there" / "sock"
        place.rename(tmp_path / "there" / "away")
        for _ in range(4):
            reader, writer = await relay.connect()
            assert await reader.read() == b""
            writer.close()
        (tmp_path / "there" / "away").rename(place)
        reader, writer = await relay.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.close()


@pytest.mark.parametrize("whole", [True, False])
async def test_a_connection_over_a_stream_without_half_ends_ends_with_the_keepers_side(
    tmp_path: Path, whole: bool
) -> None:
    path, connection = str(tmp_path / "socket"), LocalConnection("pipes")
    command = [sys.executable, "-m", "proctor.trial_keeper", "relay"]
    async with (
        connection.start_process(command, is_lasting=True) as listening,
        connection.start_process(command, is_lasting=True) as carrying,
    ):
        for session in (listening, carrying):
            request = {"socket": path, "carry": session is carrying, "whole": whole}
            session.stdin.write(json.dumps(request).encode() + b"\n")
            assert json.loads(await session.stdout.readline()) == {"socket": path}
        _, keeper = await asyncio.open_unix_connection(path)
        assert json.loads(await carrying.stdout.readline()) == {"connection": True}
        keeper.write(b"bye")
        keeper.close()
        assert await carrying.stdout.read() == b"bye"  # to its end
        if not whole:
            carrying.stdin.close()  # the other direction has to end, too
        assert await asyncio.wait_for(carrying.wait(), SECONDS) == 0
        listening.stdin.close()
        assert await listening.wait() == 0
