"""The keepers' routes, served on the manager's Unix socket and, if asked for, over TLS; nothing else is served there.
Plain Starlette: no model, no middleware, no schema.

A client that does not know a node's secret learns nothing, not even whether there is such a node, and can send no more
than a short `hello`. What travels is described in `proctor.trial_keeper.protocol`; what happens with it is
`KeeperHub`'s.
"""

import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proctor.manager.api.errors import problem_response
from proctor.sdk.json_input import clean_value
from proctor.training_services.errors import KeeperUnavailable, UnknownNode
from proctor.training_services.keepers.hub import KeeperHub
from proctor.trial_keeper.protocol import (
    CommandPoll,
    ContentRequest,
    FileAnswer,
    Registration,
    ReportHeader,
    from_json,
    manager_proof,
    to_json,
)

PREFIX = "/api/v1/keepers/"
MAX_HELLO_BYTES = 4096
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Of a keeper that knows its secret. A report has about 1 MiB, files 4 MiB, a registration half a KiB for each job."""

log = logging.getLogger(__name__)
T = TypeVar("T")

_Handler = Callable[[Request], Awaitable[Response]]
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def keeper_application(hub: KeeperHub) -> Starlette:
    """The application behind the Unix socket and the TLS port."""
    routes = _KeeperRoutes(hub)
    path = PREFIX + "{node_id}/"
    return Starlette(
        routes=[
            Route(path + "hello", _answering(routes.hello), methods=["POST"]),
            Route(path + "register", _answering(routes.authenticated(routes.register)), methods=["POST"]),
            Route(path + "commands", _answering(routes.authenticated(routes.commands)), methods=["POST"]),
            Route(path + "report", _answering(routes.authenticated(routes.report)), methods=["POST"]),
            Route(path + "content", _answering(routes.authenticated(routes.content)), methods=["POST"]),
            Route(path + "answer", _answering(routes.authenticated(routes.answer)), methods=["POST"]),
        ]
    )


class _KeeperRoutes:
    def __init__(self, hub: KeeperHub) -> None:
        self._hub = hub
        self._no_secret = secrets.token_hex(32)

    def authenticated(self, handler: _Handler) -> _Handler:
        """`handler`, for those who know the node's secret."""

        async def check(request: Request) -> Response:
            scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._hub.authenticate(request.path_params["node_id"], bearer.strip()):
                return problem_response(401, "Not authorized", "the bearer is not this node's secret")
            return await handler(request)

        return check

    async def hello(self, request: Request) -> Response:
        """Prove that this manager knows the node's secret; for an unknown node, as one that knows another secret."""
        node_id, nonce = request.path_params["node_id"], _read(_Hello, await _body(request, MAX_HELLO_BYTES)).nonce
        if not nonce:
            raise _NotAMessage('expected {"nonce": hex}')
        try:
            proof = self._hub.hello(node_id, nonce)
        except UnknownNode:
            proof = manager_proof(self._no_secret + node_id, nonce)
        return _json({"proof": proof})

    async def register(self, request: Request) -> Response:
        """Begin a session."""
        registration = _read(Registration, await _body(request, MAX_BODY_BYTES))
        return _json(to_json(await self._hub.register(request.path_params["node_id"], registration)))

    async def commands(self, request: Request) -> Response:
        """Held open until there is a command, or the keeper's patience is over."""
        poll = _read(CommandPoll, await _body(request, MAX_BODY_BYTES))
        return _json(to_json(await self._hub.poll(request.path_params["node_id"], poll)))

    async def report(self, request: Request) -> Response:
        """One line of JSON, then the bytes of its chunks."""
        line, chunks = _split(await _body(request, MAX_BODY_BYTES))
        header = _read(ReportHeader, line)
        return _json(to_json(await self._hub.report(request.path_params["node_id"], header, chunks)))

    async def content(self, request: Request) -> Response:
        """A piece of an archive."""
        asked = _read(ContentRequest, await _body(request, MAX_BODY_BYTES))
        data = await self._hub.content(request.path_params["node_id"], asked)
        return Response(data, media_type="application/octet-stream")

    async def answer(self, request: Request) -> Response:
        """One line of JSON, then the bytes that were asked for."""
        line, data = _split(await _body(request, MAX_BODY_BYTES))
        self._hub.answer(request.path_params["node_id"], _read(FileAnswer, line, parse=_message), bytes(data))
        return _json({})


class _TooLarge(Exception):
    """The body of a request is longer than it may be."""


class _NotAMessage(Exception):
    """The body of a request is not what a keeper sends there."""


@dataclass(frozen=True)
class _Hello:
    nonce: str


async def _body(request: Request, most_bytes: int) -> bytes:
    """The body of a request, which is not read to its end if it is too long. Raises _TooLarge."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most_bytes:
            raise _TooLarge(f"expected at most {most_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _split(body: bytes) -> tuple[bytes, bytes | memoryview]:
    """The first line, and what follows it."""
    end = body.find(b"\n")
    return (body, b"") if end < 0 else (body[:end], memoryview(body)[end + 1 :])


def _answering(handler: _Handler) -> _Handler:
    """`handler`, with its errors as problem documents."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except KeeperUnavailable as error:
            return problem_response(error.status_code, type(error).__name__, str(error), instance=request.url.path)
        except _TooLarge as error:
            return problem_response(413, "Too large", str(error), instance=request.url.path)
        except _NotAMessage as error:
            log.warning("a request to %s is not a message of a keeper: %s", request.url.path, error)
            return problem_response(
                400, "Bad request", f"not a message of a keeper: {error}", instance=request.url.path
            )

    return answer


def _read(kind: type[T], body: bytes, *, parse: "Callable[[bytes], dict[str, Any]] | None" = None) -> T:
    """A message of a keeper. Raises _NotAMessage; every other error is ours."""
    try:
        return from_json(kind, (parse or _object)(body))
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _NotAMessage(str(error)) from error


def _object(body: bytes) -> dict[str, Any]:
    """A message with clean text; in UTF-8 only escapes can make text unclean."""
    return clean_value(_message(body)) if b"\\u" in body else _message(body)


def _message(body: bytes) -> dict[str, Any]:
    """A message as it is: the names of files may be any bytes, and must stay what they are."""
    message = json.loads(body.decode("utf-8"))
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, found {type(message).__name__}")
    return message


def _json(body: dict[str, Any]) -> Response:
    return Response(_ENCODER.encode(body), media_type="application/json")
