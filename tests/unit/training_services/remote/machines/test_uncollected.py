"""Machines that were let go before all their files were collected, under virtual time: they owe these, and are left
when they have come."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes.fake_connection import FakeMachine
from fakes.provider_scene import Scene, play
from fakes.remote_nodes import FakeKeeper

from proctor.training_services.errors import CollectionFailed, KeeperUnavailable
from proctor.training_services.files.mirror import MirrorFolder
from proctor.training_services.remote.files.collection import CollectionNote
from proctor.training_services.remote.machines.records import read_records
from proctor.training_services.ssh.errors import Unreachable

NODE = "gpu-1"
JOB = "trials/0-T/jobs/1"
COLLECTING = "released; the files of experiment {} are being collected"
MAY_BE_THERE = "released, but files of experiment {} may still be there: "


class Coast(FakeMachine):
    """A machine with files of experiments. Its keeper answers questions about them while `gate` is open."""

    def land(self, scene: Scene, group: asyncio.TaskGroup) -> None:
        """Be the machine of a scene."""
        self.scene, self.group = scene, group
        self.gate = asyncio.Event()
        self.gate.set()
        self.exists = True
        self.folder = scene.folder / "machine" / "nodes" / NODE

    def register(self) -> None:
        self.group.create_task(self._serve())

    def clear(self) -> None:
        super().clear()
        shutil.rmtree(self.folder)

    def there(self, experiment: str) -> Path:
        """A job's directory on the machine."""
        return self.folder / "experiments" / experiment / JOB

    def here(self, experiment: str) -> Path:
        """The same on the manager's."""
        return self.scene.folder / "experiments" / experiment / JOB

    def write(self, *experiments: str) -> None:
        """A job of each has left a file."""
        for experiment in experiments:
            self.there(experiment).mkdir(parents=True)
            (self.there(experiment) / "model").write_text(f"made by {experiment}")
            self.here(experiment).parents[3].mkdir(parents=True)

    async def release_while_away(self, *experiments: str) -> None:
        """They have wanted the machine, and have let it go while it was away."""
        for experiment in experiments:
            self.scene.claim(NODE, by=experiment)
        await self.scene.until_status(NODE, "CONNECTED")
        self.failure = Unreachable("it does not answer")
        self.cut()
        await self.scene.until_status(NODE, "FAILED")
        for experiment in experiments:
            await self.scene.provider.release(experiment, uncollected={NODE})
        self.commands.clear()
        await self.scene.until_status(NODE, "FAILED", MAY_BE_THERE.format(", ".join(experiments)))

    async def until_left(self) -> None:
        """Nothing is on the machine, and the manager has forgotten it."""
        await self.scene.until(lambda: not (self.scene.folder / "nodes" / NODE).exists())
        assert self.commands[-1] == "remove"
        assert not self.folder.exists()

    async def _serve(self) -> None:
        keeper = GatedKeeper(self)
        try:
            await keeper.serve()
        except* KeeperUnavailable:
            pass  # a newer session has begun, or the machine was left


class GatedKeeper(FakeKeeper):
    """The keeper of a `Coast`."""

    def __init__(self, coast: Coast) -> None:
        super().__init__(coast.scene.hub, NODE, coast.scene.folder / "machine")
        self._gate = coast.gate

    async def _answer_files(self) -> None:
        await self._gate.wait()
        await super()._answer_files()


def stay(folder: Path, act: Callable[[Scene, Coast], Awaitable[None]], *, ready: bool = True) -> None:
    """Run a scene with a coast."""

    async def main(scene: Scene) -> None:
        async with asyncio.TaskGroup() as group:
            coast = Coast(scene.pool, NODE)
            coast.land(scene, group)
            scene.machines[NODE] = coast
            if ready:
                await scene.hub.ready()
            await act(scene, coast)
            scene.hub.close()

    play(folder, main)


def test_a_machine_that_was_away_is_left_when_its_files_were_collected(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1", "E2")
        await coast.release_while_away("E1", "E2")
        coast.gate.clear()
        coast.failure = None
        await scene.until_status(NODE, "CONNECTED", COLLECTING.format("E1"))
        assert coast.commands == ["stop", "prepare", "start"]  # its jobs were ended before
        coast.gate.set()
        await coast.until_left()
        for experiment in ("E1", "E2"):
            assert (coast.here(experiment) / "model").read_text() == f"made by {experiment}"
            assert CollectionNote.read(coast.here(experiment)).left == ()

    stay(tmp_path, act)


def test_files_that_are_owed_are_collected_by_the_next_manager(tmp_path: Path) -> None:
    async def release(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        await coast.release_while_away("E1")

    async def collect(scene: Scene, coast: Coast) -> None:
        await coast.until_left()
        assert (coast.here("E1") / "model").read_text() == "made by E1"

    stay(tmp_path, release)
    [record] = read_records(tmp_path / "nodes")
    assert [claim.experiment_id for claim in record.uncollected] == ["E1"]
    stay(tmp_path, collect)


def test_machines_that_nobody_claims_after_a_restart_are_left_with_their_files_collected(tmp_path: Path) -> None:
    async def claim(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        scene.claim(NODE)
        await scene.until_status(NODE, "CONNECTED")

    async def collect(scene: Scene, coast: Coast) -> None:
        await coast.until_left()
        assert (coast.here("E1") / "model").read_text() == "made by E1"

    stay(tmp_path, claim)
    stay(tmp_path, collect)


def test_an_experiment_whose_folder_is_gone_is_owed_nothing(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        await coast.release_while_away("E1")
        shutil.rmtree(tmp_path / "experiments")
        coast.failure = None
        await coast.until_left()
        assert coast.commands == ["remove"]
        assert not (tmp_path / "experiments").exists()

    stay(tmp_path, act)


def test_an_experiment_that_is_deleted_while_its_files_are_collected_gets_none_of_them(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        await coast.release_while_away("E1")
        coast.gate.clear()
        coast.failure = None
        await scene.until_status(NODE, "CONNECTED", COLLECTING.format("E1"))
        await scene.provider.forget("E1")
        coast.gate.set()
        await coast.until_left()
        assert list((tmp_path / "experiments" / "E1").iterdir()) == []

    stay(tmp_path, act)


def test_a_check_does_not_break_off_the_collection_of_files(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        await coast.release_while_away("E1")
        coast.gate.clear()
        coast.failure = None
        await scene.until_status(NODE, "CONNECTED", COLLECTING.format("E1"))
        logins = coast.logins
        scene.provider.check(NODE)
        await asyncio.sleep(5)
        assert coast.connections != []
        coast.gate.set()
        await coast.until_left()
        assert coast.logins == logins
        assert (coast.here("E1") / "model").read_text() == "made by E1"

    stay(tmp_path, act)


def test_a_full_disk_of_the_manager_is_the_reason_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CollectionFailed("model cannot be stored on the manager's machine: No space left on device")

    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        with monkeypatch.context() as full:
            full.setattr(MirrorFolder, "begin", refuse)
            await coast.release_while_away("E1")
            coast.failure = None
            await scene.until_status(NODE, "FAILED", MAY_BE_THERE.format("E1") + "model cannot be stored")
            logins = coast.logins
            await scene.until(lambda: coast.logins > logins + 1)
            assert "remove" not in coast.commands
        await coast.until_left()
        assert (coast.here("E1") / "model").read_text() == "made by E1"

    stay(tmp_path, act)


def test_nothing_is_removed_while_a_file_cannot_be_copied(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        place = coast.here("E1") / "model"
        (place / "a folder where the file should be").mkdir(parents=True)
        await coast.release_while_away("E1")
        coast.failure = None
        await scene.until_status(NODE, "FAILED", "1 file (0-T/jobs/1/model) cannot be copied")
        shutil.rmtree(place)
        await coast.until_left()
        assert place.is_file()

    stay(tmp_path, act)


def test_nothing_is_collected_or_removed_while_a_trial_cannot_be_stopped(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        await coast.release_while_away("E1")
        coast.left = ["process 17 does not end"]
        coast.failure = None
        await scene.until_status(NODE, "FAILED", "its trials cannot be stopped: process 17 does not end")
        assert not coast.here("E1").exists()
        coast.left = []
        await coast.until_left()
        assert (coast.here("E1") / "model").exists()

    stay(tmp_path, act)


def test_an_experiment_that_claims_its_machine_again_collects_its_files_itself(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        await coast.release_while_away("E1")
        coast.gate.clear()
        coast.failure = None
        await scene.until_status(NODE, "CONNECTED", COLLECTING.format("E1"))
        scene.claim(NODE, by="E1")
        await scene.until(lambda: scene.pool.node(NODE).reason == "")
        coast.gate.set()
        await asyncio.sleep(5)
        assert "remove" not in coast.commands
        assert not coast.here("E1").exists()
        await scene.provider.release("E1")  # all is collected
        await coast.until_left()
        assert not coast.here("E1").exists()

    stay(tmp_path, act)


def test_files_of_one_experiment_wait_until_another_one_lets_go(tmp_path: Path) -> None:
    async def act(scene: Scene, coast: Coast) -> None:
        coast.write("E1")
        scene.claim(NODE, by="E2")
        scene.claim(NODE, by="E1")
        await scene.until_status(NODE, "CONNECTED")
        await scene.provider.release("E1", uncollected={NODE})
        await asyncio.sleep(5)
        assert not coast.here("E1").exists()
        await scene.provider.release("E2")
        await coast.until_left()
        assert (coast.here("E1") / "model").read_text() == "made by E1"

    stay(tmp_path, act)
