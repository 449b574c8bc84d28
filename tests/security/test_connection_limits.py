"""Connections and bytes from a client without a token do not keep the manager from serving the others."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from fakes.real_manager import RealManager, real_manager
from starlette.types import Receive, Scope, Send

from proctor.manager.api.guard import MAX_BODY_BYTES
from proctor.manager.api.stream import MAX_READERS
from proctor.manager.process import server
from proctor.manager.process.server import MAX_CONNECTIONS, MAX_HEAD_BYTES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    with real_manager(tmp_path_factory.mktemp("limited")) as made:
        yield made


def connect(manager: RealManager) -> socket.socket:
    parts = urlsplit(manager.client.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def received(connection: socket.socket) -> bytes:
    """Everything until the manager closes the connection."""
    data = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part


@pytest.mark.parametrize("head", [b"GET /", b"GET / HTTP/1.1\r\nX-Endless: "], ids=["request line", "header"])
def test_an_endless_head_is_refused_when_it_is_too_long(manager: RealManager, head: bytes) -> None:
    with connect(manager) as connection:
        connection.sendall(head + b"a" * (MAX_HEAD_BYTES + 1 - len(head)))
        assert received(connection).startswith(b"HTTP/1.1 431 ")
    assert manager.client.health()["status"] == "ok"


CHUNKED = b"POST /api/v1/experiments HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("rest", [b"0\r\nX: ", b"1;x="], ids=["trailer", "extension of a chunk"])
def test_what_stands_between_the_pieces_of_a_body_ends_too(manager: RealManager, rest: bytes) -> None:
    with connect(manager) as connection:
        connection.sendall(CHUNKED + rest)
        connection.settimeout(60)
        sent, piece = 0, b"a" * 65536
        try:
            while sent < 64 * MAX_HEAD_BYTES:
                sent += connection.send(piece)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert sent < 64 * MAX_HEAD_BYTES
    assert manager.client.health()["status"] == "ok"


def test_a_long_body_behind_a_short_head_is_no_long_head(manager: RealManager) -> None:
    body = b'{"parameters": {"text": "' + b"a" * (4 * MAX_HEAD_BYTES) + b'"}}'
    url = f"{manager.client.url}/api/v1/experiments/nonesuch/trials"
    headers = {"Authorization": f"Bearer {manager.client.token}"}
    with httpx.Client(headers=headers) as client:
        for _ in range(2):  # the second one on the same connection
            assert client.post(url, content=body).status_code in {404, 422}


def test_connections_beyond_the_limit_are_refused_and_the_others_go_on(manager: RealManager) -> None:
    headers = {"Authorization": f"Bearer {manager.client.token}"}
    with httpx.Client(base_url=manager.client.url, headers=headers, timeout=60) as client, ExitStack() as stack:
        assert client.get("/api/v1/version").status_code == 200
        idle = [stack.enter_context(connect(manager)) for _ in range(MAX_CONNECTIONS + 20)]
        assert received(idle[-1]).startswith(b"HTTP/1.1 503 ")
        assert client.get("/api/v1/version").status_code == 200
    manager.look_for(lambda: client_answers(manager), "the manager to take connections again")


def client_answers(manager: RealManager) -> bool:
    try:
        return httpx.get(f"{manager.client.url}/api/v1/health", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def test_a_client_that_does_not_finish_its_head_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)
    asyncio.run(let_go_unfinished_heads())


async def let_go_unfinished_heads() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    serving = server.HttpServer(no_application)
    async with asyncio.TaskGroup() as group:
        group.create_task(serving.serve_on(listener), name="server")
        await serving.serving.wait()
        for sent in (b"", b"GET / HTTP/1.1\r\n"):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(sent)
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
            writer.close()
        serving.leave()


async def no_application(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("no request was complete")


def test_a_body_that_is_too_long_is_refused_whether_it_says_so_or_not(manager: RealManager) -> None:
    url = f"{manager.client.url}/api/v1/experiments"
    headers = {"Authorization": f"Bearer {manager.client.token}", "Content-Type": "application/json"}
    assert httpx.post(url, headers=headers, content=b" " * (MAX_BODY_BYTES + 1), timeout=60).status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 2):
            yield b" " * 65536

    assert httpx.post(url, headers=headers, content=parts(), timeout=60).status_code == 413


def test_readers_of_the_stream_beyond_the_limit_are_refused_until_one_leaves(manager: RealManager) -> None:
    headers = {"Authorization": f"Bearer {manager.client.token}"}
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=manager.client.url, headers=headers, limits=limits, timeout=60) as client:
        with ExitStack() as stack:
            streams = [stack.enter_context(client.stream("GET", "/api/v1/events")) for _ in range(MAX_READERS)]
            begun = [answer.iter_bytes() for answer in streams]
            assert all(next(stream) for stream in begun)
            with client.stream("GET", "/api/v1/events") as refused:
                assert refused.status_code == 503

        def is_taken() -> bool:
            with client.stream("GET", "/api/v1/events") as answer:
                return answer.status_code == 200

        manager.look_for(is_taken, "a place on the stream")
