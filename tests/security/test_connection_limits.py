"""Connections and bytes from a client without a token do not keep the manager from serving the others."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest
from fakes.keeper_node import eventually
from fakes.real_manager import RealManager, real_manager
from starlette.types import ASGIApp, Receive, Scope, Send

from proctor.manager.api.guard import MAX_BODY_BYTES
from proctor.manager.api.stream import MAX_READERS
from proctor.manager.process import server
from proctor.manager.process.server import MAX_CONNECTIONS, MAX_HEAD_BYTES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    with real_manager(tmp_path_factory.mktemp("limited")) as made:
        yield made


@pytest.fixture
def client(manager: RealManager) -> Iterator[httpx.Client]:
    """One with the token, and as many connections as it likes."""
    headers = {"Authorization": f"Bearer {manager.client.token}", "Content-Type": "application/json"}
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=f"{manager.client.url}/api/v1/", headers=headers, limits=limits, timeout=60) as made:
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
        answer, _, body = received(connection).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"\r\nContent-Type: application/problem+json\r\n" in answer
    assert json.loads(body)["detail"] == "the request line and the headers take more than 65536 bytes"
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


def test_a_long_body_behind_a_short_head_is_no_long_head(client: httpx.Client) -> None:
    body = b'{"parameters": {"text": "' + b"a" * (4 * MAX_HEAD_BYTES) + b'"}}'
    for _ in range(2):  # the second one on the same connection
        assert client.post("experiments/nonesuch/trials", content=body).status_code in {404, 422}


def test_connections_beyond_the_limit_are_refused_and_the_others_go_on(
    manager: RealManager, client: httpx.Client
) -> None:
    with ExitStack() as stack:
        assert client.get("version").status_code == 200
        idle = [stack.enter_context(connect(manager)) for _ in range(MAX_CONNECTIONS + 20)]
        assert received(idle[-1]).startswith(b"HTTP/1.1 503 ")
        assert client.get("version").status_code == 200
    manager.poll_for(lambda: client_answers(manager), "the manager to take connections again")


def client_answers(manager: RealManager) -> bool:
    try:
        return httpx.get(f"{manager.client.url}/api/v1/health", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


@asynccontextmanager
async def served(
    application: ASGIApp, protocol: type[server.BoundedHttpProtocol] = server.BoundedHttpProtocol
) -> AsyncIterator[tuple[str, int]]:
    """The address of a server of one application."""
    listener = socket.create_server(("127.0.0.1", 0))
    serving = server.HttpServer(application)
    serving.config.http = protocol
    async with asyncio.TaskGroup() as group:
        group.create_task(serving.serve_on(listener), name="server")
        await serving.serving.wait()
        try:
            yield listener.getsockname()
        finally:
            serving.leave()


async def exchange(application: ASGIApp, *pieces: bytes) -> bytes:
    """Send some bytes with pauses; what comes back until the server closes. Raises TimeoutError if it does not."""

    async def send() -> None:
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)

    data = b""
    async with served(application) as (host, port), asyncio.TaskGroup() as group:
        reader, writer = await asyncio.open_connection(host, port)
        sending = group.create_task(send(), name="client")
        try:
            async with asyncio.timeout(30.0):
                with suppress(ConnectionError):
                    while part := await reader.read(65536):
                        data += part
        finally:
            sending.cancel()
            writer.close()
    return data


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client waits for long, but each for much longer than it takes to send a piece; between requests the server
    waits for longer than any test."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "ANSWERED_SECONDS", "UNREAD_SECONDS"):
        monkeypatch.setattr(server, name, 0.5)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"], ids=["nothing", "half a head"])
def test_a_client_that_does_not_finish_its_head_is_let_go(short_limits: None, sent: bytes) -> None:
    assert asyncio.run(exchange(no_application, sent)).startswith(b"HTTP/1.1 408 ")


async def answer_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without reading the body, as the guard does where a token is missing."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, then answers with its length."""
    length, message = 0, await receive()
    while message["type"] == "http.request":
        length += len(message["body"])
        if not message["more_body"]:
            break
        message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b"%d read" % length})


POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("late", [(), (b"a",), (b"a",) * 30], ids=["none", "one", "many"])
def test_the_rest_of_a_body_that_is_answered_already_is_not_awaited_forever(
    short_limits: None, late: tuple[bytes, ...]
) -> None:
    """Sent at once, a byte would arrive before the answer."""
    assert asyncio.run(exchange(answer_at_once, POST % 100_000, *late)).startswith(b"HTTP/1.1 401 ")


def test_a_client_that_sends_its_whole_body_to_an_early_answer_may_go_on(short_limits: None) -> None:
    sent = [POST % 3, b"a", b"bc", b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]
    assert asyncio.run(exchange(answer_at_once, *sent)).count(b"HTTP/1.1 401 ") == 2


def test_empty_lines_after_an_answer_are_no_reason_to_wait_forever(short_limits: None) -> None:
    assert b"HTTP/1.1 408 " in asyncio.run(exchange(answer_at_once, POST % 0, b"\r\n", b"\r\n"))


@pytest.mark.parametrize(
    "pieces",
    [
        (POST % 100_000, b"a"),
        (POST % 100_000, *[b"a"] * 30),
        (CHUNKED, *[b"1\r\na\r\n"] * 30),
        (CHUNKED + b"1;x=", *[b"y"] * 30),
        (CHUNKED + b"0\r\nX: ", *[b"y"] * 30),
    ],
    ids=["one byte", "trickled", "trickled chunks", "trickled extension", "trickled trailer"],
)
def test_a_body_that_does_not_come_or_only_trickles_is_let_go(short_limits: None, pieces: tuple[bytes, ...]) -> None:
    assert asyncio.run(exchange(read_all, *pieces)).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_takes_longer_than_the_limit_but_keeps_its_pace_is_read(short_limits: None) -> None:
    pieces = [b"a" * server.MIN_BODY_BYTES] * 30
    assert b"30720 read" in asyncio.run(exchange(read_all, POST % sum(map(len, pieces)), *pieces))


def test_an_application_that_is_slow_to_read_a_body_is_waited_for(short_limits: None) -> None:
    async def pause(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(2.0)
        await read_all(scope, receive, send)

    assert b"300000 read" in asyncio.run(exchange(pause, POST % 300_000, b"a" * 300_000))


def test_a_client_that_does_not_read_its_answers_is_let_go(short_limits: None) -> None:
    asyncio.run(leave_answers_unread())


async def leave_answers_unread() -> None:
    gone = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(write(send), name="writing")
            assert (await receive())["type"] == "http.disconnect"
            writing.cancel()
        gone.set()

    async def write(send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"a" * 65536, "more_body": True})
            await asyncio.sleep(0)

    async with served(endless) as address:
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(30.0):
                await gone.wait()


def test_a_client_that_leaves_an_answer_unread_and_then_sends_no_request_is_let_go(short_limits: None) -> None:
    """Less is left to send than makes the server pause, so no timer runs for what is unread."""
    asyncio.run(leave_a_little_unread())


async def leave_a_little_unread() -> None:
    accepted: list[asyncio.Transport] = []

    class Remembered(server.BoundedHttpProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            accepted.append(transport)
            super().connection_made(transport)

    async def answer_until_buffered(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not accepted[0].get_write_buffer_size():
            await send({"type": "http.response.body", "body": b"a" * 4096, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with served(answer_until_buffered, Remembered) as address:
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually(lambda: bool(accepted) and accepted[0].get_write_buffer_size() > 0)
            connection.sendall(b"no request\r\n\r\n")
            await eventually(lambda: accepted[0].is_closing() and not accepted[0].get_write_buffer_size())


async def no_application(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("no request was complete")


def test_a_body_that_is_too_long_is_refused_whether_it_says_so_or_not(client: httpx.Client) -> None:
    parts = (b" " * 65536 for _ in range(MAX_BODY_BYTES // 65536 + 2))
    for content in (b" " * (MAX_BODY_BYTES + 1), parts):
        assert client.post("experiments", content=content).status_code == 413


def test_readers_of_the_stream_beyond_the_limit_are_refused_until_one_leaves(
    manager: RealManager, client: httpx.Client
) -> None:
    def is_taken() -> bool:
        with client.stream("GET", "events") as answer:
            return answer.status_code == 200

    with ExitStack() as stack:
        streams = [stack.enter_context(client.stream("GET", "events")) for _ in range(MAX_READERS)]
        begun = [answer.iter_bytes() for answer in streams]
        assert all(next(stream) for stream in begun)
        with client.stream("GET", "events") as refused:
            assert refused.status_code == 503
    manager.poll_for(is_taken, "a place on the stream")
