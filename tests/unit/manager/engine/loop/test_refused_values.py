"""A value that the store refuses ends one trial or one request, never the experiment, under virtual time.

The store is SQLite's own: a limit for the length of texts is set on its connection.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, SceneService, played

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import InProcessChannel
from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables.metrics import store_chunk
from proctor.training_services.base import EndReason, SupportsNotices, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, ScriptedStart, Step

LIMIT = 20_000
LONG = "x" * 30_000
SUCCEEDED = TrialStatus.SUCCEEDED


class WordyChannel(InProcessChannel):
    """Its second suggestion is longer than the store takes."""

    async def lines(self) -> AsyncIterator[bytes]:
        async for line in super().lines():
            message = protocol.decode(line)
            if isinstance(message, protocol.NewTrial) and message.parameter_id == 1:
                message = replace(message, parameters={"x": LONG})
                line = protocol.encode(message)
            yield line


@asynccontextmanager
async def opened(channel: InProcessChannel) -> AsyncIterator[InProcessChannel]:
    """A dispatcher's channel, closed at the end."""
    try:
        yield channel
    finally:
        channel.close()


def wordy_dispatchers(row: ExperimentRow, config: ExperimentConfig) -> Opener:
    return lambda: opened(WordyChannel())


class RefusingScene(Scene):
    """The second trial's job does `second`; the others succeed."""

    config = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 4, "seed": 7}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"script": self._steps})
        self.second: list[Step] = []

    def _steps(self, form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 1 and self.second:
            return self.second
        return [ScriptedReport(10.0, 0.5), Final(10.0, 1.0)]

    async def until_one_has_failed(self, why: str) -> None:
        """The second trial has failed because of `why`, the others have succeeded."""
        row = await self.until_ended()
        assert (row.status, row.error) == (ExperimentStatus.DONE, "")
        assert await self.statuses() == [SUCCEEDED, TrialStatus.FAILED, SUCCEEDED, SUCCEEDED]
        reason = (await self.trial(1)).reason
        assert why in reason
        assert "too big" in reason


async def limit(database: Database) -> None:
    """From now on the database refuses long texts."""
    await database.write(lambda c: c.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMIT))


play = partial(small_experiments.play, kind=RefusingScene)


@pytest.mark.parametrize(
    "step",
    [
        ScriptedReport(10.0, {"default": 1.0, "note": LONG}),
        Final(10.0, {"default": 1.0, "note": LONG}),
    ],
)
@pytest.mark.parametrize("which", ["metrics", "control"])
@played(play)
async def test_a_metric_that_the_store_refuses_ends_its_trial(
    scene: RefusingScene, manager: Manager, /, step: Step, which: str
) -> None:
    scene.second = [ScriptedReport(5.0, 0.5), step, ScriptedReport(5.0, 0.5), ScriptedExit(5.0)]
    await scene.create()
    await limit(manager.control if which == "control" else await manager.metrics("exp"))
    if which == "control" and isinstance(step, ScriptedReport):  # only the number is stored there
        assert (await scene.until_ended()).status is ExperimentStatus.DONE
        assert set(await scene.statuses()) == {SUCCEEDED}
    else:
        await scene.until_one_has_failed("cannot be stored")


@played(play)
async def test_a_final_metric_that_only_the_control_database_refuses_keeps_no_experiment_from_being_loaded(
    scene: RefusingScene, manager: Manager, /
) -> None:
    scene.second = [ScriptedStart(), ScriptedReport(1000.0, 0.5), ScriptedExit()]
    scene.failures += [OSError(5, "Input/output error")]
    await limit(manager.control)
    await scene.create(seconds=5.5)
    assert manager.not_loaded(await scene.row()) != ""
    second = await scene.trial(1)
    line = b'{"kind":"final","value":{"default":1.0,"note":"%s"},"time":1.0}\n' % LONG.encode()
    metrics = await manager.metrics("exp")
    await metrics.write(
        lambda c: store_chunk(c, trial_id=second.id, job=1, member=0, offset=0, data=line, first_sequence=0)
    )
    await scene.until_one_has_failed("cannot be stored")


class HintedScene(RefusingScene):
    """Its trials report final metrics alone, which a trial scheduler cannot judge; the first one's value is refused."""

    config = RefusingScene.config | {
        "trialConcurrency": 1,
        "maxTrialNumber": 2,
        "trialScheduler": {"name": "ASHA", "classArgs": {"max_t": 4}},
    }

    def _steps(self, form: TrialJobForm) -> Iterable[Step]:
        return [Final(10.0, {"default": 1.0, "note": LONG} if form.sequence_id == 0 else 1.0)]


@played(partial(small_experiments.play, kind=HintedScene))
async def test_a_hint_of_a_turn_that_was_not_stored_is_given_when_it_applies_again(
    scene: HintedScene, manager: Manager, /
) -> None:
    await limit(manager.control)
    await scene.create()
    await scene.until_ended()
    assert await scene.statuses() == [TrialStatus.FAILED, SUCCEEDED]
    hints = [text for text in await scene.notices() if "without an intermediate metric" in text]
    assert [text.partition(" has ended")[0] for text in hints] == ["trial 1"]


NEWS = list[str]()
"""What the platform of a `NoticingScene` has to say, until it is asked."""


class NoticingService(SceneService, SupportsNotices):
    """Says each sentence once."""

    def take_notices(self) -> Sequence[str]:
        news = NEWS[:]
        NEWS.clear()
        return news


class NoticingScene(RefusingScene):
    """Its platform has news when the suggestion comes that is refused."""

    service = NoticingService


class NoticedChannel(WordyChannel):
    """See `NoticingScene`."""

    async def lines(self) -> AsyncIterator[bytes]:
        async for line in super().lines():
            if LONG.encode() in line:
                NEWS.append("a right is missing")
            yield line


def noticed_dispatchers(row: ExperimentRow, config: ExperimentConfig) -> Opener:
    return lambda: opened(NoticedChannel())


@played(partial(small_experiments.play, kind=NoticingScene), open_dispatcher=noticed_dispatchers)
async def test_what_a_platform_says_in_a_turn_that_was_not_stored_is_not_lost(
    scene: NoticingScene, manager: Manager, /
) -> None:
    await limit(manager.control)
    await scene.create()
    await scene.until_one_has_failed("the parameters that were suggested cannot be stored")
    assert (await scene.notices()).count("a right is missing") == 1


@played(play, open_dispatcher=wordy_dispatchers)
async def test_a_suggestion_that_the_store_refuses_is_one_failed_trial(
    scene: RefusingScene, manager: Manager, /
) -> None:
    await limit(manager.control)
    await scene.create()
    await scene.until_one_has_failed("the parameters that were suggested cannot be stored")


@pytest.mark.parametrize(
    "command",
    [
        m.AddTrial({"x": LONG}),
        m.AddTrial({"x": {1, 2}}),
        m.ImportRows([{"parameter": {"x": LONG}, "value": 1.0}]),
        m.ChangeLimits({"search_space": {"x": {"_type": "choice", "_value": [LONG]}}}),
        m.ChangeLimits({"max_trial_number": 2**63}),
    ],
)
@played(play)
async def test_a_request_that_the_store_refuses_is_refused_alone(
    scene: RefusingScene, manager: Manager, /, command: m.LoopMessage
) -> None:
    await limit(manager.control)
    await scene.create(seconds=15.0)
    before = await scene.row()
    fitting = m.AddTrial({"x": 0.5})
    asked = [manager._supervisor.ask("exp", each) for each in (fitting, command, fitting)]
    first, refusal, second = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(refusal, BadRequest)
    assert "cannot be stored" in str(refusal)
    assert (first.sequence_id, second.sequence_id) == (2, 3)
    after = await scene.row()
    assert (after.revision, after.search_space) == (before.revision, before.search_space)
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert await scene.statuses() == [SUCCEEDED] * 4


@pytest.mark.parametrize("detail", [LONG, "a name that is no UTF-8: \udce9"])
@pytest.mark.parametrize("reason", [EndReason.EXITED_ERROR, EndReason.EXITED_OK])
@played(play)
async def test_an_end_with_words_that_the_store_refuses_is_an_end(
    scene: RefusingScene, manager: Manager, /, reason: EndReason, detail: str
) -> None:
    scene.second = [ScriptedReport(5.0, 0.5), ScriptedExit(1.0, reason=reason, code=2**70, detail=detail)]
    await limit(manager.control)
    assert (await scene.run()).status is ExperimentStatus.DONE
    found = await scene.trial(1)
    ended_well = reason is EndReason.EXITED_OK
    assert found.status is (SUCCEEDED if ended_well else TrialStatus.FAILED)
    assert any("cannot be stored" in text for text in await scene.notices())
