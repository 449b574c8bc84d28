"""Checkpoints that are copied to the manager's machine in the background: which ones, and what keeps them from it."""

import asyncio
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, SceneService, played, saved

from proctor.manager.engine.loop import copies
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.tables import metrics
from proctor.training_services.base import SupportsCheckpointCopies, TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

STEPS = 6


class Service(SceneService, SupportsCheckpointCopies):
    """A copy takes `seconds`; then it raises what is in `problems`, the last of them forever."""

    async def copy_checkpoint(self, form: TrialJobForm, path: str) -> None:
        name = f"{form.sequence_id}:{path.rpartition('/')[2]}"
        self.scene.asked.append(f"begin {name}")
        try:
            await asyncio.sleep(self.scene.seconds)
        except asyncio.CancelledError:
            self.scene.asked.append(f"cancel {name}")
            raise
        if problems := self.scene.problems:
            raise problems[0] if len(problems) == 1 else problems.pop(0)
        self.scene.asked.append(f"end {name}")


class CopyScene(Scene):
    """Its trials save once a minute, six times; it remembers what was copied."""

    service = Service
    config = SMALL | {"trialConcurrency": 5, "maxTrialNumber": 1}

    def __init__(self, *arguments: Any, seconds: float = 1.0, size: int = 4, **options: Any) -> None:
        super().__init__(*arguments, **options | {"script": self._training})
        self.seconds = seconds
        self._size = size

    def _training(self, form: TrialJobForm) -> Iterable[Step]:
        for step in range(1, STEPS + 1):
            yield ScriptedReport(60.0, float(step))
            yield saved(form, step, bytes=self._size)
        yield Final(1.0, form.sequence_id)

    async def kept(self) -> list[int]:
        """The numbers of the checkpoints of trial 0 that are not deleted."""
        trial = await self.trial()
        database = await self._manager.metrics("exp")
        rows = await database.read(lambda c: metrics.checkpoints(c, trial.id, limit=100))
        return [int(row.path.rpartition("/")[2]) for row in rows if row.deleted_at is None]


play = partial(small_experiments.play, kind=CopyScene)


@played(play)
async def test_every_checkpoint_is_copied_when_there_is_time(scene: CopyScene, manager: Manager, /) -> None:
    await scene.run()
    assert [line for line in scene.asked if line.startswith("end")][:5] == [f"end 0:{n}" for n in (1, 2, 3, 4, 5)]


@played(play, seconds=140.0)
async def test_one_that_is_superseded_before_its_turn_is_skipped(scene: CopyScene, manager: Manager, /) -> None:
    await scene.create(trialConcurrency=1, keepCheckpoints=1, seconds=350.0)
    assert scene.asked == ["begin 0:1", "end 0:1", "begin 0:3", "end 0:3", "begin 0:5"]


@played(play, seconds=150.0)
async def test_one_that_is_being_copied_is_kept_until_it_is_here(scene: CopyScene, manager: Manager, /) -> None:
    await scene.create(keepCheckpoints=1, seconds=200.0)  # 3 are registered; 1 is being copied since 60 s
    assert await scene.kept() == [1, 3]
    await asyncio.sleep(15.0)  # copied at 210
    assert await scene.kept() == [3]


@played(play, seconds=500.0)
async def test_what_is_copied_or_waits_for_it_ends_with_the_trial(scene: CopyScene, manager: Manager, /) -> None:
    await scene.create(keepCheckpoints=1, seconds=200.0)
    await manager.trials.kill((await scene.trial()).id)
    await asyncio.sleep(1.0)
    assert await scene.statuses() == [TrialStatus.USER_CANCELED]
    await asyncio.sleep(600.0)
    assert scene.asked == ["begin 0:1", "cancel 0:1"]
    assert await scene.kept() == [3]


@played(play, seconds=20.0)
async def test_a_few_are_copied_at_a_time(scene: CopyScene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=5, seconds=90.0)
    assert [line.split()[0] for line in scene.asked] == ["begin", "begin", "end", "end", "begin", "begin"]


@played(play)
async def test_a_machine_that_is_away_is_asked_again(scene: CopyScene, manager: Manager, /) -> None:
    scene.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
    await scene.create(seconds=75.0)
    scene.problems.clear()
    await asyncio.sleep(35.0)
    assert scene.asked[-1] == "end 0:1"
    assert await scene.notices() == []


@played(play, size=10**15)
async def test_a_copy_for_which_there_is_no_room_is_one_notice(scene: CopyScene, manager: Manager, /) -> None:
    await scene.run(keepCheckpoints="all")
    (notice,) = await scene.notices()
    assert notice.startswith("a checkpoint was not copied to the manager's machine: output/checkpoints/1 of job")
    assert "takes 1,000,000.0 GB, and its disk has " in notice
    assert scene.asked == []


@played(play)
async def test_a_copy_for_which_there_was_no_room_is_made_when_there_is(
    scene: CopyScene, manager: Manager, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SPARE_BYTES", 1 << 60)
    await scene.create(seconds=90.0)
    await manager.trials.pause((await scene.trial()).id)  # it saves no more
    await asyncio.sleep(600.0)
    assert scene.asked == []
    monkeypatch.setattr(copies, "SPARE_BYTES", 0)
    await asyncio.sleep(61.0)
    assert scene.asked == ["begin 0:1", "end 0:1"]
    assert len(await scene.notices()) == 1


def test_copies_that_are_made_at_once_count_on_each_others_room_in_all_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SPARE_BYTES", 0)

    async def scenario(scene: CopyScene, manager: Manager) -> None:
        for name in ("one", "two"):
            await scene.create(id=name, maxTrialNumber=2)
        await asyncio.sleep(350.0)
        assert [await scene.notices(name) for name in ("one", "two")] == [[], []]
        assert len(scene.asked) > 4
        assert [line.split()[0] for line in scene.asked] == ["begin", "end"] * (
            len(scene.asked) // 2
        )  # never two of them

    play(tmp_path, scenario, seconds=15.0, size=shutil.disk_usage(tmp_path).free * 3 // 5)


@played(play)
async def test_the_checkpoint_of_a_trial_that_was_paused_is_copied_by_the_next_manager(
    scene: CopyScene, manager: Manager, /
) -> None:
    scene.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
    await scene.create(maxTrialNumber=2, seconds=130.0)
    for trial in await scene.trials():
        await manager.trials.pause(trial.id)
    await asyncio.sleep(1.0)
    await scene.end()
    scene.problems.clear()
    scene.asked.clear()
    await scene.start()
    await asyncio.sleep(10.0)
    assert sorted(scene.asked) == ["begin 0:2", "begin 1:2", "end 0:2", "end 1:2"]


@played(play)
async def test_a_copy_that_fails_is_one_notice_until_one_works_again(scene: CopyScene, manager: Manager, /) -> None:
    scene.problems[:] = [TrainingServiceError("the manager's disk is full")]
    await scene.create(seconds=200.0)
    (notice,) = await scene.notices()
    assert notice.startswith("a checkpoint was not copied to the manager's machine: the manager's disk is full; ")
    scene.problems.clear()
    await asyncio.sleep(60.0)
    scene.problems[:] = [TrainingServiceError("the manager's disk is full again")]
    await asyncio.sleep(60.0)
    assert len(await scene.notices()) == 2


@played(play)
async def test_nothing_is_copied_where_that_is_turned_off(scene: CopyScene, manager: Manager, /) -> None:
    await scene.run(copyCheckpoints=False)
    assert scene.asked == []
