"""A value that the store refuses ends one trial or one request, never the experiment, under virtual time.

The store is SQLite's own: a limit for the length of texts is set on its connection.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, played

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import InProcessChannel
from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow, TrialRow
from proctor.manager.store.tables import events, trials
from proctor.manager.store.tables.metrics import store_chunk
from proctor.training_services.base import EndReason, TrainingService, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, ScriptedStart, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

LIMIT = 20_000
LONG = "x" * 30_000
CONFIG = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 4, "seed": 7}


class WordyChannel(InProcessChannel):
    """Its second suggestion is longer than the store takes."""

    async def lines(self) -> AsyncIterator[bytes]:
        async for line in super().lines():
            message = protocol.decode(line)
            if isinstance(message, protocol.NewTrial) and message.parameter_id == 1:
                message = replace(message, parameters={"x": LONG})
                line = protocol.encode(message)
            yield line


def wordy_dispatchers(row: ExperimentRow, config: ExperimentConfig) -> Opener:
    @asynccontextmanager
    async def open_wordy() -> AsyncIterator[WordyChannel]:
        channel = WordyChannel()
        try:
            yield channel
        finally:
            channel.close()

    return open_wordy


class BriefService(InMemoryTrainingService):
    """Its `run` fails with what may pass by itself after so many seconds, if there are any."""

    seconds = 0.0

    async def run(self) -> None:
        if not self.seconds:
            await super().run()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                await super().run()
        raise OSError(5, "Input/output error")


class Scene(Simulation):
    """A simulated home with one experiment. The second trial's job does `second`; the others succeed."""

    def __init__(self, folder: Path, loop: VirtualTimeLoop, **options: Any) -> None:
        super().__init__(Home(folder / "home"), loop, script=self._steps, **options)
        self.folder = folder
        self.second: list[Step] = []
        self.fails_after = 0.0  # seconds after which the first service fails; 0: it does not

    def _steps(self, form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 1 and self.second:
            yield from self.second
        else:
            yield ScriptedReport(10.0, 0.5)
            yield Final(10.0, 1.0)

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        service = BriefService(self._script, platform=memory, now=self.clock.now)
        service.seconds, self.fails_after = self.fails_after, 0.0
        return service

    async def create(self, manager: Manager) -> None:
        await manager.create_experiment(config=CONFIG, directory=str(self.folder), experiment_id="exp")

    async def trials(self, manager: Manager) -> list[TrialRow]:
        return (await manager.control.read(lambda c: trials.page(c, "exp", limit=100))).items

    async def notices(self, manager: Manager) -> str:
        return "\n".join(await manager.control.read(lambda c: events.notices(c, "exp", limit=100)))


async def limit(database: Database) -> None:
    """From now on the database refuses long texts."""
    await database.write(lambda c: c.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMIT))


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await act(Scene(tmp_path, loop, **options))

    run_virtual(main)


async def one_failed(scene: Scene, manager: Manager, why: str) -> None:
    """The second trial has failed because of `why`, the others have succeeded."""
    row = await scene.ended(manager, "exp")
    assert (row.status, row.error) == (ExperimentStatus.DONE, "")
    found = await scene.trials(manager)
    assert [trial.status for trial in found] == [
        TrialStatus.SUCCEEDED,
        TrialStatus.FAILED,
        TrialStatus.SUCCEEDED,
        TrialStatus.SUCCEEDED,
    ]
    assert why in found[1].reason
    assert "too big" in found[1].reason


@pytest.mark.parametrize(
    "step",
    [
        ScriptedReport(10.0, {"default": 1.0, "note": LONG}),
        Final(10.0, {"default": 1.0, "note": LONG}),
    ],
)
@pytest.mark.parametrize("which", ["metrics", "control"])
@played(play)
async def test_a_metric_that_the_store_refuses_ends_its_trial(scene: Scene, /, step: Step, which: str) -> None:
    scene.second = [ScriptedReport(5.0, 0.5), step, ScriptedReport(5.0, 0.5), ScriptedExit(5.0)]
    async with scene.manager() as manager:
        await scene.create(manager)
        await limit(manager.control if which == "control" else await manager.metrics("exp"))
        if which == "control" and isinstance(step, ScriptedReport):  # only the number is stored there
            assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
            assert {trial.status for trial in await scene.trials(manager)} == {TrialStatus.SUCCEEDED}
        else:
            await one_failed(scene, manager, "cannot be stored")


@played(play)
async def test_a_final_metric_that_only_the_control_database_refuses_keeps_no_experiment_from_being_loaded(
    scene: Scene, /
) -> None:
    scene.second = [ScriptedStart(), ScriptedReport(1000.0, 0.5), ScriptedExit()]
    scene.fails_after = 5.0
    async with scene.manager() as manager:
        await limit(manager.control)
        await scene.create(manager)
        await asyncio.sleep(5.5)
        assert manager.not_loaded(await manager.experiment("exp")) != ""
        (second,) = [trial for trial in await scene.trials(manager) if trial.sequence_id == 1]
        line = b'{"kind":"final","value":{"default":1.0,"note":"%s"},"time":1.0}\n' % LONG.encode()
        metrics = await manager.metrics("exp")
        await metrics.write(
            lambda c: store_chunk(c, trial_id=second.id, job=1, member=0, offset=0, data=line, first_sequence=0)
        )
        await one_failed(scene, manager, "cannot be stored")


@played(play, open_dispatcher=wordy_dispatchers)
async def test_a_suggestion_that_the_store_refuses_is_one_failed_trial(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await limit(manager.control)
        await scene.create(manager)
        await one_failed(scene, manager, "the parameters that were suggested cannot be stored")


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
async def test_a_request_that_the_store_refuses_is_refused_alone(scene: Scene, /, command: m.LoopMessage) -> None:
    async with scene.manager() as manager:
        await limit(manager.control)
        await scene.create(manager)
        await asyncio.sleep(15.0)
        before = await manager.experiment("exp")
        fitting = m.AddTrial({"x": 0.5})
        asked = [manager._supervisor.ask("exp", each) for each in (fitting, command, fitting)]
        first, refusal, second = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(refusal, BadRequest)
        assert "cannot be stored" in str(refusal)
        assert (first.sequence_id, second.sequence_id) == (2, 3)
        after = await manager.experiment("exp")
        assert (after.revision, after.search_space) == (before.revision, before.search_space)
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
        assert [trial.status for trial in await scene.trials(manager)] == [TrialStatus.SUCCEEDED] * 4


@pytest.mark.parametrize("detail", [LONG, "a name that is no UTF-8: \udce9"])
@pytest.mark.parametrize("reason", [EndReason.EXITED_ERROR, EndReason.EXITED_OK])
@played(play)
async def test_an_end_with_words_that_the_store_refuses_is_an_end(
    scene: Scene, /, reason: EndReason, detail: str
) -> None:
    scene.second = [ScriptedReport(5.0, 0.5), ScriptedExit(1.0, reason=reason, code=2**70, detail=detail)]
    async with scene.manager() as manager:
        await limit(manager.control)
        await scene.create(manager)
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
        found = (await scene.trials(manager))[1]
        ended_well = reason is EndReason.EXITED_OK
        assert found.status is (TrialStatus.SUCCEEDED if ended_well else TrialStatus.FAILED)
        assert "cannot be stored" in await scene.notices(manager)
