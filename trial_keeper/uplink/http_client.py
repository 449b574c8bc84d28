"""HTTP/1.1, as much of it as the keeper needs: POST, one request at a time, a kept connection; over a Unix socket, or
over TLS to a manager with a pinned certificate (docs/decisions/0041).

httpx costs several times as much per request (measured in docs/decisions/0003-keeper-http.md), and without it the
keeper needs nothing but the standard library.
"""

import asyncio
import hashlib
from types import TracebackType

from proctor.trial_keeper.errors import SessionError
from proctor.trial_keeper.uplink.pointer import ManagerEndpoint

_CONNECT_SECONDS = 15.0
_LONGEST_ANSWER = 64 * 1024 * 1024
_STREAM_LIMIT = 256 * 1024
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpConnection:
    """One connection to the manager. After a SessionError it is of no more use."""

    def __init__(self, endpoint: ManagerEndpoint, base_path: str) -> None:
        self._endpoint = endpoint
        self._base_path = base_path
        self._host = str(endpoint).partition("://")[2] or "localhost"
        self._authorization = ""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "HttpConnection":
        where = self._endpoint
        connect = _open_tls(where) if where.is_remote else _open_socket(where)
        try:
            self._reader, self._writer = await asyncio.wait_for(connect, _CONNECT_SECONDS)
        except asyncio.TimeoutError as error:  # noqa: UP041 - another class before Python 3.11
            why = f"no answer within {_CONNECT_SECONDS:g} s"
            raise SessionError(f"no manager listens on {where}: {why}{_advice(where)}") from error
        except (OSError, ValueError) as error:
            raise SessionError(f"no manager listens on {where}: {error}{_advice(where)}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        if self._endpoint.is_remote:
            self._writer.transport.abort()  # closing would wait for what is at the other end
        else:
            self._writer.close()

    def authorize(self, secret: str) -> None:
        """Send the node's secret with every request from now on."""
        self._authorization = f"Authorization: Bearer {secret}\r\n"

    async def post(
        self, name: str, body: bytes, *, timeout_seconds: float, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """POST to `<base path>/<name>`; returns the status code and the answer's body.

        :raises SessionError: the connection broke, the answer is not HTTP, or it took longer than `timeout_seconds`.
        """
        if self._writer is None:
            raise SessionError("the connection to the manager is not open")
        head = (
            f"POST {self._base_path}/{name} HTTP/1.1\r\nHost: {self._host}\r\n{self._authorization}"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            self._writer.writelines([head.encode(), body])
            return await asyncio.wait_for(self._read_answer(), timeout_seconds)
        except asyncio.TimeoutError as error:  # noqa: UP041 - another class before Python 3.11
            raise SessionError(f"the manager has not answered {name!r} within {timeout_seconds:g} s") from error
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            broken = error or type(error).__name__
            raise SessionError(f"the connection to the manager broke at {name!r}: {broken}") from error

    async def _read_answer(self) -> tuple[int, bytes]:
        assert self._reader is not None
        head = await self._reader.readuntil(b"\r\n\r\n")
        status_line, _, rest = head.partition(b"\r\n")
        version, status = status_line.split(b" ", 2)[:2]
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"not an HTTP answer: {status_line[:60]!r}")
        headers = _parse_headers(rest)
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            body = await self._read_chunks()
        else:
            body = await self._reader.readexactly(_checked_length(int(headers.get(b"content-length", b"0"))))
        return int(status), body

    async def _read_chunks(self) -> bytes:
        assert self._reader is not None
        parts: list[bytes] = []
        while True:
            length = _checked_length(int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16))
            parts.append((await self._reader.readexactly(length + 2))[:-2])
            if length == 0:
                return b"".join(parts)


async def _open_socket(where: ManagerEndpoint) -> _Streams:
    return await asyncio.open_unix_connection(where.socket_path, limit=_STREAM_LIMIT)


async def _open_tls(where: ManagerEndpoint) -> _Streams:
    """A connection to a listener with the pinned certificate; nothing is sent to another one. That it has the
    certificate's key, the handshake shows."""
    import ssl  # some builds of Python have none, and need it for no Unix socket

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # neither names, dates nor issuers count: the certificate itself is compared
    try:
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context, limit=_STREAM_LIMIT)
    except ssl.SSLError as error:
        raise SessionError(f"what listens on {where} does not speak TLS 1.3: {error}{_advice(where)}") from error
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
    found = hashlib.sha256(certificate).hexdigest()
    if found != where.fingerprint:
        writer.transport.abort()
        raise SessionError(
            f"what listens on {where} has the certificate sha256:{found}, not the pinned one; it was sent nothing"
            f"{_advice(where)}"
        )
    return reader, writer


def _advice(where: ManagerEndpoint) -> str:
    if not where.is_remote:
        return ""
    return f"; if the manager has moved, write its new address and certificate to {where.pointer}"


def _parse_headers(text: bytes) -> dict[bytes, bytes]:
    headers = {}
    for line in text.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return headers


def _checked_length(length: int) -> int:
    if not 0 <= length <= _LONGEST_ANSWER:
        raise ValueError(f"an answer of {length} bytes")
    return length
