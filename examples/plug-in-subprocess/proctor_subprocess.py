"""Platform `subprocess`: trials are plain child processes of the manager, at most `maxJobs` at a time.

    trainingService:
      platform: subprocess
      maxJobs: 4              # default: the number of processors
      graceSeconds: 10        # between SIGTERM and SIGKILL; default: 5

It is a complete training service without a keeper, and it does not have `SupportsReattach`: a job cannot be found again
after a restart of the manager, so every job ends with the service that started it. Where the manager was killed, the
engine asks the next service to cancel the jobs of the previous one; they are found by their id in the environment of
their processes.
"""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from proctor.sdk.disk_errors import is_full
from proctor.sdk.process_limits import is_short
from proctor.training_services.base import (
    EndReason,
    Exit,
    JournalChunk,
    MetricListener,
    StatusChange,
    StatusListener,
    SupportsEvents,
    SupportsLogs,
    TrainingService,
    TrialJobDetail,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.errors import SubmissionRefused, UnknownTrialJob
from proctor.training_services.keeper_service import Listeners
from proctor.training_services.keepers.launches import require_launchable
from proctor.training_services.registry import ServiceContext
from proctor.training_services.trial_processes import (
    TrialCommand,
    describe_exit,
    end_trials,
    list_files,
    living_trials,
    prepare_trial,
    read_file,
)

PLATFORM = "subprocess"
POLL_INTERVAL_SECONDS = 0.25  # how often processes and journals are looked at
RETRY_SECONDS = 1.0  # the pause before something is delivered again that a listener has not taken
CHUNK_BYTES = 1024 * 1024


@dataclass
class Job:
    """One job, from its submission until its end was taken by the listeners."""

    form: TrialJobForm
    submitted: datetime
    has_slot: bool = False
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float | None = None
    started_monotonic: float = 0.0  # its duration is counted by a clock that nothing sets
    stop: tuple[EndReason, str] | None = None  # why it is to end, with a sentence
    is_early_stopped: bool | None = None
    is_refused: bool = False  # its metrics were refused, so nothing more is reported of it
    exit: Exit | None = None
    stored: int = 0  # how much of its journal the listeners have stored

    @property
    def tag(self) -> tuple[str, str]:
        """What all its processes carry in their environment."""
        return self.form.job_id, self.form.directory

    @property
    def status(self) -> TrialJobStatus:
        """Where it is."""
        if self.exit is not None:
            return TrialJobStatus.ENDED
        if self.stop is not None:
            return TrialJobStatus.STOPPING
        return TrialJobStatus.SUBMITTED if self.started_at is None else TrialJobStatus.RUNNING

    @property
    def detail(self) -> TrialJobDetail:
        """What is known of it."""
        return TrialJobDetail(
            id=self.form.job_id,
            status=self.status,
            form=self.form,
            submit_time=self.submitted,
            start_time=None if self.started_at is None else _utc(self.started_at),
            end_time=None if self.exit is None else _utc(self.exit.ended_at),
            tags=self.form.tags,
            working_directory=self.form.directory,
            is_early_stopped=self.is_early_stopped,
            exit=self.exit,
        )


class SubprocessTrainingService(TrainingService, SupportsEvents, SupportsLogs):
    """One experiment's trials as child processes. Each job is one task, `_live`, which tells the job's story."""

    def __init__(self, context: ServiceContext) -> None:
        self._directory = str(context.experiment_directory)
        defaults = {"max_jobs": os.cpu_count(), "grace_seconds": 5.0}
        self._settings = {key: context.settings.get(key, default) for key, default in defaults.items()}
        self._jobs: dict[str, Job] = {}
        self._submitted: asyncio.Queue[Job] = asyncio.Queue()
        self._listeners = Listeners()
        if not isinstance(self._settings["max_jobs"], int) or self._settings["max_jobs"] < 1:
            raise SubmissionRefused(f"maxJobs: expected an integer from 1, found {self._settings['max_jobs']!r}")
        if not isinstance(self._settings["grace_seconds"], int | float):
            raise SubmissionRefused(f"graceSeconds: expected a number, found {self._settings['grace_seconds']!r}")

    # ---- what the engine asks for

    @property
    def is_multi_phase_job_supported(self) -> bool:
        return False

    async def list_trial_jobs(self) -> list[TrialJobDetail]:
        return [job.detail for job in self._jobs.values()]

    async def get_trial_job(self, job_id: str) -> TrialJobDetail:
        return self._find(job_id).detail

    def add_trial_job_metric_listener(self, listener: MetricListener) -> None:
        self._listeners.add_metric(listener)

    def remove_trial_job_metric_listener(self, listener: MetricListener) -> None:
        self._listeners.remove_metric(listener)

    def add_status_listener(self, listener: StatusListener) -> None:
        self._listeners.add_status(listener)

    def remove_status_listener(self, listener: StatusListener) -> None:
        self._listeners.remove_status(listener)

    async def submit_trial_job(self, form: TrialJobForm) -> TrialJobDetail:
        known = self._jobs.get(form.job_id)
        if known is not None and known.form.token != form.token:
            raise SubmissionRefused(f"trial job {form.job_id} is already here with another token")
        if known is None:
            require_launchable(form)
            if not os.path.isdir(form.code_directory):
                raise SubmissionRefused(f"trialCodeDirectory is not a folder: {form.code_directory}")
            job = self._jobs[form.job_id] = Job(form, _utc(time.time()))
            self._submitted.put_nowait(job)
        return self._jobs[form.job_id].detail

    async def update_trial_job(self, job_id: str, form: TrialJobForm) -> TrialJobDetail:
        job = self._find(job_id)
        job.form = replace(job.form, max_duration_seconds=form.max_duration_seconds)
        return job.detail

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        job = self._jobs.get(job_id)
        if job is None:  # perhaps one that an earlier service has started
            await asyncio.to_thread(self._end_processes, lambda found: found == job_id)
        elif job.stop is None and job.exit is None:
            job.is_early_stopped = is_early_stopped
            job.stop = EndReason.CANCELED, "stopped by the manager"

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        self._settings[key]  # raises KeyError for an unknown key
        self._settings[key] = value

    async def get_cluster_metadata(self, key: str) -> Any:
        return self._settings[key]

    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        found = await asyncio.to_thread(list_files, form.directory)
        return [(file.path, file.size) for file in found]

    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        return await asyncio.to_thread(read_file, form.directory, path, offset, limit)

    async def clean_up(self) -> None:
        await asyncio.to_thread(self._end_processes, lambda found: True)
        self._jobs.clear()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    job = await self._submitted.get()
                    group.create_task(self._live(job), name=f"job {job.form.job_id}")
        finally:  # nothing could find the jobs again
            await asyncio.to_thread(self._end_processes, lambda found: found in self._jobs)

    # ---- the life of a job

    async def _live(self, job: Job) -> None:
        """From its submission until its end was taken."""
        await self._wait_for_a_slot(job)
        if job.stop is None:
            bundles = os.path.join(self._directory, "trial-side")
            try:
                command = await asyncio.to_thread(prepare_trial, job.form, platform=PLATFORM, bundle_directory=bundles)
                job.process = _start(command, job.form.directory)
            except (OSError, ValueError) as error:
                reason = EndReason.NO_ROOM if is_full(error) or is_short(error) else EndReason.INFRASTRUCTURE
                job.stop = reason, f"the trial could not be started: {error}"
        if job.process is None:
            assert job.stop is not None
            reason, detail = job.stop
            job.exit = Exit(reason, None, None, time.time(), time.time(), detail)
        else:
            await self._follow(job, job.process)
        if job.exit is not None and not job.is_refused:
            await self._tell(job, at=job.exit.ended_at, detail=job.exit.detail, exit=job.exit)
        del self._jobs[job.form.job_id]

    async def _wait_for_a_slot(self, job: Job) -> None:
        told = ""
        while job.stop is None:
            limit = self._settings["max_jobs"]
            running = sum(other.has_slot and other.exit is None for other in self._jobs.values())
            if running < limit:
                job.has_slot = True
                return
            reason = f"waiting: {running} of {limit} slots of platform {PLATFORM} are taken"
            if reason != told:
                await self._tell(job, at=time.time(), detail=reason)
                told = reason
            await asyncio.sleep(POLL_INTERVAL_SECONDS)

    async def _follow(self, job: Job, process: "subprocess.Popen[bytes]") -> None:
        """Deliver what a running job reports, until it and its journal have come to their end."""
        job.started_at, job.started_monotonic = time.time(), time.monotonic()
        await self._tell(job, at=job.started_at, node_id=socket.gethostname(), pid=process.pid)
        while process.poll() is None and job.stop is None:
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
            await self._deliver(job)
            limit = job.form.max_duration_seconds
            if limit is not None and time.monotonic() > job.started_monotonic + limit and job.stop is None:
                job.stop = EndReason.DEADLINE, f"it ran longer than its limit of {limit:g} s"
        grace = self._settings["grace_seconds"]
        await asyncio.to_thread(end_trials, [job.tag], grace_seconds=grace, session=process.pid)
        returncode = await asyncio.to_thread(process.wait)
        while not job.is_refused and not await self._deliver(job):  # noqa: ASYNC110 - a pause, not a wait
            await asyncio.sleep(RETRY_SECONDS)
        job.exit = describe_exit(
            job.form, returncode, job.started_at, stop=job.stop, run_seconds=time.monotonic() - job.started_monotonic
        )

    # ---- what the engine receives

    async def _deliver(self, job: Job) -> bool:
        """Hand on what is new in the journal; whether all of it is stored."""
        while data := await asyncio.to_thread(_read_lines, job):
            if not self._listeners.has_metric_listeners:
                return False
            chunk = JournalChunk(job.form.job_id, job.form.token, 0, job.stored, data)
            try:
                answer = await self._listeners.store([chunk])
            except Exception:  # it was not taken: the same again, later
                return False
            stored = answer.get((chunk.job_id, chunk.member))
            if stored is None:
                job.is_refused = True
                job.stop = job.stop or (EndReason.CANCELED, "its metrics were refused")
            if stored is None or stored <= job.stored:
                return False
            job.stored = stored
        return True

    async def _tell(self, job: Job, *, at: float, **news: Any) -> None:
        """Tell the listeners where a job is, again and again until they have taken it."""
        change = StatusChange(job.form.job_id, job.form.token, job.status, _utc(at), **news)
        while True:
            try:
                await self._listeners.deliver([change])
                return
            except Exception:
                await asyncio.sleep(RETRY_SECONDS)

    # ---- processes

    def _end_processes(self, is_wanted: Callable[[str], bool]) -> None:
        """End the processes of all jobs of the experiment with this id, whichever manager started them."""
        wanted = [tag for tag in living_trials(self._directory) if is_wanted(tag[0])]
        end_trials(wanted, grace_seconds=self._settings["grace_seconds"])
        for job in self._jobs.values():
            if job.process is not None:
                job.process.poll()

    def _find(self, job_id: str) -> Job:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise UnknownTrialJob(f"there is no trial job {job_id} on platform {PLATFORM}") from None


def _start(command: TrialCommand, directory: str) -> "subprocess.Popen[bytes]":
    with (
        open(os.path.join(directory, "stdout"), "ab") as stdout,
        open(os.path.join(directory, "stderr"), "ab") as stderr,
    ):
        return subprocess.Popen(
            command.arguments,
            cwd=command.working_directory,
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def _read_lines(job: Job) -> bytes:
    """Whole lines of the journal that are not stored yet."""
    try:
        with open(os.path.join(job.form.directory, "journal"), "rb") as journal:
            journal.seek(job.stored)
            data = journal.read(CHUNK_BYTES)
    except OSError:  # the trial has removed it
        return b""
    return data[: data.rfind(b"\n") + 1]


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
