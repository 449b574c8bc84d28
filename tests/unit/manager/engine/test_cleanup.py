"""What a stopped experiment's platform owes, cleaning up, is done in the end: after failures, kills and restarts."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, SceneService, by_trial, played, plays

from proctor.manager.engine import creation
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import NotFound, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.training_services.base import SupportsCollection
from proctor.training_services.errors import BrokenPlatform
from proctor.training_services.in_memory.scripts import Final, Hang


class CountingService(SceneService):
    """Its `clean_up` fails as the scene says."""

    async def clean_up(self) -> None:
        self.scene.begun += 1
        if delay := self.scene.delays.pop(self.scene.begun, 0.0):
            await asyncio.sleep(delay)
        if self.scene.problems:
            raise self.scene.problems.pop(0)
        await super().clean_up()
        self.scene.cleaned += 1


class CollectingService(CountingService, SupportsCollection):
    """Its `clean_up` waits for files that never arrive."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._collected = asyncio.Event()

    def end_collection(self) -> None:
        self._collected.set()

    async def clean_up(self) -> None:
        await self._collected.wait()
        await super().clean_up()


class CleanupScene(Scene):
    """The platform of its experiment may fail to clean up: with `problems`, one after another."""

    service = CountingService
    config = SMALL | {"maxTrialNumber": 1}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.delays: dict[int, float] = {}  # of clean-ups, by their number, before anything else
        self.begun = self.cleaned = 0

    async def stop(self) -> None:
        """Stop it, and wait until it is STOPPED."""
        await self._manager.stop_experiment("exp")
        assert (await self.until_ended()).status is ExperimentStatus.STOPPED

    async def create_and_stop(self) -> None:
        await self.create()
        await self.stop()


play = partial(small_experiments.play, kind=CleanupScene, script=by_trial([Final(1.0, 1.0)], [Hang()]))


@played(play)
async def test_a_stopped_experiment_is_cleaned_up_after_exactly_once(scene: CleanupScene, manager: Manager, /) -> None:
    await scene.create_and_stop()
    await scene.restart()
    await asyncio.sleep(1000.0)
    assert scene.begun == scene.cleaned == 1


@played(play)
async def test_the_platform_of_a_failed_engine_is_cleaned_up_after_a_stop(
    scene: CleanupScene, manager: Manager, /
) -> None:
    scene.failures += [RuntimeError("a fault of this program")]
    await scene.create()
    await asyncio.sleep(6.0)
    assert (await scene.row()).status is ExperimentStatus.ERROR
    await scene.stop()
    await asyncio.sleep(10.0)
    assert scene.cleaned == 1


@played(play)
async def test_a_job_of_a_failed_engine_on_a_platform_without_keepers_is_ended_before_the_experiment_is_stopped(
    scene: CleanupScene, manager: Manager, /
) -> None:
    scene.failures += [RuntimeError("a fault of this program")]
    await scene.create(plays(Hang()))
    await asyncio.sleep(6.0)
    assert (await scene.row()).status is ExperimentStatus.ERROR
    scene.broken = BrokenPlatform("its package is not installed")
    await manager.stop_experiment("exp")
    await asyncio.sleep(30.0)
    (job,) = scene.platforms["exp"].jobs.values()
    assert not job.is_over
    assert (await scene.row()).status is ExperimentStatus.STOPPING
    scene.broken = None
    assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    await asyncio.sleep(10.0)
    assert job.is_over
    assert scene.cleaned == 1


@played(play)
async def test_a_clean_up_that_fails_is_tried_again_and_says_why(scene: CleanupScene, manager: Manager, /) -> None:
    scene.problems += [OSError(5, "Input/output error"), RuntimeError("the cluster does not answer")]
    await scene.create_and_stop()
    row = await scene.row()
    assert manager.awaited(row) == (
        "stopped; its platform has not cleaned up after it: [Errno 5] Input/output error; tried again in 1 s"
    )
    assert manager.problem == f"experiment exp is {manager.awaited(row)}"
    await asyncio.sleep(2.0)
    assert "the cluster does not answer; tried again in " in manager.awaited(row)
    await asyncio.sleep(100.0)
    assert (scene.begun, scene.cleaned) == (3, 1)
    assert (manager.awaited(row), manager.problem) == ("", "")


@played(play)
async def test_a_clean_up_that_was_interrupted_is_owed_by_the_next_manager_and_by_no_later_one(
    scene: CleanupScene, manager: Manager, /
) -> None:
    scene.delays[1] = 10_000.0
    await scene.create_and_stop()
    await asyncio.sleep(1.0)
    assert (scene.begun, scene.cleaned) == (1, 0)
    await scene.restart()
    await asyncio.sleep(1.0)
    assert (scene.begun, scene.cleaned) == (2, 1)
    await scene.restart()
    await asyncio.sleep(1000.0)
    assert (scene.begun, scene.cleaned) == (2, 1)


@played(play)
async def test_an_experiment_that_is_resumed_is_not_cleaned_up_under_its_trials(
    scene: CleanupScene, manager: Manager, /
) -> None:
    scene.problems += [RuntimeError("the cluster does not answer")]
    await scene.create_and_stop()
    await manager.update_experiment("exp", max_trial_number=2)
    await manager.resume_experiment("exp")
    await asyncio.sleep(1000.0)
    (job,) = scene.platforms["exp"].jobs.values()
    assert not job.is_over
    assert (scene.begun, manager.problem) == (1, "")
    await scene.stop()
    await asyncio.sleep(10.0)
    assert (scene.begun, scene.cleaned) == (2, 1)


@pytest.mark.parametrize("act", ["resume_experiment", "delete_experiment"])
@played(play)
async def test_a_caller_that_has_given_up_waiting_for_an_attempt_changes_nothing_about_the_next_ones(
    scene: CleanupScene, manager: Manager, /, act: str
) -> None:
    """Nor do they follow each other without a pause: there are obstacles for a thousand of them."""
    scene.problems += [RuntimeError("the cluster does not answer")] * 1000
    scene.delays[2] = 100.0
    await scene.create_and_stop()
    await asyncio.sleep(2.0)
    with pytest.raises(Unavailable, match="the platform of experiment exp is still cleaning up after it"):
        await getattr(manager, act)("exp")
    await asyncio.sleep(5.0)
    assert scene.begun == 2
    await asyncio.sleep(1000.0)
    assert 8 <= scene.begun <= 12
    scene.problems.clear()
    await asyncio.sleep(600.0)
    assert scene.cleaned == 1
    await manager.delete_experiment("exp")


@pytest.mark.parametrize("act", ["resume_experiment", "delete_experiment"])
@played(play)
async def test_a_resume_or_delete_while_the_first_clean_up_hangs_gets_an_answer(
    scene: CleanupScene, manager: Manager, /, act: str
) -> None:
    scene.delays[1] = 1000.0
    await scene.create_and_stop()
    with pytest.raises(Unavailable, match="the platform of experiment exp is still being cleaned up"):
        async with asyncio.timeout(500.0):
            await getattr(manager, act)("exp")
    assert (await scene.row()).status is ExperimentStatus.STOPPED
    await asyncio.sleep(1000.0)
    assert (scene.begun, scene.cleaned) == (1, 1)
    await manager.delete_experiment("exp")


@played(play)
async def test_a_resume_that_fails_leaves_the_clean_up_owed(
    scene: CleanupScene, manager: Manager, /, tmp_path: Path
) -> None:
    scene.problems += [RuntimeError("the cluster does not answer")]
    await scene.create_and_stop()
    folder = scene.home.experiment_directory("exp")
    async with manager._supervisor.metrics_closed(await scene.row()):
        folder.rename(tmp_path / "away")
    with pytest.raises(Unavailable, match="cannot be resumed and stays STOPPED"):
        await manager.resume_experiment("exp")
    (tmp_path / "away").rename(folder)
    await asyncio.sleep(1000.0)
    assert (scene.begun, scene.cleaned) == (2, 1)


@pytest.mark.parametrize("is_restarted", [False, True])
@played(play)
async def test_a_deleted_experiment_does_not_wait_for_its_files(
    scene: CleanupScene, manager: Manager, /, is_restarted: bool
) -> None:
    scene.service = CollectingService
    await scene.create_and_stop()
    if not is_restarted:
        await manager.delete_experiment("exp")
    manager = await scene.restart()
    if is_restarted:
        await asyncio.sleep(10.0)  # the clean-up is tried again, and waits
        await manager.delete_experiment("exp")
    with pytest.raises(NotFound):
        await scene.row()
    assert scene.begun == scene.cleaned == 1


@played(play)
async def test_an_experiment_is_deleted_once_its_platform_has_cleaned_up(
    scene: CleanupScene, manager: Manager, /
) -> None:
    scene.problems += [RuntimeError("the cluster does not answer")] * 2
    await scene.create_and_stop()
    with pytest.raises(Unavailable, match=r"exp cannot be deleted yet: .* the cluster does not answer"):
        await manager.delete_experiment("exp")
    await manager.delete_experiment("exp")
    assert scene.cleaned == 1
    assert not scene.home.experiment_directory("exp").exists()
    with pytest.raises(NotFound):
        await scene.row()
    await asyncio.sleep(1000.0)
    assert (scene.begun, manager.problem) == (3, "")


@played(play)
async def test_no_one_opens_the_metrics_of_an_experiment_that_is_being_deleted(
    scene: CleanupScene, manager: Manager, /
) -> None:
    await scene.create_and_stop()
    loop, remove_folder = asyncio.get_running_loop(), creation.remove_folder

    def remove(folder: Path) -> None:
        asked = asyncio.run_coroutine_threadsafe(manager.metrics("exp"), loop)
        assert "it is being deleted" in str(asked.exception(timeout=60))
        remove_folder(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(creation, "remove_folder", remove)
        await manager.delete_experiment("exp")
    assert not scene.home.experiment_directory("exp").exists()


@played(play)
async def test_an_experiment_whose_platform_is_gone_can_be_deleted(scene: CleanupScene, manager: Manager, /) -> None:
    scene.problems += [RuntimeError("the cluster does not answer")]
    await scene.create_and_stop()
    scene.broken = BrokenPlatform("its package is not installed")
    await manager.delete_experiment("exp")
    await asyncio.sleep(1000.0)
    assert (scene.cleaned, manager.problem) == (0, "")
