"""What routes depend on: their context, query parameters that several of them share, and answers that take long."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.responses import Response

from proctor.manager.api.context import ApiContext
from proctor.manager.api.guard import SENDER, Sender
from proctor.manager.errors import BadRequest

LARGEST_ID = 2**63 - 1
"""The largest row id that SQLite can hold."""
DEFAULT_BYTES = 256 * 1024
"""Of a part of a text file, where `limit` is not given."""
JSON_MEDIA_TYPE = "application/json"
_CLIENT_GONE = 499
"""What servers call it in their logs; it reaches no client."""


def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Context = Annotated[ApiContext, Depends(_context)]
"""A route's parameter that receives the context."""


def _sender(request: Request) -> Sender:
    sender: Sender = request.scope[SENDER]
    return sender


RequestSender = Annotated[Sender, Depends(_sender)]
"""A route's parameter that receives who has sent the request."""

Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.", max_length=1000)]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
Offset = Annotated[
    int, Query(description="Byte to start at; negative: counted from the end.", ge=-(2**53), le=2**53, examples=[-4096])
]
TrialFilter = Annotated[
    str | None,
    Query(
        description="Only trials that this lets through, in the language that docs/rest.md describes.",
        examples=["status = SUCCEEDED and lr < 1e-3 and value > 0.9"],
    ),
]
TableColumns = Annotated[
    str,
    Query(
        max_length=10_000,
        description="Names, with commas; `*`: all that are stored, `parameter.*`, `value.*`.",
        examples=["no,status,value,parameter.*"],
    ),
]
ByteLimit = Annotated[int, Query(ge=1, le=4 * 1024 * 1024, description="How many bytes at most.")]


def read_row_id(text: str, name: str = "cursor") -> int:
    """The row id in a cursor or a header named `name`. Raises BadRequest for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_ID)) and int(text) <= LARGEST_ID):
        raise BadRequest(f"{name}: expected an id that this API has returned, found {text[:80]!r}; start without it")
    return int(text)


async def answer_while_connected(
    request: Request,
    work: Awaitable[bytes],
    *,
    media_type: str = JSON_MEDIA_TYPE,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An answer that `work` makes; where the client closes its connection meanwhile, `work` is canceled.

    For routes without a body: what the client sends further is dropped.
    """
    working = asyncio.ensure_future(work)
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_cancel_when_gone(request, working), name="watch a client's connection")
            await asyncio.wait([working])
            watching.cancel()
    finally:
        working.cancel()
    if working.cancelled():
        return Response(status_code=_CLIENT_GONE)
    return Response(working.result(), media_type=media_type, headers=headers)


async def _cancel_when_gone(request: Request, working: "asyncio.Future[bytes]") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    working.cancel()
