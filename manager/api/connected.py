"""Work for a client that may go away meanwhile: then the work ends, too."""

import asyncio
from collections.abc import Awaitable

from starlette.requests import Request
from starlette.responses import Response

MEDIA_TYPE = "application/json"
_CLIENT_GONE = 499
"""What servers call it in their logs; it reaches no client."""


async def json_while_connected(request: Request, work: Awaitable[bytes]) -> Response:
    """An answer of JSON text that `work` makes; where the client closes its connection meanwhile, `work` is canceled.

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
    return Response(working.result(), media_type=MEDIA_TYPE)


async def _cancel_when_gone(request: Request, working: "asyncio.Future[bytes]") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    working.cancel()
