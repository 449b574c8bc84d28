"""Checkpoints that are copied to the manager's machine in the background: which ones, and what keeps them from it."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import played, saved

from proctor.manager.engine.loop import copies
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import events, metrics, trials
from proctor.training_services.base import SupportsCheckpointCopies, TrainingService, TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

Scenario = Callable[["Platform", Manager, str], Awaitable[None]]
STEPS = 6


class Service(InMemoryTrainingService, SupportsCheckpointCopies):
    """A copy takes `seconds`; then it raises what is in `problems`, the last of them for ever."""

    def __init__(self, *given: Any, platform_of_test: "Platform", **options: Any) -> None:
        super().__init__(*given, **options)
        self._test = platform_of_test

    async def copy_checkpoint(self, form: TrialJobForm, path: str) -> None:
        name = f"{form.sequence_id}:{path.rpartition('/')[2]}"
        self._test.log.append(f"begin {name}")
        try:
            await asyncio.sleep(self._test.seconds)
        except asyncio.CancelledError:
            self._test.log.append(f"cancel {name}")
            raise
        if self._test.problems:
            raise self._test.problems[0] if len(self._test.problems) == 1 else self._test.problems.pop(0)
        self._test.log.append(f"end {name}")


class Platform(Simulation):
    """Remembers what was copied."""

    log: list[str]
    problems: list[Exception]
    seconds: float
    size: int

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        played = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return Service(self._script, platform=played, now=self.clock.now, platform_of_test=self)


WHOLE = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python trial.py",
    "trialConcurrency": 5,
    "maxTrialNumber": 1,
    "objective": {"direction": "maximize"},
    "tuner": {"name": "Random"},
    "trainingService": {"platform": "local"},
}


def play(
    tmp_path: Path,
    scenario: Scenario,
    then: Scenario | None = None,
    *,
    seconds: float = 1.0,
    size: int = 4,
    **config: Any,
) -> list[str]:
    """What is copied in an experiment of trials that save once a minute, six times.

    :param then: what happens after a restart of the manager.
    """

    def training(form: TrialJobForm) -> Iterable[Step]:
        for step in range(1, STEPS + 1):
            yield ScriptedReport(60.0, float(step))
            yield saved(form, step, bytes=size)
        yield Final(1.0, form.sequence_id)

    async def main(loop: VirtualTimeLoop) -> list[str]:
        platform = Platform(Home(tmp_path / "home"), loop, script=training)
        platform.log, platform.problems, platform.seconds = [], [], seconds
        async with platform.manager() as manager:
            row = await manager.create_experiment(config=WHOLE | config, directory=str(tmp_path))
            await scenario(platform, manager, row.id)
        if then is not None:
            async with platform.manager() as manager:
                await then(platform, manager, row.id)
        return platform.log

    return run_virtual(main)


async def until_the_end(platform: Platform, manager: Manager, experiment_id: str) -> None:
    await platform.ended(manager, experiment_id)


async def kept(manager: Manager, experiment_id: str) -> list[int]:
    """The numbers of the checkpoints of trial 0 that are not deleted."""
    (trial, *_) = (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=9))).items
    database = await manager.metrics(experiment_id)
    rows = await database.read(lambda c: metrics.checkpoints(c, trial.id, limit=100))
    return [int(row.path.rpartition("/")[2]) for row in rows if row.deleted_at is None]


async def notices(manager: Manager, experiment_id: str) -> list[str]:
    return await manager.control.read(lambda c: events.notices(c, experiment_id, limit=100))


def test_every_checkpoint_is_copied_when_there_is_time(tmp_path: Path) -> None:
    log = play(tmp_path, until_the_end)
    assert [line for line in log if line.startswith("end")][:5] == [f"end 0:{n}" for n in (1, 2, 3, 4, 5)]


@played(play, seconds=140.0, trialConcurrency=1, keepCheckpoints=1)
async def test_one_that_is_superseded_before_its_turn_is_skipped(
    platform: Platform, manager: Manager, experiment_id: str, /
) -> None:
    await asyncio.sleep(350.0)
    assert platform.log == ["begin 0:1", "end 0:1", "begin 0:3", "end 0:3", "begin 0:5"]


@played(play, seconds=150.0, keepCheckpoints=1)
async def test_one_that_is_being_copied_is_kept_until_it_is_here(
    platform: Platform, manager: Manager, experiment_id: str, /
) -> None:
    await asyncio.sleep(200.0)  # 3 are registered; 1 is being copied since 60 s
    assert await kept(manager, experiment_id) == [1, 3]
    await asyncio.sleep(15.0)  # copied at 210
    assert await kept(manager, experiment_id) == [3]


@played(play, seconds=500.0, keepCheckpoints=1)
async def test_what_is_copied_or_waits_for_it_ends_with_the_trial(
    platform: Platform, manager: Manager, experiment_id: str, /
) -> None:
    await asyncio.sleep(200.0)
    (trial, *_) = (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=9))).items
    await manager.trials.kill(trial.id)
    await asyncio.sleep(1.0)
    assert (await manager.trials.get(trial.id)).status is TrialStatus.USER_CANCELED
    await asyncio.sleep(600.0)
    assert platform.log == ["begin 0:1", "cancel 0:1"]
    assert await kept(manager, experiment_id) == [3]


@played(play, seconds=20.0, maxTrialNumber=5)
async def test_a_few_are_copied_at_a_time(platform: Platform, manager: Manager, experiment_id: str, /) -> None:
    await asyncio.sleep(90.0)
    assert len([line for line in platform.log if line.startswith("begin")]) == 4
    assert len([line for line in platform.log if line.startswith("end")]) == 2


@played(play)
async def test_a_machine_that_is_away_is_asked_again(
    platform: Platform, manager: Manager, experiment_id: str, /
) -> None:
    platform.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
    await asyncio.sleep(75.0)
    platform.problems.clear()
    await asyncio.sleep(35.0)
    assert platform.log[-1] == "end 0:1"
    assert await notices(manager, experiment_id) == []


def test_a_copy_for_which_there_is_no_room_is_one_notice(tmp_path: Path) -> None:
    async def scenario(platform: Platform, manager: Manager, experiment_id: str) -> None:
        await platform.ended(manager, experiment_id)
        (notice,) = await notices(manager, experiment_id)
        assert notice.startswith("a checkpoint was not copied to the manager's machine: output/checkpoints/1 of job"), (
            notice
        )
        assert "takes 1,000,000.0 GB, and its disk has " in notice

    assert play(tmp_path, scenario, size=10**15, keepCheckpoints="all") == []


@played(play)
async def test_a_copy_for_which_there_was_no_room_is_made_when_there_is(
    platform: Platform, manager: Manager, experiment_id: str, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SPARE_BYTES", 1 << 60)
    await asyncio.sleep(90.0)
    (trial, *_) = (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=9))).items
    await manager.trials.pause(trial.id)  # it saves no more
    await asyncio.sleep(600.0)
    assert platform.log == []
    monkeypatch.setattr(copies, "SPARE_BYTES", 0)
    await asyncio.sleep(61.0)
    assert platform.log == ["begin 0:1", "end 0:1"]
    assert len(await notices(manager, experiment_id)) == 1


def test_copies_that_are_made_at_once_count_on_each_others_room_in_all_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SPARE_BYTES", 0)

    async def scenario(platform: Platform, manager: Manager, experiment_id: str) -> None:
        other = await manager.create_experiment(config=WHOLE | {"maxTrialNumber": 2}, directory=str(tmp_path))
        await asyncio.sleep(350.0)
        ids = (experiment_id, other.id)
        assert [await notices(manager, name) for name in ids] == [[], []]

    log = play(tmp_path, scenario, seconds=15.0, size=shutil.disk_usage(tmp_path).free * 3 // 5, maxTrialNumber=2)
    assert len(log) > 4
    assert [line.split()[0] for line in log] == ["begin", "end"] * (len(log) // 2)  # never two of them


def test_the_checkpoint_of_a_trial_that_was_paused_is_copied_by_the_next_manager(tmp_path: Path) -> None:
    async def scenario(platform: Platform, manager: Manager, experiment_id: str) -> None:
        platform.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
        await asyncio.sleep(130.0)
        for trial in (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=9))).items:
            await manager.trials.pause(trial.id)
        await asyncio.sleep(1.0)

    async def then(platform: Platform, manager: Manager, experiment_id: str) -> None:
        platform.problems.clear()
        platform.log.clear()
        await asyncio.sleep(10.0)
        assert sorted(platform.log) == ["begin 0:2", "begin 1:2", "end 0:2", "end 1:2"]

    play(tmp_path, scenario, then, maxTrialNumber=2)


@played(play)
async def test_a_copy_that_fails_is_one_notice_until_one_works_again(
    platform: Platform, manager: Manager, experiment_id: str, /
) -> None:
    platform.problems[:] = [TrainingServiceError("the manager's disk is full")]
    await asyncio.sleep(200.0)
    expected = "a checkpoint was not copied to the manager's machine: the manager's disk is full; "
    assert [notice[: len(expected)] for notice in await notices(manager, experiment_id)] == [expected]
    platform.problems.clear()
    await asyncio.sleep(60.0)
    platform.problems[:] = [TrainingServiceError("the manager's disk is full again")]
    await asyncio.sleep(60.0)
    assert len(await notices(manager, experiment_id)) == 2


def test_nothing_is_copied_where_that_is_turned_off(tmp_path: Path) -> None:
    assert play(tmp_path, until_the_end, copyCheckpoints=False) == []
