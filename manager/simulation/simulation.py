"""A whole manager under virtual time: real engine and store, dispatchers in this process, jobs that follow scripts.

    def main(loop: VirtualTimeLoop) -> Coroutine[Any, Any, None]:
        simulation = Simulation(home, loop)
        async with simulation.manager() as manager:
            row = await manager.create_experiment(config=config, directory=directory)
            await simulation.ended(manager, row.id)

    run_virtual(main)

Used by benchmarks and by tests: what takes days happens in a moment, and in the same order every time. The platforms
live in the simulation, so a second `manager()` on the same home plays a restart.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proctor.manager.clock import Clock, LoopClock
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.engine.manager import DispatcherFactory, Manager
from proctor.manager.settings import Home
from proctor.manager.simulation.virtual_time import VirtualTimeLoop
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow
from proctor.training_services.base import TrainingService
from proctor.training_services.in_memory.scripts import Script, one_report
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.registry import ServiceContext


def _in_process(row: ExperimentRow, config: ExperimentConfig) -> Opener:
    return open_in_process


class Simulation:
    """What surrounds a simulated manager and outlives it.

    :param home: where the manager keeps its things; two simulations must not share one at the same time.
    :param loop: the virtual-time loop that everything runs on.
    :param script: what the trial jobs do.
    :param open_dispatcher: how dispatchers are started; by default in this process (built-in algorithms only are
        repeatable).
    """

    def __init__(
        self,
        home: Home,
        loop: VirtualTimeLoop,
        *,
        script: Script = one_report,
        open_dispatcher: DispatcherFactory = _in_process,
    ) -> None:
        self.home = home
        self.clock: Clock = LoopClock()
        self.platforms: dict[str, InMemoryPlatform] = {}
        self._loop = loop
        self._script = script
        self._open_dispatcher = open_dispatcher

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        """A manager on the home; on leaving it goes away as after SIGTERM, the jobs stay."""
        self.home.prepare()
        database = await Database.open(str(self.home.control_database), "control", threads=False)
        async with database:
            pool = NodePool()
            manager = Manager(
                home=self.home,
                control=database,
                pool=pool,
                hub=KeeperHub(pool, now=self.clock.now),
                clock=self.clock,
                open_dispatcher=self._open_dispatcher,
                create_service=self._create_service,
                threads=False,
            )
            async with manager.serve():
                yield manager

    async def ended(self, manager: Manager, experiment_id: str) -> ExperimentRow:
        """Wait until the experiment is DONE, STOPPED or in ERROR; returns its row."""
        # A look in every virtual minute costs less than one at every change.
        while not (row := await manager.experiment(experiment_id)).status.has_ended:  # noqa: ASYNC110
            await asyncio.sleep(60.0)
        return row

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        """Every platform is played in memory."""
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return InMemoryTrainingService(self._script, platform=memory, now=self.clock.now)
