"""The manager as the REST API sees it: experiments created, changed, stopped and read."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from proctor.manager.actors import MANAGER, USER, Actor
from proctor.manager.clock import Clock
from proctor.manager.dispatcher.algorithms.registry import check_algorithm, read_search_space
from proctor.manager.dispatcher.class_args import Caller
from proctor.manager.engine import creation
from proctor.manager.engine.context import DispatcherFactory, EngineContext, ServiceFactory, already
from proctor.manager.engine.creation import remove_leftovers
from proctor.manager.engine.feasibility import Outlook
from proctor.manager.engine.importance import Importances
from proctor.manager.engine.imported_data import Import, read_import
from proctor.manager.engine.job_files import FolderArchive, TrialFiles
from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop.checkpoint_storage import CheckpointPlaces, check_storage, claimed, owner_of
from proctor.manager.engine.nodes.connections import NodeConnections
from proctor.manager.engine.nodes.history import NodeHistory
from proctor.manager.engine.nodes.records import NodeRecords
from proctor.manager.engine.platforms import Platforms
from proctor.manager.engine.supervisor import ExperimentSupervisor
from proctor.manager.engine.trials import Trials
from proctor.manager.errors import BadRequest, Conflict, ManagerError, NotFound, Unavailable
from proctor.manager.events import ChangeFeed
from proctor.manager.lifecycle.experiment import EXPERIMENT, ExperimentEvent
from proctor.manager.lifecycle.experiment_failures import NO_ENDS
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.store.database import Database
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.read_process import ReadProcesses
from proctor.manager.store.rows import ExperimentRow, TrialRow, trial_end_columns
from proctor.manager.store.tables import experiments, jobs
from proctor.sdk.disk_errors import explain
from proctor.sdk.failpoints import failpoint
from proctor.sdk.space import SearchSpaceError
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import Providers
from proctor.training_services.registry import create as create_service
from proctor.training_services.shared_storage import MarkNote

if TYPE_CHECKING:
    from proctor.manager.config.loading import LoadedExperiment

log = logging.getLogger(__name__)
T = TypeVar("T")

__all__ = ["UNLIMITED", "DispatcherFactory", "Manager", "ServiceFactory", "Unlimited"]


class Unlimited:
    """In an update: take the limit away (None leaves it as it is)."""


UNLIMITED = Unlimited()


class Manager:
    """What can be asked of a manager. Opened by the composition root with `serve`."""

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
        providers: Providers | None = None,
        is_whole: asyncio.Event | None = None,
        threads: bool = True,
        read_processes: ReadProcesses | None = None,
    ) -> None:
        """:param is_whole: set once the control database is known to be whole; None: it is."""
        self.home = home
        self.control = control
        self.pool = pool
        self.hub = hub
        self.clock = clock
        self.feed = ChangeFeed()
        self._threads = threads
        self._reads = read_processes
        self.watched_curves: set[str] = set()  # whose curves are worth packing
        self._making: set[Path] = set()  # folders of experiments that are being created or loaded
        self.providers = providers
        self.nodes = NodeRecords(pool, control, self.feed, clock)
        self.node_history = NodeHistory(pool, control, clock)
        self._supervisor = ExperimentSupervisor(
            EngineContext(
                home=home,
                control=control,
                pool=pool,
                hub=hub,
                clock=clock,
                feed=self.feed,
                open_dispatcher=open_dispatcher,
                create_service=create_service,
                providers=providers,
                is_whole=is_whole or already(),
                threads=threads,
            )
        )
        self.platforms = Platforms(home, providers, self._supervisor)
        self.node_connections = NodeConnections(pool, providers, self._supervisor, self.nodes)
        self.trials = Trials(self._supervisor, control)
        self.importances = Importances(control, clock)
        self._files = TrialFiles(control, self._supervisor)
        self._places = CheckpointPlaces(control, self._supervisor.metrics)
        control.on_health_change(lambda health: self.feed.notify())

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Manager"]:
        """Load every active experiment that can be loaded, then serve. On leaving, trials keep running under their
        keepers."""
        await self.nodes.load()
        known = await self.control.read(experiments.ids)
        await asyncio.to_thread(remove_leftovers, self.home, known)
        async with self._supervisor.serve(), self.importances.serve(), asyncio.TaskGroup() as group:
            claiming = group.create_task(self._places.mark_earlier(), name="checkpoints of an earlier version")
            yield self
            claiming.cancel()

    # ---- experiments

    async def create_experiment(
        self,
        *,
        config: Mapping[str, Any],
        directory: str,
        handover: str | None = None,
        experiment_id: str | None = None,
        dry_run: bool = False,
        actor: Actor = USER,
    ) -> ExperimentRow:
        """Check, write down and start an experiment. Raises BadRequest with every problem, Conflict for a used id."""
        request = creation.read_handover(self.home, handover)
        captured = request.environment
        caller = Caller.captured(captured)
        loaded = await asyncio.to_thread(creation.check, config, directory, self.home.path, caller=caller)
        await asyncio.to_thread(creation.check_command, loaded.config, captured.get("environment"))
        await check_storage(loaded.config, {**loaded.secrets, **request.secrets})
        noted = await self.platforms.preview(loaded.config, {**loaded.secrets, **request.secrets})
        notices = [*map(str, loaded.notices), *noted]
        experiment_id = creation.make_id(experiment_id)
        folder = creation.experiment_directory(self.home, loaded, experiment_id)
        row = creation.new_row(loaded, experiment_id, folder, self.clock.now())
        if dry_run:
            self._require_possible(row)
            return row
        handed = creation.take_handover(self.home, handover)
        secrets = {**loaded.secrets, **handed.secrets}
        creation.check_secrets(loaded.config, secrets)
        place = await self._places.new(loaded.config, secrets, row.id, row.created_at)
        async with self._new_folder(folder, experiment_id), claimed(place) as note:
            failpoint("manager.create.before")
            await self._write_folder(row, loaded, handed, note)
            failpoint("manager.create.after")
            try:
                await self.control.write(lambda c: creation.insert(c, row, notices, actor))
            except Exception as error:
                with suppress(OSError):
                    await asyncio.to_thread(creation.remove_folder, folder)
                if isinstance(error, sqlite3.IntegrityError):  # another request was faster, with a folder elsewhere
                    raise Conflict(f"experiment {experiment_id} already exists; choose another id") from error
                raise
        self.feed.notify()
        try:
            await asyncio.to_thread(creation.finish_folder, folder)
            self._supervisor.start(await self._supervisor.load(experiment_id))
        except Exception as error:
            raise await self._undo_creation(row, error) from error
        return row

    @asynccontextmanager
    async def _new_folder(self, folder: Path, experiment_id: str) -> AsyncIterator[None]:
        """The folder of an experiment that is being made belongs to this request alone. In the home, what an earlier
        request has left unfinished is removed first. Raises Conflict for a folder or an id that is in use, Unavailable
        where such a folder cannot be removed."""
        conflict = Conflict(f"experiment {experiment_id} already exists; choose another id or delete that one")
        if folder in self._making:
            raise conflict
        self._making.add(folder)
        try:
            try:
                await self._supervisor.experiment(experiment_id)
            except NotFound:
                pass
            else:
                raise conflict
            is_ours = folder.parent == self.home.experiments_directory  # elsewhere another manager may be at work
            try:
                if is_ours and creation.is_unfinished(folder):
                    await asyncio.to_thread(creation.remove_folder, folder)
            except OSError as error:
                why = explain(error, str(folder))
                raise Unavailable(f"cannot remove the folder {folder} of a failed request: {why}") from error
            if folder.exists():
                raise Conflict(f"the folder {folder} already exists; choose another id or remove it")
            yield
        finally:
            self._making.discard(folder)

    def _require_possible(self, row: ExperimentRow) -> None:
        """Raise BadRequest where no trial of an experiment could run on the machines there are."""
        try:
            outlook = self._supervisor.could_run(row)
        except TrainingServiceError as error:
            platform = row.config["training_service"]["platform"]
            raise BadRequest(f"the experiment cannot run on platform {platform}: {error}") from error
        if outlook is not None and outlook.never:
            raise BadRequest(outlook.clause)

    async def _write_folder(
        self, row: ExperimentRow, loaded: "LoadedExperiment", handed: creation.CreationRequest, note: MarkNote | None
    ) -> None:
        """Everything of a new experiment but its row. What is left when this raises Conflict or Unavailable, because
        it cannot be removed, is unfinished."""
        folder = Path(row.directory)
        try:
            is_here = await asyncio.to_thread(creation.is_in_home, self.home, folder)
            owner = None if is_here else await owner_of(self.control, row.id, row.created_at)
            await asyncio.to_thread(creation.write_folder, folder, loaded, handed, note, owner=owner)
            await creation.make_metrics(folder, threads=self._threads)
        except FileExistsError as error:  # another manager was faster
            raise Conflict(f"the folder {folder} already exists; choose another id or remove it") from error
        except (OSError, DatabaseUnusable) as error:
            with suppress(OSError):
                await asyncio.to_thread(creation.remove_folder, folder)
            why = explain(error, str(folder)) if isinstance(error, OSError) else error
            raise Unavailable(f"cannot write the experiment's folder {folder}: {why}") from error

    async def load_experiment(
        self,
        *,
        archive: str,
        experiment_id: str | None = None,
        code_directory: str | None = None,
        keep_storage: bool = False,
        handover: str | None = None,
    ) -> ExperimentRow:
        """Take in a saved experiment, STOPPED. `archive` and `handover` are names of files in the incoming folder.

        :param keep_storage: store its checkpoints where the archive says; else in its jobs' folders.

        Raises BadRequest for an archive that is not sound, Conflict for ids that are in use; nothing of it is left.
        """
        await asyncio.to_thread(import_module, "proctor.manager.engine.archive.importing")
        from proctor.manager.engine.archive.format import ExperimentArchive
        from proctor.manager.engine.archive.importing import Loading, read_config

        saved = ExperimentArchive(creation.handover_path(self.home, archive))
        found = await asyncio.to_thread(saved.experiment)
        experiment_id = creation.make_id(experiment_id or found.id)
        folder = self.home.experiment_directory(experiment_id)
        await asyncio.to_thread(saved.check_room, self.home.path)
        handed = creation.take_handover(self.home, handover)
        config = read_config(found, code_directory, keep_storage=keep_storage)
        loading = Loading(saved, found, experiment_id, folder, config, handed)
        place = await self._places.new(config, handed.secrets, experiment_id, found.created_at.timestamp())
        async with self._new_folder(folder, experiment_id), claimed(place, adopts=True):
            row = await loading.carry_out(self.control, self.clock.now(), threads=self._threads)
        self.feed.notify()
        return row

    async def stop_experiment(self, experiment_id: str, *, actor: Actor = USER) -> None:
        """Stop one; returns when it is STOPPING (or was already stopped)."""
        row = await self.experiment(experiment_id)
        if row.status is ExperimentStatus.VIEWED:
            await self._move(row, ExperimentEvent.CLOSE, actor)
        elif row.status is not ExperimentStatus.STOPPED:
            try:
                await self._supervisor.ask(experiment_id, m.StopExperiment(), actor)
            except Conflict:  # it may have come to its stop meanwhile
                if (await self.experiment(experiment_id)).status is not ExperimentStatus.STOPPED:
                    raise

    async def stop_all(self, *, actor: Actor = USER) -> list[str]:
        """Stop every experiment that has something to do; returns their ids. What is DONE stays DONE."""
        over = {ExperimentStatus.STOPPING, ExperimentStatus.DONE}
        rows = [row for row in await self.control.read(experiments.active) if row.status not in over]
        for row in rows:
            await self.stop_experiment(row.id, actor=actor)
        return [row.id for row in rows]

    async def resume_experiment(self, experiment_id: str, *, trials: bool = False, actor: Actor = USER) -> None:
        """Start a STOPPED or failed experiment again, continue a PAUSED one, or load one that is not loaded now.
        Raises Unavailable with what is in the way; then the experiment is where it was.

        :param trials: resume the trials that were paused with it, too; also of an experiment that is running.
        """
        row = await self.experiment(experiment_id)
        is_loaded = not self._supervisor.not_loaded(row)
        if not is_loaded:
            await self._supervisor.load_now(experiment_id)
            row = await self.experiment(experiment_id)
        if EXPERIMENT.allows(row.status, ExperimentEvent.RESUME):
            await self._start_again(row, actor)
            if trials:
                await self._supervisor.ask(experiment_id, m.Continue(trials=True), actor)
        elif trials or row.status is ExperimentStatus.PAUSED:
            await self._supervisor.ask(experiment_id, m.Continue(trials), actor)
        elif is_loaded:
            raise Conflict(f"experiment {experiment_id} is {row.status}; only a stopped or failed one can be resumed")

    async def _start_again(self, row: ExperimentRow, actor: Actor) -> None:
        """Read an experiment back first, so that it stays where it is when that fails."""
        await self._supervisor.leave(row.id)
        if self.providers is not None:
            await self.providers.end_collections(row.id)
        try:
            loaded = await self._supervisor.load(row.id)
        except Exception as error:
            if row.status.is_active:
                self._supervisor.leave_unloaded(row.id, error)
            else:
                self._supervisor.start_clean_up(row.id)
            problem = f"experiment {row.id} cannot be resumed and stays {row.status}: {error}"
            if isinstance(error, TrainingServiceError):  # its package was uninstalled, or refuses the settings by now
                raise Conflict(problem) from error
            raise Unavailable(problem) from error
        loaded.loop.state.row = await self._move(row, ExperimentEvent.RESUME, actor)
        self._supervisor.start(loaded)

    async def view_experiment(self, experiment_id: str, *, actor: Actor = USER) -> None:
        """Open a STOPPED experiment for reading only."""
        row = await self.experiment(experiment_id)
        if not EXPERIMENT.allows(row.status, ExperimentEvent.VIEW):
            raise Conflict(f"experiment {experiment_id} is {row.status}; only a stopped one can be opened for viewing")
        await self._move(row, ExperimentEvent.VIEW, actor)

    async def pause_experiment(self, experiment_id: str, *, trials: bool = False, actor: Actor = USER) -> None:
        """Stop starting new trials; running trials finish.

        :param trials: pause the live trials, too; they may save first.
        """
        await self.experiment(experiment_id)
        await self._supervisor.ask(experiment_id, m.Pause(trials), actor)

    async def delete_experiment(
        self, experiment_id: str, *, keep_checkpoints: bool = False, actor: Actor = USER
    ) -> list[str]:
        """Remove everything of a stopped experiment: its rows, its folder, and what it has stored in its
        checkpointStorage, as far as that is marked as its own. Returns what was left of it, a sentence each.

        :param keep_checkpoints: leave what is in the checkpointStorage.
        """
        row = await self.experiment(experiment_id)
        await self._require_deletable(row)
        self._supervisor.end_collection(experiment_id)
        await self._supervisor.leave(experiment_id)
        row = await self.experiment(experiment_id)
        if self.providers is not None:
            await self.providers.forget(experiment_id)
        if row.clean_up_owed or row.status is ExperimentStatus.STOPPING:
            await self._supervisor.settle(row)
        left = await self._places.give_up(row, keep_checkpoints=keep_checkpoints)  # may take long
        async with self._supervisor.metrics_closed(row):
            failpoint("manager.delete.before")
            try:
                if stranger := await creation.find_stranger(self.home, self.control, row):
                    left.append(f"{row.directory} was left: {stranger}")
                else:
                    await asyncio.to_thread(creation.remove_folder, Path(row.directory))
            except OSError as error:
                raise Unavailable(f"the folder {row.directory} cannot be removed, delete it again: {error}") from error
            failpoint("manager.delete.after")
            now = self.clock.now()
            await self.control.write(lambda c: experiments.delete(c, experiment_id, time=now, actor=actor))
        self._supervisor.forget(experiment_id)
        self.feed.notify()
        return left

    async def _require_deletable(self, row: ExperimentRow) -> None:
        """Raise Conflict for an experiment that is active, or whose trials may still be running. One that is being
        stopped but cannot be loaded may never come to its end: it can be deleted when no trial is seen to run."""
        if row.status is ExperimentStatus.STOPPING:
            waits = self.awaited(row)
            live = await self.control.read(lambda c: jobs.live(c, row.id)) if self._supervisor.not_loaded(row) else None
            if live is None or any(self._supervisor.sees_running(job) for job in live):
                why = f": it {waits}" if waits else ""
                raise Conflict(f"experiment {row.id} is being stopped{why}; delete it when it is STOPPED")
        elif row.status.is_active:
            raise Conflict(f"experiment {row.id} is {row.status}; stop it before you delete it")

    async def update_experiment(
        self,
        experiment_id: str,
        *,
        trial_concurrency: int | None = None,
        max_trial_number: int | Unlimited | None = None,
        max_experiment_seconds: float | Unlimited | None = None,
        max_trial_seconds: float | Unlimited | None = None,
        max_gpu_hours: float | Unlimited | None = None,
        priority: int | None = None,
        search_space: Any = None,
        actor: Actor = USER,
    ) -> ExperimentRow:
        """Change limits or the search space, running or not. Returns the new row."""
        wanted = {
            "trial_concurrency": trial_concurrency,
            "max_trial_number": max_trial_number,
            "max_experiment_seconds": max_experiment_seconds,
            "max_trial_seconds": max_trial_seconds,
            "max_gpu_hours": max_gpu_hours,
            "priority": priority,
            "search_space": search_space,
        }
        columns = {k: None if v is UNLIMITED else v for k, v in wanted.items() if v is not None}
        row = await self.experiment(experiment_id)
        if search_space is not None:
            _check_space(row, search_space)
        if row.status.is_active:
            await self._supervisor.ask(experiment_id, m.ChangeLimits(columns), actor)
        elif "search_space" in columns:
            raise Conflict(f"experiment {experiment_id} is {row.status}; resume it before you change its search space")
        else:
            now = self.clock.now()
            await self.control.write(
                lambda c: experiments.set_limits(c, experiment_id, time=now, actor=actor, **columns)
            )
            self.feed.notify()
        return await self.experiment(experiment_id)

    async def label_experiment(
        self,
        experiment_id: str,
        *,
        tags: Sequence[str] | None = None,
        archived: bool | None = None,
        actor: Actor = USER,
    ) -> None:
        """Set all its tags, whether it is archived, or both."""
        wanted = {"tags": None if tags is None else list(tags), "archived": archived}
        columns = {name: value for name, value in wanted.items() if value is not None}
        await self.experiment(experiment_id)
        now = self.clock.now()
        await self.control.write(lambda c: experiments.set_labels(c, experiment_id, time=now, actor=actor, **columns))
        self.feed.notify()

    async def import_data(
        self, experiment_id: str, rows: Sequence[Mapping[str, Any]], *, skip_outside: bool = False, actor: Actor = USER
    ) -> Import:
        """Send the tuner results of another experiment: rows of {"parameter", "value"}. Rows without value are skipped.

        Raises BadRequest, and imports nothing, where a row is outside of the search space (with `skip_outside` it is
        skipped) or its value holds no number.
        """
        experiment = await self.experiment(experiment_id)
        found = await asyncio.to_thread(read_import, experiment, rows, skip_outside=skip_outside)
        if found.rows:
            await self._supervisor.ask(experiment_id, m.ImportRows(found.rows), actor)
        return found

    # ---- nodes

    def experiments_on(self, node_id: str) -> list[str]:
        """The ids of the active experiments that may use a node."""
        return self._supervisor.users_of(node_id)

    # ---- reading

    async def experiment(self, experiment_id: str) -> ExperimentRow:
        """One experiment's row. Raises NotFound."""
        return await self._supervisor.experiment(experiment_id)

    async def metrics(self, experiment_id: str) -> Database:
        """The experiment's metrics database, which holds its file open only while it is used. Raises NotFound."""
        return await self._supervisor.metrics(experiment_id)

    async def read_heavy(self, database: Database, function: Callable[..., T], *arguments: Any, **limit: float) -> T:
        """`Database.read` of a module's function and its arguments, in a process of its own if there is one."""
        if self._reads is None or not database.has_threads:
            return await database.read(lambda connection: function(connection, *arguments), **limit)
        reads = self._reads.control if database is self.control else self._reads.metrics
        return await reads.read(database.path, function, *arguments, **limit, held=database.kept_open())

    async def read_job_file(self, trial_id: str, job_number: int | None, path: str, offset: int, limit: int) -> bytes:
        """Part of a file of a trial's job (None: its newest). Raises NotFound."""
        return await self._files.read(await self.trials.get(trial_id), job_number, path, offset, limit)

    async def list_job_files(self, trial_id: str, job_number: int | None = None) -> list[tuple[str, int]]:
        """(relative path, size) of the files of a trial's job (None: its newest)."""
        return await self._files.list(await self.trials.get(trial_id), job_number)

    async def archive_checkpoint(self, trial_id: str, checkpoint_id: int) -> FolderArchive:
        """The files of a checkpoint as a tar. Raises NotFound, with the reason where it was deleted."""
        trial = await self.trials.get(trial_id)
        found = await self.trials.checkpoint(trial, checkpoint_id)
        name = f"{trial_id}-checkpoint-{checkpoint_id}"
        return await self._files.archive_checkpoint(trial, found.job, found.path, name=name)

    @property
    def problem(self) -> str:
        """Why something cannot be written or loaded at the moment, or no trial be started on this machine; or ''."""
        return self._supervisor.problem

    def not_loaded(self, experiment: ExperimentRow) -> str:
        """Why an experiment that should be is not loaded, what becomes of its trials, and when it is tried again; ''
        for any other."""
        clause = self._supervisor.not_loaded(experiment)
        has_failed = experiment.status is ExperimentStatus.ERROR and experiment.reason
        return f"{experiment.reason}; {clause}" if clause and has_failed else clause

    def problem_of(self, experiment: ExperimentRow) -> str:
        """Why an experiment makes no progress at the moment though its status says that it does, or ''."""
        return self._supervisor.problem_of(experiment.id) if not experiment.status.has_ended else ""

    def held_up(self, experiment: ExperimentRow) -> str:
        """Why trials of an experiment are stuck, or report nothing, as a clause, or ''."""
        return self._supervisor.held_up(experiment.id) if not experiment.status.has_ended else ""

    def silence_of(self, trial: TrialRow, node_id: str | None) -> str:
        """Why a trial that runs reports nothing, as a clause, or ''.

        :param node_id: where its newest job is.
        """
        return self._supervisor.silence_of(trial, node_id) if node_id is not None else ""

    def outlook(self, experiment: ExperimentRow) -> Outlook | None:
        """Which machines an active experiment can use now; None where that is not known."""
        is_wanted = not (experiment.status.has_ended or experiment.status is ExperimentStatus.STOPPING)
        return self._supervisor.outlook(experiment.id) if is_wanted else None

    def awaited(self, experiment: ExperimentRow) -> str:
        """What an experiment that is STOPPING still waits for, as a clause with its machines; why the platform of one
        that is STOPPED has not cleaned up after it; or ''."""
        if experiment.status is ExperimentStatus.STOPPING:
            return self._supervisor.awaited(experiment.id)
        return "" if experiment.status.is_active else self._supervisor.uncleaned(experiment.id)

    def active_seconds(self, experiment: ExperimentRow) -> float:
        """How long an experiment has run, up to now: trials were created or waited for; pauses are left out."""
        return self._supervisor.active_seconds(experiment)

    # ---- inside

    async def _undo_creation(self, row: ExperimentRow, error: Exception) -> ManagerError:
        """An experiment whose loop could not be started was never begun: nothing of it stays. Returns what to tell
        the user. Where it cannot be removed it is in ERROR, from which it can be stopped and deleted."""
        if (place := await self._places.of(row)) is not None:
            with suppress(ServiceUnavailable):
                await place.release()
        async with self._supervisor.metrics_closed(row):
            try:
                await asyncio.to_thread(creation.remove_folder, Path(row.directory))
            except OSError as obstacle:
                reason = f"it could not be started: {error}; its folder {row.directory} cannot be removed: {obstacle}"
                await self._move(row, ExperimentEvent.FAIL, reason=reason)
                self._supervisor.leave_unloaded(row.id, error)
                return Unavailable(f"experiment {row.id} is in ERROR: {reason}; stop it and delete it")
            await self.control.write(lambda c: experiments.delete(c, row.id, time=self.clock.now()))
        self.feed.notify()
        if isinstance(error, TrainingServiceError):
            platform = row.config["training_service"]["platform"]
            return BadRequest(f"the experiment cannot run on platform {platform}: {error}")
        return Unavailable(f"the experiment could not be started and was removed: {error}")

    async def _move(
        self, row: ExperimentRow, event: ExperimentEvent, actor: Actor = MANAGER, *, reason: str | None = None
    ) -> ExperimentRow:
        """A transition of an experiment that no loop works on. The reason stays unless there is a new one."""
        status = EXPERIMENT.after(f"experiment {row.id}", row.status, event)
        now = self.clock.now()
        kept = row.reason if reason is None else reason
        changes: dict[str, Any] = {"reason": kept, "actor": actor}
        if event is ExperimentEvent.RESUME:
            changes |= {"reason": "", "error": "", "resumes": row.resumes + 1, **trial_end_columns(NO_ENDS)}
        moved = await self.control.write(
            lambda c: experiments.move(c, row.id, expected=(row.status,), status=status, time=now, **changes)
        )
        extra = {"action": f"experiment.{status.lower()}", "experiment_id": row.id}
        log.info("experiment %s is %s", row.id, status, extra=extra)
        self.feed.notify()
        return moved


def _check_space(experiment: ExperimentRow, search_space: Any) -> None:
    """Whether the experiment's tuner can search it. Raises BadRequest."""
    tuner = experiment.config["tuner"]
    try:
        space = read_search_space(tuner, search_space)
    except SearchSpaceError as error:
        raise BadRequest(f"the search space is not valid: {error}", error.problems) from error
    problems = check_algorithm("tuner", tuner, space) if space is not None else ()
    found = [each for each in problems if each.path[:1] == ("search_space",)]
    if found:
        raise BadRequest(f"the search space is not valid: {'; '.join(map(str, found))}", found)
