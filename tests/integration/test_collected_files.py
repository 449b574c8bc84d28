"""Files of a real keeper's node, through the real routes on a real socket, into a folder here."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proctor.manager.api.keepers import keeper_application
from proctor.manager.process.server import HttpServer
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
        self.directory = directory
        self.keeper_directory = directory / "keeper"
        self.there = self.keeper_directory / FOLDER
        self.here = directory / "collected"
        self.pool = NodePool()
        self.pool.add(NODE, "remote")
        self.hub = KeeperHub(self.pool, heartbeat_seconds=0.5, silent_after=600)
        self.hub.add_node(NODE, SECRET)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve the keepers' routes, with a keeper that knows where."""
        await self.hub.mark_reattached()
        path = self.directory / "manager.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(64)
            listener.setblocking(False)
            (self.directory / "pointer").write_text(str(path))
            server = HttpServer(keeper_application(self.hub))
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve_on(listener), name="keepers")
                try:
                    await self.start_keeper()
                    await self.connected()
                    yield
                finally:
                    await asyncio.to_thread(stop_keeper, self.keeper_directory)
                    self.hub.close()
                    server.leave()

    async def start_keeper(self) -> None:
        """Start the keeper if none runs."""
        await asyncio.to_thread(
            start_keeper,
            self.keeper_directory,
            node_id=NODE,
            manager_pointer=self.directory / "pointer",
            secret=SECRET,
            gpu_lock_directory=str(self.directory / "gpu-locks"),
        )

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
    async with end.listening():
        yield end


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
