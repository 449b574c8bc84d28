"""One HTTP connection to a manager: asks, and translates what goes wrong; and what all groups of calls share."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from proctor.sdk.client.errors import BadInput, ManagerUnreachable, problem_error
from proctor.sdk.client.logs import LogPiece

API = "/api/v1"
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
AGENT = "proctor-sdk"
"""The manager's events say that a change was made in Python."""
TIMEOUT_SECONDS = 30.0
STREAM_SILENCE_SECONDS = 45.0
"""A stream that has been silent for this long is dead: the manager sends a sign of life every 15 s."""

JsonObject = dict[str, Any]
Query = Mapping[str, str | int | list[str] | None]

PAGE_SIZE = 500


class Transport:
    """Requests to one manager. Errors are those of `proctor.sdk.client.errors`; close it, or use it with `with`."""

    def __init__(
        self, url: str, token: str | None, *, timeout_seconds: float = TIMEOUT_SECONDS, agent: str = AGENT
    ) -> None:
        """`url` is the manager's, without `/api/v1`. Proxies from the environment are used only for other machines.

        :param agent: the name under which its requests are sent.
        """
        self.url = url.rstrip("/")
        self._timeout = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, 5.0))
        self._client = httpx.Client(
            base_url=self.url + API,
            headers={"User-Agent": agent, **({"Authorization": f"Bearer {token}"} if token else {})},
            timeout=self._timeout,
            trust_env=urlsplit(self.url).hostname not in LOOPBACK,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back; twice does no harm."""
        self._client.close()

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
        response = self._send(method, path, query, body, timeout_seconds=timeout_seconds)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise ManagerUnreachable(
                f"{self.url} does not respond like a Proctor manager: {method} {path} is not JSON"
            ) from error

    def fetch(self, path: str, *, query: Query | None = None) -> tuple[bytes, httpx.Headers]:
        """Get raw bytes and the headers that came with them."""
        response = self._send("GET", path, query, None)
        return response.content, response.headers

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
    ) -> Iterator[httpx.Response]:
        """An answer whose body is still coming. Reading it may raise httpx.TransportError."""
        timeout = httpx.Timeout(self._timeout.read, connect=self._timeout.connect, read=STREAM_SILENCE_SECONDS)
        with self._translated(f"{method} {path}"):
            request = self._client.build_request(
                method, path.lstrip("/"), params=_without_none(query), headers=headers, timeout=timeout
            )
            response = self._client.send(request, stream=True)
            if response.is_error:
                response.read()
                response.close()
                raise problem_error(response.status_code, _document(response), f"{method} {path}")
        try:
            yield response
        finally:
            response.close()

    @contextmanager
    def body(self, path: str) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer, as they come. One that ends too early raises ManagerUnreachable."""
        with self._translated(f"GET {path}"), self.stream(path) as response:
            yield response.iter_bytes()

    def json_lines(self, method: str, path: str, *, query: Query | None = None) -> Iterator[Any]:
        """The JSON documents of an answer, a line each, as they come."""
        with self._translated(f"{method} {path}"), self.stream(path, method=method, query=query) as response:
            for line in response.iter_lines():
                yield json.loads(line)

    def _send(
        self, method: str, path: str, query: Query | None, body: Any, *, timeout_seconds: float | None = None
    ) -> httpx.Response:
        patience = self._timeout
        if timeout_seconds is not None:
            patience = httpx.Timeout(timeout_seconds, connect=self._timeout.connect)
        with self._translated(f"{method} {path}"):
            response = self._client.request(
                method, path.lstrip("/"), params=_without_none(query), json=body, timeout=patience
            )
        if response.is_error:
            raise problem_error(response.status_code, _document(response), f"{method} {path}")
        return response

    @contextmanager
    def _translated(self, asked: str) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise ManagerUnreachable(f"the manager at {self.url} did not answer {asked} in time") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ManagerUnreachable(
                f"no manager answers at {self.url} ({error}); see `proctor manager status`"
            ) from error
        except (ValueError, TypeError) as error:
            raise BadInput(f"{asked} cannot be sent as JSON: {error}", status_code=422) from error


def _without_none(query: Query | None) -> dict[str, str | int | list[str]]:
    return {key: value for key, value in (query or {}).items() if value is not None}


def _document(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text


class Calls:
    """Calls over one connection."""

    _transport: Transport

    def _get(self, path: str) -> JsonObject:
        found: JsonObject = self._transport.request("GET", path)
        return found

    def _post(self, path: str, body: Any = None, query: "Query | None" = None) -> JsonObject:
        found: JsonObject = self._transport.request("POST", path, body=body, query=query)
        return found

    def _log(self, path: str, query: Query) -> LogPiece:
        data, headers = self._transport.fetch(path, query=query)
        return LogPiece(data, int(headers["X-Next-Offset"]))


def path_of(*parts: str) -> str:
    """A path below the API's root."""
    return "/" + "/".join(quote(part, safe="") for part in parts)
