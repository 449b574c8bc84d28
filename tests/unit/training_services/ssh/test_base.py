"""How many sessions of a connection may be open."""

import asyncio

import pytest

from proctor.training_services.ssh.base import SessionSlots

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def hold(slots: SessionSlots, leave: asyncio.Event) -> None:
    """A session that is open until it may leave."""
    async with slots.take():
        await leave.wait()


async def test_one_more_than_allowed_waits() -> None:
    slots = SessionSlots(2)
    entered: list[int] = []
    leave = asyncio.Event()

    async def hold(number: int) -> None:
        async with slots.take():
            entered.append(number)
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(hold(number))
        await settle()
        assert entered == [0, 1]
        leave.set()
    assert entered == [0, 1, 2]


async def test_a_refused_session_waits_for_another_to_end_and_lowers_the_limit() -> None:
    slots = SessionSlots(6)
    leave = asyncio.Event()
    refusal = asyncio.Event()
    again: list[bool] = []

    async def be_refused() -> None:
        async with slots.take():
            await refusal.wait()
            again.append(await slots.give_way())

    async with asyncio.TaskGroup() as group:
        group.create_task(hold(slots, leave))
        group.create_task(hold(slots, leave))
        await settle()
        group.create_task(be_refused())
        group.create_task(be_refused())
        await settle()
        refusal.set()
        await settle()
        assert (again, slots.limit) == ([], 2)
        leave.set()
    assert again == [True, True]


async def test_a_refused_session_that_is_alone_need_not_wait() -> None:
    slots = SessionSlots(6)
    async with slots.take():
        assert not await slots.give_way()
    assert slots.limit == 6


async def test_being_cancelled_while_waiting_gives_nothing_back_twice() -> None:
    slots = SessionSlots(1)
    leave = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        group.create_task(hold(slots, leave))
        waiting = group.create_task(hold(slots, leave))
        await settle()
        waiting.cancel()
        await settle()
        leave.set()
    async with asyncio.timeout(60), slots.take():
        pass
