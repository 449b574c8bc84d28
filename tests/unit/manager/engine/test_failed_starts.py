"""A create or a resume that fails leaves nothing half done, and every status without a loop has a way out."""

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.engine import creation
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import experiments


class ObstructedScene(Scene):
    """Its dispatchers can, or cannot, be opened."""

    config = SMALL | {"maxTrialNumber": 2}
    obstacle: Exception | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, open_dispatcher=self._open, **options)

    def _open(self, row: ExperimentRow, config: ExperimentConfig) -> Opener:
        if self.obstacle is not None:
            raise self.obstacle
        return open_in_process

    def left(self) -> list[str]:
        return [path.name for path in self.home.experiments_directory.iterdir()]


play = partial(small_experiments.play, kind=ObstructedScene)


@played(play)
async def test_a_create_that_fails_takes_everything_back(scene: ObstructedScene, manager: Manager, /) -> None:
    scene.obstacle = ValueError("environment.json is damaged")
    with pytest.raises(Unavailable, match=r"was removed: environment\.json is damaged"):
        await scene.create()
    with pytest.raises(NotFound):
        await scene.row()
    assert scene.left() == []
    scene.obstacle = None
    assert (await scene.run()).status is ExperimentStatus.DONE


@played(play)
async def test_a_create_that_cannot_be_taken_back_is_in_error_and_can_be_stopped_and_deleted(
    scene: ObstructedScene, manager: Manager, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(30, "Read-only file system", str(folder))

    scene.obstacle = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(creation, "remove_folder", refuse)
        with pytest.raises(Unavailable, match=r"No space left on device.*Read-only.*; stop it and delete it"):
            await scene.create()
        row = await scene.row()
        assert row.status is ExperimentStatus.ERROR
        assert "No space left on device" in row.reason
        await manager.stop_experiment("exp")
        assert (await scene.row()).status is ExperimentStatus.STOPPED
        with pytest.raises(Unavailable, match=r"cannot be removed, delete it again: .*Read-only"):
            await manager.delete_experiment("exp")
    await manager.delete_experiment("exp")
    assert scene.left() == []


@played(play)
async def test_of_two_creates_with_one_id_the_second_is_refused_and_harms_nothing(
    scene: ObstructedScene, manager: Manager, /
) -> None:
    outcomes = await asyncio.gather(*(scene.create() for _ in range(2)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ExperimentRow, Conflict}
    assert (await scene.until_ended()).status is ExperimentStatus.DONE


@pytest.mark.parametrize("fails", ["make_folder", "write_handover"])
@played(play)
async def test_what_a_failed_create_could_not_remove_is_removed_by_the_next_one(
    scene: ObstructedScene, manager: Manager, /, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(folder: Path, *arguments: object, **options: object) -> None:
        folder.mkdir(exist_ok=True)
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(creation, "remove_folder", refuse)
        with monkeypatch.context() as later:
            later.setattr(creation, fails, refuse)
            with pytest.raises(Unavailable, match=r"cannot write the experiment's folder .*: Too many open files"):
                await scene.create()
        with pytest.raises(Unavailable, match=r"cannot remove the folder .* of a failed request: Too many"):
            await scene.create()
    assert scene.left() == ["exp"]
    assert (await scene.run()).status is ExperimentStatus.DONE


@played(play)
async def test_a_resume_that_fails_leaves_the_experiment_where_it_was(
    scene: ObstructedScene, manager: Manager, /
) -> None:
    await scene.create()
    await manager.stop_experiment("exp")
    await scene.until_ended()
    scene.obstacle = OSError(28, "No space left on device")
    with pytest.raises(Unavailable, match=r"cannot be resumed and stays STOPPED: .*No space left on device"):
        await manager.resume_experiment("exp")
    row = await scene.row()
    assert (row.status, row.reason) == (ExperimentStatus.STOPPED, "stopped by the user")
    manager = await scene.restart()  # it does not run by itself after a restart either
    await asyncio.sleep(1000.0)
    assert (await scene.row()).status is ExperimentStatus.STOPPED
    scene.obstacle = None
    await manager.resume_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE


@pytest.mark.parametrize("status", [status for status in ExperimentStatus if status.is_active])
@played(play)
async def test_every_active_status_has_a_way_out_when_no_engine_can_work_on_it(
    scene: ObstructedScene, manager: Manager, /, status: ExperimentStatus
) -> None:
    await scene.run()
    await manager.control.write(
        lambda c: experiments.move(c, "exp", expected=list(ExperimentStatus), status=status, reason="", time=0.0)
    )
    shutil.rmtree(scene.home.experiment_directory("exp"))
    manager = await scene.restart()
    with pytest.raises(Unavailable, match=r"is not loaded|stays STOPPED"):
        await manager.resume_experiment("exp")
    nothing_runs = ExperimentStatus.STOPPED if status is ExperimentStatus.STOPPING else status
    assert (await scene.row()).status is nothing_runs
    await manager.stop_experiment("exp")
    await asyncio.sleep(10.0)
    assert (await scene.row()).status is ExperimentStatus.STOPPED
    await manager.delete_experiment("exp")
    assert [row.id for row in await manager.control.read(experiments.active)] == []
