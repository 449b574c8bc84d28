"""The local training service keeps the contract, with a real keeper behind the real routes on a real socket."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from proctor.manager.api.keepers import keeper_application
from proctor.training_services.base import NodePlacement, TrainingService, TrialJobForm
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.local.keeper import LocalKeeper, ensure_local_keeper
from proctor.training_services.local.service import LocalTrainingService
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import (
    COMMANDS,
    Behavior,
    Recorder,
    ServiceHarness,
    TrainingServiceContract,
    serving,
)
from proctor.trial_keeper.start import stop_keeper

EXPERIMENT = "Ab3dE5f7"


class ManagerEnd:
    """The manager's end: a pool and a hub behind a Unix socket. Opened again, it is a manager that was restarted."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, reattach_patience_seconds=30.0)
        self.keeper: LocalKeeper = ensure_local_keeper(
            home, self.hub, self.pool, gpu_lock_directory=str(home / "gpu-locks")
        )

    @asynccontextmanager
    async def listening(self, socket: Path) -> AsyncIterator[None]:
        config = uvicorn.Config(keeper_application(self.hub), uds=str(socket), lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        async with asyncio.TaskGroup() as group:
            serving_task = group.create_task(server.serve(), name="keeper routes")
            async with asyncio.timeout(20):
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.001)
            temporary = self.home / "run" / "pointer"
            temporary.write_text(str(socket))
            temporary.rename(self.home / "run" / "socket")
            try:
                yield
            finally:
                self.hub.close()
                server.should_exit = server.force_exit = True
                await serving_task

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


async def until_none(find: Callable[[], list[str]]) -> list[str]:
    """What is found, which is given a while to go away: files and processes of other processes, without events."""
    try:
        async with asyncio.timeout(20):
            while found := find():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        pass
    return found


class LocalHarness(ServiceHarness):
    metadata = ("max_trial_number_per_gpu", 4)
    shows_milestones = True

    def __init__(self, home: Path, work: Path) -> None:
        self.home = home
        self.work = work
        self.end = ManagerEnd(home)
        self.service: TrainingService = self._make()
        self._open = AsyncExitStack()
        self._sockets = 0

    async def open(self) -> None:
        """Open the manager's end; the keeper finds it by the pointer."""
        self._sockets += 1
        socket = self.home / "run" / f"{self.work.name}-{self._sockets}.sock"
        await self._open.enter_async_context(self.end.listening(socket))

    async def close(self) -> None:
        """Close it again."""
        await self._open.aclose()

    def form(self, behavior: Behavior, name: str = "first") -> TrialJobForm:
        return self._form(COMMANDS[behavior], name, str(self.work))

    def impossible_form(self) -> TrialJobForm:
        return self._form("true", "first", str(self.work / "missing"))

    async def restart(self) -> TrainingService:
        """A manager that is gone, and another one with a pool and a hub that know nothing."""
        await self.close()
        self.end = ManagerEnd(self.home)
        await self.open()
        self.service = self._make()
        return self.service

    async def reattached(self) -> None:
        await self.end.hub.mark_reattached()
        await self.end.connected()

    async def block(self) -> TrainingService:
        """A manager whose keeper may not register yet."""
        return await self.restart()

    async def unblock(self) -> None:
        await self.reattached()

    async def processes(self) -> list[str]:
        return await until_none(self._processes)

    async def leftovers(self) -> list[str]:
        """The keeper forgets a job when it has read our answer, which no event tells us."""
        return await until_none(lambda: self._records() + self._processes())

    def _records(self) -> list[str]:
        return [str(path) for path in (self.home / "nodes" / "local" / "jobs").glob("*")]

    def _processes(self) -> list[str]:
        """Every process that carries the tag of a job in its environment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PROCTOR_EXPERIMENT_ID={EXPERIMENT}".encode() in environment and self._is_ours(environment):
                found.append(entry.name)
        return found

    def _is_ours(self, environment: list[bytes]) -> bool:
        return any(item.startswith(f"PROCTOR_JOB_DIR={self.work}".encode()) for item in environment)

    def _make(self) -> TrainingService:
        context = ServiceContext(EXPERIMENT, self.home / "experiments" / EXPERIMENT, self.end.pool, self.end.hub)
        return LocalTrainingService(context)

    def _form(self, command: str, name: str, code_directory: str) -> TrialJobForm:
        trial_id = f"{self.work.name}{name}"  # the keeper serves many tests and starts no job twice
        return TrialJobForm(
            job_id=f"{trial_id}.1",
            token=f"token of {name}",
            experiment_id=EXPERIMENT,
            trial_id=trial_id,
            sequence_id=0,
            number=1,
            parameter_id=0,
            parameter_file='{"parameter_id":0,"parameters":{}}',
            command=command,
            code_directory=code_directory,
            directory=str(self.work / name / "jobs" / "1"),
            placement=NodePlacement("local"),
        )


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
    work = tmp_path_factory.mktemp("job")
    harness = LocalHarness(home, work)
    await harness.end.keeper.start()
    await harness.open()
    await harness.reattached()
    yield harness
    await harness.service.clean_up()
    await harness.close()


class TestLocalTrainingService(TrainingServiceContract):
    """The suite, on the fixture above."""


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
