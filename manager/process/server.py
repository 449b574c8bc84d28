"""HTTP on an open socket: uvicorn without its signal handlers and its clock, and with limits.

The limits hold for everyone who can connect, token or not: the bytes and the seconds that the head of a request may
take, the pace of its body, the bytes between two pieces of the body (of a chunk's extensions, or of trailers), the
seconds for which a body may continue after its answer, the requests that are sent ahead of the answers (read one after
the other, and in turns with other connections), and the number of connections; over TLS, the handshakes that are under
way and the seconds that one may take, too.
"""

import asyncio
import json
import logging
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proctor.manager.file_descriptors import most_connections

SHUTDOWN_SECONDS = 3
KEEP_ALIVE_SECONDS = 75
MAX_HEAD_BYTES = 64 * 1024
MAX_HEAD_LINES = 256
"""Request line and headers of one request. The shortest header takes a hundred times its length of memory."""
MAX_BYTES_BETWEEN = 64 * 1024
"""Maximum number of bytes after the head, or after a piece of the body, before the next piece or the end."""
HEAD_SECONDS = 20.0
"""Maximum time for the head of a request, and for the silence of a new connection."""
BODY_SECONDS = 20.0
"""Maximum time in which a body must bring MIN_BODY_BYTES more, or end; chunk extensions and trailers included."""
MIN_BODY_BYTES = 1024
ANSWERED_SECONDS = 10.0
"""Maximum time for reading the rest of a body when its request is answered already. Closing at once could lose the
answer: the system resets a connection that is closed with bytes unread."""
READ_BYTES = 64 * 1024
"""Maximum number of bytes that are read from a connection at a time, and kept while a request waits for its answer."""
CHUNKED_BYTES = 4 * 1024
CHUNKED_PIECES = 100
"""Maximum number of pieces of a chunked body that are parsed at once. Chunks may be tiny, and each one costs as much as
a large one."""
TURN_SECONDS = 0.1
"""Maximum time for the turn of a connection; a request may take much longer."""
TURN_PAUSE_SECONDS = 0.002
"""Pause between two turns: the loop has most of its time for the others."""
UNREAD_SECONDS = 60.0
"""Maximum time for which a client may leave an answer unread that fills the buffers."""
MAX_CONNECTIONS = 512
"""Maximum number of connections; fewer where the limit on open files is low."""
MAX_KEEPER_CONNECTIONS = 4096
"""Maximum number of connections of the server over TLS; a keeper holds two, and a third while it answers about
files."""
MAX_HANDSHAKES = 256
HANDSHAKE_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_EMPTY_LINE = re.compile(rb"(?:\A\r?\n|\n\r?\n)[\r\n]*")
"""The end of a head or of a chunked body, also where the line before it came earlier; with the empty lines after it."""

log = logging.getLogger(__name__)


class Turns:
    """Requests that clients have sent ahead of the answers, and chunked bodies that do not end with it: one at a
    time, of all connections of a server, and with pauses. So they hold up each other, and no client that waits for its
    answer."""

    def __init__(self) -> None:
        self._queue: deque[BoundedHttpProtocol] = deque()
        self._holder: BoundedHttpProtocol | None = None
        self._next: asyncio.Handle | None = None
        """The end of this turn or the beginning of the next one, whichever comes first."""

    def ask(self, connection: "BoundedHttpProtocol") -> None:
        """Have `connection` parse more of what it was sent when it is its turn."""
        self._queue.append(connection)
        if self._next is None:
            self._next = connection.loop.call_soon(self._give)

    def end(self, connection: "BoundedHttpProtocol") -> None:
        """End the turn of a connection whose request is answered or takes too long; does nothing where it is
        another connection's."""
        if connection is self._holder and self._next is not None:
            self._next.cancel()
            self._holder, self._next = None, connection.loop.call_later(TURN_PAUSE_SECONDS, self._give)

    def _give(self) -> None:
        self._next = None
        if self._queue:
            connection = self._queue.popleft()
            self._holder, self._next = connection, connection.loop.call_later(TURN_SECONDS, self.end, connection)
            if not connection.take_turn():
                self.end(connection)


class HeldFlow(FlowControl):
    """Flow control of a connection that is not read while something of it waits to be parsed."""

    _is_held = False

    def hold(self) -> None:
        """Read no more, whatever the application wants."""
        self._is_held = True
        self.pause_reading()

    def release(self, *, resume: bool) -> None:
        """Leave it to uvicorn and the application again."""
        self._is_held = False
        if resume:
            self.resume_reading()

    def resume_reading(self) -> None:
        """Read again, unless it is held."""
        if not self._is_held:
            super().resume_reading()


class SharedState(ServerState):
    """The state that the connections of a server share."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.turns = Turns()
        self.idle: dict[BoundedHttpProtocol, None] = {}
        """The connections that wait for their client, the longest wait first: for a request, for MIN_BODY_BYTES of a
        body, or for an answer to be read."""

    def make_room(self) -> bool:
        """Close the connection that has waited longest for its client; return False where none waits."""
        if not self.idle:
            return False
        next(iter(self.idle)).give_way()
        return True


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn's protocol keeps whatever a client sends as a head, and waits for it forever.

    A connection that is open waits for the application or for its turn, or has a timer: this class's while a head or a
    body is under way, uvicorn's between requests. uvicorn stops its own at any byte that arrives. It also queues each
    request that it is sent; here the parser gets no further byte while a request waits for its answer.
    """

    max_connections = MAX_CONNECTIONS
    server_state: SharedState
    flow: HeldFlow

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._head_bytes = 0
        self._head_lines = 0
        self._head_is_complete = False
        self._bytes_between = 0
        self._body_bytes = 0  # since the timer was started
        self._body_left: int | None = None  # None: not known
        self._pieces = 0  # of bodies, since the parser was fed last
        self._unfed = memoryview(b"")
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        most = most_connections(self.max_connections)
        if len(self.connections) > most and not self.server_state.make_room():
            problem = f"more than {most} connections, on each of which a request is being answered; try again later"
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, problem)
        else:
            self.server_state.idle[self] = None
            self._expect_head()

    def give_way(self) -> None:
        """Close, so that another client can connect."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self.timeout_keep_alive_task is not None:
            self._close()
        else:
            problem = "closed to make room for another client: no connection had waited longer for its client"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, problem)
        self.server_state.idle.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all waits."""
        self.server_state.idle.pop(self, None)
        self._stop_timer()
        self._stop_unread_timer()
        self._unfed = memoryview(b"")
        super().connection_lost(exc)
        self.server_state.turns.end(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, or keep the bytes where a request waits for its answer or this connection for its turn."""
        self._unfed = memoryview(bytes(self._unfed) + data if self._unfed else data)
        if self._is_chunked() and self._is_idle():
            self._wait_for_turn()
        else:
            self._feed()

    def take_turn(self) -> bool:
        """Feed the parser with what was kept; return whether a request waits for its answer now."""
        if not self.transport.is_closing():
            self._feed()
        return self._is_answering()

    def _feed(self) -> None:
        """Feed the parser until a request is complete, all was fed, or enough of a chunked body for once; nothing of
        that before the application, which may refuse it, has seen the head."""
        if not self._head_is_complete and self._timer is None and self._is_idle():
            self._expect_head()  # the parser may pass over these bytes: empty lines before a request
        self._pieces = 0
        while self._unfed and not self._is_answering() and not self.transport.is_closing():
            if self._head_is_complete:
                self._feed_body()
            else:
                self._feed_head()
                self._pieces = CHUNKED_PIECES
            if self._is_chunked() and self._pieces >= CHUNKED_PIECES:
                break
        if self.transport.is_closing():
            return
        if not self._unfed:
            self.flow.release(resume=self._is_idle() or len(self.cycle.body) <= HIGH_WATER_LIMIT)
        elif self._is_answering():
            self.flow.hold()
        elif self._is_idle():
            self._wait_for_turn()
        else:
            self.flow.hold()
            self.loop.call_soon(self.take_turn)

    def _wait_for_turn(self) -> None:
        self.flow.hold()
        self.server_state.turns.ask(self)

    def _feed_head(self) -> None:
        """Feed what belongs to a head, with no more bytes than a head may have."""
        part = self._take(MAX_HEAD_BYTES - self._head_bytes)
        if not part:
            problem = f"the request line and the headers take more than {MAX_HEAD_BYTES} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)
            return
        self._head_bytes += len(part)
        self._head_lines += part.count(b"\n")
        if self._head_lines > MAX_HEAD_LINES:
            problem = f"the request line and the headers take more than {MAX_HEAD_LINES} lines"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)
            return
        super().data_received(part)

    def _feed_body(self) -> None:
        part = self._take(CHUNKED_BYTES if self._is_chunked() else MAX_BYTES_BETWEEN, self._body_left or None)
        self._pieces += 1
        self._bytes_between += len(part)
        super().data_received(part)
        # What followed the last piece within this part is not counted, so up to twice as much is read.
        if self._bytes_between > MAX_BYTES_BETWEEN and not self.transport.is_closing():
            problem = f"the extensions of a chunk, or the trailers, take more than {MAX_BYTES_BETWEEN} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)

    def _take(self, most: int, length: int | None = None) -> bytes:
        """Return the next bytes to feed, at most `most`. They end where a message may end: after `length` bytes or,
        where that is not known, after an empty line."""
        if length is None:
            end = _EMPTY_LINE.search(self._unfed[:most])
            length = most if end is None else end.end()
        part, self._unfed = bytes(self._unfed[: min(most, length)]), self._unfed[min(most, length) :]
        return part

    def on_message_begin(self) -> None:
        """Begin to count the time of a request's head."""
        super().on_message_begin()
        if self._timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Expect the body that belongs to the head."""
        self._head_is_complete = True
        self._bytes_between = 0
        lengths = [int(value) for name, value in self.headers if name == b"content-length"]
        self._body_left = lengths[0] if lengths else None
        super().on_headers_complete()
        self._expect_body()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._bytes_between = 0
        self._pieces += 1
        if self._body_left is not None:
            self._body_left -= len(body)
        super().on_body(body)
        self._body_bytes += len(body)
        if self._body_bytes >= MIN_BODY_BYTES and not self.cycle.response_complete:
            self.server_state.idle.pop(self, None)
            self.server_state.idle[self] = None
            self._expect_body()

    def on_message_complete(self) -> None:
        """Expect the head of the next request."""
        self._head_is_complete = False
        self._head_bytes = 0
        self._head_lines = 0
        self._bytes_between = 0
        self._stop_timer()
        super().on_message_complete()
        if not self._is_idle():
            self.server_state.idle.pop(self, None)
        elif not self.transport.is_closing():  # it was answered before
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """Continue after an answer; the body of its request is perhaps not read yet."""
        super().on_response_complete()
        self.server_state.turns.end(self)
        self.server_state.idle[self] = None
        if self.transport.is_closing():
            self._close()
        elif self._head_is_complete:
            self._unset_keepalive_if_required()
            self._start_timer(ANSWERED_SECONDS, self._close)
        elif self._unfed:
            self._unset_keepalive_if_required()
            self._wait_for_turn()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection: no further request came."""
        self._close()

    def pause_writing(self) -> None:
        """Limit the time for which the client leaves an answer unread."""
        super().pause_writing()
        self.server_state.idle[self] = None
        self._stop_unread_timer()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop limiting it: the client reads again."""
        self._stop_unread_timer()
        if self._is_answering():
            self.server_state.idle.pop(self, None)
        super().resume_writing()

    def _is_idle(self) -> bool:
        """Whether no request, complete or not, waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def _is_chunked(self) -> bool:
        """Whether a body is under way whose end the parser alone knows."""
        return self._head_is_complete and self._body_left is None

    def _is_answering(self) -> bool:
        """Whether a complete request waits for its answer."""
        return not self._head_is_complete and not self._is_idle()

    def _expect_head(self) -> None:
        problem = f"no complete request within {HEAD_SECONDS:g} s"
        self._start_timer(HEAD_SECONDS, self._refuse, HTTPStatus.REQUEST_TIMEOUT, problem)

    def _expect_body(self) -> None:
        self._body_bytes = 0
        self._start_timer(BODY_SECONDS, self._note_slow_body)

    def _note_slow_body(self) -> None:
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:  # it is the application that is slow
            self._expect_body()
            return
        problem = f"less than {MIN_BODY_BYTES} bytes of the body, and not its end, within {BODY_SECONDS:g} s"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, problem)

    def _start_timer(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, act, *arguments)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        """Answer with a problem document, as the application would, unless an answer is under way, and close."""
        if self.transport.is_closing():  # by uvicorn's refusal of what is no request; its answer may never be read
            self._close()
            return
        cycle = self.cycle
        is_partial = cycle is not None and (self._head_is_complete or not cycle.response_complete)
        if is_partial and cycle.response_started:
            self._close()
            return
        document = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": problem}
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/problem+json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self._close()

    def _close(self) -> None:
        """Close, at the latest when the client has left for too long what is still to be sent."""
        self.transport.close()
        self._start_timer(UNREAD_SECONDS, self.transport.abort)


class KeeperHttpProtocol(BoundedHttpProtocol):
    """A connection of a keeper over TLS."""

    max_connections = MAX_KEEPER_CONNECTIONS


class BoundedReader(asyncio.BufferedProtocol):
    """Passes on what comes from a connection, at most READ_BYTES at a time. The loop would read 256 KiB for uvicorn's
    protocol, which may then have to be kept."""

    def __init__(self, protocol: BoundedHttpProtocol) -> None:
        self._protocol = protocol
        self._buffer = protocol.server_state.buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass it on to the protocol."""
        self._protocol.connection_made(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on to the protocol."""
        self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer of all connections: it is emptied before another one is read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the bytes that were read."""
        self._protocol.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        """Pass it on to the protocol."""
        self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Pass it on to the protocol."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on to the protocol."""
        self._protocol.resume_writing()


class HttpServer(uvicorn.Server):
    """Serves one application on one listening socket. Several of these live beside each other in one process, so
    signals are the composition root's; and it waits for its end instead of looking for it ten times a second."""

    def __init__(self, app: ASGIApp, protocol: type[BoundedHttpProtocol] = BoundedHttpProtocol) -> None:
        def make_protocol(**arguments: Any) -> BoundedReader:
            return BoundedReader(protocol(**arguments))

        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                ws="none",
                http=cast(Any, make_protocol),
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self.server_state = SharedState()
        self.serving = asyncio.Event()
        self._leaving = asyncio.Event()

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve until `leave`."""
        await self.serve(sockets=[listener])

    def leave(self) -> None:
        """Take no more requests; those that are being answered get a few seconds."""
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, and set `serving`."""
        await super().startup(sockets)
        self.server_state.default_headers = self.config.encoded_headers
        self.serving.set()

    async def main_loop(self) -> None:
        """Wait for the end."""
        await self._leaving.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class TlsHttpServer(HttpServer):
    """Serves one application over TLS. It accepts the connections itself: uvicorn would know, count and limit each only
    when its handshake is over."""

    def __init__(self, app: ASGIApp, context: ssl.SSLContext) -> None:
        super().__init__(app, KeeperHttpProtocol)
        self._context = context
        self._listener: socket.socket | None = None
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve until `leave`."""
        self._listener = listener
        await self.serve(sockets=[])

    async def main_loop(self) -> None:
        """Accept until the end."""
        async with asyncio.TaskGroup() as group:
            accepting = group.create_task(self._accept(group), name="accept keepers")
            await self._leaving.wait()
            for task in (accepting, *self._handshakes):
                task.cancel()

    async def _accept(self, group: asyncio.TaskGroup) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:  # no descriptors left, or the client is gone already
                log.warning(
                    "a keeper's connection could not be accepted: %s", error, extra={"action": "keepers.accept"}
                )
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if len(self._handshakes) >= MAX_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = group.create_task(self._shake_hands(connection), name="handshake with a keeper")
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        """Drop a client that does not speak TLS or is too slow; the keeper's own log says why it cannot connect."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        try:
            await loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except Exception as error:  # of any kind: what strangers send must not end the manager
            log.debug("no TLS with a client of the keepers' port: %s", error, extra={"action": "keepers.handshake"})

    def _make_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
