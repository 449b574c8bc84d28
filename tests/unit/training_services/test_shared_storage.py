"""All machines that store an experiment's checkpoints must use one and the same storage: a folder that each of them has
for itself is recognized by a mark that is missing."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from proctor.sdk.checkpoints.ownership import SHARED_PREFIX, FolderPlace, Owner, claim
from proctor.sdk.checkpoints.storage import MARK_CONTENT
from proctor.training_services.keepers.file_requests import FileRequests, KeeperFiles, StorageAnswer
from proctor.training_services.shared_storage import NOTE_FILE, MarkNote, SharedStorage, StorageProblem, new_mark
from proctor.trial_keeper.jobs.launching import RequestBuilder
from proctor.trial_keeper.jobs.records import RecordFolder
from proctor.trial_keeper.protocol import Launch, ProbeStorage

pytestmark = pytest.mark.anyio

LAUNCH = Launch("t.1", "token", "e1", "t", 0, "/job", f"{sys.executable} train.py", "/", "{}", None)


class Nodes(KeeperFiles):
    """Keepers, each of which sees a folder of its own under the location's path; asked as the hub is.

    :param folders: what each of them has there.
    :param location: the path.
    """

    def __init__(self, folders: dict[str, Path], location: str) -> None:
        self.folders, self._location = folders, location
        self.earlier: set[str] = set()
        self.overtaken = ""
        self.has_made, self.goes_on = asyncio.Event(), asyncio.Event()
        self._builder = RequestBuilder(RecordFolder(Path("/nowhere")), bundle="", gpu_lock_directory="", oom_counter="")

    async def probe_storage(
        self,
        keeper_id: str,
        storage: str,
        launch: Launch,
        *,
        mark: str = "",
        makes_mark: bool = False,
        timeout_seconds: float = 0.0,
    ) -> StorageAnswer:
        if keeper_id in self.earlier:
            return StorageAnswer("", None)
        seen = storage.replace(self._location, str(self.folders[keeper_id]))
        request = ProbeStorage("r", seen, launch, mark=mark, makes_mark=makes_mark)
        answer = StorageAnswer(*await asyncio.to_thread(self._builder.probe_storage, request))
        if makes_mark and keeper_id == self.overtaken:
            self.has_made.set()
            await self.goes_on.wait()
        return answer

    def _requests(self, keeper_id: str) -> FileRequests:
        raise NotImplementedError


class Machines:
    """An experiment with a manager and nodes on separate machines, some of which share a folder."""

    def __init__(self, folder: Path) -> None:
        self.location = str(folder / "manager" / "checkpoints")
        self.directory = folder / "experiment"
        for name in ("manager", "experiment", "shared", "a", "b"):
            (folder / name).mkdir()
        self.nodes = Nodes({name: folder / name for name in ("shared", "a", "b")}, self.location)
        self.nodes.folders["also-shared"] = folder / "shared"
        MarkNote().write(self.directory)

    @property
    def place(self) -> str:
        """Where the experiment stores."""
        return f"{self.location}/e1"

    @property
    def note(self) -> Path:
        """What `create` has written."""
        return self.directory / NOTE_FILE

    def create_here(self) -> None:
        """Have the experiment created where the manager's machine has the location."""
        Path(self.location).mkdir()
        note = MarkNote(new_mark(), "the manager's machine")
        assert claim(FolderPlace(self.place), Owner("home", "e1", 1.0), mark=note.mark) == ""
        note.write(self.directory)

    async def problem(self, node: str) -> str:
        """What keeps trials on the node from storing checkpoints, for a manager that was just started."""
        return (await SharedStorage(self.directory, self.nodes).problem(node, node, self.place, LAUNCH)).clause

    def other_than(self, maker: str) -> str:
        """What is said of a node whose folder is not that of the first machine."""
        return (
            f"{self.place} is not the place in which the experiment stores checkpoints: {maker}, which was the first "
            "to write there, has another one, or it was emptied; mount the folder that all machines share, or, to let "
            f"another node decide, empty {self.note} on the manager's machine"
        )


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


async def test_a_folder_of_nodes_alone_is_the_one_in_which_the_first_node_stores(machines: Machines) -> None:
    assert await machines.problem("shared") == ""
    assert await machines.problem("also-shared") == ""
    assert await machines.problem("shared") == ""
    assert await machines.problem("a") == machines.other_than("node shared")
    (mark,) = (machines.nodes.folders["shared"] / "e1").iterdir()
    assert mark.name.startswith(SHARED_PREFIX)
    assert mark.read_bytes() == MARK_CONTENT
    assert list((machines.nodes.folders["a"] / "e1").iterdir()) == []


async def test_a_folder_that_the_managers_machine_has_at_the_creation_is_the_one_that_counts(
    machines: Machines,
) -> None:
    machines.create_here()
    assert await machines.problem("a") == machines.other_than("the manager's machine")
    machines.nodes.folders["a"] = Path(machines.location)
    assert await machines.problem("a") == ""


async def test_the_managers_machine_makes_no_mark_in_a_folder_that_it_has_later(
    machines: Machines, tmp_path: Path
) -> None:
    """Nothing is mounted there any more, or the home was moved to a machine with a folder of its own."""
    machines.create_here()
    Path(machines.location).rename(tmp_path / "mounted")
    machines.nodes.folders |= {"a": tmp_path / "mounted", "b": Path(machines.location)}
    Path(machines.location).mkdir()
    assert await machines.problem("a") == ""
    assert await machines.problem("b") == machines.other_than("the manager's machine")
    assert list(Path(machines.place).iterdir()) == []


async def test_a_storage_that_was_emptied_is_used_after_the_note_was_emptied(machines: Machines) -> None:
    assert await machines.problem("shared") == ""
    (mark,) = (machines.nodes.folders["shared"] / "e1").iterdir()
    mark.unlink()
    assert await machines.problem("shared") == machines.other_than("node shared")
    os.truncate(machines.note, 0)
    assert await machines.problem("a") == "", "another node may decide"
    assert await machines.problem("shared") == machines.other_than("node a")


async def test_nodes_of_an_experiment_without_a_note_are_not_compared(machines: Machines) -> None:
    """It was created by an earlier version, or loaded from an archive; the manager's machine has an empty folder."""
    Path(machines.location).mkdir()
    machines.note.unlink()
    assert [await machines.problem(node) for node in ("shared", "a", "b")] == ["", "", ""]
    assert [list((machines.nodes.folders[node] / "e1").iterdir()) for node in ("shared", "a")] == [[], []]
    assert not machines.note.exists()


async def test_of_two_nodes_that_begin_at_the_same_time_one_counts(machines: Machines) -> None:
    storage = SharedStorage(machines.directory, machines.nodes)
    machines.nodes.overtaken = "a"
    async with asyncio.TaskGroup() as group:
        first = group.create_task(storage.problem("a", "a", machines.place, LAUNCH))
        await machines.nodes.has_made.wait()
        assert (await storage.problem("b", "b", machines.place, LAUNCH)).clause == ""
        machines.nodes.goes_on.set()
    assert first.result() == StorageProblem(machines.other_than("node b"))


async def test_a_mark_that_no_manager_has_noted_proves_nothing(machines: Machines) -> None:
    """The manager was killed when a node had made its mark, and before it could note which one that is."""
    assert await machines.problem("a") == ""
    MarkNote().write(machines.directory)
    assert await machines.problem("b") == ""
    assert await machines.problem("a") == machines.other_than("node b")


async def test_a_node_whose_keeper_cannot_tell_is_used_and_makes_no_mark(machines: Machines) -> None:
    machines.nodes.earlier.add("a")
    assert await machines.problem("a") == ""
    assert await machines.problem("b") == ""
    assert await machines.problem("a") == ""
    machines.nodes.earlier.clear()
    assert await machines.problem("a") == machines.other_than("node b")


async def test_a_mark_does_not_age(machines: Machines) -> None:
    assert await machines.problem("shared") == ""
    (mark,) = (machines.nodes.folders["shared"] / "e1").iterdir()
    os.utime(mark, (1.0, 1.0))
    assert await machines.problem("also-shared") == ""
    assert mark.stat().st_mtime > 1.0


async def test_a_note_that_cannot_be_read_is_no_ones_answer(machines: Machines) -> None:
    machines.note.unlink()
    machines.note.mkdir()
    found = await SharedStorage(machines.directory, machines.nodes).problem("a", "a", machines.place, LAUNCH)
    assert found == StorageProblem(f"the manager cannot use {machines.note}: Is a directory", is_nodes=False)


@pytest.mark.slow
async def test_a_url_must_lead_to_the_same_place_as_on_the_managers_machine(machines: Machines) -> None:
    machines.create_here()
    url = f"file://{machines.place}"
    machines.nodes.folders["here"] = Path(machines.location)
    for node, problem in (("a", f"{url} is not the place in which the experiment stores"), ("here", "")):
        answer = await SharedStorage(machines.directory, machines.nodes).problem(node, node, url, LAUNCH)
        found = answer.clause
        assert found.startswith(problem)
        assert bool(found) == bool(problem)
        assert not found or found.endswith(f"to use it as it is, remove {machines.note} on the manager's machine")
