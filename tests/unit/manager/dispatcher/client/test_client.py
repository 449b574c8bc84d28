"""The manager's end of a dispatcher, under virtual time."""

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes.small_experiments import played
from fakes.suspended_dispatchers import SuspendableDispatchers

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import (
    FINISH_SECONDS,
    DispatcherClient,
    DispatcherGone,
    DispatcherRestarted,
    DispatcherSilent,
    InputSource,
)
from proctor.manager.dispatcher.protocol import News, ToDispatcher
from proctor.manager.simulation.virtual_time import run_virtual

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}


class Stage(InputSource):
    """A client with an input log in memory."""

    def __init__(self) -> None:
        self.dispatchers = SuspendableDispatchers()
        self.log: list[ToDispatcher] = []
        self.received: list[News | DispatcherRestarted | DispatcherSilent] = []
        self.returned = asyncio.Event()
        """Set when the client serves no more."""
        initialize = protocol.Initialize("e", SPACE, protocol.AlgorithmSpec(name="Random"), None, 7, "")
        self.client = DispatcherClient(initialize, open_channel=self.dispatchers.open, inputs=self)

    async def serve(self) -> None:
        await self.client.run(self.received.append)

    @property
    def restarts(self) -> list[str]:
        return [message.exit_message for message in self.received if isinstance(message, DispatcherRestarted)]

    @property
    def silences(self) -> list[str]:
        return [message.problem for message in self.received if isinstance(message, DispatcherSilent)]

    async def read(self, after: int, limit: int) -> list[ToDispatcher]:
        return [message for message in self.log if message.position > after][:limit]  # type: ignore[union-attr]

    def request(self, *ids: int) -> None:
        """Ask for suggestions."""
        message = protocol.RequestTrialJobs(len(self.log) + 1, list(ids))
        self.log.append(message)
        self.client.send([message])

    def suggestions(self) -> dict[int, list[object]]:
        """By parameter id, all that came."""
        found: dict[int, list[object]] = {}
        for message in self.received:
            if isinstance(message, protocol.NewTrial):
                found.setdefault(message.parameter_id, []).append(message.parameters)
        return found


def converse(scenario: Callable[[Stage], Awaitable[None]]) -> Stage:
    """Run a scenario beside a client that serves."""
    stage = Stage()

    async def main(loop: object) -> None:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(stage.serve())
            serving.add_done_callback(lambda task: stage.returned.set())
            await scenario(stage)
            serving.cancel()

    run_virtual(main)
    return stage


def play(tmp_path: Path, scenario: Callable[[Stage], Awaitable[None]]) -> None:
    """A test that needs no folder."""
    converse(scenario)


@played(play)
async def test_one_that_answers_is_left_alone_for_hours(stage: Stage, /) -> None:
    stage.request(0)
    await asyncio.sleep(6 * 3600.0)
    assert len(stage.dispatchers.channels) == 1
    assert (stage.restarts, stage.silences) == ([], [])
    assert [type(message).__name__ for message in stage.received] == ["Initialized", "NewTrial"]


@played(play)
async def test_one_that_is_suspended_for_less_than_the_patience_goes_on(stage: Stage, /) -> None:
    await asyncio.sleep(7.0)
    stage.dispatchers.suspended = True
    stage.request(0)
    await asyncio.sleep(50.0)
    assert "it is suspended" in stage.client.problem
    await stage.dispatchers.go_on()
    await asyncio.sleep(300.0)
    assert stage.client.problem == ""
    assert stage.dispatchers.kills == 0
    assert list(stage.suggestions()) == [0]


@played(play)
async def test_a_dispatcher_that_has_died_owes_nothing(stage: Stage, /) -> None:
    """Neither while there is none, nor is its successor blamed for the time that it took."""
    stage.dispatchers.computing = True
    stage.request(0)
    await asyncio.sleep(100.0)
    assert stage.client.problem == "the tuner has been computing for 100 s and has not suggested anything yet"
    stage.dispatchers.channels[-1].close()
    await asyncio.sleep(0.1)
    assert (len(stage.dispatchers.channels), stage.client.problem) == (1, "")
    await asyncio.sleep(10.0)
    assert (len(stage.dispatchers.channels), stage.client.problem) == (2, "")
    await asyncio.sleep(10.0)
    assert re.match(r"the tuner has been computing for (19|20) s ", stage.client.problem)


@pytest.mark.parametrize("is_restarted", [False, True])
@played(play)
async def test_a_tuner_that_has_suggested_before_is_not_said_to_have_suggested_nothing(
    stage: Stage, /, is_restarted: bool
) -> None:
    if is_restarted:  # an earlier manager has stored the answer
        answer = protocol.Answer(0, {"x": 0.5})
        stage.log.append(protocol.RequestTrialJobs(1, [0], [answer]))
    else:
        stage.request(0)
        await asyncio.sleep(1.0)
    stage.dispatchers.computing = True
    stage.request(1)
    await asyncio.sleep(100.0)
    assert stage.client.problem.endswith(" s and has not made its next suggestion")


@played(play)
async def test_one_that_stays_suspended_is_killed_with_the_reason_and_its_successor_told_everything(
    stage: Stage, /
) -> None:
    stage.request(0)
    await asyncio.sleep(7.0)
    stage.dispatchers.suspended = True
    stage.request(1, 2)
    async with asyncio.timeout(100.0):
        await stage.dispatchers.killed.wait()
    stage.dispatchers.suspended = False
    await asyncio.sleep(100.0)
    assert len(stage.dispatchers.channels) == 2
    (exit_message,) = stage.restarts
    assert "has not answered for 60 s: it is suspended (by SIGSTOP or a debugger), so it was killed" in exit_message
    calm = await asyncio.to_thread(converse, ask_for_three)
    assert {key: values[-1] for key, values in stage.suggestions().items()} == {
        key: values[0] for key, values in calm.suggestions().items()
    }


async def ask_for_three(stage: Stage) -> None:
    stage.request(0)
    stage.request(1, 2)
    await asyncio.sleep(1.0)


@played(play)
async def test_one_that_computes_is_spared_and_reported_once(stage: Stage, /) -> None:
    await asyncio.sleep(7.0)
    stage.dispatchers.suspended, stage.dispatchers.share = True, 0.9
    await asyncio.sleep(1500.0)
    await stage.dispatchers.go_on()
    await asyncio.sleep(10.0)
    assert stage.dispatchers.kills == 0
    assert len(stage.silences) == 1
    assert "has not answered for 60 s" in stage.silences[0]


def test_one_that_never_answers_is_given_up_after_as_many_as_died() -> None:
    async def scenario(stage: Stage) -> None:
        stage.dispatchers.suspended = True
        await asyncio.sleep(1e5)

    words = "ended 5 times in a row: the dispatcher has not answered for 300 s"
    with pytest.RaisesGroup(pytest.RaisesExc(DispatcherGone, match=words)):
        converse(scenario)


@played(play)
async def test_a_manager_that_was_away_shoots_nobody_when_it_wakes(stage: Stage, /) -> None:
    """The clock jumps by an hour while a ping is unanswered, and the answer is read after the look at the clock."""
    await asyncio.sleep(6.0)
    for _ in range(10):
        stage.dispatchers.suspended = True
        await asyncio.sleep(6.0)
        asyncio.get_running_loop().jump(3600.0)  # type: ignore[attr-defined]
        await asyncio.sleep(6.0)
        await stage.dispatchers.go_on()
        await asyncio.sleep(6.0)
    assert stage.dispatchers.kills == 0
    assert stage.silences == []


def test_one_that_says_what_is_no_message_ends_the_conversation_with_its_words() -> None:
    async def scenario(stage: Stage) -> None:
        await asyncio.sleep(1.0)
        stage.dispatchers.channels[-1].say(b"nonsense\n")
        await asyncio.sleep(100.0)

    with pytest.RaisesGroup(pytest.RaisesExc(protocol.ProtocolError, match="nonsense")):
        converse(scenario)


async def finish(stage: Stage) -> None:
    """Ask for a suggestion and let the dispatcher leave in the same turn."""
    stage.request(0)
    stage.client.finish()
    await stage.returned.wait()


def test_one_that_may_leave_is_first_told_everything_and_answers() -> None:
    stage = converse(finish)
    assert list(stage.suggestions()) == [0]
    assert (len(stage.dispatchers.channels), stage.restarts) == (1, [])


@played(play)
async def test_one_that_has_begun_long_ago_leaves_after_its_last_message(stage: Stage, /) -> None:
    await asyncio.sleep(100.0)
    await finish(stage)
    assert list(stage.suggestions()) == [0]


@played(play)
async def test_one_that_does_not_leave_has_a_limit(stage: Stage, /) -> None:
    await asyncio.sleep(100.0)
    stage.dispatchers.suspended = True
    began = asyncio.get_running_loop().time()
    await finish(stage)
    assert asyncio.get_running_loop().time() - began == pytest.approx(FINISH_SECONDS)
    assert (stage.suggestions(), stage.restarts, stage.dispatchers.kills) == ({}, [], 0)


@played(play)
async def test_one_that_died_before_it_could_leave_is_not_started_again(stage: Stage, /) -> None:
    for _ in range(3):
        await asyncio.sleep(2.0)
        stage.dispatchers.channels[-1].close()
    await asyncio.sleep(0.1)  # the fourth start comes after 4 s
    await finish(stage)
    assert len(stage.dispatchers.channels) == 3


@played(play)
async def test_one_can_be_started_again_after_it_has_left(stage: Stage, /) -> None:
    await finish(stage)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(stage.serve())
        stage.request(1)
        await asyncio.sleep(1.0)
        serving.cancel()
    assert set(stage.suggestions()) == {0, 1}


@played(play)
async def test_one_that_the_machine_cannot_start_is_tried_again_with_the_reason(stage: Stage, /) -> None:
    stage.dispatchers.obstacles += [OSError(errno.EMFILE, "Too many open files")] * 3
    stage.request(0)
    await asyncio.sleep(1.0)
    assert stage.client.problem == ("the dispatcher cannot be started: Too many open files; tried again every 1 s")
    await asyncio.sleep(10.0)
    assert stage.client.problem == ""
    assert list(stage.suggestions()) == [0]
    assert stage.restarts == []


def test_one_that_can_never_be_started_is_an_error() -> None:
    stage = Stage()
    stage.dispatchers.obstacles.append(OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(OSError, match="Permission denied"):
        run_virtual(lambda loop: stage.serve())


@played(play)
async def test_an_experiment_that_is_stopped_does_not_wait_for_one_that_cannot_be_started(stage: Stage, /) -> None:
    stage.dispatchers.obstacles += [OSError(errno.ENOMEM, "Cannot allocate memory")] * 100
    await asyncio.sleep(100.0)
    stage.client.finish()
    async with asyncio.timeout(0.1):
        await stage.returned.wait()
