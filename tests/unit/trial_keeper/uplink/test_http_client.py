"""The small HTTP client: what it sends, what it understands, and how it fails."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proctor.trial_keeper.errors import SessionError
from proctor.trial_keeper.uplink.http_client import HttpConnection
from proctor.trial_keeper.uplink.pointer import ManagerEndpoint

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def answering(*answers: bytes, requests: list[bytes] | None = None) -> AsyncIterator[HttpConnection]:
    """A connection to a server that gives these answers, one to each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            if requests is not None:
                requests.append(head + body)
            writer.write(answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        done.set()

    done = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        server = await asyncio.start_unix_server(serve, path)
        async with HttpConnection(ManagerEndpoint(path), "/base") as connection:
            yield connection
        await asyncio.wait_for(done.wait(), 10)
        server.close()


async def test_a_request_carries_body_length_and_secret() -> None:
    requests: list[bytes] = []
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", requests=requests) as connection:
        connection.authorize("secret")
        assert await connection.post("report", b"a\nb", timeout_seconds=10) == (200, b"ok")
    assert requests[0].startswith(b"POST /base/report HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in requests[0]
    assert requests[0].endswith(b"\r\nContent-Length: 3\r\n\r\na\nb")


async def test_a_connection_is_used_again_and_chunks_are_joined() -> None:
    chunked = b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    plain = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nend"
    async with answering(chunked, plain) as connection:
        assert await connection.post("a", b"", timeout_seconds=10) == (409, b"abcde")
        assert await connection.post("b", b"", timeout_seconds=10) == (200, b"end")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_an_answer_that_is_not_http_is_one_error(answer: bytes) -> None:
    async with answering(answer) as connection:
        with pytest.raises(SessionError, match="report"):
            await connection.post("report", b"", timeout_seconds=10)


async def test_a_manager_that_does_not_answer_is_given_up() -> None:
    done = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        done.set()

    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.start_unix_server(silent, f"{folder}/socket")
        async with HttpConnection(ManagerEndpoint(f"{folder}/socket"), "/base") as connection:
            with pytest.raises(SessionError, match="within 0 s"):
                await connection.post("report", b"", timeout_seconds=0)
        await asyncio.wait_for(done.wait(), 10)
        server.close()


async def test_a_socket_that_is_not_there_is_named() -> None:
    with pytest.raises(SessionError, match="/there/is/none"):
        async with HttpConnection(ManagerEndpoint("/there/is/none"), "/base"):
            raise AssertionError("connected")
