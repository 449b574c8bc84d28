"""All machines that store an experiment's checkpoints must use one and the same storage: a folder that each of them has
for itself is recognized by a mark that is missing."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest
from fakes.keeper_node import eventually

from proctor.training_services import shared_storage
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.keepers.file_requests import FileRequests, KeeperFiles, StorageAnswer
from proctor.training_services.shared_storage import MARK_PREFIX, SharedStorage
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
        problem, has_mark = await asyncio.to_thread(self._builder.probe_storage, request)
        return StorageAnswer(problem, has_mark)

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

    @property
    def place(self) -> str:
        """Where the experiment stores."""
        return f"{self.location}/e1"

    async def problem(self, node: str) -> str:
        """What keeps trials on the node from storing checkpoints, for a manager that was just started."""
        return await SharedStorage(self.directory, self.nodes).problem(node, self.place, LAUNCH, {})


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


async def test_a_folder_of_nodes_alone_is_the_one_in_which_the_first_node_stores(machines: Machines) -> None:
    assert await machines.problem("shared") == ""
    assert await machines.problem("also-shared") == ""
    assert await machines.problem("shared") == ""
    assert await machines.problem("a") == (
        f"{machines.place} is not the place in which the experiment stores checkpoints; other machines would not find "
        "what is stored there: mount the folder that all nodes share, or have a URL of an object store as "
        "checkpointStorage"
    )
    (mark,) = (machines.nodes.folders["shared"] / "e1").iterdir()
    assert mark.name.startswith(MARK_PREFIX)
    assert list((machines.nodes.folders["a"] / "e1").iterdir()) == []


async def test_a_folder_that_the_managers_machine_has_too_is_the_one_that_counts(machines: Machines) -> None:
    Path(machines.location).mkdir()
    assert "is not the place in which" in await machines.problem("a"), "it has its own"
    machines.nodes.folders["a"] = Path(machines.location)
    assert await machines.problem("a") == ""
    for found in Path(machines.place).iterdir():  # it was emptied
        found.unlink()
    assert await machines.problem("a") == ""


async def test_a_mark_that_no_manager_has_noted_proves_nothing(machines: Machines) -> None:
    """The manager was killed when a node had made its mark, and before it could note which one that is."""
    assert await machines.problem("a") == ""
    for noted in machines.directory.iterdir():
        noted.unlink()
    assert await machines.problem("b") == ""
    assert "is not the place in which" in await machines.problem("a")


async def test_a_node_whose_keeper_cannot_tell_is_used_and_makes_no_mark(machines: Machines) -> None:
    machines.nodes.earlier.add("a")
    assert await machines.problem("a") == ""
    assert await machines.problem("b") == ""
    assert await machines.problem("a") == ""
    machines.nodes.earlier.clear()
    assert "is not the place in which" in await machines.problem("a")


async def test_what_the_managers_machine_cannot_look_at_is_no_answer(machines: Machines) -> None:
    Path(machines.location).mkdir()
    Path(machines.place).touch()
    with pytest.raises(ServiceUnavailable, match=rf"{machines.place} cannot be used on the manager's machine: "):
        await machines.problem("a")


async def test_a_storage_that_hangs_on_the_managers_machine_holds_one_thread(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, goes_on = list[str](), threading.Event()

    def hang(place: str) -> bool:
        looks.append(place)
        return goes_on.wait(60.0)

    monkeypatch.setattr(shared_storage, "LOOK_SECONDS", 0.01)
    storage = SharedStorage(machines.directory, machines.nodes)
    with monkeypatch.context() as hanging:
        hanging.setattr(shared_storage, "_has_location", hang)
        for _ in range(3):
            with pytest.raises(ServiceUnavailable, match=f"{machines.place} does not answer on the manager's machine"):
                await storage.problem("a", machines.place, LAUNCH, {})
    assert looks == [machines.place]
    goes_on.set()
    monkeypatch.setattr(shared_storage, "LOOK_SECONDS", 60.0)
    await eventually(lambda: storage._look is not None and storage._look.done())
    assert await storage.problem("a", machines.place, LAUNCH, {}) == ""


@pytest.mark.slow
async def test_a_url_must_lead_to_the_same_place_as_on_the_managers_machine(machines: Machines) -> None:
    url = f"file://{machines.place}"
    machines.nodes.folders["here"] = Path(machines.location)
    for node, problem in (("a", f"{url} is not the place in which the experiment stores"), ("here", "")):
        found = await SharedStorage(machines.directory, machines.nodes).problem(node, url, LAUNCH, {})
        assert found.startswith(problem)
        assert bool(found) == bool(problem)
