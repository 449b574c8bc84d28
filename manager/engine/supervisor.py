"""The experiments that a loop works on: loaded, found, released; and the databases they write to."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.manager import file_descriptors
from proctor.manager.actors import USER, Actor
from proctor.manager.engine.cleanup import PATIENCE_SECONDS, CleanUps
from proctor.manager.engine.code import CodeWatch
from proctor.manager.engine.context import EngineContext, load_config_models, read_config
from proctor.manager.engine.creation import find_stranger, make_service
from proctor.manager.engine.feasibility import Outlook
from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop.context import JobFormBuilder, LoopContext, placement_from
from proctor.manager.engine.loop.loop import ExperimentLoop
from proctor.manager.engine.loop.recovery import load_state
from proctor.manager.engine.loop.reservations import FreePlacer, Placer, PoolPlacer
from proctor.manager.engine.loop.stopping import awaited, held_up
from proctor.manager.engine.transient_errors import is_transient
from proctor.manager.engine.unloaded import START_TIMEOUT_SECONDS, ReadExperiment, Unloaded, WithoutLoop
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import METRICS_FILE
from proctor.manager.store import database_identity
from proctor.manager.store.database import HEALTHY, Database
from proctor.manager.store.errors import DatabaseUnusable, RowNotFound
from proctor.manager.store.open_databases import OpenDatabases
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import experiments, jobs
from proctor.training_services.base import SupportsCollection, SupportsNodes, TrainingService
from proctor.training_services.nodes.pool import LOCAL_KIND, NodeStatus
from proctor.trial_keeper.protocol import JobReport

if TYPE_CHECKING:
    from proctor.manager.config.experiment import ExperimentConfig

log = logging.getLogger(__name__)

_LEAVING = {ExperimentStatus.STOPPING, ExperimentStatus.STOPPED}


@dataclass
class Running:
    """An experiment that a loop works on."""

    loop: ExperimentLoop
    service: TrainingService
    task: asyncio.Task[None]


class ExperimentSupervisor:
    """One loop for every active experiment. Opened with `serve`."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._running: dict[str, Running] = {}
        self._metrics: dict[str, Database] = {}
        self._without_metrics: set[str] = set()
        self._databases = OpenDatabases(most=file_descriptors.most_databases(), threads=context.threads)
        self._group: asyncio.TaskGroup | None = None
        self._clean_ups = CleanUps(context)
        self._unloaded = Unloaded(context, self._clean_ups, self)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Load every active experiment that can be loaded, then serve. On leaving, trials keep running under their
        keepers."""
        async with self._databases, asyncio.TaskGroup() as group:
            self._group = group
            await self._announce_jobs()
            active = await self._context.control.read(experiments.active)
            await self._unloaded.load_all(group, [row.id for row in active])
            await self._until_attached()
            await self._hold_nodes()
            await self._context.hub.mark_reattached(self._may_be_stopped)
            review = group.create_task(self._review_unknown_jobs(), name="unknown jobs")
            await self._clean_ups.start(group)
            try:
                yield
            finally:
                self._group = None
                review.cancel()
                self._unloaded.close()
                self._clean_ups.close()
                for running in list(self._running.values()):
                    running.task.cancel()

    async def _announce_jobs(self) -> None:
        """Have the hub expect every job that has not ended, whether its experiment can be loaded or not, and keep what
        the jobs of active experiments hold on their nodes."""
        active = {row.id for row in await self._context.control.read(experiments.active)}
        for job, sequence_id in await self._context.control.read(jobs.all_live):
            self._announce(job)
            placement = placement_from(job.placement)
            if placement is not None and job.experiment_id in active:
                holder = f"trial {sequence_id} of experiment {job.experiment_id}"
                self._context.pool.restore(job.id, placement, holder)

    def _announce(self, job: TrialJobRow) -> None:
        """Have the hub expect a job: a keeper must not be given it again if it has lost it, and while its experiment is
        not loaded it must not be removed from its platform."""
        self._context.hub.expect(job.id, job.token, job.experiment_id, started=job.started_at is not None)

    async def _until_attached(self) -> None:
        """Until the loops have found their jobs again, or it takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                for running in tuple(self._running.values()):
                    await running.loop.attached.wait()
        for experiment_id, running in self._running.items():
            if running.loop.attached.is_set():  # no keeper reports the ends of jobs that no service has sent to one
                self._context.hub.forget_unsent(experiment_id)

    async def _hold_nodes(self) -> None:
        """Keep the nodes of experiments that are not loaded, of those that were stopped while they were not, and of
        those that are still to be cleaned up after; and what platforms have of the jobs of all."""
        live = {job.experiment_id for job, _ in await self._context.control.read(jobs.all_live)}
        pending = await self._context.control.read(experiments.needing_clean_up)
        wanted = {*live, *pending, *self._unloaded.ids()}
        for experiment_id in wanted | self._running.keys():
            self._context.hub.hold(experiment_id)
        if self._context.providers is not None:
            for experiment_id in sorted(wanted - self._running.keys()):
                self._context.providers.hold(experiment_id)

    async def _review_unknown_jobs(self) -> None:
        """Once the database is known to be whole: keepers that registered before have unknown jobs stopped now."""
        if not self._context.is_whole.is_set():
            await self._context.is_whole.wait()
            await self._context.hub.mark_reattached(self._may_be_stopped)

    async def _may_be_stopped(self, unknown: Sequence[JobReport]) -> set[str] | None:
        """Of unexpected jobs those that the control database explains: it knows how they ended, or has deleted their
        experiment. Every job was written down before it was launched, so what it does not know, it has lost. None
        while the database may be damaged."""
        if not self._context.is_whole.is_set():
            return None

        def explained(connection: sqlite3.Connection) -> set[str]:
            return {
                job.job_id
                for job in unknown
                if jobs.exists(connection, job.job_id)
                or job.started_at < database_identity.unknown_since(connection, job.experiment_id)
            }

        return await self._context.control.read(explained)

    async def load(self, experiment_id: str) -> ReadExperiment:
        """Read an experiment back and make all that its loop needs. Changes nothing. Raises NotFound, and whatever is
        in the way."""
        await load_config_models()
        metrics = await self.metrics(experiment_id)
        state = await load_state(self._context.control, metrics, experiment_id)
        config = await read_config(state.row)
        directory = Path(state.row.directory)
        service = make_service(self._context, state.row)
        forms = JobFormBuilder(config, directory)
        context = LoopContext(
            config=config,
            control=self._context.control,
            metrics=metrics,
            service=service,
            placer=self._placer(service, config),
            clock=self._context.clock,
            feed=self._context.feed,
            forms=forms,
            code=CodeWatch(forms.code_directory, self._context.clock),
            open_dispatcher=self._context.open_dispatcher(state.row, config),
            checkpoint_directory=str(directory / "checkpoint"),
            copying=self._context.copying,
        )
        return ReadExperiment(ExperimentLoop(state, context), service)

    def start(self, loaded: ReadExperiment) -> None:
        """Start the loop of an experiment that was read back. Raises Unavailable while the manager leaves."""
        if self._group is None:
            raise Unavailable("the manager is shutting down")
        state = loaded.loop.state
        for trial in state.by_job.values():
            if trial.job is not None:
                self._announce(trial.job)
        task = self._group.create_task(self._run(loaded), name=f"experiment {state.row.id}")
        self._running[state.row.id] = Running(loaded.loop, loaded.service, task)

    async def _run(self, loaded: ReadExperiment) -> None:
        """One loop's life. Its failure is its experiment's, not the manager's."""
        loop, failure = loaded.loop, None
        experiment_id = loop.state.row.id
        try:
            await loop.run()
            await self._clean_ups.carry_out(experiment_id, loaded.service)
        except Exception as error:
            failure = error
            if not is_transient(error):
                extra = {"action": "loop.fail", "experiment_id": experiment_id}
                log.exception("the loop of experiment %s failed", experiment_id, extra=extra)
        finally:
            del self._running[experiment_id]
            self._context.feed.notify()
        if failure is None or self._group is None:
            return
        if loop.state.row.status.is_active:
            self._unloaded.add(experiment_id, failure)
        else:
            self._clean_ups.add(experiment_id, failure)

    async def load_now(self, experiment_id: str) -> None:
        """Load an experiment that is not loaded now rather than after its pause; does nothing if it is loaded. Raises
        Unavailable with what is in the way."""
        await self._unloaded.try_now(experiment_id)

    def leave_unloaded(self, experiment_id: str, error: Exception) -> None:
        """No loop works on an active experiment, because of `error`: load it again after a pause."""
        if self._group is not None:
            self._unloaded.add(experiment_id, error)

    async def ask(self, experiment_id: str, message: m.LoopMessage, actor: Actor = USER) -> Any:
        """Give a message to the loop of an experiment, and wait until what it led to is committed. What can be done
        without a loop is done for one that is not loaded, too. Raises Conflict, Unavailable."""
        if experiment_id not in self._running and isinstance(message, WithoutLoop):
            async with self._unloaded.lock(experiment_id):
                if self._unloaded.has(experiment_id):
                    return await self._unloaded.carry_out(experiment_id, message, actor)
        return await self.loop(experiment_id).inbox.ask(message, actor)

    def forget(self, experiment_id: str) -> None:
        """An experiment is about to be deleted: its keepers must stop and forget what they still have of it."""
        self._unloaded.drop(experiment_id)
        for job_id in self._context.hub.abandon(experiment_id):
            self._context.pool.release(job_id)

    def loop(self, experiment_id: str) -> ExperimentLoop:
        """The loop of an experiment. Raises Unavailable while it is not loaded, Conflict when none works on it."""
        running = self._running.get(experiment_id)
        if running is None and self._unloaded.has(experiment_id):
            raise self._unloaded.obstacle(experiment_id)
        if running is None:
            raise Conflict(f"experiment {experiment_id} is not running; resume it first")
        return running.loop

    def has(self, experiment_id: str) -> bool:
        """Whether a loop works on it."""
        return experiment_id in self._running

    def users_of(self, node_id: str) -> list[str]:
        """The ids of the experiments that a loop works on and that may use a node."""
        return [name for name, running in self._running.items() if node_id in _nodes_of(running.service)]

    def leaving(self, node_ids: Collection[str]) -> dict[str, str]:
        """Of the experiments that may use one of the nodes, those that are being stopped, or were stopped and still
        leave their machines: by id a clause that says which of the two, and what it waits for."""
        return {name: _leaving_clause(name, self._running[name], self._context) for name in self._leaving(node_ids)}

    async def until_left(self, node_ids: Collection[str], seconds: float) -> None:
        """Wait until none of these experiments is left, but no longer than some seconds."""
        if names := self._leaving(node_ids):
            await asyncio.wait({self._running[name].task for name in names}, timeout=seconds)

    def _leaving(self, node_ids: Collection[str]) -> list[str]:
        users = dict.fromkeys(name for node_id in node_ids for name in self.users_of(node_id))
        return [name for name in users if self._running[name].loop.state.row.status in _LEAVING]

    async def leave(self, experiment_id: str) -> None:
        """Wait until the loop of an experiment that is over is gone; end that of a failed one. Raises Unavailable
        when that takes too long, or its platform is busy cleaning up after it for too long."""
        running = self._running.get(experiment_id)
        if running is not None:
            if running.loop.state.row.status is not ExperimentStatus.STOPPED:
                running.task.cancel()
            await asyncio.wait({running.task}, timeout=PATIENCE_SECONDS)
            if not running.task.done():
                text = f"the platform of experiment {experiment_id} is still being cleaned up"
                raise Unavailable(f"{text}; try again")
        await self._clean_ups.end_attempts(experiment_id)

    def end_collection(self, experiment_id: str) -> None:
        """A stopped experiment is about to be deleted: no more of its files are collected."""
        running = self._running.get(experiment_id)
        if running is not None and isinstance(running.service, SupportsCollection):
            running.service.end_collection()
        self._clean_ups.end_collection(experiment_id)

    def start_clean_up(self, experiment_id: str) -> None:
        """A stopped experiment is not resumed after all: clean up after it, if that is owed."""
        self._clean_ups.add(experiment_id)

    async def settle(self, experiment: ExperimentRow) -> None:
        """Have the platform clean up after an experiment that is about to be deleted. Raises Unavailable."""
        await self._clean_ups.settle(experiment)

    def service(self, experiment: ExperimentRow) -> TrainingService:
        """The experiment's service; of one that no loop works on, one that can only read."""
        running = self._running.get(experiment.id)
        return make_service(self._context, experiment) if running is None else running.service

    def _placer(self, service: TrainingService, config: "ExperimentConfig") -> Placer:
        if not isinstance(service, SupportsNodes):
            return FreePlacer(config.trial_gpu_number, service)
        gpus, preemptible = config.trial_gpu_number, config.preemptible
        return PoolPlacer(self._context.pool, service, gpus, is_preemptible=preemptible)

    async def experiment(self, experiment_id: str) -> ExperimentRow:
        """One experiment's row. Raises NotFound."""
        try:
            return await self._context.control.read(lambda c: experiments.get(c, experiment_id))
        except RowNotFound:
            raise NotFound(f"there is no experiment {experiment_id!r}") from None

    async def metrics(self, experiment_id: str) -> Database:
        """The experiment's metrics database, which holds its file open only while it is used. Raises NotFound."""
        if experiment_id not in self._metrics:
            row = await self.experiment(experiment_id)
            self._require_metrics(experiment_id)
            if why := await find_stranger(self._context.home, self._context.control, row, only_outside=True):
                text = f"{row.directory} is not the folder of experiment {row.id}: {why}; bring that back"
                raise DatabaseUnusable(text)
            database = await self._databases.open(_metrics_path(row), "metrics")
            self._require_metrics(experiment_id)
            if experiment_id not in self._metrics:  # no other call was faster
                database.on_health_change(lambda health: self._context.feed.notify())
                self._metrics[experiment_id] = database
        return self._metrics[experiment_id]

    @asynccontextmanager
    async def metrics_closed(self, row: ExperimentRow) -> AsyncIterator[None]:
        """While the folder of an experiment is removed: its metrics database is closed, and not opened again for
        whoever asks for metrics."""
        self._without_metrics.add(row.id)
        try:
            self._metrics.pop(row.id, None)
            await self._databases.close(_metrics_path(row))
            yield
        finally:
            self._without_metrics.discard(row.id)

    def _require_metrics(self, experiment_id: str) -> None:
        if experiment_id in self._without_metrics:
            raise NotFound(f"there is no experiment {experiment_id!r} any more: it is being deleted")

    def awaited(self, experiment_id: str) -> str:
        """What an experiment that is being stopped still waits for, as a clause, or ''."""
        running = self._running.get(experiment_id)
        return "" if running is None else awaited(running.loop.state, self._context.pool, self._context.clock.now())

    def uncleaned(self, experiment_id: str) -> str:
        """Why the platform of a stopped experiment has not cleaned up after it, and when that is tried again, or ''."""
        return self._clean_ups.describe(experiment_id)

    def held_up(self, experiment_id: str) -> str:
        """Why trials of an experiment are stuck, or do not report, as a clause, or ''."""
        running = self._running.get(experiment_id)
        return "" if running is None else held_up(running.loop.state, self._context.pool)

    def silence_of(self, trial: TrialRow, node_id: str) -> str:
        """Why there are no reports from a trial that runs on a node, as a clause, or ''."""
        running = self._running.get(trial.experiment_id)
        if running is not None:
            live = running.loop.state.trials.get(trial.id)
            if live is None or live.job is None:
                return ""
        elif trial.status is not TrialStatus.RUNNING:
            return ""
        elif not self._unloaded.has(trial.experiment_id):
            return (
                f"it has been stopped; the keeper of node {node_id} has its last reports, which are stored when "
                "its experiment is resumed"
            )
        is_known = any(node.id == node_id for node in self._context.pool.nodes())  # plug-ins name nodes of their own
        absence = self._context.pool.absence(node_id) if is_known else ""
        return f"no reports from it: {absence}" if absence else ""

    def outlook(self, experiment_id: str) -> Outlook | None:
        """Which machines an experiment can use now; None where that is not known."""
        running = self._running.get(experiment_id)
        return None if running is None else running.loop.outlook

    def could_run(self, experiment: ExperimentRow) -> Outlook | None:
        """The same of an experiment that is not created yet, as far as its machines are known already. Raises
        TrainingServiceError where it cannot run on its platform."""
        from proctor.manager.config.experiment import ExperimentConfig  # loaded when it was checked

        config = ExperimentConfig.from_canonical(experiment.config)
        return self._placer(make_service(self._context, experiment), config).outlook()

    def not_loaded(self, experiment: ExperimentRow) -> str:
        """Why an experiment that should be is not loaded, what becomes of its trials, and when it is tried again; ''
        for any other."""
        return self._unloaded.describe(experiment.id, experiment.status)

    def sees_running(self, job: TrialJobRow) -> bool:
        """Whether a keeper that is there says that a job runs."""
        hub, node_id = self._context.hub, job.keeper_node
        return node_id is not None and not self._context.pool.absence(node_id) and not hub.is_over(node_id, job.id)

    def active_seconds(self, row: ExperimentRow) -> float:
        """How long an experiment has run, up to now; the store knows it up to the last thing that happened."""
        running = self._running.get(row.id)
        return row.active_seconds if running is None else running.loop.active_seconds

    @property
    def problem(self) -> str:
        """Why something cannot be written or loaded at the moment, or what is wrong with this machine's own node; or
        ''."""
        unwritten = _database_problem(self._context.control, *self._metrics.values())
        lost = _unknown_jobs(self._context.hub.unknown_jobs())
        scarce = file_descriptors.shortage()
        return "; ".join(
            filter(
                None,
                (
                    unwritten,
                    self._unloaded.problem,
                    self._clean_ups.problem,
                    lost,
                    scarce,
                    *self._shortages_here(),
                    *self._stops_here(),
                ),
            )
        )

    def _shortages_here(self) -> list[str]:
        """Why trials on the manager's own machine find no room, each reason once."""
        pool = self._context.pool
        here = [node.id for node in pool.nodes() if node.kind == LOCAL_KIND]
        users = [running.service for running in self._running.values()]
        folders = [_folder_of(service) for service in users if set(here) & set(_nodes_of(service))]
        return list(dict.fromkeys(pool.shortage(here, folder) for folder in ("", *folders)) if here else ())

    def _stops_here(self) -> list[str]:
        """What is stuck on the manager's own machine: its keeper is silent, or a process of it is suspended."""
        pool = self._context.pool
        here = [node for node in pool.nodes() if node.kind == LOCAL_KIND]
        absences = [pool.absence(node.id) for node in here if node.status in (NodeStatus.SILENT, NodeStatus.FAILED)]
        stops = [
            f"trial job {job_id}: {clause}" for node in here for job_id, clause in node.suspended.items() if job_id
        ]
        return [*absences, *stops]

    def problem_of(self, experiment_id: str) -> str:
        """The same for what one experiment writes and for its nodes; and why its dispatcher suggests nothing."""
        metrics, running = self._metrics.get(experiment_id), self._running.get(experiment_id)
        unwritten = _database_problem(self._context.control, *([] if metrics is None else [metrics]))
        if unwritten or running is None:
            return unwritten
        nodes = _nodes_of(running.service)
        shortage = self._context.pool.shortage(nodes, _folder_of(running.service)) if nodes else ""
        return shortage or running.loop.problem


def _metrics_path(row: ExperimentRow) -> str:
    return str(Path(row.directory) / METRICS_FILE)


def _nodes_of(service: TrainingService) -> tuple[str, ...]:
    return service.node_ids() if isinstance(service, SupportsNodes) else ()


def _folder_of(service: TrainingService) -> str:
    return service.job_folder() if isinstance(service, SupportsNodes) else ""


def _leaving_clause(experiment_id: str, running: Running, context: EngineContext) -> str:
    state = running.loop.state
    if state.row.status is ExperimentStatus.STOPPED:
        return f"experiment {experiment_id} was stopped and is leaving it: its files are being collected and removed"
    waits = awaited(state, context.pool, context.clock.now())
    return f"experiment {experiment_id} is being stopped" + (f": it {waits}" if waits else "")


def _unknown_jobs(jobs: Sequence[tuple[str, JobReport]]) -> str:
    """What to do about jobs that are in no database, or ''."""
    if not jobs:
        return ""
    places = [where if where.startswith("platform ") else f"node {where}" for where, _ in jobs[:3]]
    named = [f"{job.job_id} on {place}" for place, (_, job) in zip(places, jobs, strict=False)]
    names = ", ".join(named) + (", …" if len(jobs) > 3 else "")
    counted = "1 trial job is" if len(jobs) == 1 else f"{len(jobs)} trial jobs are"
    return (
        f"{counted} missing from the control database ({names}), which has lost data; they are left alone. Restore the "
        "database from a backup; or, to stop them, stop the manager and start it once with "
        "`proctor manager start --accept-database`"
    )


def _database_problem(*databases: Database) -> str:
    return "; ".join(database.health for database in databases if database.health != HEALTHY)
