"""Experiments delete from a checkpointStorage what they have stored there, and touch nothing else."""

import asyncio
import json
import sqlite3
import zipfile
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played

from proctor.manager.config.loading import load_experiment_mapping
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.engine.loop.checkpoint_storage import CheckpointStorage, ExperimentPlace, check_storage, claimed
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import METRICS_FILE
from proctor.manager.store.rows import ExperimentRow
from proctor.sdk.checkpoints.manifest import MANIFEST_FILE
from proctor.sdk.checkpoints.ownership import OWNER_FILE, Owner
from proctor.sdk.checkpoints.storage import MARK_CONTENT
from proctor.training_services.shared_storage import MarkNote


class StorageScene(Scene):
    """A folder that experiments store their checkpoints in."""

    obstacle: Exception | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, open_dispatcher=self._open, **options)
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        self.config = SMALL | {"maxTrialNumber": 1, "checkpointStorage": str(self.shared)}

    def _open(self, *_: object) -> Opener:
        if self.obstacle is not None:
            raise self.obstacle
        return open_in_process

    async def run_and_stop(self, id: str = "e1") -> ExperimentRow:
        """An experiment that can be deleted."""
        await self.run(id=id)
        await self._manager.stop_experiment(id)
        await asyncio.sleep(60.0)
        row = await self.row()
        assert row.status is ExperimentStatus.STOPPED
        return row

    def store(self, id: str = "e1") -> Path:
        """What one of its jobs has stored."""
        checkpoint = self.shared / id / "t1" / "1" / "1"
        checkpoint.mkdir(parents=True)
        (checkpoint / MANIFEST_FILE).write_text("{}")
        (checkpoint / "model.pt").write_text("weights")
        return checkpoint

    def save(self, row: ExperimentRow) -> str:
        """An archive of an experiment, as `proctor experiment save` makes it; its name."""
        names = ("id", "name", "config", "search_space", "trial_concurrency", "max_trial_number")
        limits = dict.fromkeys(("max_experiment_duration_seconds", "max_trial_duration_seconds"))
        head = {"status": "STOPPED", "created_at": "2026-01-02T03:04:05.000Z", **limits}
        experiment = {**head, **{name: getattr(row, name) for name in names}}
        with zipfile.ZipFile(self.home.incoming_directory / "saved.zip", "w") as file:
            file.writestr("proctor.json", json.dumps({"format": 1, "experiment": experiment}))
            for name in ("trials", "jobs", "metrics"):
                file.writestr(f"{name}.jsonl", "")
        return "saved.zip"


play = partial(small_experiments.play, kind=StorageScene)


@played(play)
async def test_what_an_experiment_has_stored_is_deleted_with_it(scene: StorageScene, manager: Manager, /) -> None:
    await scene.run_and_stop()
    scene.store()
    assert await manager.delete_experiment("e1") == []
    assert list(scene.shared.iterdir()) == []


@played(play)
async def test_a_folder_of_its_name_is_not_taken(scene: StorageScene, manager: Manager, /) -> None:
    foreign = scene.shared / "documents" / "thesis.tex"
    foreign.parent.mkdir()
    foreign.write_text("years of work")
    with pytest.raises(BadRequest, match=r"shared/documents cannot be used: it holds something .* another id"):
        await scene.create(id="documents")
    assert [path.name for path in foreign.parent.iterdir()] == ["thesis.tex"]
    assert not scene.home.experiment_directory("documents").exists()


@played(play)
async def test_what_lost_its_mark_is_left_and_named(scene: StorageScene, manager: Manager, /) -> None:
    await scene.run_and_stop()
    checkpoint = scene.store()
    (scene.shared / "e1" / OWNER_FILE).unlink()
    [sentence] = await manager.delete_experiment("e1")
    assert sentence == f"{scene.shared}/e1 was left: nothing shows that this experiment has stored what is there"
    assert (checkpoint / "model.pt").exists()


@played(play)
async def test_a_folder_that_is_not_mounted_here_is_named(scene: StorageScene, manager: Manager, /) -> None:
    await scene.run_and_stop()
    scene.shared.rename(scene.folder / "away")
    [sentence] = await manager.delete_experiment("e1")
    assert sentence == f"{scene.shared}/e1 was left: there is no {scene.shared} on this machine"


@played(play)
async def test_an_experiment_that_cannot_be_started_leaves_nothing(scene: StorageScene, manager: Manager, /) -> None:
    scene.obstacle = ValueError("environment.json is damaged")
    with pytest.raises(Unavailable, match="was removed"):
        await scene.run_and_stop()
    assert list(scene.shared.iterdir()) == []


@played(play)
async def test_a_loaded_experiment_has_no_part_in_what_the_original_has_stored(
    scene: StorageScene, manager: Manager, /
) -> None:
    archive = scene.save(await scene.run_and_stop("original"))
    checkpoint = scene.store("original")
    row = await manager.load_experiment(archive=archive, experiment_id="copy")
    assert row.config["checkpoint_storage"] is None
    await manager.delete_experiment("copy")
    assert (checkpoint / "model.pt").exists()


@played(play)
async def test_a_storage_is_adopted_by_those_who_say_so_when_it_has_no_owner(
    scene: StorageScene, manager: Manager, /
) -> None:
    archive = scene.save(await scene.run_and_stop())
    checkpoint = scene.store()
    assert await manager.delete_experiment("e1", keep_checkpoints=True) == []
    row = await manager.load_experiment(archive=archive, keep_storage=True)
    assert row.config["checkpoint_storage"]["location"] == str(scene.shared)
    assert (checkpoint / "model.pt").exists()
    assert await manager.delete_experiment("e1") == []
    assert list(scene.shared.iterdir()) == []


@played(play)
async def test_a_new_experiment_has_a_mark_by_which_nodes_are_compared_and_a_loaded_one_has_none(
    scene: StorageScene, manager: Manager, /
) -> None:
    row = await scene.run_and_stop()
    note = MarkNote.read(Path(row.directory))
    assert note is not None
    assert note.maker == "the manager's machine"
    assert (scene.shared / "e1" / note.mark).read_bytes() == MARK_CONTENT
    archive = scene.save(row)
    await manager.delete_experiment("e1", keep_checkpoints=True)
    loaded = await manager.load_experiment(archive=archive, keep_storage=True)
    assert MarkNote.read(Path(loaded.directory)) is None
    assert [path.name for path in (scene.shared / "e1").iterdir()] == [OWNER_FILE]


@played(play)
async def test_the_mark_in_a_folder_of_nodes_alone_is_left_to_the_first_node(
    scene: StorageScene, manager: Manager, /
) -> None:
    place = ExperimentPlace(CheckpointStorage(f"{scene.folder}/away", {}), Owner("home", "e1", 1.0))
    async with claimed(place) as note:
        assert note == MarkNote()
    async with claimed(place, adopts=True) as note:
        assert note is None


@played(play)
async def test_an_experiment_that_stores_in_its_own_folder_has_no_mark(
    scene: StorageScene, manager: Manager, /
) -> None:
    del scene.config["checkpointStorage"]
    assert MarkNote.read(Path((await scene.run_and_stop()).directory)) is None


@played(play)
async def test_a_storage_that_another_manager_has_is_not_adopted(scene: StorageScene, manager: Manager, /) -> None:
    archive = scene.save(await scene.run_and_stop())
    await manager.delete_experiment("e1")
    owner = {"home": "0" * 32, "experiment": "e1", "created_at": 1.0}
    mark = scene.store().parents[2] / OWNER_FILE
    mark.write_text(json.dumps(owner))
    with pytest.raises(BadRequest, match=r"belongs to experiment e1 of another manager; delete .* --keep-storage"):
        await manager.load_experiment(archive=archive, keep_storage=True)
    assert json.loads(mark.read_text()) == owner
    assert not scene.home.experiment_directory("e1").exists()


def as_an_earlier_version_left_it(scene: StorageScene, *, manifest: str) -> None:
    """No mark, but a registered checkpoint whose manifest has this SHA-256."""
    (scene.shared / "e1" / OWNER_FILE).unlink()
    with sqlite3.connect(scene.home.experiment_directory("e1") / METRICS_FILE) as metrics:
        metrics.execute(
            "INSERT INTO checkpoints (trial_id, job, member, offset, path, sequence, time, manifest)"
            " VALUES ('t1', 1, 0, 0, ?, 1, 1.0, ?)",
            (f"{scene.shared}/e1/t1/1/1", manifest),
        )
    with sqlite3.connect(scene.home.control_database) as control:
        control.execute("INSERT INTO unmarked_storages VALUES ('e1')")


@pytest.mark.parametrize("is_proven", [True, False])
@played(play)
async def test_what_an_earlier_version_has_stored_is_marked_where_it_is_proven(
    scene: StorageScene, manager: Manager, /, is_proven: bool
) -> None:
    await scene.run_and_stop()
    checkpoint = scene.store()
    await scene.end()
    found = sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest()
    as_an_earlier_version_left_it(scene, manifest=found if is_proven else "0" * 64)
    manager = await scene.start()
    await asyncio.sleep(1.0)
    assert (scene.shared / "e1" / OWNER_FILE).exists() is is_proven
    left = await manager.delete_experiment("e1")
    assert (len(left), checkpoint.exists()) == ((0, False) if is_proven else (1, True))


@played(play)
async def test_a_storage_that_was_away_at_the_start_is_looked_at_at_the_deletion(
    scene: StorageScene, manager: Manager, /
) -> None:
    await scene.run_and_stop()
    checkpoint = scene.store()
    await scene.end()
    as_an_earlier_version_left_it(scene, manifest=sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest())
    scene.shared.rename(scene.folder / "away")
    manager = await scene.start()
    await asyncio.sleep(1.0)
    (scene.folder / "away").rename(scene.shared)
    assert await manager.delete_experiment("e1") == []
    assert not checkpoint.exists()


@played(play)
async def test_an_experiment_without_metrics_can_be_deleted_and_what_nothing_proves_is_left(
    scene: StorageScene, manager: Manager, /
) -> None:
    await scene.run_and_stop()
    checkpoint = scene.store()
    await scene.end()
    as_an_earlier_version_left_it(scene, manifest=sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest())
    (scene.home.experiment_directory("e1") / METRICS_FILE).unlink()
    manager = await scene.start()
    assert "nothing shows" in (await manager.delete_experiment("e1"))[0]
    assert checkpoint.exists()


@pytest.mark.anyio
async def test_a_place_that_processes_do_not_share_is_refused_at_create(tmp_path: Path) -> None:
    config = load_experiment_mapping(SMALL | {"checkpointStorage": "memory://checkpoints"}, str(tmp_path)).config
    with pytest.raises(BadRequest) as caught:
        await check_storage(config, {})
    text = str(caught.value)
    assert "checkpointStorage: memory://checkpoints cannot be used: what one process stores there, another one" in text
    assert text.endswith("; name a folder that all nodes share, or a URL of an object store")
