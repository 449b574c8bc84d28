"""A real manager for clients of its REST API: the application over its engine and store, on a port of this machine, in
a thread of the test's process. The jobs of its trials follow a script in memory.

Experiments are created as people do it (`create`), or written down as they may have been left (`add_experiment`).
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from fakes.built_routes import build_once
from fakes.node_provider import FakeProvider
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proctor.manager.api.application import Application
from proctor.manager.api.context import ApiContext
from proctor.manager.api.groups import API_PREFIX
from proctor.manager.api.guard import Guard
from proctor.manager.clock import SystemClock
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.engine import creation
from proctor.manager.engine.archive.importing import ImportedExperiment
from proctor.manager.engine.manager import Manager, ServiceFactory
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.named_tokens import NamedTokens
from proctor.manager.process.instance import InstanceLock, ManagerAddress, write_address
from proctor.manager.process.server import HttpServer
from proctor.manager.security import HostGuard, Tokens
from proctor.manager.settings import METRICS_FILE, Home
from proctor.manager.store.database import Database
from proctor.manager.store.rows import (
    ExperimentRow,
    MetricRow,
    SavedViewRow,
    SchedulerTablesRow,
    TrialJobRow,
    TrialRow,
    bind,
)
from proctor.manager.store.tables import events, experiments, jobs, metrics, trials
from proctor.training_services.base import EndReason, SupportsLogs, TrialJobForm, TrialJobStatus
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.in_memory.scripts import Script, Step, hang
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.training_services.providers import ProviderContext, Providers
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.files.access import list_files, read_file

TOKEN = "a-token-for-tests"
NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z
PATIENCE_SECONDS = 30.0
CONFIG: Mapping[str, Any] = {
    "searchSpace": {"lr": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python trial.py",
    "trialConcurrency": 1,
    "maxTrialNumber": 10,
    "tuner": {"name": "Random", "classArgs": {"seed": 1}},
    "objective": {"direction": "maximize"},
    "trainingService": {"platform": "local"},
}
T = TypeVar("T")


@asynccontextmanager
async def open_manager(home: Home, pool: NodePool, create_service: ServiceFactory) -> AsyncIterator[Manager]:
    """A manager without a port. Its algorithms run in this process; its remote nodes are those of `provider_of`."""
    home.prepare()
    async with await Database.open(str(home.control_database), "control") as control:
        hub = KeeperHub(pool)
        around = ProviderContext("0123abcd", home.nodes_directory, home.socket_pointer, pool, hub)
        manager = Manager(
            home=home,
            control=control,
            pool=pool,
            hub=hub,
            clock=SystemClock(),
            open_dispatcher=lambda row, config: open_in_process,
            create_service=create_service,
            providers=Providers(around, {"remote": FakeProvider}),
        )
        async with manager.serve():
            yield manager


def provider_of(manager: Manager) -> FakeProvider:
    """The provider of remote nodes."""
    assert manager.providers is not None
    return cast(FakeProvider, manager.providers.get("remote"))


class SlowService(InMemoryTrainingService, SupportsLogs):
    """Its jobs may take long to stop, and their machine may be away; their files are on this one."""

    held: list[str] | None = None
    """The jobs that are to be stopped, while that takes long."""
    away: Mapping[str, list[str]]
    """Of the served manager."""

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        if self.held is None:
            await super().cancel_trial_job(job_id, is_early_stopped)
        else:
            self.held.append(job_id)

    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        self._require_answer(form)
        return [(file.path, file.size) for file in list_files(form.directory)]

    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        self._require_answer(form)
        return read_file(form.directory, path, offset, limit)

    def _require_answer(self, form: TrialJobForm) -> None:
        if reasons := self.away.get(form.job_id):
            raise ServiceUnavailable(reasons.pop(0))


class ServedManager:
    """The manager. Use it with `with`; `home` gets the files by which clients find it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.script: Script = hang
        """What the jobs that start from now on do."""
        self.asked: list[tuple[str, str, Any]] = []
        """Every request: its method, its path without the API's prefix, and its body."""
        self.sent_bytes = 0
        """Of the bodies of all answers."""
        self.on_ask: dict[tuple[str, str], Callable[[], object]] = {}
        """Called once after a request was answered, by (method, path): what happens next in the world."""
        self.before: dict[tuple[str, str], Callable[[Any], object]] = {}
        """Called once with the body of a request before it is answered, by (method, path)."""
        self.away: dict[str, list[str]] = {}
        """Why the next readings of a job's files are refused, by job: its machine is away."""
        self.pool = NodePool()
        self._platforms: dict[str, InMemoryPlatform] = {}
        self._services: dict[str, SlowService] = {}
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="manager")
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    # What a test puts in

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the manager's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def read(self, look: Callable[[Any], T]) -> T:
        """Look into the database."""

        async def carry_out() -> T:
            return await self.manager.control.read(look)

        return self.call(carry_out())

    def create(self, experiment_id: str = "e", **changes: Any) -> None:
        """An experiment that runs, made as a client makes it."""
        made = self.manager.create_experiment(
            config={**CONFIG, "trialCodeDirectory": str(self.home.parent), **changes},
            directory=str(self.home.parent),
            experiment_id=experiment_id,
        )
        self.call(made)

    def add_experiment(
        self,
        experiment_id: str = "e",
        *,
        config: Mapping[str, Any] = {},
        trials: Sequence[Mapping[str, Any]] = (),
        views: Sequence[SavedViewRow] = (),
        tables: Sequence[Mapping[str, Any]] | None = None,
        **columns: Any,
    ) -> None:
        """An experiment as it was left: STOPPED, unless the columns say something else.

        :param trials: the columns of each of its trials, which have succeeded with one job unless they say something
            else; `job` has columns of that, `earlier_jobs` those of each job before it, and `points` are what it has
            reported: (kind, value), or (kind, value, further columns).
        :param tables: what its trial scheduler shows.
        """
        scheduler = None if tables is None else SchedulerTablesRow(experiment_id, [dict(each) for each in tables], NOW)
        self.call(self._add_experiment(experiment_id, {**CONFIG, **config}, trials, views, scheduler, columns))

    def change_experiment(self, experiment_id: str = "e", **columns: Any) -> None:
        """Change columns of an experiment behind the manager's back, and have its event sent."""
        values = bind(ExperimentRow, columns)
        self._change("experiments", experiment_id, values, events.EXPERIMENT_STATUS, experiment_id=experiment_id)

    def change_trial(self, trial_id: str, **columns: Any) -> None:
        """The same of a trial."""
        owners = {"experiment_id": self.trial(trial_id).experiment_id, "trial_id": trial_id}
        self._change("trials", trial_id, bind(TrialRow, columns), events.TRIAL_STATUS, **owners)

    def add_job(self, trial_id: str) -> None:
        """Have a trial tried again: another job of it runs."""
        trial = self.trial(trial_id)
        number = trial.jobs + 1
        job = self.read(lambda c: jobs.get(c, f"{trial_id}.{trial.jobs}"))
        self.write(lambda c: jobs.insert(c, replace(job, id=f"{trial_id}.{number}", number=number)))
        self.change_trial(trial_id, jobs=number)

    def write_file(self, trial_id: str, path: str, data: bytes, *, job: int = 1) -> Path:
        """Add to a file of a trial's job, such as `stdout`; returns its path."""
        trial = self.trial(trial_id)
        folder = Path(self.experiment(trial.experiment_id).directory, "trials", f"{trial.sequence_id}-{trial_id}")
        file = folder / "jobs" / str(job) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            opened.write(data)
        return file

    def hold_stops(self, experiment_id: str = "e") -> Callable[[], None]:
        """Have the trials of an experiment end only when what is returned is called, however much they are asked."""
        service = self._services[experiment_id]
        service.held = []

        def end() -> None:
            held, service.held = service.held or [], None
            for job_id in held:
                self.call(service.cancel_trial_job(job_id))

        return end

    def stop_slowly(self, experiment_id: str = "e") -> None:
        """Stop an experiment whose trials do not end before somebody has asked for it."""
        end = self.hold_stops(experiment_id)
        self.call(self.manager.stop_experiment(experiment_id))
        self.on_ask["GET", f"/experiments/{experiment_id}"] = end

    def add_node(self, node_id: str, kind: str = "remote", *, address: str = "", **fields: Any) -> None:
        """A machine whose keeper answers, unless the fields of its `Node` say something else."""

        async def add() -> None:
            if kind == "remote":
                self.remote.add(node_id, address)
            else:
                self.pool.add(node_id, kind)

        self.call(add())
        self.set_node(node_id, **{"status": NodeStatus.CONNECTED, "seen_at": NOW, **fields})

    def set_node(self, node_id: str, **fields: Any) -> None:
        """Move a machine on."""

        async def change() -> None:
            self.pool._replace(replace(self.pool.node(node_id), **fields))

        self.call(change())

    def write_reports(self, work: Callable[[Any], object], experiment_id: str = "e") -> None:
        """Change what the trials of an experiment have reported."""

        async def carry_out() -> None:
            await (await self.manager.metrics(experiment_id)).write(work)

        self.call(carry_out())

    def emit(self, kind: str, *, trial_id: str | None = None) -> None:
        """A change, to every stream."""
        self.write(lambda c: events.append(c, time=time.time(), kind=kind, data={}, trial_id=trial_id))

    def write(self, work: Callable[[Any], object]) -> None:
        """Change the database behind the manager's back, and notify all that wait for changes."""

        async def carry_out() -> None:
            await self.manager.control.write(work)
            self.manager.feed.notify()

        self.call(carry_out())

    def cut_off(self) -> None:
        """End all connections at once."""

        async def abort() -> None:
            for connection in tuple(self._server.server_state.connections):
                connection.transport.abort()

        self.call(abort())

    def last_event(self) -> int:
        """The id of the newest event."""
        return self.read(events.last_id)

    def _change(self, table: str, row_id: str, values: Mapping[str, Any], kind: str, **owners: str) -> None:
        settings = ", ".join(f"{name} = :{name}" for name in values)

        def write(connection: Any) -> None:
            connection.execute(f"UPDATE {table} SET {settings} WHERE id = :id", {**values, "id": row_id})
            events.append(connection, time=time.time(), kind=kind, data={}, **owners)

        self.write(write)

    # What a test looks at

    def requests(self, method: str) -> list[tuple[str, Any]]:
        """Paths and bodies of what was asked with a method."""
        return [(path, body) for asked, path, body in self.asked if asked == method]

    def read_handover(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What a request hands over in a file. For `before`: the manager removes the file."""
        return cast(dict[str, Any], json.loads((self.home / "incoming" / body["handover"]).read_text()))

    def experiment(self, experiment_id: str = "e") -> ExperimentRow:
        """The row of an experiment."""
        return self.read(lambda c: experiments.get(c, experiment_id))

    def trial(self, trial_id: str) -> TrialRow:
        """The row of a trial."""
        return self.read(lambda c: trials.get(c, trial_id))

    def until(self, look: Callable[[], T | None]) -> T:
        """Look after every change until there is something."""

        async def wait() -> T:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    change = self.manager.feed.next_change()
                    if found := await asyncio.to_thread(look):
                        return found
                    await change.wait()

        return self.call(wait())

    # How it runs

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop, home = asyncio.get_running_loop(), asyncio.Event(), Home(self.home)
        async with open_manager(home, self.pool, self._create_service) as self.manager:
            (self.home / "token").write_text(TOKEN + "\n")
            (self.home / "token").chmod(0o600)
            self.tokens = NamedTokens.read(home.named_tokens_file, time.time)
            self.remote = provider_of(self.manager)
            with InstanceLock(home), socket.create_server(("127.0.0.1", 0)) as listener:
                port = listener.getsockname()[1]
                self.url = f"http://127.0.0.1:{port}"
                context = ApiContext(self.manager, home, self.tokens, self.url, NOW, self._stop.set)
                guard = Guard(
                    Application(context, build_once),
                    tokens=Tokens(TOKEN, "a-token-to-read"),
                    named_tokens=self.tokens,
                    hosts=HostGuard(bound="127.0.0.1"),
                )
                self._server = HttpServer(self._noting(guard))
                async with asyncio.TaskGroup() as group:
                    records = group.create_task(self.manager.nodes.keep(), name="node records")
                    group.create_task(self._server.serve_on(listener), name="REST")
                    await self._server.serving.wait()
                    write_address(home, ManagerAddress.of_this_process(host="127.0.0.1", port=port, url=self.url))
                    self._ready.set()
                    await self._stop.wait()
                    context.closing.set()
                    await self._cut_off_clients()
                    self._server.leave()
                    records.cancel()
                await self._cut_off_clients()  # one may have come meanwhile

    async def _cut_off_clients(self) -> None:
        while connections := tuple(self._server.server_state.connections):
            for connection in connections:
                connection.transport.abort()
            await asyncio.sleep(0)

    def _create_service(self, platform: str, context: ServiceContext) -> InMemoryTrainingService:
        memory = self._platforms.setdefault(context.experiment_id, InMemoryPlatform(time.time))
        made = SlowService(self._play, platform=memory, now=time.time)
        made.away = self.away
        self._services[context.experiment_id] = made
        return made

    def _play(self, form: TrialJobForm) -> Iterable[Step]:
        return self.script(form)

    def _noting(self, app: ASGIApp) -> ASGIApp:
        """Note every request before the application gets it, and call what waits for its answer."""

        async def note(scope: Scope, receive: Receive, send: Send) -> None:
            body, message = b"", await receive()
            while message["type"] == "http.request":
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
                message = await receive()
            given: list[Message] = [{"type": "http.request", "body": body}]
            path = scope["raw_path"].decode().removeprefix(API_PREFIX)
            asked = (scope["method"], path)
            is_json = body[:1] in (b"{", b"[", b'"') or body in (b"null",)
            found = json.loads(body) if is_json else body or None
            self.asked.append((*asked, found))
            if (before := self.before.pop(asked, None)) is not None:
                before(found)

            async def replay() -> Message:
                return given.pop() if given else await receive()

            async def count(message: Message) -> None:
                self.sent_bytes += len(message.get("body", b""))
                await send(message)

            await app(scope, replay, count)
            if (then := self.on_ask.pop(asked, None)) is not None:
                await asyncio.to_thread(then)

        return note

    async def _add_experiment(
        self,
        experiment_id: str,
        config: Mapping[str, Any],
        trials: Sequence[Mapping[str, Any]],
        views: Sequence[SavedViewRow],
        scheduler: SchedulerTablesRow | None,
        columns: Mapping[str, Any],
    ) -> None:
        loaded = creation.check(dict(config), str(self.home.parent), self.home)
        folder = Home(self.home).experiment_directory(experiment_id)
        row = creation.new_row(loaded, experiment_id, folder, NOW)
        left = {"status": "STOPPED", "reason": "", "started_at": NOW, "ended_at": NOW, **columns}
        left["status"] = ExperimentStatus(left["status"])
        row = replace(row, **left, next_sequence_id=len(trials), next_parameter_id=len(trials))
        creation.make_folder(folder, ExperimentConfig.from_canonical(row.config))
        made = [make_trial(experiment_id, number, fields) for number, fields in enumerate(trials)]
        async with await Database.open(str(folder / METRICS_FILE), "metrics") as database:
            reported = [metric for *_, points in made for metric in points]
            await database.write(lambda c: metrics.insert(c, reported, starts={}))
        found = ImportedExperiment(
            row,
            [trial for trial, *_ in made],
            [job for _, attempts, _ in made for job in attempts],
            (),
            views,
            scheduler,
        )
        await self.manager.control.write(lambda c: found.insert(c, time=NOW))
        creation.finish_folder(folder)
        self.manager.feed.notify()


def make_trial(
    experiment_id: str, number: int, columns: Mapping[str, Any]
) -> tuple[TrialRow, list[TrialJobRow], list[MetricRow]]:
    """A trial that was left, with its newest jobs and what it has reported."""
    usual = {"id": f"t{number}", "status": "SUCCEEDED", "parameters": {"lr": 0.25, "layer": {"units": 8}}, "jobs": 1}
    left = {"sequence_id": number, **usual, "started_at": NOW, "ended_at": NOW, "created_at": NOW, **columns}
    points, of_job, status = left.pop("points", ()), left.pop("job", {}), TrialStatus(left.pop("status"))
    of_earlier = left.pop("earlier_jobs", ())
    owner = {"experiment_id": experiment_id, "parameter_id": number, "parameters": left.pop("parameters")}
    trial = TrialRow(**owner, status=status, **left)
    over: dict[str, Any] = {"status": TrialJobStatus.ENDED, "end_reason": EndReason.EXITED_OK}
    running = {"status": TrialJobStatus.RUNNING}
    owner |= {"trial_id": trial.id, "token": "t", "submitted_at": NOW, "started_at": NOW, "ended_at": trial.ended_at}
    every = [*(over | each for each in of_earlier), {**(over if status.is_terminal else running), **of_job}]
    numbers = range(trial.jobs - len(every) + 1, trial.jobs + 1)
    attempts = [
        TrialJobRow(**{**owner, **each}, id=f"{trial.id}.{job}", number=job)
        for job, each in zip(numbers, every, strict=True)
    ]
    reported: list[MetricRow] = []
    for index, (kind, value, *more) in enumerate(points):
        sequence = sum(before.kind == kind for before in reported)
        fields = {"job": trial.jobs, "sequence": sequence, "step": None, "member": 0, **(more[0] if more else {})}
        identifier = 1_000 * number + index + 1
        reported.append(MetricRow(identifier, trial.id, offset=0, kind=kind, value=None, data=value, **fields))
    return trial, attempts, reported
