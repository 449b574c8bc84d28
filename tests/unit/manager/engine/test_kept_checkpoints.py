"""Which checkpoints of an experiment are deleted, when, and what is done again after a restart."""

import asyncio
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.forgetful_service import ForgetfulScene
from fakes.small_experiments import SMALL, Scene, SceneService, played, saved

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.tables import checkpoints, metrics
from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import NoJobRuns, ServiceUnavailable, TrainingServiceError
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedReport, Step

STEPS = 6
VALUES = (5.0, 9.0, 7.0, 6.0, 4.0, 3.0)
"""What is reported with each checkpoint: the second is the best."""


class Service(SceneService):
    """Deletes checkpoints, unless it has to raise something instead: what is in `problems`, the last forever."""

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        if problems := self.scene.problems:
            raise problems[0] if len(problems) == 1 else problems.pop(0)
        self.scene.asked.append((form.job_id, path))
        await super().delete_checkpoint(form, path)


class KeepingScene(Scene):
    """An experiment of one trial, whose service can delete checkpoints."""

    service = Service
    config = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 1}

    async def kept(self, number: int = 0) -> list[int]:
        return await kept(self, self._manager, number)


async def kept(scene: Scene, manager: Manager, number: int = 0) -> list[int]:
    """The checkpoints of a trial that are kept, as its records say; each has its files, and no other has."""
    trial = await scene.trial(number)
    database = await manager.metrics("exp")
    rows = await database.read(lambda c: metrics.checkpoints(c, trial.id, limit=100))
    jobs_folder = Path((await scene.row()).directory) / "trials" / f"{trial.sequence_id}-{trial.id}" / "jobs"
    for row in rows:
        assert (jobs_folder / str(row.job) / row.path).is_dir() == (row.removed_at is None), row
        assert row.removed_at is None or row.deleted_at is not None
    return [int(row.path.rpartition("/")[2]) for row in rows if row.deleted_at is None]


def training(form: TrialJobForm) -> Iterable[Step]:
    """One step a minute, with a metric and a checkpoint of 4 MB each; one over the quota is refused by the trial."""
    quota = form.environment.get("PROCTOR_CHECKPOINT_QUOTA_MB")
    if quota is not None and int(quota) < 4:
        yield Raw(0.0, b'{"kind":"lost","why":"a checkpoint of 4.0 MB was not saved","time":1.0}\n')
        yield Final(60.0, 0.5)
        return
    begin = 0 if form.resume_checkpoint is None else int(Path(form.resume_checkpoint, "step").read_text())
    for step in range(begin, STEPS):
        yield ScriptedReport(60.0, VALUES[step])
        yield saved(form, step + 1, bytes=4_000_000)
    yield Final(1.0, form.sequence_id)


play = partial(small_experiments.play, kind=KeepingScene, script=training)


@played(play)
async def test_the_newest_two_and_the_best_are_kept_while_the_trial_runs_and_afterwards(
    scene: KeepingScene, manager: Manager, /
) -> None:
    await scene.create(seconds=30.0)
    for expected in ([1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5]):
        await asyncio.sleep(60.0)
        assert await scene.kept() == expected
    await asyncio.sleep(3600.0)
    trial = await scene.trial()
    assert trial.status is TrialStatus.SUCCEEDED
    assert await scene.kept() == [2, 5, 6]
    assert scene.asked == [(f"{trial.id}.1", f"output/checkpoints/{n}") for n in (1, 3, 4)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (1, [6]),
        (3, [4, 5, 6]),
        ("all", [1, 2, 3, 4, 5, 6]),
        ({"best": 2}, [2, 3, 5, 6]),
        ({"newest": 1, "best": 0}, [6]),
    ],
)
@played(play)
async def test_the_rule_of_the_experiment_says_how_many_are_kept(
    scene: KeepingScene, manager: Manager, /, rule: Any, expected: list[int]
) -> None:
    await scene.create(keepCheckpoints=rule, seconds=3600.0)
    assert await scene.kept() == expected


@played(play)
async def test_what_a_clone_began_with_is_kept_until_it_has_ended(scene: KeepingScene, manager: Manager, /) -> None:
    await scene.create(keepCheckpoints=1, seconds=150.0)
    clone = await manager.trials.clone((await scene.trial()).id, {})
    await manager.trials.pause(clone.id)
    await asyncio.sleep(3600.0)
    assert await scene.statuses() == [TrialStatus.SUCCEEDED, TrialStatus.PAUSED]
    assert await scene.kept() == [2, 6]
    await manager.trials.resume(clone.id)
    await asyncio.sleep(3600.0)
    assert await scene.statuses() == [TrialStatus.SUCCEEDED] * 2
    assert await scene.kept() == [6]


@played(play)
async def test_what_a_live_job_was_given_is_kept_until_the_job_has_ended(
    scene: KeepingScene, manager: Manager, /
) -> None:
    await scene.create(keepCheckpoints=1, seconds=150.0)
    trial = await scene.trial()
    await manager.trials.pause(trial.id)
    await asyncio.sleep(1.0)
    await manager.trials.resume(trial.id)
    await asyncio.sleep(150.0)
    assert await scene.kept() == [2, 4]  # the second job was given 2
    await asyncio.sleep(3600.0)
    assert await scene.kept() == [6]


@played(play)
async def test_the_quota_takes_ended_trials_first_and_never_what_is_needed(
    scene: KeepingScene, manager: Manager, /
) -> None:
    changes = {"maxTrialNumber": 2, "trialConcurrency": 1, "keepCheckpoints": "all", "checkpointQuotaMb": 24}
    await scene.create(seconds=60.0 * STEPS + 30.0, **changes)
    assert await scene.kept() == [1, 2, 3, 4, 5, 6]
    await asyncio.sleep(180.0)
    assert (await scene.kept(), await scene.kept(1)) == ([2, 5, 6], [1, 2, 3])
    await asyncio.sleep(3600.0)
    # what is the best of all is left, and of the trials that have ended the others went, oldest first
    assert (await scene.kept(), await scene.kept(1)) == ([2], [2, 3, 4, 5, 6])
    assert await scene.notices() == []


@played(play)
async def test_a_quota_that_cannot_be_kept_is_a_notice_once(scene: KeepingScene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=3, trialConcurrency=3, checkpointQuotaMb=8, seconds=270.0)
    found = [await scene.kept(number) for number in range(3)]
    assert sorted(found) == [[2, 4], [4], [4]]  # the newest of each, and the best of all
    (notice,) = await scene.notices()
    assert "all checkpoints together take 12 MB, more than checkpointQuotaMb (8)" in notice


@played(play)
async def test_a_trial_knows_the_quota_and_its_refusal_is_a_notice(scene: KeepingScene, manager: Manager, /) -> None:
    await scene.create(checkpointQuotaMb=3, seconds=3600.0)
    assert await scene.notices() == ["trial 0: a checkpoint of 4.0 MB was not saved"]
    assert await scene.statuses() == [TrialStatus.SUCCEEDED]


@pytest.mark.parametrize(
    ("problem", "seconds", "notices"),
    [
        (ServiceUnavailable("node gpu-1 is silent"), 120.0, []),
        (NoJobRuns("no job runs that sees the folder"), 120.0, ["no job runs that sees the folder"]),
        (TrainingServiceError("its keeper is too old; update it"), 600.0, ["its keeper is too old; update it"]),
    ],
    ids=["a node is away", "no job runs", "an error"],
)
@played(play)
async def test_what_cannot_be_deleted_is_at_most_one_notice_and_is_tried_again(
    scene: KeepingScene, manager: Manager, /, problem: Exception, seconds: float, notices: list[str]
) -> None:
    scene.problems[:] = [problem]
    await scene.create(seconds=3600.0)
    assert scene.asked == []
    assert await scene.notices() == [f"deleted checkpoints still take room: {reason}" for reason in notices]
    scene.problems.clear()
    await asyncio.sleep(seconds)
    assert len(scene.asked) == 3
    assert await scene.kept() == [2, 5, 6]


@played(play)
async def test_the_next_manager_deletes_what_was_decided(scene: KeepingScene, manager: Manager, /) -> None:
    scene.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
    await scene.create(seconds=330.0)
    await scene.end()
    scene.problems.clear()
    manager = await scene.start()
    await asyncio.sleep(10.0)
    trial = await scene.trial()
    assert scene.asked == [(f"{trial.id}.1", f"output/checkpoints/{n}") for n in (1, 3)]
    assert await scene.kept() == [2, 4, 5]
    assert await (await manager.metrics("exp")).read(checkpoints.to_remove) == []


@played(play)
async def test_what_the_original_of_a_copied_home_had_decided_in_its_storage_is_left_to_it(
    scene: KeepingScene, manager: Manager, /
) -> None:
    scene.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
    await scene.create(seconds=330.0)
    database = Path((await scene.row()).directory) / "metrics.db"
    await scene.end()
    with closing(sqlite3.connect(database)) as connection:  # the copy has no storage, but these records
        connection.execute("UPDATE checkpoints SET path = '/mnt/shared/exp/t/1/1' WHERE path LIKE '%/1'")
        connection.commit()
    scene.problems.clear()
    await scene.start()
    await asyncio.sleep(10.0)
    assert [path for _, path in scene.asked] == ["output/checkpoints/3"]


@pytest.mark.parametrize(
    ("asked", "is_said"), [({}, False), ({"keepCheckpoints": "all"}, False), ({"checkpointQuotaMb": 9}, True)]
)
@played(small_experiments.play, script=training, kind=ForgetfulScene)
async def test_a_platform_that_cannot_delete_keeps_all_and_says_so_where_it_matters(
    scene: Scene, manager: Manager, /, asked: dict[str, Any], is_said: bool
) -> None:
    await scene.create(maxTrialNumber=1, seconds=3600.0, **asked)
    assert await kept(scene, manager) == [1, 2, 3, 4, 5, 6]
    found = await scene.notices()
    assert [notice.startswith("platform local cannot delete checkpoints") for notice in found] == [True] * is_said


@played(play)
async def test_an_experiment_of_an_earlier_version_keeps_all(scene: KeepingScene, manager: Manager, /) -> None:
    await scene.create(seconds=30.0)
    row = await scene.row()
    config = json.dumps({key: value for key, value in row.config.items() if key != "keep_checkpoints"})
    await manager.control.write(lambda c: c.execute("UPDATE experiments SET config = ?", (config,)).rowcount)
    await scene.restart()
    await asyncio.sleep(3600.0)
    assert await scene.kept() == [1, 2, 3, 4, 5, 6]


@played(play)
async def test_a_trial_does_not_begin_with_a_checkpoint_that_is_deleted_meanwhile(
    scene: KeepingScene, manager: Manager, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.create(seconds=3600.0)
    donor = await scene.trial()
    database = await manager.metrics("exp")
    find_origin = manager.trials._origin

    async def deleted_first(*given: Any) -> Any:
        origin = await find_origin(*given)
        newest = await database.read(lambda c: checkpoints.get(c, origin.checkpoint_id))
        await database.write(lambda c: checkpoints.delete(c, [newest], time=1.0))
        return origin

    with monkeypatch.context() as patch:
        patch.setattr(manager.trials, "_origin", deleted_first)
        with pytest.raises(Conflict, match=r"checkpoint 6 of job 1 of trial \w+ has just been deleted"):
            await manager.trials.clone(donor.id, {})
    clone = await manager.trials.clone(donor.id, {})
    assert str(clone.origin_checkpoint).endswith("/5")
