"""One HTTP connection to a manager: asks, and translates what goes wrong; and what all groups of calls share."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

from proctor.sdk.client.connections import Connections, HttpAnswer
from proctor.sdk.client.errors import BadInput, ManagerUnreachable, problem_error
from proctor.sdk.client.logs import LogPiece

API = "/api/v1"
AGENT = "proctor-sdk"
"""The manager's events say that a change was made in Python."""
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
"""Opening a connection takes no longer than this, or than the limit for an answer if that is shorter."""
STREAM_SILENCE_SECONDS = 45.0
"""A stream that has been silent for this long is dead: the manager sends a sign of life every 15 s."""

JsonObject = dict[str, Any]
Query = Mapping[str, str | int | list[str] | None]

PAGE_SIZE = 500
LEAST_ERROR = 400
"""Statuses from here on are refusals and failures."""


class Transport:
    """Requests to one manager. Errors are those of `proctor.sdk.client.errors`; close it, or use it with `with`."""

    def __init__(
        self, url: str, token: str | None, *, timeout_seconds: float = TIMEOUT_SECONDS, agent: str = AGENT
    ) -> None:
        """`url` is the manager's, without `/api/v1`. Proxies from the environment are used only for other machines.

        :param agent: the name under which its requests are sent.
        """
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        headers = {"User-Agent": agent, **({"Authorization": f"Bearer {token}"} if token else {})}
        self._connections = Connections(self.url, API, headers, connect_seconds=min(timeout_seconds, CONNECT_SECONDS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back; twice does no harm."""
        self._connections.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Ask once and return the JSON that came, None for an empty answer.

        :param timeout_seconds: for answers that take their time; the transport's own if not given.
        """
        content, _ = self._send(method, path, query, body, timeout_seconds=timeout_seconds)
        return self._parsed(content, f"{method} {path}") if content else None

    def fetch(self, path: str, *, query: Query | None = None) -> tuple[bytes, Mapping[str, str]]:
        """Get raw bytes and the headers that came with them, by their names in lower case."""
        return self._send("GET", path, query, None)

    def pages(self, path: str, *, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """Every item of a list, page after page."""
        asked = dict(query or {})
        while True:
            page = self.request("GET", path, query=asked)
            if isinstance(page, list):
                yield from page
                return
            yield from page["items"]
            if page.get("next_cursor") is None:
                return
            asked["cursor"] = page["next_cursor"]

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        method: str = "GET",
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HttpAnswer]:
        """An answer whose body is still coming. Reading it may raise ManagerUnreachable."""
        answer = self._connections.send(
            method, _target(path, query), body=None, headers=headers or {}, seconds=STREAM_SILENCE_SECONDS
        )
        try:
            if answer.status >= LEAST_ERROR:
                raise problem_error(answer.status, _document(answer.read()), f"{method} {path}")
            yield answer
        finally:
            answer.close()

    @contextmanager
    def body(self, path: str) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer, as they come. One that ends too early raises ManagerUnreachable."""
        with self.stream(path) as answer:
            yield answer.pieces()

    def json_lines(self, method: str, path: str, *, query: Query | None = None) -> Iterator[Any]:
        """The JSON documents of an answer, a line each, as they come."""
        with self.stream(path, method=method, query=query) as answer:
            for line in answer.lines():
                yield self._parsed(line, f"{method} {path}")

    def _send(
        self, method: str, path: str, query: Query | None, body: Any, *, timeout_seconds: float | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        asked, headers, data = f"{method} {path}", {"Accept-Encoding": "gzip"}, None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = _json(body, asked)
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        answer = self._connections.send(method, _target(path, query), body=data, headers=headers, seconds=seconds)
        content = answer.read()
        if answer.status >= LEAST_ERROR:
            raise problem_error(answer.status, _document(content), asked)
        return content, {name.lower(): value for name, value in answer.headers.items()}

    def _parsed(self, content: bytes | str, asked: str) -> Any:
        try:
            return json.loads(content)
        except ValueError as error:
            raise ManagerUnreachable(
                f"{self.url} does not respond like a Proctor manager: {asked} is not JSON"
            ) from error


def _target(path: str, query: Query | None) -> str:
    named = {key: value for key, value in (query or {}).items() if value is not None}
    return path + (f"?{urlencode(named, doseq=True)}" if named else "")


def _json(body: Any, asked: str) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise BadInput(f"{asked} cannot be sent as JSON: {error}", status_code=422) from error


def _document(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")


class Calls:
    """Calls over one connection."""

    _transport: Transport

    def _get(self, path: str) -> JsonObject:
        found: JsonObject = self._transport.request("GET", path)
        return found

    def _post(
        self, path: str, body: Any = None, query: "Query | None" = None, timeout_seconds: float | None = None
    ) -> JsonObject:
        found: JsonObject = self._transport.request(
            "POST", path, body=body, query=query, timeout_seconds=timeout_seconds
        )
        return found

    def _log(self, path: str, query: Query) -> LogPiece:
        data, headers = self._transport.fetch(path, query=query)
        return LogPiece(data, int(headers["x-next-offset"]))


def path_of(*parts: str) -> str:
    """A path below the API's root."""
    return "/" + "/".join(quote(part, safe="") for part in parts)
