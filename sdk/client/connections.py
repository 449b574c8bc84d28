"""HTTP/1.1 to one manager, by the standard library's http.client: kept connections, proxies, TLS, time limits.

Any thread may send a request; it has a connection of its own until its answer is read. Why no library does this:
docs/decisions/0060-the-client-speaks-http-by-itself.md.
"""

import base64
import http.client
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from proctor.sdk.client.errors import ManagerUnreachable

if TYPE_CHECKING:
    import ssl

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
IDLE_SECONDS = 5.0
"""A connection that was idle for longer is not used again: what lies between may have closed it."""
PIECE_BYTES = 64 * 1024
_PORTS = {"http": 80, "https": 443}


class Connections:
    """Sends requests to one manager. Raises ManagerUnreachable for everything that goes wrong on the way."""

    def __init__(self, url: str, api: str, headers: Mapping[str, str], *, connect_seconds: float) -> None:
        """`url` is the manager's. Proxies from the environment are used only for other machines.

        :param api: the path below that URL at which all targets begin.
        :param headers: sent with every request.
        :param connect_seconds: how long opening a connection may take, TLS included.
        """
        self._url = url
        self._connect_seconds = connect_seconds
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._is_closed = False
        try:
            self._manager = _parsed(url)
        except ValueError as error:
            raise self._unreachable(error) from error
        trusts_environment = self._manager.hostname not in LOOPBACK
        self._proxy = self._find_proxy() if trusts_environment else None
        self._context = _tls_context(trusts_environment) if "https" in self._schemes() else None
        self._headers = {"Accept": "*/*", **headers, **_credentials(self._manager, "Authorization")}
        if not all(value.isascii() and value.isprintable() for value in self._headers.values()):
            raise self._unreachable("the token should consist of printable ASCII characters")
        self._prefix = quote(self._manager.path + api, safe="/%:@!$&'()*+,;=~")
        if self._proxy is not None and self._manager.scheme == "http":  # the proxy sends it on
            self._prefix = f"http://{self._manager.netloc.rpartition('@')[2]}{self._prefix}"
            self._headers |= _credentials(self._proxy, "Proxy-Authorization")

    def close(self) -> None:
        """Close the connections; those in use when their answers are read. Idempotent."""
        self._is_closed = True
        while self._idle:
            self._idle.pop()[0].close()

    def send(
        self, method: str, target: str, *, body: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> "HttpAnswer":
        """Send a request; the answer has begun when this returns.

        :param target: path and query, quoted.
        :param seconds: how long each piece of it, and of the answer, may take.
        """
        if self._is_closed:
            raise RuntimeError("this client is closed")
        all_headers = {**self._headers, **headers}
        content = None
        if body is not None:
            all_headers["Content-Length"] = str(len(body))
            content = BytesIO(body)  # sent piece by piece: the limit is for each of them
        asked = f"{method} {target.partition('?')[0]}"
        connection = self._kept()
        with self.translated(asked):
            try:
                if connection is None:
                    connection = self._new()
                    connection.connect()
                assert connection.sock is not None, "it is connected"
                connection.sock.settimeout(seconds)
                connection.request(method, self._prefix + target, body=content, headers=all_headers)
                used, response = connection.sock, connection.getresponse()
                _require_whole_head(response)
                return HttpAnswer(self, connection, used, response, asked)
            except BaseException:
                if connection is not None:
                    connection.close()
                raise

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Take back a connection whose answer was read to its end."""
        if self._is_closed:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic()))

    @contextmanager
    def translated(self, asked: str) -> Iterator[None]:
        """What goes wrong with connections as ManagerUnreachable."""
        try:
            yield
        except TimeoutError as error:
            raise ManagerUnreachable(f"the manager at {self._url} did not answer {asked} in time") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, why: object) -> ManagerUnreachable:
        return ManagerUnreachable(f"no manager answers at {self._url} ({why}); see `proctor manager status`")

    def _kept(self) -> http.client.HTTPConnection | None:
        """The connection that was used last, if it can still be used."""
        while self._idle:
            connection, since = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS and not _has_input(connection):
                return connection
            connection.close()
        return None

    def _new(self) -> http.client.HTTPConnection:
        hop = self._proxy or self._manager
        host, port = hop.hostname or "", hop.port or _PORTS[hop.scheme]
        if "https" in self._schemes():
            connection = http.client.HTTPSConnection(host, port, timeout=self._connect_seconds, context=self._context)
            if self._proxy is not None and self._manager.scheme == "https":
                there = self._manager
                headers = _credentials(self._proxy, "Proxy-Authorization")
                connection.set_tunnel(there.hostname or "", there.port or _PORTS["https"], headers)
            return connection
        return http.client.HTTPConnection(host, port, timeout=self._connect_seconds)

    def _schemes(self) -> set[str]:
        return {hop.scheme for hop in (self._manager, self._proxy) if hop is not None}

    def _find_proxy(self) -> SplitResult | None:
        from urllib.request import getproxies, proxy_bypass

        proxies = getproxies()
        found = proxies.get(self._manager.scheme) or proxies.get("all")
        if not found or proxy_bypass(self._manager.hostname or ""):
            return None
        try:
            proxy = _parsed(found if "://" in found else f"http://{found}")
        except ValueError as error:
            raise self._unreachable(f"as for its proxy, {error}") from error
        if proxy.scheme == self._manager.scheme == "https":
            raise self._unreachable("a proxy that is reached over TLS itself passes no TLS on; name an http:// proxy")
        return proxy


class HttpAnswer:
    """An answer whose body is still coming: read it, or close it. Reading one that breaks off raises
    ManagerUnreachable."""

    def __init__(
        self,
        connections: Connections,
        connection: http.client.HTTPConnection,
        used: socket.socket,
        response: http.client.HTTPResponse,
        asked: str,
    ) -> None:
        self.status = response.status
        self.headers = response.headers
        self._connections = connections
        self._connection: http.client.HTTPConnection | None = connection
        self._socket = used
        self._response = response
        self._asked = asked

    def read(self) -> bytes:
        """The whole body."""
        try:
            with self._connections.translated(self._asked):
                data = self._response.read()
                if self.headers.get("Content-Encoding") == "gzip":
                    data = _unpacked(data)
            connection = self._connection
            if connection is not None and connection.sock is not None:  # http.client has closed one that ends with it
                self._connection = None
                self._connections.keep(connection)
            return data
        finally:
            self.close()

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes."""
        while piece := self._next_piece():
            yield piece

    def lines(self) -> Iterator[str]:
        """The lines of the body as they come, without their ends."""
        rest = b""
        for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")

    def interrupt(self) -> None:
        """End it, also while another thread waits for its next piece."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._response.close()
        if self._connection is not None:
            self._connection.close()

    def _next_piece(self) -> bytes:
        with self._connections.translated(self._asked):
            piece = self._response.read1(PIECE_BYTES)
            if not piece and self._response.length:  # http.client says so only of an answer that is read at once
                raise http.client.IncompleteRead(b"", self._response.length)
            return piece


def _parsed(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or parts.port == 0:
        raise ValueError(f"expected a URL such as http://127.0.0.1:8080, found {url!r}")
    return parts


def _credentials(hop: SplitResult, header: str) -> dict[str, str]:
    """The header for the user and the password of a URL; none where it has none."""
    if hop.username is None:
        return {}
    text = f"{unquote(hop.username)}:{unquote(hop.password or '')}"
    return {header: f"Basic {base64.b64encode(text.encode()).decode()}"}


def _tls_context(trusts_environment: bool) -> "ssl.SSLContext":
    """Trusts what SSL_CERT_FILE or SSL_CERT_DIR names, else the authorities that certifi has."""
    import ssl

    import certifi

    environment = os.environ if trusts_environment else {}
    if file := environment.get("SSL_CERT_FILE"):
        context = ssl.create_default_context(cafile=file)
    elif folder := environment.get("SSL_CERT_DIR"):
        context = ssl.create_default_context(capath=folder)
    else:
        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def _has_input(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection can be read from: then its other end has closed it, or speaks out of turn."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _require_whole_head(response: http.client.HTTPResponse) -> None:
    """http.client takes a head that breaks off for a whole one, and what follows for a body that ends with the
    connection. Such a body must be announced."""
    has_end = response.chunked or response.length is not None
    if not has_end and response.version > 10 and "close" not in response.headers.get("Connection", "").lower():
        raise http.client.HTTPException("its answer broke off in the head")


def _unpacked(data: bytes) -> bytes:
    import gzip
    import zlib

    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error) as error:
        raise http.client.HTTPException(f"its gzip is damaged: {error}") from error
