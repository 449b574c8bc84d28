"""Files of a real keeper's node, through the real routes on a real socket, into a folder here."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.keeper_listeners import listening

from proctor.training_services.errors import TrainingServiceError
from proctor.training_services.files.mirror import CollectedFiles
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.files.access import list_files
from proctor.trial_keeper.start import start_keeper, stop_keeper

pytestmark = pytest.mark.anyio

NODE = "gpu-1"
SECRET = "a secret of the node"
FOLDER = "experiments/e1"
MEBIBYTE = 1024 * 1024


class End:
    """The manager's end, and one real keeper in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.keeper_directory = directory / "keeper"
        self.there = self.keeper_directory / FOLDER
        self.here = directory / "collected"
        self.pool = NodePool()
        self.pool.add(NODE, "remote")
        self.hub = KeeperHub(self.pool, heartbeat_seconds=0.5, silent_after=600)
        self.hub.add_node(NODE, SECRET)

    async def connected(self) -> None:
        """Wait until the keeper has a session."""
        news = asyncio.Event()
        stop = self.pool.on_change(news.set)
        async with asyncio.timeout(60):
            while self.pool.node(NODE).status is not NodeStatus.CONNECTED:
                await news.wait()
                news.clear()
        stop()

    def write(self, path: str, data: bytes) -> None:
        """A file on the node."""
        file = self.there / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def mirror(self) -> CollectedFiles:
        """A mirror of the experiment's folder, as any manager would open it."""
        return CollectedFiles(self.hub, NODE, folder=FOLDER, local_folder=self.here)

    def assert_mirrored(self) -> None:
        """Everything is here as it is there."""
        files = list_files(str(self.there))
        assert list_files(str(self.here)) == files
        assert all((self.here / file.path).read_bytes() == (self.there / file.path).read_bytes() for file in files)


@pytest.fixture
async def end(tmp_path: Path) -> AsyncIterator[End]:
    end = End(tmp_path)
    await end.hub.mark_reattached()
    async with listening(end.hub, tmp_path / "manager.sock"):
        (tmp_path / "pointer").write_text(str(tmp_path / "manager.sock"))
        await asyncio.to_thread(
            start_keeper,
            end.keeper_directory,
            node_id=NODE,
            manager_pointer=tmp_path / "pointer",
            secret=SECRET,
            gpu_lock_directory=str(tmp_path / "gpu-locks"),
        )
        try:
            await end.connected()
            yield end
        finally:
            await asyncio.to_thread(stop_keeper, end.keeper_directory)


async def test_a_folder_is_mirrored_and_then_removed_from_the_node(end: End) -> None:
    for number in range(1200):
        end.write(f"trials/{number % 7}/{number}", b"x" * number)
    end.write("model", os.urandom(11 * MEBIBYTE))
    end.write("odd \udcff\n name", b"1")
    collection = await end.mirror().collect(durable=True)
    assert (collection.files, collection.left) == (1202, [])
    end.assert_mirrored()
    assert (await end.mirror().collect()).files == 0
    await end.hub.remove_folder(NODE, FOLDER)
    assert not end.there.exists()
    assert len(list_files(str(end.here))) == 1202
    with pytest.raises(FileNotFoundError):
        await end.hub.list_files(NODE, FOLDER)
    with pytest.raises(FileNotFoundError, match=FOLDER):
        await end.hub.read_file(NODE, FOLDER, "stdout", 0, 10)
    with pytest.raises(TrainingServiceError, match="is not in the keeper's directory"):
        await end.hub.remove_folder(NODE, str(end.here))


async def test_many_collections_beside_each_other_all_end(end: End) -> None:
    for number in range(24):
        end.write(f"jobs/{number}/stdout", os.urandom(1000))
        end.write(f"jobs/{number}/model", os.urandom(MEBIBYTE))
    async with asyncio.TaskGroup() as group:
        for number in range(24):
            job = f"jobs/{number}"
            mirror = CollectedFiles(end.hub, NODE, folder=f"{FOLDER}/{job}", local_folder=end.here / job)
            group.create_task(mirror.collect(), name=f"collect {number}")
    end.assert_mirrored()
