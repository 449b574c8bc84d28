"""Files that were not collected when their experiment released the machine, under virtual time: they stay there until a
user has them collected, or their experiment is deleted."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_connection import FakeMachine
from fakes.remote_nodes import FakeKeeper
from unit.training_services.remote.machines.scene import DAY, Scene, declared, play

from proctor.training_services.errors import CollectionFailed, KeeperUnavailable, NodeInUse, UnknownNode
from proctor.training_services.files.collection import CollectionNote
from proctor.training_services.files.mirror import CollectedFiles, CollectionResult, MirrorFolder
from proctor.training_services.providers import FileCollection
from proctor.training_services.remote.machines.records import read_records
from proctor.trial_keeper.protocol import FileFacts

NODE = "gpu-1"
JOB = "trials/0-T/jobs/1"
MAY_BE_THERE = "released, but files of experiment {} may still be there: "
ARE_THERE = "experiment {} has files here that were not collected; `proctor nodes collect gpu-1` fetches them"


class Coast(FakeMachine):
    """A machine with files of experiments. Its keeper answers questions about them while `gate` is open."""

    session_ends = False  # the next time that its keeper is asked about files
    is_old = False  # its keeper

    def land(self, scene: Scene, group: asyncio.TaskGroup) -> None:
        """Be the machine of a scene."""
        self.scene, self.group = scene, group
        self.gate = asyncio.Event()
        self.gate.set()
        self.exists = True
        self.folder = scene.folder / "machine" / "nodes" / NODE

    def register(self) -> None:
        self.group.create_task(self._serve())

    def experiments(self) -> list[str] | None:
        folder = self.folder / "experiments"
        if self.is_old:
            return None
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def clear(self) -> None:
        super().clear()
        shutil.rmtree(self.folder, ignore_errors=True)

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
        """They have claimed the machine, and have released it while it was away."""
        for experiment in experiments:
            await self.scene.connect(NODE, by=experiment)
        await self.scene.lose(NODE)
        for experiment in experiments:
            await self.scene.provider.release(experiment)
        self.commands.clear()
        await self.scene.until_status(NODE, "FAILED", MAY_BE_THERE.format(", ".join(experiments)))

    async def come_back(self, *experiments: str) -> None:
        """It answers again; their files stay there."""
        self.failure = None
        await self.scene.until(lambda: self.scene.provider.has(NODE))
        await self.scene.until_status(NODE, "RELEASED", ARE_THERE.format(", ".join(experiments)))

    async def collect(self, experiment: str) -> FileCollection:
        """Collect the files of an experiment; what came of it."""
        collection = self.scene.provider.collect(NODE, experiment)
        await collection.ended.wait()
        return collection

    async def collect_the_last(self, experiment: str) -> None:
        """Collect the files of an experiment, the last that are there."""
        assert (await self.collect(experiment)).problem == ""
        await self.until_left(experiment)

    async def begin_collection(self) -> FileCollection:
        """It answers again, and the files of E1 are being collected."""
        self.failure = None
        collection = self.scene.provider.collect(NODE, "E1")
        await self.scene.until_status(NODE, "CONNECTED")
        return collection

    async def be_used(self) -> None:
        """It answers again, and E2 uses it and has a file there."""
        self.write("E2")
        self.failure = None
        await self.scene.connect(NODE, by="E2")

    def uncollected(self) -> list[str]:
        """The experiments that have files there, as the provider says."""
        return [left.experiment_id for left in self.scene.provider.uncollected()]

    async def until_left(self, *collected: str) -> None:
        """Nothing is on the machine, and the manager has forgotten it, and has the files of these experiments."""
        await self.scene.until(lambda: not (self.scene.folder / "nodes" / NODE).exists())
        assert self.commands[-1] == "remove"
        assert self.uncollected() == []
        assert not self.folder.exists()
        for experiment in collected:
            assert (self.here(experiment) / "model").read_text() == f"made by {experiment}"

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
        self._coast = coast

    async def _answer_files(self) -> None:
        await self._coast.gate.wait()
        if self._coast.session_ends:
            await self._answers.next(self.session)
            self._coast.session_ends = False
            self._coast.register()
        else:
            await super()._answer_files()


Act = Callable[[Scene, Coast], Awaitable[None]]


def stay(folder: Path, act: Act, *, ready: bool = True) -> None:
    """Run a scene with a coast."""

    async def main(scene: Scene) -> None:
        async with asyncio.TaskGroup() as group:
            coast = Coast(scene.pool, NODE)
            coast.land(scene, group)
            scene.machines[NODE] = coast
            if ready:
                await scene.hub.mark_reattached()
            await act(scene, coast)
            scene.hub.close()

    play(folder, main)


async def nothing(scene: Scene, coast: Coast) -> None:
    """Nothing has happened yet."""


async def connected(scene: Scene, coast: Coast) -> None:
    """E1 has a file on the machine and uses it."""
    coast.write("E1")
    await scene.connect(NODE)


async def released(scene: Scene, coast: Coast) -> None:
    """E1 has a file on the machine, and has released it while it was away."""
    coast.write("E1")
    await coast.release_while_away("E1")


def after(begin: Act) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A test that is a scene with a coast, after this has happened; it gets both first, and then what else it asks
    for."""

    def decorate(act: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(act)
        def test(tmp_path: Path, **given: Any) -> None:
            async def begin_and_act(scene: Scene, coast: Coast) -> None:
                await begin(scene, coast)
                await act(scene, coast, **given)

            stay(tmp_path, begin_and_act)

        return declared(test, act, skipped=2)

    return decorate


@after(nothing)
async def test_files_of_a_machine_that_was_away_stay_there_until_they_are_collected(scene: Scene, coast: Coast) -> None:
    coast.write("E1", "E2")
    await coast.release_while_away("E1", "E2")
    first, second = scene.provider.uncollected()
    assert (first.experiment_id, second.experiment_id, first.node_id) == ("E1", "E2", NODE)
    assert first.place == "on gpu-1 in ~/.proctor/nodes/m1-gpu-1/experiments/E1"
    assert first.why == "the machine is unreachable: it does not answer"
    await coast.come_back("E1", "E2")
    assert coast.commands == ["stop"]  # its jobs are ended
    await asyncio.sleep(DAY / 2)
    assert not coast.here("E1").exists()
    collection = await coast.collect("E1")
    assert (collection.problem, collection.files, collection.total_files) == ("", 1, 1)
    assert collection.bytes == collection.total_bytes == len("made by E1")
    assert not coast.there("E1").exists()
    await scene.until_status(NODE, "RELEASED", ARE_THERE.format("E2"))
    assert (await coast.collect("E2")).problem == ""
    await coast.until_left("E1", "E2")
    assert [CollectionNote.read(coast.here(experiment)).left for experiment in ("E1", "E2")] == [(), ()]


@after(connected)
async def test_a_connected_machine_is_cleaned_when_its_files_were_collected(scene: Scene, coast: Coast) -> None:
    await scene.provider.release("E1")
    await coast.until_left("E1")


@after(nothing)
async def test_a_machine_that_is_away_for_a_moment_only_is_waited_for(scene: Scene, coast: Coast) -> None:
    coast.write("E1")
    coast.session_ends = True
    await scene.connect(NODE)
    await scene.provider.release("E1")
    await coast.until_left("E1")


@after(nothing)
async def test_files_that_are_known_to_be_there_only_are_named(scene: Scene, coast: Coast) -> None:
    coast.write("E1")
    large = [FileFacts("output/model", 5_000_000), FileFacts("output/other", 6_000_000)]
    CollectionNote().with_left(large, NODE).write(coast.here("E1"))
    CollectionNote().with_left(large, "another").write(coast.here("E1").with_name("2"))
    await coast.release_while_away("E1")
    [left] = scene.provider.uncollected()
    assert left.why == (
        "the machine is unreachable: it does not answer; known are 2 files (0-T/jobs/1/output/model, "
        "0-T/jobs/1/output/other)"
    )


async def collect_later(scene: Scene, coast: Coast) -> None:
    """The next manager collects what has stayed there, once it is asked to."""
    await coast.come_back("E1")
    assert not coast.here("E1").exists()
    await coast.collect_the_last("E1")


@pytest.mark.parametrize("begin", [released, connected], ids=["released", "no claim after the restart"])
def test_files_that_stay_are_known_to_the_next_manager_and_collected_by_it(tmp_path: Path, begin: Act) -> None:
    stay(tmp_path, begin)
    stay(tmp_path, collect_later)


def test_a_clean_up_that_the_next_manager_repeats_collects_the_files(tmp_path: Path) -> None:
    async def release(scene: Scene, coast: Coast) -> None:
        scene.provider.hold("E1")
        await scene.hub.mark_reattached()
        await scene.provider.release("E1")
        await coast.until_left("E1")

    stay(tmp_path, connected)
    stay(tmp_path, release, ready=False)


def test_a_collection_that_the_manager_did_not_survive_is_repeated(tmp_path: Path) -> None:
    record = tmp_path / "nodes" / NODE / "node.json"

    async def begin(scene: Scene, coast: Coast) -> None:
        await released(scene, coast)
        await coast.come_back("E1")
        coast.gate.clear()
        await coast.begin_collection()
        assert [record.experiments for record in read_records(tmp_path / "nodes")] == [("E1",)]
        (tmp_path / "killed.json").write_bytes(record.read_bytes())  # what a killed manager would leave

    stay(tmp_path, begin)
    (tmp_path / "killed.json").rename(record)
    stay(tmp_path, collect_later)


@after(released)
async def test_a_collection_while_the_machine_is_away_says_why_and_can_be_repeated(scene: Scene, coast: Coast) -> None:
    collection = await coast.collect("E1")
    assert collection.problem.startswith("the machine is unreachable: it does not answer")
    assert coast.uncollected() == ["E1"]
    coast.failure = None
    await coast.collect_the_last("E1")  # connects it at once
    with pytest.raises(UnknownNode):
        scene.provider.collect(NODE, "E1")


@after(released)
async def test_a_second_request_joins_in(scene: Scene, coast: Coast) -> None:
    coast.failure = None
    assert scene.provider.collect(NODE, "E1") is scene.provider.collect(NODE, "E1")
    assert coast.uncollected() == ["E1"]
    await coast.until_left()


@after(released)
async def test_files_are_collected_of_a_machine_on_which_no_trial_could_run(scene: Scene, coast: Coast) -> None:
    coast.free_mb = 1
    await coast.come_back("E1")
    await coast.collect_the_last("E1")


@pytest.mark.parametrize("gone", ["here", "there"])
@after(released)
async def test_a_machine_is_cleaned_where_there_is_nothing_to_collect(scene: Scene, coast: Coast, gone: str) -> None:
    shutil.rmtree(scene.folder / "experiments" if gone == "here" else coast.folder / "experiments")
    coast.failure = None
    await coast.until_left()
    assert coast.commands == ["stop", "remove"]
    assert not coast.here("E1").exists()


@after(nothing)
async def test_files_stay_while_the_disk_with_the_folder_of_their_experiment_is_away(
    scene: Scene, coast: Coast
) -> None:
    coast.write("E1")
    folder = scene.folder.parent / "unmounted" / "E1"
    await scene.connect(NODE, secrets_file=folder / "secrets.json")
    await scene.lose(NODE)
    await scene.provider.release("E1")
    await coast.come_back("E1")
    assert coast.there("E1").exists()
    said = f"the experiment's folder {folder} is not there; have its disk mounted"
    assert (await coast.collect("E1")).problem == said
    assert (coast.there("E1").exists(), folder.exists()) == (True, False)


@after(released)
async def test_files_stay_where_an_older_keeper_does_not_say_whose_are_there(scene: Scene, coast: Coast) -> None:
    coast.is_old = True
    await coast.come_back("E1")
    assert coast.there("E1").exists()


@after(released)
async def test_files_of_an_experiment_that_is_deleted_are_dropped(scene: Scene, coast: Coast) -> None:
    await coast.come_back("E1")
    await scene.provider.forget("E1")
    await coast.until_left()
    assert list((scene.folder / "experiments" / "E1").iterdir()) == []


@after(released)
async def test_files_of_an_experiment_that_is_deleted_are_removed_while_another_uses_the_machine(
    scene: Scene, coast: Coast
) -> None:
    await coast.be_used()
    await scene.provider.forget("E1")
    assert not coast.there("E1").exists()
    assert coast.there("E2").exists()
    assert coast.uncollected() == []


@after(released)
async def test_nodes_on_which_no_job_ran_have_no_files(scene: Scene, coast: Coast) -> None:
    await scene.provider.forget("E1", keep=[NODE])
    assert coast.uncollected() == ["E1"]
    await scene.provider.forget("E1", keep=["another"])
    assert coast.uncollected() == []


@after(released)
async def test_an_experiment_that_is_deleted_while_its_files_are_collected_gets_none_of_them(
    scene: Scene, coast: Coast
) -> None:
    coast.gate.clear()
    collection = await coast.begin_collection()
    await scene.provider.forget("E1")
    assert collection.ended.is_set()
    assert collection.problem.startswith("canceled: ")
    coast.gate.set()
    await coast.until_left()
    assert list((scene.folder / "experiments" / "E1").iterdir()) == []


@after(released)
async def test_an_experiment_that_is_resumed_while_its_files_are_collected_collects_them_itself(
    scene: Scene, coast: Coast
) -> None:
    coast.gate.clear()
    await coast.begin_collection()
    await scene.provider.end_collections("E1")
    scene.claim(NODE, by="E1")
    assert coast.uncollected() == []
    coast.gate.set()
    await asyncio.sleep(60)
    await scene.until_status(NODE, "CONNECTED")
    assert coast.there("E1").exists()
    assert not coast.here("E1").exists()
    await scene.provider.release("E1")
    await coast.until_left("E1")


@after(released)
async def test_a_check_does_not_break_off_the_collection_of_files(scene: Scene, coast: Coast) -> None:
    coast.gate.clear()
    await coast.begin_collection()
    logins = coast.logins
    scene.provider.check(NODE)
    await asyncio.sleep(5)
    assert coast.connections != []
    coast.gate.set()
    await coast.until_left()
    assert coast.logins == logins
    assert (coast.here("E1") / "model").read_text() == "made by E1"


@after(released)
async def test_a_check_of_a_machine_that_has_files_finds_it_as_it_was(scene: Scene, coast: Coast) -> None:
    await coast.come_back("E1")
    scene.provider.check(NODE)
    await scene.until_status(NODE, "CONNECTING", "released")
    await scene.until_status(NODE, "RELEASED")
    assert coast.there("E1").exists()


@after(connected)
async def test_while_the_disk_of_the_manager_is_full_the_files_stay(
    scene: Scene, coast: Coast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CollectionFailed("model cannot be stored on the manager's machine: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(MirrorFolder, "begin", refuse)
        await scene.provider.release("E1")
        [left] = scene.provider.uncollected()
        assert left.why == "model cannot be stored on the manager's machine: No space left on device"
        await scene.until_status(NODE, "RELEASED")
        assert (await coast.collect("E1")).problem == left.why
        assert "remove" not in coast.commands
        assert (coast.there("E1") / "model").exists()
    await coast.collect_the_last("E1")


@after(nothing)
async def test_nothing_is_removed_while_a_file_cannot_be_copied(scene: Scene, coast: Coast) -> None:
    coast.write("E1")
    (coast.there("E1") / "other").write_text("readable")
    place = coast.here("E1") / "model"
    (place / "a folder where the file should be").mkdir(parents=True)
    await coast.release_while_away("E1")
    await coast.come_back("E1")
    collection = await coast.collect("E1")
    assert "1 file (0-T/jobs/1/model) cannot be copied" in collection.problem
    assert (collection.files, collection.total_files) == (1, 2)
    assert (coast.there("E1") / "model").exists()
    assert (coast.here("E1") / "other").read_text() == "readable"
    await scene.until_status(NODE, "RELEASED")
    shutil.rmtree(place)
    assert (await coast.collect("E1")).problem == ""
    await coast.until_left()
    assert place.is_file()


@after(released)
async def test_nothing_is_collected_or_removed_while_a_trial_cannot_be_stopped(scene: Scene, coast: Coast) -> None:
    coast.left = ["process 17 does not end"]
    coast.failure = None
    await scene.until_status(NODE, "FAILED", "its trials cannot be stopped: process 17 does not end")
    assert "its trials cannot be stopped: process 17 does not end" in (await coast.collect("E1")).problem
    assert not coast.here("E1").exists()
    coast.left = []
    await coast.collect_the_last("E1")


@after(released)
async def test_another_experiment_that_uses_the_machine_meanwhile_leaves_the_files_alone(
    scene: Scene, coast: Coast
) -> None:
    await coast.come_back("E1")
    coast.write("E2")
    await scene.connect(NODE, by="E2")
    assert scene.pool.node(NODE).reason == ""
    await scene.provider.release("E2")
    await scene.until_status(NODE, "RELEASED", ARE_THERE.format("E1"))
    assert (coast.here("E2") / "model").exists()
    assert not coast.here("E1").exists()
    assert coast.experiments() == ["E1"]


@after(released)
async def test_files_are_collected_while_another_experiment_uses_the_machine(scene: Scene, coast: Coast) -> None:
    await coast.be_used()
    logins = coast.logins
    assert (await coast.collect("E1")).problem == ""
    assert (coast.here("E1") / "model").exists()
    assert coast.experiments() == ["E2"]
    assert scene.provider.machine(NODE).experiments == ("E2",)
    assert coast.logins == logins


@after(nothing)
async def test_the_time_limits_of_an_experiment_that_has_only_files_there_do_not_count(
    scene: Scene, coast: Coast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    add_node = scene.hub.add_node

    def note(node_id: str, secret: str, *, lost_after_seconds: float | None = None) -> None:
        limits.append(lost_after_seconds)
        add_node(node_id, secret, lost_after_seconds=lost_after_seconds)

    monkeypatch.setattr(scene.hub, "add_node", note)
    coast.write("E1")
    await scene.connect(NODE, by="E1", node_timeout_seconds=10.0)
    await scene.lose(NODE)
    await scene.provider.release("E1")
    coast.failure = None
    await scene.connect(NODE, by="E2", node_timeout_seconds=600.0)
    assert (await coast.collect("E1")).problem == ""
    assert limits[0] == 10.0
    assert set(limits[-3:]) == {600.0}


@after(released)
async def test_a_machine_is_not_forgotten_while_files_are_collected_from_it(scene: Scene, coast: Coast) -> None:
    await coast.begin_collection()
    with pytest.raises(NodeInUse, match="experiment E1, whose files are being collected; try again"):
        scene.provider.abandon(NODE)
    await coast.until_left()


@after(nothing)
async def test_what_is_written_there_during_the_collection_is_collected_too(
    scene: Scene, coast: Coast, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = CollectedFiles.collect
    coast.write("E1")

    async def collect_and_write(mirror: CollectedFiles, **options: Any) -> CollectionResult:
        found = await collect(mirror, **options)
        if not (coast.there("E1") / "late").exists():
            (coast.there("E1") / "late").write_text("written late")
        return found

    monkeypatch.setattr(CollectedFiles, "collect", collect_and_write)
    await scene.connect(NODE)
    await scene.provider.release("E1")
    await coast.until_left()
    assert (coast.here("E1") / "late").read_text() == "written late"
