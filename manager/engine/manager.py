"""The manager as the REST API sees it: experiments created, changed, stopped and read."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.manager.clock import Clock
from proctor.manager.config import ExperimentConfig
from proctor.manager.dispatcher.client import Opener
from proctor.manager.engine import creation
from proctor.manager.engine import messages as m
from proctor.manager.engine.forms import FormWriter
from proctor.manager.engine.placer import FreePlacer, Placer, PoolPlacer
from proctor.manager.engine.recovery import load_state
from proctor.manager.engine.runner import ExperimentRunner
from proctor.manager.engine.surroundings import Surroundings
from proctor.manager.errors import BadRequest, Conflict, NotFound, Unavailable
from proctor.manager.events import ChangeFeed
from proctor.manager.lifecycle.experiment import EXPERIMENT, ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.store import experiments, jobs, trials
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.sdk.space import SearchSpaceError, parse_search_space
from proctor.training_services.base import SupportsLogs, SupportsNodes, TrainingService
from proctor.training_services.capacity import PlacementRequest
from proctor.training_services.keeper_hub import KeeperHub
from proctor.training_services.nodes import NodePool
from proctor.training_services.registry import ServiceContext
from proctor.training_services.registry import create as create_service

log = logging.getLogger(__name__)


class Unlimited:
    """In an update: take the limit away (None leaves it as it is)."""


UNLIMITED = Unlimited()

DispatcherFactory = Callable[[ExperimentRow, ExperimentConfig], Opener]
ServiceFactory = Callable[[str, ServiceContext], TrainingService]


@dataclass
class Running:
    """An experiment that an engine works on."""

    runner: ExperimentRunner
    service: TrainingService
    task: asyncio.Task[None]


class Manager:
    """Owns the runners. Opened by the composition root with `serve`."""

    def __init__(
        self,
        *,
        home: Home,
        control: Database,
        pool: NodePool,
        hub: KeeperHub,
        clock: Clock,
        open_dispatcher: DispatcherFactory,
        create_service: ServiceFactory = create_service,
        on_pending: Callable[[int], None] = lambda change: None,
    ) -> None:
        self.home = home
        self.control = control
        self.pool = pool
        self.hub = hub
        self.clock = clock
        self.feed = ChangeFeed()
        self._open_dispatcher = open_dispatcher
        self._create_service = create_service
        self._on_pending = on_pending
        self._running: dict[str, Running] = {}
        self._metrics: dict[str, Database] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stack = AsyncExitStack()

    # ---- life

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Manager"]:
        """Take up every active experiment, then serve. On leaving, trials go on under their keepers."""
        async with self._stack, asyncio.TaskGroup() as group:
            self._group = group
            for row in await self.control.read(experiments.active):
                await self._take_up(row.id)
            self.hub.ready()
            try:
                yield self
            finally:
                self._group = None
                for running in list(self._running.values()):
                    running.task.cancel()

    async def _take_up(self, experiment_id: str) -> Running:
        """Start the engine of one experiment."""
        if self._group is None:
            raise Unavailable("the manager is shutting down")
        metrics = await self.metrics(experiment_id)
        state = await load_state(self.control, metrics, experiment_id)
        row = state.row
        config = ExperimentConfig.from_canonical(row.config)
        directory = Path(row.directory)
        settings = row.config["training_service"]
        context = ServiceContext(experiment_id, directory, self.pool, self.hub, settings)
        service = self._create_service(settings["platform"], context)
        around = Surroundings(
            config=config,
            control=self.control,
            metrics=metrics,
            service=service,
            placer=self._placer(service, config),
            clock=self.clock,
            feed=self.feed,
            forms=FormWriter(config, directory),
            open_dispatcher=self._open_dispatcher(row, config),
            checkpoint_directory=str(directory / "checkpoint"),
        )
        runner = ExperimentRunner(state, around)
        task = self._group.create_task(self._run(experiment_id, runner), name=f"experiment {experiment_id}")
        running = self._running[experiment_id] = Running(runner, service, task)
        return running

    def _placer(self, service: TrainingService, config: ExperimentConfig) -> Placer:
        if not isinstance(service, SupportsNodes):
            return FreePlacer()
        section = config.training_service
        indices = getattr(section, "gpu_indices", None)
        request = PlacementRequest(
            gpu_number=config.trial_gpu_number,
            max_trials_per_gpu=getattr(section, "max_trial_number_per_gpu", 1),
            use_active_gpu=bool(getattr(section, "use_active_gpu", False)),
            gpu_indices=None if indices is None else tuple(indices),
        )
        return PoolPlacer(self.pool, service.node_ids(), request)

    async def _run(self, experiment_id: str, runner: ExperimentRunner) -> None:
        """One engine's life. Its failure is its experiment's, not the manager's."""
        try:
            await runner.run()
            await runner.around.service.clean_up()
        except Exception:
            log.exception("the engine of experiment %s failed", experiment_id, extra={"action": "engine.fail"})
        finally:
            del self._running[experiment_id]
            self.feed.notify()

    # ---- experiments

    async def create_experiment(
        self,
        *,
        config: Mapping[str, Any],
        directory: str,
        handover: str | None = None,
        experiment_id: str | None = None,
        dry_run: bool = False,
    ) -> ExperimentRow:
        """Check, write down and start an experiment. Raises BadRequest with every problem, Conflict for a used id."""
        loaded = creation.check(config, directory)
        experiment_id = creation.make_id(experiment_id)
        folder = creation.experiment_directory(self.home, loaded, experiment_id)
        row = creation.new_row(loaded, experiment_id, folder, self.clock.now())
        if dry_run:
            return row
        handed = creation.take_handover(self.home, handover)
        if await self._find(experiment_id) is not None or folder.exists():
            raise Conflict(f"there is an experiment {experiment_id} already; choose another id or delete that one")
        try:
            creation.write_folder(folder, loaded, handed)
        except OSError as error:
            raise Unavailable(f"cannot write the experiment's folder {folder}: {error}") from error
        await self.control.write(lambda c: experiments.insert(c, row))
        self.feed.notify()
        await self._take_up(experiment_id)
        return row

    async def stop_experiment(self, experiment_id: str) -> None:
        """Stop one; returns when it is STOPPING (or was already stopped)."""
        row = await self.experiment(experiment_id)
        if row.status is ExperimentStatus.VIEWED:
            await self._move(row, ExperimentEvent.CLOSE)
        elif row.status is not ExperimentStatus.STOPPED:
            await self._runner(experiment_id).inbox.ask(m.Stop())

    async def stop_all(self) -> list[str]:
        """Stop every active experiment; returns their ids."""
        stopped = []
        for row in await self.control.read(experiments.active):
            if row.status is not ExperimentStatus.STOPPING:
                await self.stop_experiment(row.id)
                stopped.append(row.id)
        return stopped

    async def resume_experiment(self, experiment_id: str) -> None:
        """Start a STOPPED or failed experiment again, or let a PAUSED one go on."""
        row = await self.experiment(experiment_id)
        if row.status is ExperimentStatus.PAUSED:
            await self._runner(experiment_id).inbox.ask(m.Continue())
            return
        if not EXPERIMENT.allows(row.status, ExperimentEvent.RESUME):
            raise Conflict(f"experiment {experiment_id} is {row.status}; only a stopped or failed one can be resumed")
        await self._leave(experiment_id)
        await self._move(row, ExperimentEvent.RESUME)
        await self._take_up(experiment_id)

    async def view_experiment(self, experiment_id: str) -> None:
        """Open a STOPPED experiment for reading only."""
        row = await self.experiment(experiment_id)
        if not EXPERIMENT.allows(row.status, ExperimentEvent.VIEW):
            raise Conflict(f"experiment {experiment_id} is {row.status}; only a stopped one can be opened for viewing")
        await self._move(row, ExperimentEvent.VIEW)

    async def pause_experiment(self, experiment_id: str) -> None:
        """Create no new trials; running ones go on."""
        await self.experiment(experiment_id)
        await self._runner(experiment_id).inbox.ask(m.Pause())

    async def delete_experiment(self, experiment_id: str) -> None:
        """Remove everything of a stopped experiment: its rows and its folder."""
        row = await self.experiment(experiment_id)
        if row.status not in {ExperimentStatus.STOPPED, ExperimentStatus.VIEWED}:
            raise Conflict(f"experiment {experiment_id} is {row.status}; stop it before you delete it")
        await self._leave(experiment_id)
        metrics = self._metrics.pop(experiment_id, None)
        if metrics is not None:
            await metrics.close()
        await asyncio.to_thread(creation.remove_folder, Path(row.directory))
        now = self.clock.now()
        await self.control.write(lambda c: experiments.delete(c, experiment_id, time=now))
        self.feed.notify()

    async def update_experiment(
        self,
        experiment_id: str,
        *,
        trial_concurrency: int | None = None,
        max_trial_number: int | Unlimited | None = None,
        max_experiment_seconds: float | Unlimited | None = None,
        max_trial_seconds: float | Unlimited | None = None,
        search_space: Mapping[str, Any] | None = None,
    ) -> ExperimentRow:
        """Change limits or the search space, running or not. Returns the new row."""
        if search_space is not None:
            _check_space(search_space)
        wanted = {
            "trial_concurrency": trial_concurrency,
            "max_trial_number": max_trial_number,
            "max_experiment_seconds": max_experiment_seconds,
            "max_trial_seconds": max_trial_seconds,
            "search_space": None if search_space is None else dict(search_space),
        }
        columns = {k: None if v is UNLIMITED else v for k, v in wanted.items() if v is not None}
        row = await self.experiment(experiment_id)
        if experiment_id in self._running:
            await self._runner(experiment_id).inbox.ask(m.ChangeLimits(columns))
        elif "search_space" in columns:
            raise Conflict(f"experiment {experiment_id} is {row.status}; resume it before you change its search space")
        else:
            now = self.clock.now()
            await self.control.write(lambda c: experiments.set_limits(c, experiment_id, time=now, **columns))
            self.feed.notify()
        return await self.experiment(experiment_id)

    async def import_data(self, experiment_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell the tuner of results from elsewhere: rows of {"parameter", "value"}."""
        await self.experiment(experiment_id)
        await self._runner(experiment_id).inbox.ask(m.ImportRows(rows))

    # ---- trials

    async def kill_trial(self, trial_id: str) -> None:
        """End a live trial by the user's wish. Returns when its stop is written down."""
        row = await self.trial(trial_id)
        if row.status.is_terminal:
            raise Conflict(f"trial {trial_id} is {row.status} already; there is nothing to kill")
        await self._runner(row.experiment_id).inbox.ask(m.CancelTrial(trial_id))

    async def retry_trial(self, trial_id: str) -> TrialRow:
        """Run an ended trial's parameters again, as a new trial. Returns it."""
        row = await self.trial(trial_id)
        if not row.status.is_terminal:
            raise Conflict(f"trial {trial_id} is {row.status}; only an ended trial can be run again")
        wish = m.AddTrial(row.parameters, source="retry")
        return await self._runner(row.experiment_id).inbox.ask(wish)  # type: ignore[no-any-return]

    async def add_trial(self, experiment_id: str, parameters: Mapping[str, Any]) -> TrialRow:
        """Run a trial with the user's own parameters. Returns it."""
        await self.experiment(experiment_id)
        return await self._runner(experiment_id).inbox.ask(m.AddTrial(parameters))  # type: ignore[no-any-return]

    async def read_job_file(self, trial_id: str, job_number: int | None, path: str, offset: int, limit: int) -> bytes:
        """Part of a file of a trial's job (None: its newest). Raises NotFound."""
        trial, job = await self._job(trial_id, job_number)
        service, forms = await self._reader(trial)
        try:
            form = forms.form(await self.experiment(trial.experiment_id), trial, job)
            return await service.read_job_file(form, path, offset, limit)
        except FileNotFoundError as error:
            raise NotFound(f"job {job.id} has no file {path!r}") from error

    async def list_job_files(self, trial_id: str, job_number: int | None = None) -> list[tuple[str, int]]:
        """(relative path, size) of the files of a trial's job (None: its newest)."""
        trial, job = await self._job(trial_id, job_number)
        service, forms = await self._reader(trial)
        try:
            return await service.list_job_files(forms.form(await self.experiment(trial.experiment_id), trial, job))
        except FileNotFoundError:
            return []

    def job_directory(self, experiment: ExperimentRow, trial: TrialRow) -> Path:
        """Where the files of a trial's newest job lie."""
        config = ExperimentConfig.from_canonical(experiment.config)
        return FormWriter(config, Path(experiment.directory)).job_directory(trial, max(trial.jobs, 1))

    # ---- reading

    async def experiment(self, experiment_id: str) -> ExperimentRow:
        """One experiment's row. Raises NotFound."""
        row = await self._find(experiment_id)
        if row is None:
            raise NotFound(f"there is no experiment {experiment_id!r}")
        return row

    async def trial(self, trial_id: str) -> TrialRow:
        """One trial's row. Raises NotFound."""
        try:
            return await self.control.read(lambda c: trials.get(c, trial_id))
        except RowNotFound:
            raise NotFound(f"there is no trial {trial_id!r}") from None

    async def metrics(self, experiment_id: str) -> Database:
        """The experiment's metrics database, opened on first use. Raises NotFound."""
        database = self._metrics.get(experiment_id)
        if database is None:
            row = await self.experiment(experiment_id)
            path = Path(row.directory) / "metrics.db"
            database = await Database.open(str(path), "metrics", on_pending=self._on_pending)
            self._metrics[experiment_id] = database
            self._stack.push_async_callback(database.close)
        return database

    @property
    def trouble(self) -> str:
        """Why nothing can be written at the moment, or ''."""
        from proctor.manager.store.database import HEALTHY

        databases = (self.control, *self._metrics.values())
        return "; ".join(database.health for database in databases if database.health != HEALTHY)

    # ---- inside

    async def _find(self, experiment_id: str) -> ExperimentRow | None:
        try:
            return await self.control.read(lambda c: experiments.get(c, experiment_id))
        except RowNotFound:
            return None

    def _runner(self, experiment_id: str) -> ExperimentRunner:
        running = self._running.get(experiment_id)
        if running is None:
            raise Conflict(f"experiment {experiment_id} is not running; resume it first")
        return running.runner

    async def _leave(self, experiment_id: str) -> None:
        """Wait until the engine of an experiment that is over is gone; end that of a failed one."""
        running = self._running.get(experiment_id)
        if running is None:
            return
        if running.runner.state.row.status is not ExperimentStatus.STOPPED:
            running.task.cancel()
        await asyncio.wait({running.task})

    async def _move(self, row: ExperimentRow, event: ExperimentEvent) -> None:
        """A transition of an experiment that no engine works on."""
        status = EXPERIMENT.after(f"experiment {row.id}", row.status, event)
        now = self.clock.now()
        await self.control.write(
            lambda c: experiments.move(c, row.id, expected=(row.status,), status=status, reason="", time=now, error="")
        )
        self.feed.notify()

    async def _job(self, trial_id: str, number: int | None) -> tuple[TrialRow, TrialJobRow]:
        trial = await self.trial(trial_id)
        wanted = f"{trial_id}.{trial.jobs if number is None else number}"
        try:
            return trial, await self.control.read(lambda c: jobs.get(c, wanted))
        except RowNotFound:
            raise NotFound(f"trial {trial_id} has no job {wanted.rpartition('.')[2]} yet") from None

    async def _reader(self, trial: TrialRow) -> tuple[SupportsLogs, FormWriter]:
        """A service that can read the trial's files, of a running experiment or not."""
        experiment = await self.experiment(trial.experiment_id)
        config = ExperimentConfig.from_canonical(experiment.config)
        running = self._running.get(trial.experiment_id)
        if running is not None:
            service = running.service
        else:
            settings = experiment.config["training_service"]
            context = ServiceContext(experiment.id, Path(experiment.directory), self.pool, self.hub, settings)
            service = self._create_service(settings["platform"], context)
        if not isinstance(service, SupportsLogs):
            raise Conflict(f"platform {experiment.config['training_service']['platform']} cannot show files")
        return service, FormWriter(config, Path(experiment.directory))


def _check_space(search_space: Mapping[str, Any]) -> None:
    try:
        parse_search_space(search_space)
    except SearchSpaceError as error:
        problems = [f"{'.'.join(map(str, problem.path))}: {problem.message}" for problem in error.problems]
        raise BadRequest("the search space is not valid: " + "; ".join(problems), problems) from error
