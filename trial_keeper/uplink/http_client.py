"""HTTP/1.1 over a Unix socket, as much of it as the keeper needs: POST, one request at a time, a kept connection.

httpx costs several times as much per request (measured in docs/decisions/0003-keeper-http.md), and without it the
keeper needs nothing but the standard library.
"""

import asyncio
from types import TracebackType

from proctor.trial_keeper.errors import SessionError

_LONGEST_ANSWER = 64 * 1024 * 1024
_STREAM_LIMIT = 256 * 1024


class HttpConnection:
    """One connection to the manager. After a SessionError it is of no more use."""

    def __init__(self, socket_path: str, base_path: str) -> None:
        self._socket_path = socket_path
        self._base_path = base_path
        self._authorization = ""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "HttpConnection":
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(self._socket_path, limit=_STREAM_LIMIT)
        except (OSError, ValueError) as error:
            raise SessionError(f"no manager listens on {self._socket_path}: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
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
            f"POST {self._base_path}/{name} HTTP/1.1\r\nHost: localhost\r\n{self._authorization}"
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
