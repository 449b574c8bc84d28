"""The remote service with real SSH servers and real keepers, over a hub that is served on a Unix socket.

Keepers outlive the tests as they outlive managers: an experiment of another name claims the machines in every test, so
that only the last one leaves them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes.hub_manager import HubManager, open_hub_manager, remote_settings
from fakes.machines.group import Group, loopback_group
from fakes.machines.requirements import needs_loopback

from proctor.training_services.base import NodePlacement, TrainingService, TrialJobForm
from proctor.training_services.registry import ServiceContext
from proctor.training_services.remote.service import RemoteTrainingService
from proctor.training_services.testing import (
    COMMANDS,
    Behavior,
    ServiceHarness,
    TrainingServiceContract,
)

pytestmark = [needs_loopback, pytest.mark.slow, pytest.mark.thorough]

ANCHOR = "Anchor01"
"""The experiment that keeps the machines claimed."""


class RemoteHarness(ServiceHarness):
    metadata = ("max_trial_number_per_gpu", 4)
    shows_milestones = True

    def __init__(self, home: Path, work: Path, group: Group) -> None:
        self.home = home
        self.directory = work
        self.code_directory = work / "code"
        self.trial_prefix = work.name  # the keepers serve many tests and start no job twice
        self.group = group
        self.settings = remote_settings(group.machine_list())
        self.manager: HubManager
        self.node_ids: tuple[str, ...] = ()
        self._open = AsyncExitStack()
        self.code_directory.mkdir()
        (self.code_directory / "trial.py").write_text("print('a trial')\n")

    @property
    def trials_directory(self) -> Path:
        return self.home / "experiments" / self.experiment_id / "trials"

    async def open(self) -> None:
        """A manager that has not taken up its experiments yet."""
        self.manager = await self._open.enter_async_context(open_hub_manager(self.home, ready=False))
        self.node_ids = self.manager.provider.claim(ANCHOR, self.settings, {})
        directory = self.trials_directory.parent
        context = ServiceContext(self.experiment_id, directory, self.manager.pool, self.manager.hub, self.settings)
        self.service = RemoteTrainingService(context, provider=self.manager.provider)

    async def close(self) -> None:
        await self._open.aclose()

    def form(self, behavior: Behavior, name: str = "first") -> TrialJobForm:
        return self.form_of(f"test -f trial.py && {{ {COMMANDS[behavior]}; }}", name)

    def form_of(self, command: str, name: str = "first", **changes: Any) -> TrialJobForm:
        placement = NodePlacement(self.node_ids[0 if name == "first" else 1])
        return super().form_of(command, name, placement=placement, **changes)

    async def reattached(self) -> None:
        await self.manager.hub.mark_reattached()
        for node_id in self.node_ids:
            await self.manager.until_status(node_id, "CONNECTED")

    async def block(self) -> TrainingService:
        """A manager whose keepers may not register yet."""
        return await self.restart()

    async def unblock(self) -> None:
        await self.reattached()

    def find_leftovers(self) -> list[str]:
        """Processes of our jobs, the keepers' records of them, and their folders. A keeper forgets a job when it has
        read our answer, which no event tells us."""
        found = self.find_processes()
        for machine in self.group.machines:
            for nodes in machine.path("/run/home").glob("*/.proctor/nodes/*"):
                found += [str(path) for path in (nodes / "jobs").glob("*")]
                found += [str(path) for path in nodes.glob(f"experiments/{self.experiment_id}")]
        return found

    def find_processes(self) -> list[str]:
        processes = [process for machine in self.group.machines for process in machine.processes()]
        return [process.command for process in processes if _is_ours(process.pid)]


def _is_ours(pid: int) -> bool:
    tag = f"PROCTOR_EXPERIMENT_ID={RemoteHarness.experiment_id}".encode()
    try:
        return tag in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # just gone


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with loopback_group(tmp_path_factory.mktemp("machines"), 2) as group, pytest.MonkeyPatch.context() as patch:
        for name, value in group.person.environment.items():
            patch.setenv(name, value)
        yield group


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, group: Group) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("home")
    yield path
    asyncio.run(_leave(path, group))
    group.leavings.expect_none()


async def _leave(home: Path, group: Group) -> None:
    """A manager that finds no experiment that needs the machines any more."""
    async with open_hub_manager(home, ready=True) as manager:
        await manager.until(lambda: not list((home / "nodes").glob("*/node.json")), "the machines to be left")


@pytest.fixture
async def harness(
    home: Path, group: Group, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[RemoteHarness]:
    async with RemoteHarness(home, tmp_path_factory.mktemp("job"), group).opened() as harness:
        yield harness
        await harness.service.clean_up()


class TestRemoteTrainingService(TrainingServiceContract):
    """The suite, on the fixture above."""
