"""Tasks end together and fail by name."""

import asyncio

import pytest

from proctor.trial_keeper.linux.tasks import TaskGroup, until_first_ends

pytestmark = pytest.mark.anyio


class Waiting:
    """A task that waits until it is canceled."""

    def __init__(self) -> None:
        self.has_started = asyncio.Event()
        self.was_canceled = False

    async def wait(self) -> None:
        self.has_started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.was_canceled = True


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


async def test_a_failure_cancels_the_others_and_is_raised_itself(waiting: Waiting) -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        async with TaskGroup() as group:
            group.start(waiting.wait(), "wait")
            group.start(fail(), "fail")
    assert waiting.was_canceled


async def test_leaving_waits_for_tasks_started_by_tasks() -> None:
    done: list[int] = []
    async with TaskGroup() as group:

        async def count(number: int) -> None:
            done.append(number)
            if number < 3:
                group.start(count(number + 1), "count")

        group.start(count(1), "count")
    assert done == [1, 2, 3]


async def test_a_failing_body_cancels_the_tasks(waiting: Waiting) -> None:
    with pytest.raises(KeyError):
        async with TaskGroup() as group:
            group.start(waiting.wait(), "wait")
            await waiting.has_started.wait()
            raise KeyError("body")
    assert waiting.was_canceled


async def test_the_first_to_end_ends_the_rest() -> None:
    async def end() -> None:
        return

    await until_first_ends(end=end(), wait=asyncio.Event().wait())


async def test_cancelling_from_outside_reaches_the_tasks(waiting: Waiting) -> None:
    async with TaskGroup() as outer:
        outer.start(until_first_ends(wait=waiting.wait()), "inner")
        await waiting.has_started.wait()
        outer.cancel()
    assert waiting.was_canceled


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
