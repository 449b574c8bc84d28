"""The experiments that an engine works on: taken up, found, left; and the databases they write to."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from proctor.manager.clock import Clock
from proctor.manager.config import ExperimentConfig
from proctor.manager.dispatcher.client import Opener
from proctor.manager.engine.code import CodeWatch
from proctor.manager.engine.creation import read_secrets
from proctor.manager.engine.forms import FormWriter
from proctor.manager.engine.placer import FreePlacer, Placer, PoolPlacer
from proctor.manager.engine.recovery import load_state
from proctor.manager.engine.runner import ExperimentRunner
from proctor.manager.engine.stopping import awaited
from proctor.manager.engine.surroundings import Surroundings
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.events import ChangeFeed
from proctor.manager.lifecycle.experiment import EXPERIMENT, ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.store import experiments
from proctor.manager.store.database import HEALTHY, Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import ExperimentRow
from proctor.training_services.base import SupportsNodes, TrainingService
from proctor.training_services.keeper_hub import KeeperHub
from proctor.training_services.nodes import LOCAL_KIND, NodePool
from proctor.training_services.providers import Providers
from proctor.training_services.registry import ServiceContext

log = logging.getLogger(__name__)

_LEAVING = {ExperimentStatus.STOPPING, ExperimentStatus.STOPPED}

DispatcherFactory = Callable[[ExperimentRow, ExperimentConfig], Opener]
ServiceFactory = Callable[[str, ServiceContext], TrainingService]


@dataclass
class Running:
    """An experiment that an engine works on."""

    runner: ExperimentRunner
    service: TrainingService
    task: asyncio.Task[None]


@dataclass(frozen=True)
class Means:
    """What all experiments of a manager share."""

    home: Home
    control: Database
    pool: NodePool
    hub: KeeperHub
    clock: Clock
    feed: ChangeFeed
    open_dispatcher: DispatcherFactory
    create_service: ServiceFactory
    providers: Providers | None = None
    threads: bool = True  # whether databases have threads of their own; a simulation has none


class Fleet:
    """One engine for every active experiment. Opened with `serve`."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._running: dict[str, Running] = {}
        self._metrics: dict[str, Database] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Take up every active experiment, then serve. On leaving, trials go on under their keepers."""
        async with self._stack, asyncio.TaskGroup() as group:
            self._group = group
            for row in await self._means.control.read(experiments.active):
                await self._take_up_again(row)
            for running in tuple(self._running.values()):
                await running.runner.attached.wait()
            self._means.hub.ready()
            try:
                yield
            finally:
                self._group = None
                for running in list(self._running.values()):
                    running.task.cancel()

    async def _take_up_again(self, row: ExperimentRow) -> None:
        """After a restart of the manager. An experiment that cannot be taken up is in ERROR; the others go on."""
        try:
            await self.take_up(row.id)
        except Exception as error:
            extra = {"action": "experiment.fail", "experiment_id": row.id}
            log.exception("experiment %s cannot be taken up", row.id, extra=extra)
            if not EXPERIMENT.allows(row.status, ExperimentEvent.FAIL):
                return
            now, reason = self._means.clock.now(), f"cannot be taken up after a restart of the manager: {error}"
            await self._means.control.write(
                lambda c: experiments.move(
                    c, row.id, expected=(row.status,), status=ExperimentStatus.ERROR, reason=reason, time=now
                )
            )

    async def take_up(self, experiment_id: str) -> None:
        """Start the engine of one experiment. Raises Unavailable while the manager leaves."""
        if self._group is None:
            raise Unavailable("the manager is shutting down")
        metrics = await self.metrics(experiment_id)
        state = await load_state(self._means.control, metrics, experiment_id)
        config = ExperimentConfig.from_canonical(state.row.config)
        directory = Path(state.row.directory)
        service = self.make_service(state.row)
        forms = FormWriter(config, directory)
        around = Surroundings(
            config=config,
            control=self._means.control,
            metrics=metrics,
            service=service,
            placer=self._placer(service, config),
            clock=self._means.clock,
            feed=self._means.feed,
            forms=forms,
            code=CodeWatch(forms.code_directory, self._means.clock),
            open_dispatcher=self._means.open_dispatcher(state.row, config),
            checkpoint_directory=str(directory / "checkpoint"),
        )
        runner = ExperimentRunner(state, around)
        task = self._group.create_task(self._run(experiment_id, runner), name=f"experiment {experiment_id}")
        self._running[experiment_id] = Running(runner, service, task)

    async def _run(self, experiment_id: str, runner: ExperimentRunner) -> None:
        """One engine's life. Its failure is its experiment's, not the manager's."""
        try:
            await runner.run()
            await runner.around.service.clean_up()
        except Exception:
            extra = {"action": "engine.fail", "experiment_id": experiment_id}
            log.exception("the engine of experiment %s failed", experiment_id, extra=extra)
        finally:
            del self._running[experiment_id]
            self._means.feed.notify()

    def runner(self, experiment_id: str) -> ExperimentRunner:
        """The engine of an experiment. Raises Conflict when none works on it."""
        running = self._running.get(experiment_id)
        if running is None:
            raise Conflict(f"experiment {experiment_id} is not running; resume it first")
        return running.runner

    def has(self, experiment_id: str) -> bool:
        """Whether an engine works on it."""
        return experiment_id in self._running

    def users_of(self, node_id: str) -> list[str]:
        """The ids of the experiments that an engine works on and that may use a node."""
        return [name for name, running in self._running.items() if node_id in _nodes_of(running.service)]

    def leaving(self, node_ids: Collection[str]) -> dict[str, str]:
        """Of the experiments that may use one of the nodes, those that are being stopped, or were stopped and still
        leave their machines: by id a clause that says which of the two, and what it waits for."""
        return {name: _leaving_clause(name, self._running[name], self._means.pool) for name in self._leaving(node_ids)}

    async def until_left(self, node_ids: Collection[str], seconds: float) -> None:
        """Wait until none of these experiments is there any more, but no longer than some seconds."""
        if names := self._leaving(node_ids):
            await asyncio.wait({self._running[name].task for name in names}, timeout=seconds)

    def _leaving(self, node_ids: Collection[str]) -> list[str]:
        users = dict.fromkeys(name for node_id in node_ids for name in self.users_of(node_id))
        return [name for name in users if self._running[name].runner.state.row.status in _LEAVING]

    async def leave(self, experiment_id: str) -> None:
        """Wait until the engine of an experiment that is over is gone; end that of a failed one."""
        running = self._running.get(experiment_id)
        if running is None:
            return
        if running.runner.state.row.status is not ExperimentStatus.STOPPED:
            running.task.cancel()
        await asyncio.wait({running.task})

    def service(self, experiment: ExperimentRow) -> TrainingService:
        """The experiment's service; of one that no engine works on, one that can only read."""
        running = self._running.get(experiment.id)
        return self.make_service(experiment) if running is None else running.service

    def make_service(self, experiment: ExperimentRow) -> TrainingService:
        """A new instance of the experiment's service."""
        settings = experiment.config["training_service"]
        means = self._means
        directory = Path(experiment.directory)
        context = ServiceContext(
            experiment.id,
            directory,
            means.pool,
            means.hub,
            settings,
            providers=means.providers,
            secrets=read_secrets(directory),
        )
        return means.create_service(settings["platform"], context)

    def _placer(self, service: TrainingService, config: ExperimentConfig) -> Placer:
        if not isinstance(service, SupportsNodes):
            return FreePlacer()
        return PoolPlacer(self._means.pool, service, config.trial_gpu_number)

    async def experiment(self, experiment_id: str) -> ExperimentRow:
        """One experiment's row. Raises NotFound."""
        try:
            return await self._means.control.read(lambda c: experiments.get(c, experiment_id))
        except RowNotFound:
            raise NotFound(f"there is no experiment {experiment_id!r}") from None

    async def metrics(self, experiment_id: str) -> Database:
        """The experiment's metrics database, opened on first use. Raises NotFound."""
        database = self._metrics.get(experiment_id)
        if database is None:
            row = await self.experiment(experiment_id)
            path = str(Path(row.directory) / "metrics.db")
            means = self._means
            database = await Database.open(path, "metrics", threads=means.threads)
            database.on_health_change(lambda health: means.feed.notify())
            self._metrics[experiment_id] = database
            self._stack.push_async_callback(database.close)
        return database

    async def close_metrics(self, experiment_id: str) -> None:
        """Let go of its metrics database."""
        database = self._metrics.pop(experiment_id, None)
        if database is not None:
            await database.close()

    def awaited(self, experiment_id: str) -> str:
        """What an experiment that is being stopped still waits for, as a clause, or ''."""
        running = self._running.get(experiment_id)
        return "" if running is None else awaited(running.runner.state, self._means.pool)

    @property
    def trouble(self) -> str:
        """Why something cannot be written at the moment, or why this machine's own node has no room; or ''."""
        unwritten = _trouble(self._means.control, *self._metrics.values())
        return "; ".join(filter(None, (unwritten, *self._shortages_here())))

    def _shortages_here(self) -> list[str]:
        """Why trials on the manager's own machine find no room, each reason once."""
        pool = self._means.pool
        here = [node.id for node in pool.nodes() if node.kind == LOCAL_KIND]
        users = [running.service for running in self._running.values()]
        folders = [_folder_of(service) for service in users if set(here) & set(_nodes_of(service))]
        return list(dict.fromkeys(pool.shortage(here, folder) for folder in ("", *folders)) if here else ())

    def trouble_of(self, experiment_id: str) -> str:
        """The same for what one experiment writes and for its nodes; and why its dispatcher suggests nothing."""
        metrics, running = self._metrics.get(experiment_id), self._running.get(experiment_id)
        unwritten = _trouble(self._means.control, *([] if metrics is None else [metrics]))
        if unwritten or running is None:
            return unwritten
        nodes = _nodes_of(running.service)
        shortage = self._means.pool.shortage(nodes, _folder_of(running.service)) if nodes else ""
        return shortage or running.runner.trouble


def _nodes_of(service: TrainingService) -> tuple[str, ...]:
    return service.node_ids() if isinstance(service, SupportsNodes) else ()


def _folder_of(service: TrainingService) -> str:
    return service.job_folder() if isinstance(service, SupportsNodes) else ""


def _leaving_clause(experiment_id: str, running: Running, pool: NodePool) -> str:
    state = running.runner.state
    if state.row.status is ExperimentStatus.STOPPED:
        return f"experiment {experiment_id} was stopped and is leaving it: its files are being collected and removed"
    waits = awaited(state, pool)
    return f"experiment {experiment_id} is being stopped" + (f": it {waits}" if waits else "")


def _trouble(*databases: Database) -> str:
    return "; ".join(database.health for database in databases if database.health != HEALTHY)
