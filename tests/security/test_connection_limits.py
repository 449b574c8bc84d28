"""Connections and bytes from a client without a token do not keep the manager from serving the others."""

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest
from fakes.keeper_node import eventually
from fakes.real_manager import RealManager, real_manager
from starlette.types import ASGIApp, Receive, Scope, Send

from proctor.manager.api.guard import MAX_BODY_BYTES
from proctor.manager.api.stream import MAX_READERS
from proctor.manager.process import server
from proctor.manager.process.server import MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_HEAD_LINES

pytestmark = pytest.mark.slow

STRANGERS = 250
MOST_BEFORE_THE_OWNER = 3
"""Requests of clients that send ahead which are answered between the owner's and its answer."""


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


def test_a_head_of_very_many_short_lines_is_refused(manager: RealManager) -> None:
    with connect(manager) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * MAX_HEAD_LINES + b"\r\n")
        answer, _, body = received(connection).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["detail"] == "the request line and the headers take more than 256 lines"


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


def test_the_owner_is_answered_beside_more_silent_connections_than_there_may_be(manager: RealManager) -> None:
    """SECURITY.md promises it: connections that wait longest for their client make room."""
    headers = {"Authorization": f"Bearer {manager.client.token}", "Connection": "close"}
    with httpx.Client(base_url=f"{manager.client.url}/api/v1/", headers=headers) as owner, ExitStack() as stack:
        silent = [stack.enter_context(connect(manager)) for _ in range(MAX_CONNECTIONS + 20)]
        for connection in silent[::2]:
            with suppress(ConnectionError):  # it may have made room already
                connection.sendall(b"GET / HTTP/1.1\r\n")
        answered = 0
        for _ in range(40):  # each on a connection of its own
            with suppress(httpx.TransportError):
                answered += owner.get("version").status_code == 200
        assert answered >= 39
        answer, _, body = received(silent[0]).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert "make room" in json.loads(body)["detail"]
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
    serving = server.HttpServer(application, protocol)
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


class ThreeConnections(server.BoundedHttpProtocol):
    max_connections = 3


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many connections as the protocol says, however few."""
    monkeypatch.setattr(server, "most_connections", lambda wanted: wanted)


GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_connection_on_which_a_request_is_being_answered_makes_no_room(few_descriptors: None) -> None:
    asyncio.run(fill_with_requests())


async def fill_with_requests() -> None:
    waiting, may_answer = 0, asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal waiting
        waiting += 1
        await may_answer.wait()
        await echo(scope, receive, send)

    async with served(wait, ThreeConnections) as address, AsyncExitStack() as stack:
        clients = [await open_client(stack, address) for _ in range(3)]
        for _, writer in clients:
            writer.write(GET % b"here")
        await eventually(lambda: waiting == 3)
        newcomer, _ = await open_client(stack, address)
        assert (await newcomer.read()).startswith(b"HTTP/1.1 503 ")
        may_answer.set()
        for reader, _ in clients:
            assert await reader.readuntil(b">")


def test_the_connection_that_has_waited_longest_for_its_client_makes_room(few_descriptors: None) -> None:
    asyncio.run(replace_one_after_the_other())


FLOOD = 64 * 1024 * 1024
"""More than the buffers between a manager and a client hold."""


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes before a connection ends, however it does."""
    data = b""
    with suppress(ConnectionError):
        while part := await reader.read(2**20):
            data += part
    return data


async def replace_one_after_the_other() -> None:
    begun, is_paused = 0, False

    class Watched(ThreeConnections):
        def pause_writing(self) -> None:
            nonlocal is_paused
            super().pause_writing()
            is_paused = True

    async def answer_or_flood(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        if scope["path"] == "/flood":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(FLOOD // 65536):
                await send({"type": "http.response.body", "body": b"a" * 65536, "more_body": True})
        await echo(scope, receive, send)

    async with served(answer_or_flood, Watched) as address, AsyncExitStack() as stack:
        trickled, trickling = await open_client(stack, address)
        trickling.write(POST % 100_000 + b"a")
        await eventually(lambda: begun == 1)
        unread, writer = await open_client(stack, address)
        writer.write(GET % b"flood")
        await eventually(lambda: is_paused)
        idle, asking = await open_client(stack, address)
        asking.write(GET % b"first")
        await idle.readuntil(b">")
        trickling.write(b"a")  # nothing worth a wait
        newcomers = [await ask(stack, address)]
        assert (await trickled.read()).startswith(b"HTTP/1.1 408 ")
        newcomers.append(await ask(stack, address))
        assert len(await rest(unread)) < FLOOD
        asking.write(GET % b"second")
        await idle.readuntil(b">")
        newcomers.append(await ask(stack, address))
        assert await newcomers[0].read() == b""  # closed without a word, as between requests
        asking.write(GET % b"third")
        await idle.readuntil(b">")


async def open_client(
    stack: AsyncExitStack, address: tuple[str, int]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    stack.callback(writer.close)
    return reader, writer


async def ask(stack: AsyncExitStack, address: tuple[str, int]) -> asyncio.StreamReader:
    """A client that was answered once, and has read that."""
    reader, writer = await open_client(stack, address)
    writer.write(GET % b"newcomer")
    assert b"/newcomer" in await reader.readuntil(b">")
    return reader


def request_ahead(name: str, *, padding: int = 0) -> bytes:
    return b"GET /%s HTTP/1.1\r\nHost: localhost\r\nPadding: %s\r\n\r\n" % (name.encode(), b"a" * padding)


LAST = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the path and the body, in angle brackets."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    text = b"<%s %s>" % (scope["path"].encode(), body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


async def ask_ahead(address: tuple[str, int], requests: bytes) -> list[bytes]:
    """Send requests, the last of which closes the connection, at once; the answers of `echo`."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(requests)
    async with asyncio.timeout(30.0):
        data = await reader.read()
    writer.close()
    return re.findall(rb"<.*?>", data, re.DOTALL)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns follow each other at once."""
    monkeypatch.setattr(server, "TURN_PAUSE_SECONDS", 0.0)


def test_requests_that_are_sent_ahead_of_an_answer_are_neither_read_nor_queued_before_it(no_pauses: None) -> None:
    accepted: list[server.BoundedHttpProtocol] = []
    read, kept, queued = 0, 0, 0

    class Watched(server.BoundedHttpProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            accepted.append(self)

        def data_received(self, data: bytes) -> None:
            nonlocal read, queued
            super().data_received(data)
            read, queued = read + len(data), max(queued, len(self.pipeline))

    async def answer_when_no_more_is_read(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal kept
        if scope["path"] == "/0":
            await eventually(lambda: not accepted[0].transport.is_reading())
            kept = read
        await echo(scope, receive, send)

    async def ask() -> list[bytes]:
        requests = [request_ahead(str(number), padding=1024) for number in range(300)]
        async with served(answer_when_no_more_is_read, Watched) as address:
            return await ask_ahead(address, b"".join(requests) + LAST)

    assert asyncio.run(ask()) == [*(b"</%d >" % number for number in range(300)), b"</last >"]
    assert queued == 0
    assert 0 < kept <= server.READ_BYTES < read


def test_of_all_connections_one_request_that_was_sent_ahead_is_answered_at_a_time(no_pauses: None) -> None:
    running, most = 0, 0

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        is_ahead = scope["path"] == "/ahead"
        running += is_ahead
        most = max(most, running)
        await asyncio.sleep(0)
        running -= is_ahead
        await echo(scope, receive, send)

    async def ask() -> list[list[bytes]]:
        requests = request_ahead("first") + request_ahead("ahead") * 20 + LAST
        async with served(count) as address, asyncio.TaskGroup() as group:
            asking = [group.create_task(ask_ahead(address, requests), name=f"client {n}") for n in range(10)]
            return [await each for each in asking]

    assert asyncio.run(ask()) == [[b"</first >", *[b"</ahead >"] * 20, b"</last >"]] * 10
    assert most == 1


def test_a_request_that_was_sent_ahead_and_takes_long_does_not_hold_up_those_of_other_connections(
    no_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TURN_SECONDS", 0.01)

    async def wait_for_the_other(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/long":
            is_long.set()
            await other_is_answered.wait()
        await echo(scope, receive, send)

    async def ask() -> None:
        async with served(wait_for_the_other) as address, asyncio.TaskGroup() as group:
            group.create_task(ask_ahead(address, request_ahead("first") + request_ahead("long") + LAST), name="long")
            await is_long.wait()
            assert len(await ask_ahead(address, request_ahead("first") + request_ahead("short") + LAST)) == 3
            other_is_answered.set()

    is_long, other_is_answered = asyncio.Event(), asyncio.Event()
    asyncio.run(ask())


def test_beside_many_clients_that_send_ahead_the_owner_waits_for_few_answers_and_little_is_kept(
    no_pauses: None,
) -> None:
    ahead = request_ahead("ahead")
    received, answered, waits = Counter[object](), Counter[object](), list[int]()
    kept, queued = 0, 0

    class Watched(server.BoundedHttpProtocol):
        def data_received(self, data: bytes) -> None:
            nonlocal kept, queued
            super().data_received(data)
            received[self.client] += len(data)
            kept = max(kept, received[self.client] - len(ahead) * answered[self.client])
            queued = max(queued, len(self.pipeline))

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/owner":
            waits[-1] = answered.total() - waits[-1]
        else:
            answered[scope["client"]] += 1
        await echo(scope, receive, send)

    async def ask() -> None:
        async with served(count, Watched) as address, AsyncExitStack() as stack:
            for _ in range(STRANGERS):
                _, writer = await open_client(stack, address)
                writer.write(ahead * (2 * server.READ_BYTES // len(ahead)))
            await eventually(lambda: len(received) == STRANGERS)
            reader, owner = await open_client(stack, address)
            for _ in range(50):
                waits.append(answered.total())
                owner.write(request_ahead("owner"))
                await reader.readuntil(b">")

    asyncio.run(ask())
    assert sorted(waits)[-1] <= MOST_BEFORE_THE_OWNER
    assert answered.total() >= len(waits)
    assert queued == 0
    assert 0 < kept <= server.READ_BYTES + len(ahead)


@pytest.mark.parametrize("size", [1, 2, 5, 100_000])
def test_requests_end_where_they_end_however_their_bytes_are_cut(no_pauses: None, size: int) -> None:
    queued = 0

    class Cut(server.BoundedHttpProtocol):
        def data_received(self, data: bytes) -> None:
            nonlocal queued
            for begin in range(0, len(data), size):
                super().data_received(data[begin : begin + size])
                queued = max(queued, len(self.pipeline))

    head = b"POST /%s HTTP/1.1\r\nHost: localhost\r\n"
    chunks = b"3\r\n\n\r\n\r\n1;x=y\r\nb\r\n0\r\nX: y\r\n\r\n"
    requests = [
        b"\r\n\r\n" + request_ahead("0"),
        head % b"1" + b"Content-Length: 6\r\n\r\na\r\n\r\nb",
        head % b"2" + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        head % b"3" + b"Content-Length: 0\r\n\r\n\r\n\n",
        request_ahead("4"),
        LAST,
    ]
    expected = [b"</0 >", b"</1 a\r\n\r\nb>", b"</2 \n\r\nb>", b"</3 >", b"</4 >", b"</last >"]

    async def ask() -> list[bytes]:
        async with served(echo, Cut) as address:
            return await ask_ahead(address, b"".join(requests))

    assert asyncio.run(ask()) == expected
    assert queued == 0


def test_the_rest_of_a_chunked_body_that_is_answered_already_waits_for_its_turn(short_limits: None) -> None:
    """Each tiny chunk costs as much as a large one, so they are read between what others ask for."""
    parsed: list[int] = []

    class Counted(server.BoundedHttpProtocol):
        def data_received(self, data: bytes) -> None:
            parsed.append(0)
            super().data_received(data)

        def take_turn(self) -> bool:
            parsed.append(0)
            return super().take_turn()

        def on_body(self, body: bytes) -> None:
            parsed[-1] += 1
            super().on_body(body)

    chunks = b"1\r\na\r\n" * 20_000

    async def ask() -> None:
        async with served(answer_at_once, Counted) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(CHUNKED + chunks + b"0\r\n\r\n" + LAST)
            async with asyncio.timeout(30.0):
                with suppress(ConnectionError):
                    assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
            writer.close()

    asyncio.run(ask())
    assert sum(parsed) > server.CHUNKED_PIECES
    assert max(parsed) <= server.CHUNKED_PIECES + server.CHUNKED_BYTES / len(b"1\r\na\r\n")


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
