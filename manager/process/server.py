"""HTTP on an open socket: uvicorn without its signal handlers and its clock, and with limits.

The limits hold for everyone who can connect, token or not: the bytes and the seconds that the head of a request may
take, the pace of its body, the bytes between two pieces of the body (of a chunk's extensions, or of trailers), the
seconds for which a body may continue after its answer, and the number of connections; over TLS, the handshakes that are
under way and the seconds that one may take, too.
"""

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proctor.manager.file_descriptors import most_connections

SHUTDOWN_SECONDS = 3
KEEP_ALIVE_SECONDS = 75
MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers of one request."""
MAX_BYTES_BETWEEN = 64 * 1024
"""What may come after the head, or after a piece of the body, before the next piece or the end."""
HEAD_SECONDS = 20.0
"""How long the head of a request may take, and how long a new connection may stay silent."""
BODY_SECONDS = 20.0
"""How long a body may take to bring MIN_BODY_BYTES more, or to end; chunk extensions and trailers included."""
MIN_BODY_BYTES = 1024
ANSWERED_SECONDS = 10.0
"""How long the rest of a body is read when its request is answered already. Closing at once could lose the answer: the
system resets a connection that is closed with bytes unread."""
UNREAD_SECONDS = 60.0
"""How long a client may leave an answer unread that fills the buffers."""
MAX_CONNECTIONS = 512
"""Fewer where the limit on open files is low."""
MAX_KEEPER_CONNECTIONS = 4096
"""The same for the server over TLS; a keeper holds two connections, and a third while it answers about files."""
MAX_HANDSHAKES = 256
HANDSHAKE_SECONDS = 10.0
_RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn's protocol keeps whatever a client sends as a head, and waits for it forever.

    A connection that is open waits for the application, or has a timer: this class's while a head or a body is under
    way, uvicorn's between requests. uvicorn stops its own at any byte that arrives.
    """

    max_connections = MAX_CONNECTIONS

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._head_bytes = 0
        self._head_is_complete = False
        self._bytes_between = 0
        self._body_bytes = 0  # since the timer was started
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        most = most_connections(self.max_connections)
        if len(self.connections) > most:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"more than {most} connections; try again later")
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, while it reads a head with no more bytes than a head may have."""
        if not self._head_is_complete and self._timer is None and self._is_idle():
            self._expect_head()  # the parser may pass over these bytes: empty lines before a request
        while data and not self._head_is_complete:
            part, data = data[: MAX_HEAD_BYTES - self._head_bytes], data[MAX_HEAD_BYTES - self._head_bytes :]
            if not part:
                problem = f"the request line and the headers take more than {MAX_HEAD_BYTES} bytes"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)
                return
            self._head_bytes += len(part)
            super().data_received(part)
            if self.transport.is_closing():
                return
        while data and not self.transport.is_closing():
            part, data = data[:MAX_BYTES_BETWEEN], data[MAX_BYTES_BETWEEN:]
            self._bytes_between += len(part)
            super().data_received(part)
            # What followed the last piece within this part is not counted, so up to twice as much is read.
            if self._bytes_between > MAX_BYTES_BETWEEN:
                problem = f"the extensions of a chunk, or the trailers, take more than {MAX_BYTES_BETWEEN} bytes"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Its head is read."""
        self._head_is_complete = True
        self._bytes_between = 0
        super().on_headers_complete()
        self._expect_body()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._bytes_between = 0
        super().on_body(body)
        self._body_bytes += len(body)
        if self._body_bytes >= MIN_BODY_BYTES and not self.cycle.response_complete:
            self._expect_body()

    def on_message_complete(self) -> None:
        """It is read; what follows is the head of the next one."""
        self._head_is_complete = False
        self._head_bytes = 0
        self._bytes_between = 0
        self._stop_timer()
        super().on_message_complete()
        if self._is_idle() and not self.transport.is_closing():  # it was answered before
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """A request is answered, perhaps before its body was read."""
        is_read = not self._head_is_complete or bool(self.pipeline)
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif not is_read:
            self._unset_keepalive_if_required()
            self._start_timer(ANSWERED_SECONDS, self._close)

    def timeout_keep_alive_handler(self) -> None:
        """No further request came."""
        self._close()

    def pause_writing(self) -> None:
        """The client does not read what it asked for."""
        super().pause_writing()
        self._stop_unread_timer()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        self._stop_unread_timer()
        super().resume_writing()

    def _is_idle(self) -> bool:
        """Whether no request waits for its answer."""
        return self.cycle is None or (self.cycle.response_complete and not self.pipeline)

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
        if self.pipeline or (is_partial and cycle.response_started):
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


class HttpServer(uvicorn.Server):
    """Serves one application on one listening socket. Several of these live beside each other in one process, so
    signals are the composition root's; and it waits for its end instead of looking for it ten times a second."""

    def __init__(self, app: ASGIApp, protocol: type[BoundedHttpProtocol] = BoundedHttpProtocol) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                ws="none",
                http=protocol,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
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
        """As uvicorn's, and then say so."""
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
        self._handshakes: set[asyncio.Task[None]] = set()

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
                connection.close()
                continue
            task = group.create_task(self._shake_hands(connection), name="handshake with a keeper")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        """Whoever does not speak TLS, or is too slow, is let go; the keeper's own log says why it cannot connect."""
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
