"""A create or a resume that fails leaves nothing half done, and every status without a loop has a way out."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes.small_experiments import SMALL, played

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.engine import creation
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import experiments

CONFIG = SMALL | {"maxTrialNumber": 2}


class Scene(Simulation):
    """A simulated home whose dispatchers can, or cannot, be opened."""

    def __init__(self, folder: Path, loop: VirtualTimeLoop) -> None:
        super().__init__(Home(folder / "home"), loop, open_dispatcher=self._open)
        self.folder = folder
        self.obstacle: Exception | None = None

    def _open(self, row: ExperimentRow, config: ExperimentConfig) -> Opener:
        if self.obstacle is not None:
            raise self.obstacle
        return open_in_process

    async def create(self, manager: Manager, experiment_id: str = "exp") -> ExperimentRow:
        return await manager.create_experiment(config=CONFIG, directory=str(self.folder), experiment_id=experiment_id)

    def left(self) -> list[str]:
        return [path.name for path in self.home.experiments_directory.iterdir()]


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await act(Scene(tmp_path, loop))

    run_virtual(main)


@played(play)
async def test_a_create_that_fails_takes_everything_back(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        scene.obstacle = ValueError("environment.json is damaged")
        with pytest.raises(Unavailable, match=r"was removed: environment\.json is damaged"):
            await scene.create(manager)
        with pytest.raises(NotFound):
            await manager.experiment("exp")
        assert scene.left() == []
        scene.obstacle = None
        await scene.create(manager)
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE


def test_a_create_that_cannot_be_taken_back_is_in_error_and_can_be_stopped_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(30, "Read-only file system", str(folder))

    async def act(scene: Scene) -> None:
        async with scene.manager() as manager:
            scene.obstacle = OSError(28, "No space left on device")
            with monkeypatch.context() as patch:
                patch.setattr(creation, "remove_folder", refuse)
                with pytest.raises(Unavailable, match=r"No space left on device.*Read-only.*; stop it and delete it"):
                    await scene.create(manager)
                row = await manager.experiment("exp")
                assert row.status is ExperimentStatus.ERROR
                assert "No space left on device" in row.reason
                await manager.stop_experiment("exp")
                assert (await manager.experiment("exp")).status is ExperimentStatus.STOPPED
                with pytest.raises(Unavailable, match=r"cannot be removed, delete it again: .*Read-only"):
                    await manager.delete_experiment("exp")
            await manager.delete_experiment("exp")
            assert scene.left() == []

    play(tmp_path, act)


@played(play)
async def test_of_two_creates_with_one_id_the_second_is_refused_and_harms_nothing(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        outcomes = await asyncio.gather(*(scene.create(manager) for _ in range(2)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ExperimentRow, Conflict}
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE


@pytest.mark.parametrize("fails", ["make_folder", "write_handover"])
def test_what_a_failed_create_could_not_remove_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(folder: Path, *arguments: object) -> None:
        folder.mkdir(exist_ok=True)
        raise OSError(24, "Too many open files")

    async def act(scene: Scene) -> None:
        async with scene.manager() as manager:
            with monkeypatch.context() as patch:
                patch.setattr(creation, "remove_folder", refuse)
                with monkeypatch.context() as later:
                    later.setattr(creation, fails, refuse)
                    with pytest.raises(
                        Unavailable, match=r"cannot write the experiment's folder .*: Too many open files"
                    ):
                        await scene.create(manager)
                with pytest.raises(Unavailable, match=r"cannot remove the folder .* of a failed request: Too many"):
                    await scene.create(manager)
            assert scene.left() == ["exp"]
            await scene.create(manager)
            assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE

    play(tmp_path, act)


@played(play)
async def test_a_resume_that_fails_leaves_the_experiment_where_it_was(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.create(manager)
        await manager.stop_experiment("exp")
        await scene.ended(manager, "exp")
        scene.obstacle = OSError(28, "No space left on device")
        with pytest.raises(Unavailable, match=r"cannot be resumed and stays STOPPED: .*No space left on device"):
            await manager.resume_experiment("exp")
        row = await manager.experiment("exp")
        assert (row.status, row.reason) == (ExperimentStatus.STOPPED, "stopped by the user")
    async with scene.manager() as manager:  # it does not run by itself after a restart either
        await asyncio.sleep(1000.0)
        assert (await manager.experiment("exp")).status is ExperimentStatus.STOPPED
        scene.obstacle = None
        await manager.resume_experiment("exp")
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE


@pytest.mark.parametrize("status", [status for status in ExperimentStatus if status.is_active])
@played(play)
async def test_every_active_status_has_a_way_out_when_no_engine_can_work_on_it(
    scene: Scene, /, status: ExperimentStatus
) -> None:
    async with scene.manager() as manager:
        await scene.create(manager)
        await scene.ended(manager, "exp")
        await manager.control.write(
            lambda c: experiments.move(c, "exp", expected=list(ExperimentStatus), status=status, reason="", time=0.0)
        )
    shutil.rmtree(scene.home.experiment_directory("exp"))
    async with scene.manager() as manager:
        with pytest.raises(Unavailable, match=r"is not loaded|stays STOPPED"):
            await manager.resume_experiment("exp")
        nothing_runs = ExperimentStatus.STOPPED if status is ExperimentStatus.STOPPING else status
        assert (await manager.experiment("exp")).status is nothing_runs
        await manager.stop_experiment("exp")
        await asyncio.sleep(10.0)
        assert (await manager.experiment("exp")).status is ExperimentStatus.STOPPED
        await manager.delete_experiment("exp")
        assert [row.id for row in await manager.control.read(experiments.active)] == []
