"""A keeper that finds its manager through a relay: the command `relay` on the node, over pipes or one socket."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.archive_node import ArchiveNode, open_archive_node

from proctor.training_services.remote.bootstrap.tunnel import open_relay, serve_relay
from proctor.training_services.ssh.errors import CommandFailed

pytestmark = pytest.mark.anyio

SECONDS = 120.0


@dataclass
class RelayProcess:
    """The command `relay` on the node, and the two streams that lead to it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def end(self) -> int:
        """End its standard input; its exit code."""
        self.writer.transport.abort()
        return await asyncio.wait_for(self.process.wait(), SECONDS)


@asynccontextmanager
async def start_relay(node: ArchiveNode, wire: str) -> AsyncIterator[RelayProcess]:
    """Run the command with what an SSH server gives as standard input and output: two pipes, or one socket."""
    command = [node.python, "-I", "-S", str(node.directory / node.archive.name), "relay"]
    if wire == "pipes":
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stdout=-1, env={})
        assert process.stdin is not None
        assert process.stdout is not None
        relay = RelayProcess(process, process.stdout, process.stdin)
    else:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=theirs, env={})
        relay = RelayProcess(process, *await asyncio.open_connection(sock=ours))
    try:
        yield relay
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        relay.writer.close()
        process._transport.close()  # type: ignore[attr-defined] # it warns of pipes that were not read to their end


@pytest.mark.parametrize("wire", ["pipes", "socket"])
async def test_a_keeper_works_through_a_relay_and_through_the_next_one(tmp_path: Path, wire: str) -> None:
    async with open_archive_node(tmp_path) as node:
        await node.bring()
        manager = node.manager.pointer.read_text()
        first = (await node.command("prepare"))["socket"]
        async with asyncio.TaskGroup() as group:
            async with start_relay(node, wire) as relay:
                await open_relay(relay.writer, relay.reader, first)
                serving = group.create_task(serve_relay(relay.writer, relay.reader, manager))
                await node.start(socket=first)
                await node.manager.command(node.launch("T.1", "echo 1 >> $PROCTOR_JOB_DIR/journal; sleep 600"))
                await asyncio.wait_for(node.manager.start_of("T.1"), SECONDS)
                assert await relay.end() == 0
                await asyncio.wait_for(serving, SECONDS)
            assert not Path(first).exists()

            second = (await node.command("prepare"))["socket"]
            async with start_relay(node, wire) as relay:
                await open_relay(relay.writer, relay.reader, second)
                serving = group.create_task(serve_relay(relay.writer, relay.reader, manager))
                assert await node.command("point", socket=second) == {"socket": second}
                await node.manager.until(lambda: len(node.manager.registrations) == 2, seconds=SECONDS)
                assert (await node.remove())["removed"]
                assert await asyncio.wait_for(relay.process.wait(), SECONDS) == 0, "its socket was removed: it leaves"
                await asyncio.wait_for(serving, SECONDS)
        assert os.listdir(node.home) == []
        assert not node.manager.overlaps


async def test_a_relay_whose_connection_has_died_without_a_word_leaves_when_another_counts(tmp_path: Path) -> None:
    async with open_archive_node(tmp_path) as node:
        await node.bring()
        first = (await node.command("prepare"))["socket"]
        async with start_relay(node, "pipes") as relay:
            await open_relay(relay.writer, relay.reader, first)
            second = (await node.command("prepare"))["socket"]
            await node.command("point", socket=second)
            assert await asyncio.wait_for(relay.process.wait(), SECONDS) == 0
        assert (await node.remove())["removed"]


async def test_a_socket_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    async with open_archive_node(tmp_path) as node:
        await node.bring()
        async with start_relay(node, "pipes") as relay:
            with pytest.raises(CommandFailed, match="the relay cannot listen: /nowhere/sock: No such file"):
                await open_relay(relay.writer, relay.reader, "/nowhere/sock")
            assert await asyncio.wait_for(relay.process.wait(), SECONDS) == 1
        async with start_relay(node, "pipes") as relay:
            relay.writer.write(json.dumps({}).encode() + b"\n")
            assert b"socket should be a text" in await asyncio.wait_for(relay.reader.readline(), SECONDS)
        assert (await node.remove())["removed"]


async def test_what_comes_instead_of_frames_ends_the_relay(tmp_path: Path) -> None:
    async with open_archive_node(tmp_path) as node:
        await node.bring()
        path = (await node.command("prepare"))["socket"]
        async with start_relay(node, "pipes") as relay:
            await open_relay(relay.writer, relay.reader, path)
            relay.writer.write(b"what a shell prints")
            assert await asyncio.wait_for(relay.process.wait(), SECONDS) == 1
        assert not Path(path).exists()
        assert (await node.remove())["removed"]
