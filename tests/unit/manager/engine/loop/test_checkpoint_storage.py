"""Experiments delete from a checkpointStorage what they have stored there, and touch nothing else."""

import asyncio
import json
import sqlite3
import zipfile
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, played

from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import METRICS_FILE, Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.sdk.checkpoints.manifest import MANIFEST_FILE
from proctor.sdk.checkpoints.ownership import OWNER_FILE


class Scene(Simulation):
    """A simulated home and a folder that experiments store their checkpoints in."""

    def __init__(self, folder: Path, loop: VirtualTimeLoop) -> None:
        super().__init__(Home(folder / "home"), loop, open_dispatcher=self._open)
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir(exist_ok=True)
        self.obstacle: Exception | None = None

    def _open(self, *_: object) -> Opener:
        if self.obstacle is not None:
            raise self.obstacle
        return open_in_process

    @property
    def config(self) -> dict[str, Any]:
        return SMALL | {"maxTrialNumber": 1, "checkpointStorage": str(self.shared)}

    async def ended_experiment(self, manager: Manager, experiment_id: str = "e1") -> None:
        """Create one and bring it to its end, STOPPED."""
        await manager.create_experiment(config=self.config, directory=str(self.folder), experiment_id=experiment_id)
        await self.ended(manager, experiment_id)
        await manager.stop_experiment(experiment_id)
        await asyncio.sleep(60.0)
        assert (await manager.experiment(experiment_id)).status is ExperimentStatus.STOPPED

    def store(self, experiment_id: str = "e1") -> Path:
        """What one of its jobs has stored."""
        checkpoint = self.shared / experiment_id / "t1" / "1" / "1"
        checkpoint.mkdir(parents=True)
        (checkpoint / MANIFEST_FILE).write_text("{}")
        (checkpoint / "model.pt").write_text("weights")
        return checkpoint

    def save(self, row: Any) -> str:
        """An archive of an experiment, as `proctor experiment save` makes it; its name."""
        experiment = {
            "id": row.id,
            "name": row.name,
            "status": "STOPPED",
            "config": row.config,
            "search_space": row.search_space,
            "trial_concurrency": 1,
            "max_trial_number": 1,
            "max_experiment_duration_seconds": None,
            "max_trial_duration_seconds": None,
            "created_at": "2026-01-02T03:04:05.000Z",
        }
        self.home.incoming_directory.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(self.home.incoming_directory / "saved.zip", "w") as file:
            file.writestr("proctor.json", json.dumps({"format": 1, "experiment": experiment}))
            for name in ("trials", "jobs", "metrics"):
                file.writestr(f"{name}.jsonl", "")
        return "saved.zip"


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await act(Scene(tmp_path, loop))

    run_virtual(main)


@played(play)
async def test_what_an_experiment_has_stored_is_deleted_with_it(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.ended_experiment(manager)
        scene.store()
        assert await manager.delete_experiment("e1") == []
        assert list(scene.shared.iterdir()) == []


@played(play)
async def test_a_folder_of_its_name_is_not_taken(scene: Scene, /) -> None:
    foreign = scene.shared / "documents" / "thesis.tex"
    foreign.parent.mkdir()
    foreign.write_text("years of work")
    async with scene.manager() as manager:
        with pytest.raises(BadRequest, match=r"shared/documents cannot be used: it holds something .* another id"):
            await manager.create_experiment(config=scene.config, directory=str(scene.folder), experiment_id="documents")
        assert [path.name for path in foreign.parent.iterdir()] == ["thesis.tex"]
        assert not scene.home.experiment_directory("documents").exists()


@played(play)
async def test_what_lost_its_mark_is_left_and_named(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.ended_experiment(manager)
        checkpoint = scene.store()
        (scene.shared / "e1" / OWNER_FILE).unlink()
        [sentence] = await manager.delete_experiment("e1")
        assert sentence == f"{scene.shared}/e1 was left: nothing shows that this experiment has stored what is there"
        assert (checkpoint / "model.pt").exists()


@played(play)
async def test_a_folder_that_is_not_mounted_here_is_named(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.ended_experiment(manager)
        scene.shared.rename(scene.folder / "away")
        [sentence] = await manager.delete_experiment("e1")
        assert sentence == f"{scene.shared}/e1 was left: there is no {scene.shared} on this machine"


@played(play)
async def test_an_experiment_that_cannot_be_started_leaves_nothing(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        scene.obstacle = ValueError("environment.json is damaged")
        with pytest.raises(Unavailable, match="was removed"):
            await scene.ended_experiment(manager)
        assert list(scene.shared.iterdir()) == []


@played(play)
async def test_a_loaded_experiment_has_no_part_in_what_the_original_has_stored(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.ended_experiment(manager, "original")
        checkpoint = scene.store("original")
        archive = scene.save(await manager.experiment("original"))
        row = await manager.load_experiment(archive=archive, experiment_id="copy")
        assert row.config["checkpoint_storage"] is None
        await manager.delete_experiment("copy")
        assert (checkpoint / "model.pt").exists()


@played(play)
async def test_a_storage_is_adopted_by_those_who_say_so_when_it_has_no_owner(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.ended_experiment(manager)
        checkpoint = scene.store()
        archive = scene.save(await manager.experiment("e1"))
        assert await manager.delete_experiment("e1", keep_checkpoints=True) == []
        row = await manager.load_experiment(archive=archive, keep_storage=True)
        assert row.config["checkpoint_storage"]["location"] == str(scene.shared)
        assert (checkpoint / "model.pt").exists()
        assert await manager.delete_experiment("e1") == []
        assert list(scene.shared.iterdir()) == []


@played(play)
async def test_a_storage_that_another_manager_has_is_not_adopted(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.ended_experiment(manager)
        archive = scene.save(await manager.experiment("e1"))
        await manager.delete_experiment("e1")
        owner = {"home": "0" * 32, "experiment": "e1", "created_at": 1.0}
        mark = scene.store().parents[2] / OWNER_FILE
        mark.write_text(json.dumps(owner))
        with pytest.raises(BadRequest, match=r"belongs to experiment e1 of another manager; delete .* --keep-storage"):
            await manager.load_experiment(archive=archive, keep_storage=True)
        assert json.loads(mark.read_text()) == owner
        assert not scene.home.experiment_directory("e1").exists()


def as_an_earlier_version_left_it(scene: Scene, *, manifest: str) -> None:
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
def test_what_an_earlier_version_has_stored_is_marked_where_it_is_proven(tmp_path: Path, is_proven: bool) -> None:
    async def act(scene: Scene) -> None:
        async with scene.manager() as manager:
            await scene.ended_experiment(manager)
        checkpoint = scene.store()
        found = sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest()
        as_an_earlier_version_left_it(scene, manifest=found if is_proven else "0" * 64)
        async with scene.manager() as manager:
            await asyncio.sleep(1.0)
            assert (scene.shared / "e1" / OWNER_FILE).exists() is is_proven
            left = await manager.delete_experiment("e1")
            assert (len(left), checkpoint.exists()) == ((0, False) if is_proven else (1, True))

    play(tmp_path, act)


@played(play)
async def test_a_storage_that_was_away_at_the_start_is_looked_at_at_the_deletion(scene: Scene, /) -> None:
    async with scene.manager() as manager:
        await scene.ended_experiment(manager)
    checkpoint = scene.store()
    manifest = sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest()
    as_an_earlier_version_left_it(scene, manifest=manifest)
    scene.shared.rename(scene.folder / "away")
    async with scene.manager() as manager:
        await asyncio.sleep(1.0)
        (scene.folder / "away").rename(scene.shared)
        assert await manager.delete_experiment("e1") == []
        assert not checkpoint.exists()
