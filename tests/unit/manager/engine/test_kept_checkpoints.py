"""Which checkpoints of an experiment are deleted, when, and what is done again after a restart."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.forgetful_service import ForgetfulSimulation
from fakes.small_experiments import played, saved

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import checkpoints, events, metrics, trials
from proctor.training_services.base import TrainingService, TrialJobForm
from proctor.training_services.errors import NoJobRuns, ServiceUnavailable, TrainingServiceError
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

Scenario = Callable[["Platform", Manager], Awaitable[None]]
STEPS = 6
VALUES = (5.0, 9.0, 7.0, 6.0, 4.0, 3.0)
"""What is reported with each checkpoint: the second is the best."""


class Service(InMemoryTrainingService):
    """Deletes checkpoints, unless it has to raise something instead."""

    def __init__(self, *given: Any, asked: list[tuple[str, str]], problems: list[Exception], **options: Any) -> None:
        super().__init__(*given, **options)
        self._asked = asked
        self._problems = problems

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        if self._problems:
            raise self._problems[0] if len(self._problems) == 1 else self._problems.pop(0)
        self._asked.append((form.job_id, path))
        await super().delete_checkpoint(form, path)


class Platform(Simulation):
    """Remembers what was deleted; raises what is in `problems`: the last of them for ever."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.asked: list[tuple[str, str]] = []
        self.problems: list[Exception] = []

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        played = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        told: dict[str, Any] = {"asked": self.asked, "problems": self.problems}
        return Service(self._script, platform=played, now=self.clock.now, **told)


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


def play(tmp_path: Path, *scenarios: Scenario) -> None:
    """Each scenario with a manager of its own, on one home: between them the manager is restarted."""

    async def main(loop: VirtualTimeLoop) -> None:
        platform = Platform(Home(tmp_path / "home"), loop, script=training)
        for scenario in scenarios:
            async with platform.manager() as manager:
                await scenario(platform, manager)

    run_virtual(main)


async def create(manager: Manager, tmp_path: Path, **changes: Any) -> str:
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 2,
        "maxTrialNumber": 1,
        "objective": {"direction": "maximize"},
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }
    return (await manager.create_experiment(config=config, directory=str(tmp_path))).id


async def experiment_trials(manager: Manager) -> list[TrialRow]:
    (experiment_id,) = await manager.control.read(
        lambda c: [row[0] for row in c.execute("SELECT id FROM experiments").fetchall()]
    )
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=100))
    return page.items


async def numbers(manager: Manager, trial: TrialRow) -> list[int]:
    """The checkpoints of a trial that are kept, as its records say; each has its files, and no other has."""
    database = await manager.metrics(trial.experiment_id)
    rows = await database.read(lambda c: metrics.checkpoints(c, trial.id, limit=100))
    experiment = await manager.experiment(trial.experiment_id)
    jobs_folder = Path(experiment.directory) / "trials" / f"{trial.sequence_id}-{trial.id}" / "jobs"
    for row in rows:
        assert (jobs_folder / str(row.job) / row.path).is_dir() == (row.removed_at is None), row
        assert row.removed_at is None or row.deleted_at is not None
    return [int(row.path.rpartition("/")[2]) for row in rows if row.deleted_at is None]


async def notices(manager: Manager, experiment_id: str) -> list[str]:
    return await manager.control.read(lambda c: events.notices(c, experiment_id, limit=100))


@played(play)
async def test_the_newest_two_and_the_best_are_kept_while_the_trial_runs_and_afterwards(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path)
    await asyncio.sleep(30.0)
    (trial,) = await experiment_trials(manager)
    for kept in ([1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5]):
        await asyncio.sleep(60.0)
        assert await numbers(manager, trial) == kept
    await asyncio.sleep(3600.0)
    (trial,) = await experiment_trials(manager)
    assert trial.status is TrialStatus.SUCCEEDED
    assert await numbers(manager, trial) == [2, 5, 6]
    assert platform.asked == [(f"{trial.id}.1", f"output/checkpoints/{n}") for n in (1, 3, 4)]


@pytest.mark.parametrize(
    ("rule", "kept"),
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
    platform: Platform, manager: Manager, /, rule: Any, kept: list[int], tmp_path: Path
) -> None:
    await create(manager, tmp_path, keepCheckpoints=rule)
    await asyncio.sleep(3600.0)
    (trial,) = await experiment_trials(manager)
    assert await numbers(manager, trial) == kept


@played(play)
async def test_what_a_clone_began_with_is_kept_until_it_has_ended(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, keepCheckpoints=1)
    await asyncio.sleep(150.0)
    (donor,) = await experiment_trials(manager)
    clone = await manager.trials.clone(donor.id, {})
    await manager.trials.pause(clone.id)
    await asyncio.sleep(3600.0)
    assert (await manager.trials.get(donor.id)).status is TrialStatus.SUCCEEDED
    assert await numbers(manager, donor) == [2, 6]
    await manager.trials.resume(clone.id)
    await asyncio.sleep(3600.0)
    assert (await manager.trials.get(clone.id)).status is TrialStatus.SUCCEEDED
    assert await numbers(manager, donor) == [6]


@played(play)
async def test_what_a_live_job_was_given_is_kept_until_the_job_has_ended(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, keepCheckpoints=1)
    await asyncio.sleep(150.0)
    (trial,) = await experiment_trials(manager)
    await manager.trials.pause(trial.id)
    await asyncio.sleep(1.0)
    await manager.trials.resume(trial.id)
    await asyncio.sleep(150.0)
    assert await numbers(manager, trial) == [2, 4]  # the second job was given 2
    await asyncio.sleep(3600.0)
    assert await numbers(manager, trial) == [6]


@played(play)
async def test_the_quota_takes_ended_trials_first_and_never_what_is_needed(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(
        manager, tmp_path, maxTrialNumber=2, trialConcurrency=1, keepCheckpoints="all", checkpointQuotaMb=24
    )
    await asyncio.sleep(60.0 * STEPS + 30.0)
    first = (await experiment_trials(manager))[0]
    assert await numbers(manager, first) == [1, 2, 3, 4, 5, 6]
    await asyncio.sleep(180.0)
    second = (await experiment_trials(manager))[1]
    assert (await numbers(manager, first), await numbers(manager, second)) == ([2, 5, 6], [1, 2, 3])
    await asyncio.sleep(3600.0)
    # what is the best of all is left, and of the trials that have ended the others went, oldest first
    assert (await numbers(manager, first), await numbers(manager, second)) == ([2], [2, 3, 4, 5, 6])
    assert await notices(manager, experiment_id) == []


@played(play)
async def test_a_quota_that_cannot_be_kept_is_a_notice_once(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=3, trialConcurrency=3, checkpointQuotaMb=8)
    await asyncio.sleep(270.0)
    kept = [await numbers(manager, trial) for trial in await experiment_trials(manager)]
    assert sorted(kept) == [[2, 4], [4], [4]]  # the newest of each, and the best of all
    (notice,) = await notices(manager, experiment_id)
    assert "all checkpoints together take 12 MB, more than checkpointQuotaMb (8)" in notice


@played(play)
async def test_a_trial_knows_the_quota_and_its_refusal_is_a_notice(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, checkpointQuotaMb=3)
    await asyncio.sleep(3600.0)
    assert await notices(manager, experiment_id) == ["trial 0: a checkpoint of 4.0 MB was not saved"]
    (trial,) = await experiment_trials(manager)
    assert trial.status is TrialStatus.SUCCEEDED


@played(play)
async def test_a_node_that_is_away_gets_the_order_when_it_is_back(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    platform.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
    experiment_id = await create(manager, tmp_path)
    await asyncio.sleep(3600.0)
    assert platform.asked == []
    platform.problems.clear()
    await asyncio.sleep(120.0)
    (trial,) = await experiment_trials(manager)
    assert await numbers(manager, trial) == [2, 5, 6]
    assert len(platform.asked) == 3
    assert await notices(manager, experiment_id) == []


@played(play)
async def test_what_no_job_can_delete_is_one_notice_and_is_deleted_once_one_runs(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    platform.problems[:] = [NoJobRuns("no job runs that sees the folder")]
    experiment_id = await create(manager, tmp_path)
    await asyncio.sleep(3600.0)
    assert await notices(manager, experiment_id) == [
        "deleted checkpoints still take room: no job runs that sees the folder"
    ]
    assert platform.asked == []
    platform.problems.clear()
    await asyncio.sleep(120.0)
    assert len(platform.asked) == 3


@played(play)
async def test_what_cannot_be_deleted_is_one_notice_and_is_tried_again(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    platform.problems[:] = [TrainingServiceError("node gpu-1: its keeper cannot delete checkpoints; update it")]
    experiment_id = await create(manager, tmp_path)
    await asyncio.sleep(3600.0)
    expected = "deleted checkpoints still take room: node gpu-1: its keeper cannot delete checkpoints; update it"
    assert await notices(manager, experiment_id) == [expected]
    platform.problems.clear()
    await asyncio.sleep(600.0)
    assert len(platform.asked) == 3


def test_the_next_manager_deletes_what_was_decided(tmp_path: Path) -> None:
    async def first(platform: Platform, manager: Manager) -> None:
        platform.problems[:] = [ServiceUnavailable("node gpu-1 is silent")]
        await create(manager, tmp_path)
        await asyncio.sleep(330.0)

    async def second(platform: Platform, manager: Manager) -> None:
        platform.problems.clear()
        await asyncio.sleep(10.0)
        (trial,) = await experiment_trials(manager)
        assert platform.asked == [(f"{trial.id}.1", f"output/checkpoints/{n}") for n in (1, 3)]
        assert await numbers(manager, trial) == [2, 4, 5]
        database = await manager.metrics(trial.experiment_id)
        assert await database.read(checkpoints.to_remove) == []

    play(tmp_path, first, second)


@pytest.mark.parametrize(
    ("asked", "is_said"), [({}, False), ({"keepCheckpoints": "all"}, False), ({"checkpointQuotaMb": 9}, True)]
)
def test_a_platform_that_cannot_delete_keeps_all_and_says_so_where_it_matters(
    asked: dict[str, Any], is_said: bool, tmp_path: Path
) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = ForgetfulSimulation(Home(tmp_path / "home"), loop, script=training)
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path, **asked)
            await asyncio.sleep(3600.0)
            (trial,) = await experiment_trials(manager)
            assert await numbers(manager, trial) == [1, 2, 3, 4, 5, 6]
            found = await notices(manager, experiment_id)
            assert [notice.startswith("platform local cannot delete checkpoints") for notice in found] == [
                True
            ] * is_said

    run_virtual(main)


def test_an_experiment_of_an_earlier_version_keeps_all(tmp_path: Path) -> None:
    async def first(platform: Platform, manager: Manager) -> None:
        await create(manager, tmp_path)
        await asyncio.sleep(30.0)
        (trial,) = await experiment_trials(manager)
        row = await manager.experiment(trial.experiment_id)
        config = json.dumps({key: value for key, value in row.config.items() if key != "keep_checkpoints"})
        await manager.control.write(lambda c: c.execute("UPDATE experiments SET config = ?", (config,)).rowcount)

    async def second(platform: Platform, manager: Manager) -> None:
        await asyncio.sleep(3600.0)
        (trial,) = await experiment_trials(manager)
        assert await numbers(manager, trial) == [1, 2, 3, 4, 5, 6]

    play(tmp_path, first, second)


@played(play)
async def test_a_trial_does_not_begin_with_a_checkpoint_that_is_deleted_meanwhile(
    platform: Platform, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path)
    await asyncio.sleep(3600.0)
    (donor,) = await experiment_trials(manager)
    database = await manager.metrics(donor.experiment_id)

    async def deleted_first(*given: Any) -> Any:
        newest = await newest_checkpoint(*given)
        await database.write(lambda c: checkpoints.delete(c, [newest], time=1.0))
        return newest

    newest_checkpoint = manager.trials._newest_checkpoint
    manager.trials._newest_checkpoint = deleted_first  # type: ignore[method-assign]
    with pytest.raises(Conflict, match=r"output/checkpoints/6 of job 1 of trial \w+ has just been deleted"):
        await manager.trials.clone(donor.id, {})
    manager.trials._newest_checkpoint = newest_checkpoint  # type: ignore[method-assign]
    clone = await manager.trials.clone(donor.id, {})
    assert str(clone.origin_checkpoint).endswith("/5")
