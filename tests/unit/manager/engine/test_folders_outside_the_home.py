"""The folder of an experiment outside the home is deleted, and used, only while it is the experiment's own."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played

from proctor.manager.engine.loop.checkpoint_storage import CheckpointPlaces
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import CONFIG_FILE
from proctor.manager.store.rows import ExperimentRow
from proctor.sdk.checkpoints.ownership import OWNER_FILE, Owner


class SceneElsewhere(Scene):
    """Its experiments have their folders beside the home."""

    config = SMALL | {"maxTrialNumber": 1, "experimentWorkingDirectory": "runs"}

    @property
    def place(self) -> Path:
        return self.folder / "runs" / "exp"

    async def finished(self) -> Path:
        """The folder of an experiment that has ended."""
        await self.run()
        return self.place


play = partial(small_experiments.play, kind=SceneElsewhere)


def make_models_folder(folder: Path) -> None:
    (folder / "trials").mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(json.dumps({"model_type": "bert"}))
    (folder / "model.safetensors").write_bytes(b"weeks of training")


def make_anothers_experiment(folder: Path) -> None:
    """Of the same id and configuration, by another manager."""
    folder.mkdir()
    config = SMALL | {"maxTrialNumber": 1}
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    (folder / OWNER_FILE).write_bytes(Owner("another", "exp", 1.0).encode())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_models_folder, "nothing shows that it is this experiment's"),
        (make_anothers_experiment, "it belongs to experiment exp of another manager"),
    ],
)
@played(play)
async def test_what_has_taken_the_place_of_the_folder_is_neither_used_nor_deleted(
    scene: SceneElsewhere, manager: Manager, /, make: Callable[[Path], None], why: str
) -> None:
    folder = await scene.finished()
    await scene.end()
    shutil.rmtree(folder)
    make(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    manager = await scene.start()
    assert f"{folder} is not the folder of experiment exp: {why}" in manager.not_loaded(await scene.row())
    await manager.stop_experiment("exp")
    assert (await scene.row()).status is ExperimentStatus.STOPPED
    with pytest.raises(Unavailable, match=f"{folder} is not the folder of experiment exp: {why}"):
        await manager.resume_experiment("exp")
    assert await manager.delete_experiment("exp") == [f"{folder} was left: {why}"]
    with pytest.raises(NotFound):
        await scene.row()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    with pytest.raises(Conflict, match=f"the folder {folder} already exists"):
        await scene.create()


@played(play)
async def test_what_takes_the_place_of_the_folder_while_a_storage_is_deleted_is_left(
    scene: SceneElsewhere, manager: Manager, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await scene.finished()
    await manager.stop_experiment("exp")

    async def take_long(self: CheckpointPlaces, row: ExperimentRow, *, keep_checkpoints: bool) -> list[str]:
        folder.rename(scene.folder / "moved")
        make_models_folder(folder)
        return []

    monkeypatch.setattr(CheckpointPlaces, "give_up", take_long)
    assert await manager.delete_experiment("exp") == [f"{folder} was left: nothing shows that it is this experiment's"]
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
@played(play)
async def test_its_own_folder_is_used_and_deleted(
    scene: SceneElsewhere, manager: Manager, /, is_of_earlier_version: bool
) -> None:
    folder = await scene.finished()
    if is_of_earlier_version:
        (folder / OWNER_FILE).unlink()
    manager = await scene.restart()
    assert len(await scene.trials()) == 1
    assert manager.not_loaded(await scene.row()) == ""
    await manager.stop_experiment("exp")
    assert await manager.delete_experiment("exp") == []
    assert not folder.exists()


@played(play)
async def test_a_folder_that_was_moved_to_another_disk_with_a_link_in_its_place_is_deleted_with_the_link(
    scene: SceneElsewhere, manager: Manager, /
) -> None:
    folder = await scene.finished()
    await scene.end()
    target = folder.rename(scene.folder / "disk")
    folder.symlink_to(target)
    manager = await scene.start()
    await manager.stop_experiment("exp")
    assert await manager.delete_experiment("exp") == []
    assert (target.exists(), folder.is_symlink()) == (False, False)
