"""The keeper's daemon: composes its parts and runs them until it must stop."""

import asyncio
import contextlib
import json
import logging
import logging.handlers
import os
import signal
import socket
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import proctor
from proctor.sdk.bundle import build_bundle
from proctor.sdk.files import open_locked, replace_file
from proctor.sdk.process_limits import is_short, keep_files_private, raise_open_files
from proctor.trial_keeper.files.server import FileAnswers, ReadablePaths
from proctor.trial_keeper.gpus import DeviceFacts, DeviceSurvey
from proctor.trial_keeper.jobs.disk_space import DiskWatch
from proctor.trial_keeper.jobs.journal_watch import POLL_INTERVAL_SECONDS
from proctor.trial_keeper.jobs.launching import RequestBuilder, Spawner, absolute_launch
from proctor.trial_keeper.jobs.outbox import Outbox, SettledReport
from proctor.trial_keeper.jobs.records import RecordFolder, StopRecord
from proctor.trial_keeper.jobs.table import JobTable
from proctor.trial_keeper.linux import processes
from proctor.trial_keeper.linux.identity import boot_id, start_time
from proctor.trial_keeper.linux.tasks import TaskGroup, start_threads
from proctor.trial_keeper.protocol import (
    COMMAND_TYPES,
    Cancel,
    Command,
    EndReason,
    FileRequest,
    KeeperCommand,
    Launch,
    RefusedCommand,
    Registration,
    RegistrationAnswer,
    Shutdown,
    SystemLoad,
    Update,
    from_json,
)
from proctor.trial_keeper.settings import (
    ARCHIVE,
    BUNDLE_FOLDER,
    FACTS_FILE,
    JOBS_FOLDER,
    LOCK_FILE,
    LOG_FILE,
    SPAWNER_LOG_FILE,
    KeeperSettings,
    code_id,
    default_lock_folder,
    read_settings,
)
from proctor.trial_keeper.uplink.session import ManagerSession, SessionHandler

_LOG_BYTES = 1024 * 1024
_LEASE_GRACE_SECONDS = 5.0
_SWEEP_SECONDS = 5.0
_LOW_DISK_MB = 64
_THREADS = 4

log = logging.getLogger(__name__)


class Keeper(SessionHandler):
    """One keeper process. `run` returns when it was asked to leave; its jobs keep running without it.

    :param oom_counter: the file in which the kernel counts the processes that it has killed for memory.
    :param is_for_one_job: no other job will use what is compiled here for trials.
    """

    def __init__(
        self,
        directory: Path,
        settings: KeeperSettings,
        *,
        spawner: Spawner,
        oom_counter: str = processes.OOM_COUNTER,
        is_for_one_job: bool = False,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._keeper_id = uuid.uuid4().hex
        self._leaving = asyncio.Event()
        self._stop_when_idle = False
        self._facts = DeviceFacts([], [])
        self._disk = DiskWatch(directory)
        lock_folder = settings.gpu_lock_directory or default_lock_folder()
        self._survey = DeviceSurvey(lock_folder)
        self._outbox = Outbox()
        self._tasks = TaskGroup()
        folder = RecordFolder(directory / JOBS_FOLDER)
        requests = RequestBuilder(
            folder,
            bundle=build_bundle(str(directory / BUNDLE_FOLDER), is_compiled=not is_for_one_job),
            gpu_lock_directory=lock_folder,
            oom_counter=oom_counter,
        )
        self._jobs = JobTable(
            folder,
            requests=requests,
            spawner=spawner,
            outbox=self._outbox,
            tasks=self._tasks,
            disk=self._disk,
        )
        self._answers = FileAnswers(
            str(directory),
            self._job_places,
            lambda asked: requests.probe_storage(replace(asked, launch=absolute_launch(asked.launch, str(directory)))),
        )
        self._session = ManagerSession(
            node_id=settings.node_id,
            pointer=settings.manager_pointer,
            secret_file=directory / settings.secret_file,
            outbox=self._outbox,
            answers=self._answers,
        )

    async def run(self) -> None:
        """Adopt what is there, then serve the manager until asked to exit (SIGTERM, SIGINT, or Shutdown when idle)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take_signal)
        loop.add_signal_handler(signal.SIGCHLD, processes.reap_children)
        processes.become_subreaper()  # of what a spawner that was killed leaves behind
        raise_open_files()  # two descriptors a job, whatever the number of jobs
        loop.set_default_executor(start_threads(_THREADS, "keeper"))
        await asyncio.to_thread(self._survey.open)
        await self._refresh_devices()
        try:
            async with self._tasks as tasks:
                self._jobs.watch.start()
                await self._jobs.adopt()
                tasks.start(self._session.run(self), "manager session")
                tasks.start(self._keep_house(), "housekeeping")
                if self._survey.has_driver:
                    tasks.start(self._watch_devices(), "devices")
                tasks.start(self._leaving.wait(), "exit", ends_group=True)
            self._leave()
        finally:
            self._jobs.close()
            self._answers.close()
            self._survey.close()

    def _take_signal(self) -> None:
        """SIGTERM or SIGINT."""
        self._leaving.set()

    def turn_away(self, why: str) -> None:
        """Only of keepers that were started for one job."""

    def _leave(self) -> None:
        """The session is over, and nothing is waited for any more."""
        log.info("the keeper is exiting; %d jobs continue under their reapers", len(self._jobs.running()))

    def registration(self) -> Registration:
        return Registration(
            keeper_id=self._keeper_id,
            pid=os.getpid(),
            boot_id=boot_id(),
            hostname=socket.gethostname(),
            version=proctor.__version__,
            python=".".join(map(str, sys.version_info[:3])),
            devices=self._facts.devices,
            jobs=[job.report() for job in self._jobs.all()],
            driver_note=self._survey.driver_note,
            full=self._disk.full,
            commands=sorted(COMMAND_TYPES),
            instance=self._settings.instance,
        )

    def begin_session(self, answer: RegistrationAnswer) -> None:
        unknown = set(answer.unknown)
        for job in self._jobs.all():
            if job.job_id in unknown:
                self._jobs.disown(job)
                continue
            job.acknowledge(answer.offsets.get(job.job_id, {}))
            self._outbox.queue(job)

    async def carry_out(self, commands: list[Command]) -> None:
        # in order; launches that follow one another are written down together
        launches: list[Launch] = []
        for command in commands:
            try:
                body = self._read_command(command)
            except (TypeError, ValueError) as error:
                self._refuse(command, str(error))
                continue
            if isinstance(body, Launch):
                launches.append(body)
                continue
            if launches:
                await self._jobs.launch(launches)
                launches = []
            if isinstance(body, Cancel):
                await self._jobs.cancel(body)
            elif isinstance(body, Update):
                await self._jobs.update(body)
            elif isinstance(body, FileRequest):
                self._answers.take(body)
            elif isinstance(body, Shutdown):
                self._stop_when_idle = True
        if launches:
            await self._jobs.launch(launches)
        if self._stop_when_idle and not len(self._jobs):
            self._leaving.set()

    def settle(self, report: SettledReport) -> None:
        self._jobs.settle(report)

    def _read_command(self, command: Command) -> KeeperCommand | FileRequest | None:
        """None: it is not carried out, and needs no answer. Raises TypeError or ValueError."""
        kind = COMMAND_TYPES.get(command.type)
        if kind is None:
            raise ValueError(f"a keeper of version {proctor.__version__} has no such command")
        body: KeeperCommand | FileRequest = from_json(kind, command.order)
        return absolute_launch(body, str(self._directory)) if isinstance(body, Launch) else body

    def _refuse(self, command: Command, reason: str) -> None:
        """Answer a command that cannot be read: the manager waits for what it brings about."""
        log.error("command %d (%s) is refused: %s", command.number, command.type, reason)
        request, job_id, token = (command.order.get(name) for name in ("request", "job_id", "token"))
        if isinstance(request, str):
            self._answers.refuse(request, f"its keeper cannot read the command {command.type}: {reason}")
        elif isinstance(job_id, str) and isinstance(token, str):
            self._outbox.refuse(RefusedCommand(job_id, token, command.type, reason))

    def _job_places(self) -> ReadablePaths:
        running = [job.record.launch for job in self._jobs.running()]
        needed = [(job.job_id, path) for job in running for path in (job.directory, job.code_directory)]
        return ReadablePaths(
            known=[job.directory for job in self._jobs.all()],
            busy=[*needed, *((job.job_id, job.resume_checkpoint) for job in running if job.resume_checkpoint)],
        )

    async def _keep_house(self) -> None:
        """Once a second what no event tells: journals without inotify, leases, the disk; sometimes stray processes."""
        loop = asyncio.get_running_loop()
        next_sweep = loop.time() + _SWEEP_SECONDS
        while True:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            self._jobs.watch.check()
            await self._check_disk()
            self._outbox.set_suspended(self._jobs.find_suspended())
            self._outbox.set_waiting(self._jobs.find_waiting())
            await self._end_leases(loop.time() - self._session.last_answer)
            if loop.time() >= next_sweep:
                next_sweep = loop.time() + _SWEEP_SECONDS
                await self._jobs.sweep()
            if self._stop_when_idle and not len(self._jobs):
                self._leaving.set()
            self._consider_leaving()

    def _consider_leaving(self) -> None:
        """Once a second."""
        if not len(self._jobs) and not self._directory.exists():
            log.info("the keeper's directory was deleted")
            self._leaving.set()
        linger = self._settings.linger_seconds
        silent = asyncio.get_running_loop().time() - self._session.last_answer
        if linger is not None and silent > linger and not self._jobs.running():
            log.info("no job runs, and there has been no manager for %g s", linger)
            self._leaving.set()

    async def _end_leases(self, silent_seconds: float) -> None:
        for job in self._jobs.running():
            lease = job.record.launch.lease_seconds
            if lease is not None and silent_seconds > lease and job.record.stop is None:
                detail = f"the keeper had no manager for {lease:g} s"
                await self._jobs.stop(job, StopRecord(EndReason.LEASE_EXPIRED.value, _LEASE_GRACE_SECONDS, detail))

    async def _check_disk(self) -> None:
        if self._disk.check():
            await asyncio.to_thread(self._disk.try_again)
        free = self._disk.free_mb
        low = [f"only {free} MiB are free on the disk of {self._directory}"]
        self._outbox.disk_free_mb = free
        self._outbox.notes = (low if free is not None and free < _LOW_DISK_MB else []) + self._facts.notes
        self._outbox.set_full(self._disk.full)
        self._outbox.system = read_system_load()

    async def _watch_devices(self) -> None:
        """Now and then, and at once when GPUs turned out to be leased by another user: placement must know."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._jobs.place_taken.wait(), self._settings.device_refresh_seconds)
            self._jobs.place_taken.clear()
            await self._refresh_devices()

    async def _refresh_devices(self) -> None:
        trials = {job.process.trial.pid: job.job_id for job in self._jobs.running() if job.process is not None}
        before = self._facts
        try:
            self._facts = await asyncio.to_thread(self._survey.read, trials)
        except OSError as error:  # not known now: looked at again
            if not is_short(error):
                raise
        if self._facts != before:
            self._outbox.set_devices(self._facts.devices)


def read_system_load(folder: str = "/proc") -> SystemLoad | None:
    """The load of this moment; None where the kernel does not say. Does not block.

    :param folder: where procfs is.
    """
    try:
        load = float(_read_text(f"{folder}/loadavg").split()[0])
        sizes = _sizes(_read_text(f"{folder}/meminfo"))
        total, available = sizes["MemTotal"], sizes.get("MemAvailable", sizes.get("MemFree", 0))
    except (OSError, ValueError, LookupError):  # not mounted, or hidden from this user
        return None
    return SystemLoad(load, os.cpu_count() or 1, (total - min(available, total)) // 1024, total // 1024)


def _read_text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read(16 * 1024)


def _sizes(text: str) -> dict[str, int]:
    """The lines of meminfo: name → KiB."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: int(rest.split()[0]) for name, _, rest in lines if rest.strip()}


def serve(directory: Path, *, ready: int | None = None) -> int:
    """Run the keeper of `directory`; returns the exit code (0 also when another one runs already).

    :param ready: a descriptor to close as soon as the keeper can be found by its keeper.json.
    """
    directory = Path(os.path.abspath(directory))
    keep_files_private()
    if open_locked(directory / LOCK_FILE) is None:  # held until this process ends
        return 0
    _log_to(directory / LOG_FILE)
    log.info("keeper %d is starting in %s", os.getpid(), directory)
    try:
        asyncio.run(_serve(directory, ready))
    except Exception:
        log.exception("the keeper has failed; its jobs continue under their reapers; start it again")
        return 1
    return 0


async def _serve(directory: Path, ready: int | None) -> None:
    keeper = Keeper(directory, read_settings(directory), spawner=Spawner(directory / SPAWNER_LOG_FILE))
    write_facts(directory)
    if ready is not None:
        os.close(ready)
    await keeper.run()


def write_facts(directory: Path) -> None:
    """Say who serves `directory`, once its lock is held. Raises OSError."""
    facts = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "boot_id": boot_id()}
    facts |= {"version": proctor.__version__, "archive": ARCHIVE, "code": code_id()}
    replace_file(str(directory / FACTS_FILE), json.dumps(facts).encode(), durable=False)


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
