"""A small client of the API server, for the node agents and for what a test wants to know."""

import json
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import aiohttp
from fakes.kubernetes.control_plane import Access

Object = dict[str, Any]
"""An object of the API, as JSON."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """The API server has refused a request, or there was no answer (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Api:
    """The API server, as one user."""

    def __init__(self, access: Access, user: str = "admin") -> None:
        self._access = access
        self._user = user
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "Api":
        tls = ssl.create_default_context(cafile=self._access.ca_file)
        self._session = aiohttp.ClientSession(
            self._access.address,
            headers={"Authorization": f"Bearer {self._access.tokens[self._user]}"},
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=60),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, **parameters: str) -> Object:
        """An object, or a list of them."""
        return await self._ask("GET", path, params=parameters)

    async def read(self, path: str, **parameters: str) -> str:
        """Text, such as a log."""
        return await self._send("GET", path, params=parameters)

    async def create(self, path: str, body: Object) -> Object:
        """Add an object to the list at `path`."""
        return await self._ask("POST", path, json=body)

    async def patch(self, path: str, body: Object, *, kind: str = MERGE) -> Object:
        """Change a part of an object."""
        return await self._ask("PATCH", path, data=json.dumps(body), headers={"Content-Type": kind})

    async def delete(self, path: str, body: Object | None = None, **parameters: str) -> Object:
        """Delete an object, or those of a list. `body` holds DeleteOptions."""
        return await self._ask("DELETE", path, json=body or {}, params=parameters)

    async def watch(self, path: str, *, version: str, **parameters: str) -> AsyncIterator[tuple[str, Object]]:
        """The changes of a list since `version`, until the server ends the connection."""
        query = {**parameters, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        without = aiohttp.ClientTimeout(total=None, sock_connect=10)
        rest = b""
        try:
            async with self._session.get(path, params=query, timeout=without) as answer:
                if answer.status >= 400:
                    raise _error(answer.status, await answer.text())
                async for data in answer.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "", str(error)) from error

    async def _ask(self, method: str, path: str, **arguments: Any) -> Object:
        body: Object = json.loads(await self._send(method, path, **arguments))
        return body

    async def _send(self, method: str, path: str, **arguments: Any) -> str:
        try:
            async with self._session.request(method, path, **arguments) as answer:
                text = await answer.text(errors="replace")
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise ApiError(0, "", str(error)) from error
        if answer.status >= 400:
            raise _error(answer.status, text)
        return text


def _error(status: int, text: str) -> ApiError:
    try:
        body = json.loads(text)
        return ApiError(status, body.get("reason", ""), body.get("message", ""))
    except ValueError:
        return ApiError(status, "", text)
