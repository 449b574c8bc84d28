"""Work for clients that go away."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from proctor.manager.api.routes.results import answer_while_connected

pytestmark = pytest.mark.anyio


class Client:
    """A connection that is open until it is closed."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.has_asked = False
        self.request = Request({"type": "http", "method": "GET", "headers": []}, self.receive)

    async def receive(self) -> Message:
        if not self.has_asked:
            self.has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_work_is_canceled_with_its_client() -> None:
    client, work = Client(), asyncio.get_running_loop().create_future()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        answering = group.create_task(answer_while_connected(client.request, work))
        await asyncio.sleep(0)
        client.gone.set()
        answer = await answering
    assert work.cancelled()
    assert answer.status_code == 499


async def test_work_is_answered_to_a_client_that_waits() -> None:
    async def work() -> bytes:
        return b"{}"

    answer = await answer_while_connected(Client().request, work())
    assert (answer.status_code, answer.body, answer.media_type) == (200, b"{}", "application/json")


async def test_work_that_fails_is_an_error_of_the_route() -> None:
    async def work() -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await answer_while_connected(Client().request, work())


async def test_work_ends_with_its_route() -> None:
    work = asyncio.get_running_loop().create_future()
    answering = asyncio.ensure_future(answer_while_connected(Client().request, work))
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert work.cancelled()
