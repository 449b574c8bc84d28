"""Tasks end together and fail by name."""

import asyncio

import pytest

from proctor.trial_keeper.linux.tasks import TaskGroup, until_first_ends

pytestmark = pytest.mark.anyio


async def test_a_failure_cancels_the_others_and_is_raised_itself() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("canceled")

    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        async with TaskGroup() as group:
            group.start(wait(), "wait")
            group.start(fail(), "fail")
    assert ended == ["canceled"]


async def test_leaving_waits_for_tasks_started_by_tasks() -> None:
    done: list[int] = []
    async with TaskGroup() as group:

        async def count(number: int) -> None:
            done.append(number)
            if number < 3:
                group.start(count(number + 1), "count")

        group.start(count(1), "count")
    assert done == [1, 2, 3]


async def test_a_failing_body_cancels_the_tasks() -> None:
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyError):
        async with TaskGroup() as group:
            group.start(wait(), "wait")
            await asyncio.sleep(0)
            raise KeyError("body")
    assert ended.is_set()


async def test_the_first_to_end_ends_the_rest() -> None:
    async def end() -> None:
        return

    await until_first_ends(end=end(), wait=asyncio.Event().wait())


async def test_cancelling_from_outside_reaches_the_tasks() -> None:
    started, canceled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            canceled.set()

    async with TaskGroup() as outer:
        outer.start(until_first_ends(wait=wait()), "inner")
        await started.wait()
        outer.cancel()
    assert canceled.is_set()


async def test_a_task_that_loses_its_first_cancellation_is_cancelled_again() -> None:
    cancellations: list[int] = []

    async def lose_one() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations.append(1)
                if len(cancellations) == 2:
                    raise

    async with TaskGroup() as group:
        group.start(lose_one(), "lose one")
        await asyncio.sleep(0)
        group.cancel()
    assert len(cancellations) == 2
