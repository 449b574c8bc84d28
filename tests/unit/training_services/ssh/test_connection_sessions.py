"""What a connection is used for: commands, uploads, a forwarded socket; and how it ends."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.connections import PATIENCE_SECONDS, connected
from fakes.ssh_server import FakeSshServer, Wanted, pass_on, raw_server, ssh_server

from proctor.training_services.ssh.connection import Connection
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded, ForwardingRefused, NotWritable

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("home")]

MUCH = random.Random(1).randbytes(5_000_000)


async def test_a_command_gives_back_its_code_and_both_outputs(there: Connection) -> None:
    finished = await there.run(["sh", "-c", "cat; echo bad >&2; exit 7"], input=b"in")
    assert (finished.code, finished.stdout, finished.stderr, finished.last_line) == (7, b"in", b"bad\n", "bad")


@pytest.mark.parametrize(
    ("command", "input", "output"),
    [
        (["cat"], MUCH, MUCH),
        (["true"], MUCH, b""),
        (["sh", "-c", "yes complaint | head -c 8000000 >&2; echo done"], b"", b"done\n"),
    ],
    ids=["input and output", "input that is not read", "complaints"],
)
async def test_much_passes_and_holds_up_nothing(
    there: Connection, command: list[str], input: bytes, output: bytes
) -> None:
    finished = await there.run(command, input=input)
    assert (finished.code, finished.stdout) == (0, output)
    assert len(finished.stderr) in (0, 4096)


async def test_a_command_that_takes_too_long_is_given_up(there: Connection) -> None:
    with pytest.raises(CommandFailed, match=r"`sleep 600` did not end within 0.3 s"):
        await there.run(["sleep", "600"], timeout_seconds=0.3)
    assert (await there.run(["true"])).code == 0


async def test_a_command_that_a_signal_ends_has_failed(there: Connection) -> None:
    with pytest.raises(CommandFailed, match="was ended by SIGKILL"):
        await there.run(["sh", "-c", "kill -9 $$"])


async def test_a_python_source_runs_whatever_its_text_and_its_end_is_an_exit_code(there: Connection) -> None:
    source = (
        "import sys\n# \"quoted\", 'single', $HOME, `x`, é, !\nprint(sys.stdin.read()[::-1], __name__)\nsys.exit(3)\n"
    )
    async with there.start_python("python3", source) as process:
        process.stdin.write(b"abc")
        process.stdin.write_eof()
        assert await process.stdout.read() == b"cba __main__\n"
        assert await process.wait() == 3
    async with there.start_python("python9", source) as process:
        assert await process.wait() == 127
        assert b"not found" in process.stderr_tail


async def test_what_a_login_shell_prints_first_is_left_out(wanted: Wanted) -> None:
    talk = "Welcome to m1!\nYou have mail.\n"
    async with ssh_server(replace(wanted, login_talk=talk)) as server, connected(server) as there:
        assert (await there.run(["echo", "hello"])).stdout == b"hello\n"
        async with there.start_python("python3", "print(1)") as process:
            assert await process.stdout.read() == b"1\n"
        async with there.start_process(["cat"]) as process:
            process.stdin.write(b"abc")
            assert await process.stdout.readexactly(3) == b"abc"


async def test_an_account_that_runs_no_commands_is_named(wanted: Wanted) -> None:
    refusing = ("/bin/sh", "-c", "echo This account is not available.; exit 1")
    async with ssh_server(replace(wanted, shell=refusing)) as server, connected(server) as there:
        with pytest.raises(CommandFailed, match=r"ran no command; output: This account is not available\.") as caught:
            await there.run(["true"])
        assert caught.value.code == 1
        with pytest.raises(CommandFailed, match=r"could not be started; output: This account is not available\."):
            async with there.start_process(["cat"]):
                pass


async def test_one_can_talk_with_a_process(there: Connection) -> None:
    async with there.start_process(["sh", "-c", "cat; echo bye >&2; exit 4"]) as process:
        process.stdin.write(b"one ")
        assert await process.stdout.readexactly(4) == b"one "
        process.stdin.write(b"two")
        process.stdin.write_eof()
        assert await process.stdout.read() == b"two"
        assert await process.wait() == 4
        assert process.stderr_tail == b"bye\n"


async def test_leaving_a_process_closes_its_input(there: Connection, tmp_path: Path) -> None:
    async with there.start_process(["sh", "-c", f"cat; echo over > {tmp_path}/over"]):
        pass
    await until((tmp_path / "over").exists)


async def test_writing_to_a_process_that_has_ended_is_a_failure_of_the_command(there: Connection) -> None:
    with pytest.raises(CommandFailed, match="ended before it had read its input"):
        async with there.start_process(["true"]) as process:
            assert await process.wait() == 0
            process.stdin.write(b"hello")
    assert (await there.run(["true"])).code == 0


@pytest.mark.parametrize("most", [1, 2])
async def test_a_server_that_allows_fewer_sessions_is_content_too(wanted: Wanted, most: int) -> None:
    async with ssh_server(replace(wanted, most_sessions=most)) as server, connected(server) as there:
        done = await asyncio.gather(*(there.run(["echo", str(number)]) for number in range(12)))
        assert [int(finished.stdout) for finished in done] == list(range(12))


async def test_a_server_that_allows_no_session_is_named(wanted: Wanted) -> None:
    async with ssh_server(replace(wanted, most_sessions=0)) as server, connected(server) as there:
        with pytest.raises(CommandFailed, match=r"opens no more sessions .*; see MaxSessions"):
            await there.run(["true"])


async def test_a_file_is_uploaded_with_its_progress(there: Connection, tmp_path: Path) -> None:
    content = random.Random(2).randbytes(9_000_000)
    (tmp_path / "source").write_bytes(content)
    reported: list[tuple[int, int]] = []
    target = tmp_path / "target"
    await there.upload(tmp_path / "source", str(target), on_progress=lambda *progress: reported.append(progress))
    assert hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(content).digest()
    assert target.stat().st_mode & 0o777 == 0o600
    assert reported[0] == (0, len(content))
    assert reported[-1] == (len(content), len(content))
    assert reported == sorted(reported)


@pytest.mark.parametrize("size", [0, 1, 100])
async def test_bytes_are_uploaded(there: Connection, tmp_path: Path, size: int) -> None:
    await there.upload(b"x" * size, str(tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == b"x" * size


async def test_an_upload_goes_on_where_the_last_one_stopped(there: Connection, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"AB")
    reported: list[int] = []
    await there.upload(b"abcd", str(target), on_progress=lambda done, _: reported.append(done))
    assert (target.read_bytes(), reported) == (b"ABcd", [2, 4])
    await there.upload(b"abcd", str(target), resume=False)
    assert target.read_bytes() == b"abcd"
    await there.upload(b"xyz", str(target))
    assert target.read_bytes() == b"xyz", "a longer file is no part of an upload"
    with pytest.raises(NotWritable, match="missing/target cannot be written there"):
        await there.upload(b"x", str(tmp_path / "missing" / "target"))


async def test_a_server_without_sftp_is_named(wanted: Wanted, tmp_path: Path) -> None:
    async with ssh_server(replace(wanted, sftp=False)) as server, connected(server) as there:
        with pytest.raises(NotWritable, match=r"SFTP does not work there .*`Subsystem sftp`"):
            await there.upload(b"x", str(tmp_path / "target"))
        assert (await there.run(["true"])).code == 0


async def test_a_missing_source_is_the_managers_own_trouble(there: Connection, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await there.upload(tmp_path / "nothing", str(tmp_path / "target"))


async def test_connections_to_a_socket_there_arrive_here(there: Connection, tmp_path: Path) -> None:
    async with echoing(tmp_path / "here"):
        await there.forward(str(tmp_path / "there"), str(tmp_path / "here"))
        answers = await asyncio.gather(*(ask(tmp_path / "there", b"%d" % number) for number in range(10)))
    assert answers == [b"%d" % number for number in range(10)]


async def test_a_forwarded_connection_ends_where_nobody_listens_here(there: Connection, tmp_path: Path) -> None:
    await there.forward(str(tmp_path / "there"), str(tmp_path / "missing"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await ask(tmp_path / "there", b"hello") == b""
    assert (await there.run(["true"])).code == 0


async def test_a_server_that_forwards_nothing_is_named(wanted: Wanted, tmp_path: Path) -> None:
    async with ssh_server(replace(wanted, forwarding=False)) as server, connected(server) as there:
        with pytest.raises(ForwardingRefused, match="AllowStreamLocalForwarding"):
            await there.forward(str(tmp_path / "there"), str(tmp_path / "here"))


async def test_a_connection_that_breaks_ends_everything_with_its_reason(
    server: FakeSshServer, there: Connection, tmp_path: Path
) -> None:
    ended = asyncio.ensure_future(there.until_ended())
    running = asyncio.ensure_future(there.run(["sleep", "600"], timeout_seconds=PATIENCE_SECONDS))
    await until(lambda: server.open_sessions > 0)
    server.hang_up()
    async with asyncio.timeout(PATIENCE_SECONDS):
        why = await ended
        with pytest.raises(ConnectionEnded):
            await running
    assert why
    with pytest.raises(ConnectionEnded):
        await there.run(["true"])
    with pytest.raises(ConnectionEnded):
        await there.upload(b"x", str(tmp_path / "target"))
    with pytest.raises(ConnectionEnded):
        await there.forward(str(tmp_path / "there"), str(tmp_path / "here"))


async def test_a_process_ends_with_its_connection(server: FakeSshServer, there: Connection) -> None:
    with pytest.raises(ConnectionEnded):
        async with there.start_process(["cat"]) as process:
            server.hang_up()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await process.stdout.read() == b""
                assert await process.wait() is None
            await there.run(["true"])


async def test_a_silent_connection_is_given_up_after_three_tests(server: FakeSshServer) -> None:
    flows = asyncio.Event()
    flows.set()

    async def pass_while_it_flows(reader: Any, writer: Any, _: int) -> None:
        await pass_on(reader, writer, server.port, flows=flows)

    async with raw_server(pass_while_it_flows) as port:
        async with connected(server, port=port, keep_alive_seconds=0.3) as there:
            assert (await there.run(["true"])).code == 0
            flows.clear()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await there.until_ended() == "it has not answered for 0.9 s"
        flows.set()


async def test_a_failure_of_the_caller_passes_through_and_closes(server: FakeSshServer) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connected(server):
            raise ZeroDivisionError
    async with asyncio.timeout(PATIENCE_SECONDS):
        await server.connections[0].wait_closed()


@asynccontextmanager
async def echoing(path: Path) -> AsyncIterator[None]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    listener = await asyncio.start_unix_server(echo, str(path))
    try:
        yield
    finally:
        listener.close()
        await listener.wait_closed()


async def ask(path: Path, question: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(question)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
