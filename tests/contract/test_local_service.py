"""The local training service keeps the contract, with a real keeper behind the real routes on a real socket."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes.keeper_listeners import listening

from proctor.training_services.base import NodePlacement, TrainingService, TrialJobForm
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.local.keeper import LocalKeeper, ensure_local_keeper
from proctor.training_services.local.service import LocalTrainingService
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import (
    Behavior,
    Recorder,
    ServiceHarness,
    TrainingServiceContract,
    serving,
)
from proctor.trial_keeper.start import stop_keeper


class ManagerEnd:
    """The manager's end: a pool, a hub, and what looks after the local keeper."""

    def __init__(self, home: Path) -> None:
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, reattach_patience_seconds=30.0)
        self.keeper: LocalKeeper = ensure_local_keeper(
            home, self.hub, self.pool, gpu_lock_directory=str(home / "gpu-locks")
        )

    async def connected(self) -> None:
        """Wait until the node is connected."""
        await until_status(self.pool, NodeStatus.CONNECTED)


async def until_status(pool: NodePool, status: NodeStatus) -> None:
    news = asyncio.Event()
    stop = pool.on_change(news.set)
    async with asyncio.timeout(30):
        while pool.node("local").status is not status:
            await news.wait()
            news.clear()
    stop()


class LocalHarness(ServiceHarness):
    metadata = ("max_trial_number_per_gpu", 4)
    shows_milestones = True

    def __init__(self, home: Path, work: Path) -> None:
        self.home = home
        self.directory = self.code_directory = work
        self.trial_prefix = work.name  # the keeper serves many tests and starts no job twice
        self._open = AsyncExitStack()
        self._sockets = 0

    async def open(self) -> None:
        """A manager whose pool and hub know nothing; the keeper finds it by the pointer."""
        self._sockets += 1
        socket = self.home / "run" / f"{self.directory.name}-{self._sockets}.sock"
        self.end = ManagerEnd(self.home)
        await self.end.keeper.start()
        await self._open.enter_async_context(listening(self.end.hub, socket))
        draft = self.home / "run" / "pointer"
        draft.write_text(str(socket))
        draft.rename(self.home / "run" / "socket")
        context = ServiceContext(
            self.experiment_id, self.home / "experiments" / self.experiment_id, self.end.pool, self.end.hub
        )
        self.service = LocalTrainingService(context)

    async def close(self) -> None:
        await self._open.aclose()

    def form_of(self, command: str, name: str = "first", **changes: Any) -> TrialJobForm:
        return super().form_of(command, name, placement=NodePlacement("local"), **changes)

    async def reattached(self) -> None:
        await self.end.hub.mark_reattached()
        await self.end.connected()

    async def block(self) -> TrainingService:
        """A manager whose keeper may not register yet."""
        return await self.restart()

    async def unblock(self) -> None:
        await self.reattached()

    def find_leftovers(self) -> list[str]:
        """The keeper forgets a job when it has read our answer, which no event tells us."""
        return [*map(str, (self.home / "nodes" / "local" / "jobs").glob("*")), *self.find_processes()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("home")
    (path / "run").mkdir(mode=0o700)
    yield path
    stop_keeper(path / "nodes" / "local")


@pytest.fixture
async def harness(
    home: Path, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[LocalHarness]:
    async with LocalHarness(home, tmp_path_factory.mktemp("job")).opened() as harness:
        yield harness
        await harness.service.clean_up()


class TestLocalTrainingService(TrainingServiceContract):
    """The suite, on the fixture above."""


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_keeper_that_is_killed_is_started_again_and_its_trial_goes_on(harness: LocalHarness) -> None:
    form, recorder = harness.form(Behavior.HANG), Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service), asyncio.TaskGroup() as group:
        looking_after = group.create_task(harness.end.keeper.run(), name="local keeper")
        await harness.service.submit_trial_job(form)
        await recorder.start_of(form.job_id)
        pid = await harness.end.keeper.start()
        os.kill(pid, 9)
        await until_status(harness.end.pool, NodeStatus.CONNECTING)
        await harness.end.connected()
        assert await harness.end.keeper.start() != pid
        await harness.service.cancel_trial_job(form.job_id)
        end = await recorder.end_of(form.job_id)
        looking_after.cancel()
    starts = {change.pid for change in recorder.of(form.job_id) if change.pid is not None}
    assert len(starts) == 1
    assert end.exit is not None
    assert await harness.leftovers() == []
