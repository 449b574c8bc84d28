"""What all training services have in common whose jobs run under keepers: listeners, redelivery, stops, reasons.

Below it are `keeper_service`, for jobs on nodes of the pool, and `job_keeper_service`, for platforms that start a
keeper for each job (decision 0039).
"""

import asyncio
import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from proctor.sdk.failpoints import failpoint
from proctor.sdk.protocol import ENV_CHECKPOINT_STORAGE, ENV_CURVE_POINTS, ENV_JUDGED_RANK, is_url
from proctor.training_services.base import (
    CheckpointOffer,
    EndReason,
    Exit,
    JobStart,
    JournalChunk,
    MetricListener,
    SoftStop,
    StatusChange,
    StatusListener,
    SupportsEvents,
    SupportsReattach,
    SupportsSoftStop,
    TrainingService,
    TrialJobDetail,
    TrialJobForm,
    TrialJobStatus,
    describe_refused_start,
    describe_start,
    updated,
)
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import (
    KeeperOutdated,
    NothingToContinueFrom,
    PreparationFailed,
    ServiceUnavailable,
    SubmissionRefused,
    TrainingServiceError,
    UnknownTrialJob,
)
from proctor.training_services.keepers.launches import write_cancel, write_launch
from proctor.training_services.keepers.reports import HubClient
from proctor.training_services.registry import ServiceContext
from proctor.training_services.shared_storage import SharedStorage
from proctor.training_services.stored_checkpoints import await_verified
from proctor.trial_keeper.linux.backoff import growing_pause
from proctor.trial_keeper.protocol import Cancel, Launch, Update

log = logging.getLogger(__name__)

REDELIVERY_SECONDS = 1.0
CLEAN_UP_SECONDS = 30.0
RETRY_SECONDS = 1.0
FIRST_STORAGE_PAUSE_SECONDS = 1.0
LONGEST_STORAGE_PAUSE_SECONDS = 60.0
STORAGE_ATTEMPTS = 12
NOTICED_SECONDS = 1.0
"""What keeps a job waiting for less is not reported."""


@contextmanager
def reporting_wait(notify: Callable[[str], None], clause: str) -> Iterator[None]:
    """Report what is waited for, if that takes long."""
    report = asyncio.get_running_loop().call_later(NOTICED_SECONDS, notify, clause)
    try:
        yield
    finally:
        report.cancel()


class Listeners:
    """The listeners of one training service, whose answers become one. `on_added` is called after one was added."""

    def __init__(self, on_added: Callable[[], None] = lambda: None) -> None:
        self._metric: list[MetricListener] = []
        self._status: list[StatusListener] = []
        self._on_added = on_added

    @property
    def has_metric_listeners(self) -> bool:
        """Whether there is a listener to metrics."""
        return bool(self._metric)

    @property
    def has_status_listeners(self) -> bool:
        """Whether there is a listener to status changes."""
        return bool(self._status)

    def add_metric(self, listener: MetricListener) -> None:
        """Deliver metrics to `listener` from now on. Idempotent."""
        if listener not in self._metric:
            self._metric.append(listener)
            self._on_added()

    def remove_metric(self, listener: MetricListener) -> None:
        """Stop delivering to it."""
        if listener in self._metric:
            self._metric.remove(listener)

    def add_status(self, listener: StatusListener) -> None:
        """Deliver status changes to `listener` from now on. Idempotent."""
        if listener not in self._status:
            self._status.append(listener)
            self._on_added()

    def remove_status(self, listener: StatusListener) -> None:
        """Stop delivering to it."""
        if listener in self._status:
            self._status.remove(listener)

    async def store(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        """Hand chunks to every listener; what is stored is what all of them have stored.

        Raises whatever a listener raises: the chunks are to be delivered again.
        """
        if len(self._metric) == 1:
            return await self._metric[0](chunks)
        answers = [await listener(chunks) for listener in tuple(self._metric)]
        if not answers:
            return {}
        common = set(answers[0]).intersection(*answers[1:])
        return {key: min(answer[key] for answer in answers) for key in common}

    async def deliver(self, changes: Sequence[StatusChange]) -> None:
        """Hand changes to every listener. Raises whatever a listener raises: they are to be delivered again."""
        for listener in tuple(self._status):
            await listener(changes)


class HubTrainingService(TrainingService, SupportsEvents, SupportsReattach, SupportsSoftStop, HubClient):
    """One experiment's jobs, each under a keeper. What keepers report arrives through the hub; its redelivery to the
    listeners is done here.

    A job that needs something where it runs first (a checkpoint to continue from, the code) is launched by a task of
    its own, in `_launch`.

    :param now: Unix time, for records.
    :param clean_up_seconds: how long `clean_up` waits for the last jobs to end.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        now: Callable[[], float] = time.time,
        clean_up_seconds: float = CLEAN_UP_SECONDS,
    ) -> None:
        self._experiment_id = context.experiment_id
        self._hub = context.hub
        self._storage = SharedStorage(context.experiment_directory, context.hub)
        self._now = now
        self._clean_up_seconds = clean_up_seconds
        self._jobs: dict[str, TrialJobDetail] = {}
        self._saving: set[str] = set()  # jobs that were asked to save before they are stopped
        self._starts: dict[str, JobStart] = {}  # where jobs begin that were prepared
        self._waiting: dict[str, bool] = {}  # jobs that are not sent yet; True: perhaps sent before a restart
        self._launching: dict[str, asyncio.Task[None]] = {}
        self._reported: set[str] = set()  # jobs of which it was reported what they wait for
        self._storing: set[str] = set()  # where trials can store checkpoints under the experiment's URL
        self._queued: deque[StatusChange] = deque()
        self._has_queued = asyncio.Event()
        self._delivered = asyncio.Event()
        self._delivering = asyncio.Lock()
        self._listeners = Listeners(self._has_queued.set)
        self._is_cleaning = False
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def check(self, form: TrialJobForm) -> None:
        """Raise SubmissionRefused, with a sentence, for what can never run."""

    @abstractmethod
    def launch(self, form: TrialJobForm) -> Launch:
        """The command to the keeper that starts the job, as far as the platform knows it."""

    def launch_order(self, form: TrialJobForm) -> Launch:
        """The command to the keeper that starts the job, which has what it needs."""
        return self.launch(form)

    # ---- what the two kinds of services differ in

    @abstractmethod
    def keeper_of(self, form: TrialJobForm) -> str:
        """The id by which the hub knows the job's keeper."""

    @abstractmethod
    def place_of(self, form: TrialJobForm) -> str | None:
        """What the machine on which the job runs, or is to run, is called in records; None while that is not known."""

    @abstractmethod
    def begin(self, form: TrialJobForm) -> None:
        """Have a new job launched: at once, or by a task once the service runs. Must not block. Raises
        ServiceUnavailable."""

    @abstractmethod
    def resume(self, form: TrialJobForm) -> None:
        """As `begin`, for a job that an earlier instance was given: it is launched only if it never arrived."""

    @abstractmethod
    def where(self, form: TrialJobForm) -> str:
        """Where a job runs, in messages about what is wrong there: "node gpu-3"."""

    @abstractmethod
    async def wait_changed(self, form: TrialJobForm) -> None:
        """Until the keeper of a job may have connected or become silent."""

    @abstractmethod
    async def wait_connected(self, form: TrialJobForm) -> None:
        """Until the keeper of a job answers; returns at once if it does."""

    def obstacle(self, form: TrialJobForm) -> str:
        """Why a job that was just submitted waits, as a clause; "" if that is not known yet, or it does not."""
        return ""

    def begin_serving(self) -> None:
        """`run` has begun: tasks may be started from now on."""

    def end_serving(self) -> None:
        """`run` ends."""

    # ---- what a platform may add

    def must_prepare(self, form: TrialJobForm) -> bool:
        """Whether a job needs something where it runs before it is launched."""
        return bool(form.checkpoints) or ENV_CHECKPOINT_STORAGE in form.environment

    async def prepare(self, form: TrialJobForm) -> JobStart | None:
        """Have there what a job needs, however long its keeper is disconnected. Returns where the job begins, if its
        form offers checkpoints. Raises SubmissionRefused, PreparationFailed."""
        passed_over = form.passed_over
        for offer in form.checkpoints:
            damage = await self.verify(form, offer)
            if not damage:
                return describe_start(form.trial_id, offer, passed_over)
            passed_over.append((offer, damage))
        return describe_start(form.trial_id, None, passed_over) if passed_over else None

    def on_delivered(self, change: StatusChange) -> None:
        """The listeners have taken a change; that of an end comes before the job is forgotten. Must not block."""

    def on_end(self, job: TrialJobDetail) -> None:
        """A job is over, and its listeners know. Must not block."""

    def release_job(self, job_id: str) -> None:
        """A job is dropped: it is over or no longer wanted. Must not block."""

    # ---- the twelve

    @property
    def is_multi_phase_job_supported(self) -> bool:
        return False

    async def list_trial_jobs(self) -> list[TrialJobDetail]:
        return list(self._jobs.values())

    async def get_trial_job(self, job_id: str) -> TrialJobDetail:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise UnknownTrialJob(f"there is no trial job {job_id} in experiment {self._experiment_id}") from None

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
        if known is not None:
            if known.form.token != form.token:
                raise SubmissionRefused(
                    f"trial job {form.job_id} is already here with another token; a new attempt needs a new job id"
                )
            return known
        self.check(form)
        self._hub.attach(self._experiment_id, self)
        self.begin(form)
        self._jobs[form.job_id] = self._detail(form)
        if obstacle := self.obstacle(form):
            self.report_waiting(form, obstacle)
        return self._jobs[form.job_id]

    async def update_trial_job(self, job_id: str, form: TrialJobForm) -> TrialJobDetail:
        before = await self.get_trial_job(job_id)
        self._jobs[job_id] = replace(before, form=updated(before.form, form))
        if not before.status.is_terminal:
            update = Update(job_id, before.form.token, form.max_duration_seconds, form.milestone)
            self._hub.send(self.keeper_of(before.form), update)
        return self._jobs[job_id]

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        job = self._jobs.get(job_id)
        is_stopping = job is not None and job.status is TrialJobStatus.STOPPING and job_id not in self._saving
        if job is None or is_stopping or job.status is TrialJobStatus.ENDED:
            return
        self._saving.discard(job_id)
        self._jobs[job_id] = replace(job, status=TrialJobStatus.STOPPING, is_early_stopped=is_early_stopped)
        self._hub.send(self.keeper_of(job.form), Cancel(job_id, job.form.token))

    async def cancel_softly(self, job_id: str, stop: SoftStop) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.status in {TrialJobStatus.STOPPING, TrialJobStatus.ENDED}:
            return
        self._saving.add(job_id)
        self._jobs[job_id] = replace(job, status=TrialJobStatus.STOPPING, is_early_stopped=False)
        self._hub.send(self.keeper_of(job.form), write_cancel(job_id, job.form.token, stop))

    async def clean_up(self) -> None:
        self._is_cleaning = True
        self._hub.attach(self._experiment_id, self)
        for job_id in list(self._jobs):
            await self.cancel_trial_job(job_id)
        try:
            async with asyncio.timeout(self._clean_up_seconds):
                while self._jobs:
                    await self._deliver_queued()
                    if self._jobs:
                        await self._has_queued.wait()
        except TimeoutError:
            log.warning("still running when experiment %s was closed: %s", self._experiment_id, ", ".join(self._jobs))
        finally:
            self._hub.abandon(self._experiment_id)
            self._hub.detach(self._experiment_id, self)
            for job_id in list(self._jobs):
                self._drop(job_id)

    async def run(self) -> None:
        self._hub.attach(self._experiment_id, self)
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.begin_serving()
            for job_id in self._waiting:
                self._start_launching(job_id)
            try:
                while True:
                    await self._has_queued.wait()
                    await self._deliver_queued()
            finally:
                self._group = None
                for task in tuple(self._tasks):
                    task.cancel()
                self.end_serving()
                self._hub.detach(self._experiment_id, self)

    async def reattach(self, forms: Sequence[TrialJobForm], ended: Sequence[str]) -> None:
        self._hub.attach(self._experiment_id, self)
        for job_id in ended:
            self._hub.forget(job_id)
        for form in forms:
            self._jobs[form.job_id] = self._detail(form)
            self.resume(form)

    # ---- launching

    def _await_launch(self, form: TrialJobForm, *, arrived: bool) -> None:
        self._hub.expect(form.job_id, form.token, form.experiment_id, node_id=self.keeper_of(form))
        if arrived:  # before a stop is repeated: a job that its keeper may have does not end as one that was never sent
            self._hub.reattach(self.keeper_of(form), form.job_id)
        self._waiting[form.job_id] = arrived
        self._start_launching(form.job_id)

    def _start_launching(self, job_id: str) -> None:
        if self._group is not None:
            self._launching[job_id] = self._start(self._launch(job_id), f"launch of {job_id}")

    async def _launch(self, job_id: str) -> None:
        """Have where a job runs what it needs, and send it there. A permanent failure ends the job."""
        await asyncio.sleep(0)  # a job that is just being submitted is listed first
        form = self._jobs[job_id].form
        try:
            if not (self._waiting[job_id] and await self._was_launched(form)):
                await self._prepare_and_send(form)
        except SubmissionRefused as error:
            self._end_unsent(form, EndReason.UNPLACEABLE, str(error))
        except UnknownTrialJob:
            log.info("job %s has ended before it was sent", job_id, extra={"action": "job.launch", "job_id": job_id})
        except PreparationFailed as error:
            self._end_unsent(form, error.reason, str(error))
        except Exception as error:
            log.exception("job %s cannot be launched", job_id, extra={"action": "job.launch", "job_id": job_id})
            self._end_unsent(form, EndReason.INFRASTRUCTURE, f"it cannot be launched: {error!r}; see the manager's log")
        finally:
            self._waiting.pop(job_id, None)
            self._launching.pop(job_id, None)

    async def _was_launched(self, form: TrialJobForm) -> bool:
        """Whether the job was sent before a restart of the manager; waits until its keeper is connected."""
        while (found := self._hub.reattach(self.keeper_of(form), form.job_id)) is None:
            await self.wait_changed(form)
        return found

    async def _prepare_and_send(self, form: TrialJobForm) -> None:
        storage = form.environment.get(ENV_CHECKPOINT_STORAGE)
        if storage is not None and not is_url(storage):  # before its checkpoints are looked for
            await self._await_storage(form, storage, write_launch(form, platform="", owner="", rules=GpuRules()))
            self._withdraw_wait(form)
        start = await self.prepare(form)
        if form.must_continue and start is not None and start.checkpoint is None:
            raise NothingToContinueFrom(describe_refused_start(start))
        if storage is not None and is_url(storage) and self.where(form) not in self._storing:
            await self._await_storage(form, storage, self.launch_order(form))
            self._storing.add(self.where(form))
        self._withdraw_wait(form)
        if start is not None:  # before the first metric: it decides where the job's curve continues
            self._starts[form.job_id] = start
            await self.deliver_change(self.submitted(form, start=start))
        if (job := self._jobs.get(form.job_id)) is not None:
            failpoint("manager.launch.before")
            order = self.launch_order(job.form)
            if ENV_JUDGED_RANK in order.environment and start is not None and start.checkpoint is not None:
                points = {ENV_CURVE_POINTS: str(start.checkpoint.sequence)}
                order = replace(order, environment=order.environment | points)
            self._hub.send(self.keeper_of(form), order)
            failpoint("manager.launch.after")

    async def _await_storage(self, form: TrialJobForm, storage: str, launch: Launch) -> None:
        """Wait until a job's trial can store checkpoints where the experiment has them stored, so that none trains for
        hours and then cannot. Raises PreparationFailed after `STORAGE_ATTEMPTS` failures there: it runs elsewhere."""
        place, failures, pauses = storage.removesuffix(f"/{form.trial_id}/{form.number}"), 0, 0
        while failures < STORAGE_ATTEMPTS:
            await self.wait_connected(form)
            found = await self._storage.problem(self.keeper_of(form), self.place_of(form), place, launch)
            if not found.clause:
                return
            clause = f"trials on {self.where(form)} cannot store checkpoints: {found.clause}"
            log.warning("%s", clause, extra={"action": "storage.probe", "job_id": form.job_id})
            failures, pauses = failures + found.is_nodes, pauses + 1
            pause = growing_pause(pauses, FIRST_STORAGE_PAUSE_SECONDS, LONGEST_STORAGE_PAUSE_SECONDS)
            self.report_waiting(form, f"{clause}; tried again in {pause:.0f} s")
            await asyncio.sleep(pause)
        raise PreparationFailed(clause)

    async def verify(self, form: TrialJobForm, offer: CheckpointOffer) -> str:
        """What keeps a job from continuing from a checkpoint at its own path, as a clause; waits until its keeper is
        connected. Raises KeeperOutdated."""
        if is_url(offer.path):
            return await await_verified(offer, form.environment, partial(self.report_waiting, form))
        clause = f"{offer.name(form.trial_id)} is being verified"
        with reporting_wait(partial(self.report_waiting, form), clause):
            while True:
                await self.wait_connected(form)
                try:
                    return await self._hub.verify_checkpoint(self.keeper_of(form), offer.path, offer.manifest)
                except ServiceUnavailable as error:
                    log.info("%s: %s", clause, error, extra={"action": "job.prepare", "job_id": form.job_id})
                    self.report_waiting(form, f"{clause}: {error}")
                    await asyncio.sleep(RETRY_SECONDS)
                except KeeperOutdated:
                    raise
                except TrainingServiceError as error:
                    return f"it cannot be verified: {error}"

    # ---- what keepers report

    async def store_chunks(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        if not self._listeners.has_metric_listeners:
            if self._is_cleaning:  # no listener will ever need them
                return {(chunk.job_id, chunk.member): chunk.end for chunk in chunks}
            raise ServiceUnavailable(f"no listener is attached to the metrics of experiment {self._experiment_id} yet")
        stored = await self._listeners.store(chunks)
        for chunk in chunks:
            if (chunk.job_id, chunk.member) not in stored:
                self._drop(chunk.job_id)
        return stored

    async def deliver_changes(self, changes: Sequence[StatusChange]) -> None:
        if not self._listeners.has_status_listeners and not self._is_cleaning:
            raise ServiceUnavailable(f"no listener is attached to the jobs of experiment {self._experiment_id} yet")
        async with self._delivering:
            queued = list(self._queued)  # older than `changes`
            everything = [self.complete(change) for change in (*queued, *changes)]
            for change in everything:
                self._apply(change)
            await self._listeners.deliver(everything)
            for _ in queued:
                self._queued.popleft()
            self._delivered.set()
            for change in everything:
                self.on_delivered(change)
                if change.status.is_terminal:
                    if (job := self._jobs.get(change.job_id)) is not None:
                        self.on_end(job)
                    self._drop(change.job_id)

    def queue_change(self, change: StatusChange) -> None:
        self._queued.append(change)
        self._has_queued.set()

    async def deliver_change(self, change: StatusChange) -> None:
        """As `queue_change`, and wait until the listeners have taken it."""
        self.queue_change(change)
        while any(queued is change for queued in self._queued):
            self._delivered.clear()
            await self._delivered.wait()

    async def _deliver_queued(self) -> None:
        """Deliver queued changes; those that a listener does not accept are delivered again after a pause."""
        self._has_queued.clear()
        while self._queued and (self._listeners.has_status_listeners or self._is_cleaning):
            try:
                await self.deliver_changes(())
            except Exception:
                log.warning("status changes were not accepted; they are delivered again", exc_info=True)
                await asyncio.sleep(REDELIVERY_SECONDS)

    def complete(self, change: StatusChange) -> StatusChange:
        """A change with what the service knows and the hub does not."""
        start = self._starts.get(change.job_id)
        return replace(change, start=start) if start and change.status is TrialJobStatus.RUNNING else change

    def _apply(self, change: StatusChange) -> None:
        job = self._jobs.get(change.job_id)
        if job is None:
            return
        if change.status is TrialJobStatus.RUNNING:
            status = job.status if job.status is TrialJobStatus.STOPPING else change.status
            self._jobs[job.id] = replace(job, status=status, start_time=job.start_time or change.time)
        elif change.status is TrialJobStatus.ENDED:
            self._jobs[job.id] = replace(job, status=change.status, end_time=change.time, exit=change.exit)

    def _drop(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)
        self._waiting.pop(job_id, None)
        if (task := self._launching.pop(job_id, None)) is not None:
            task.cancel()
        self._saving.discard(job_id)
        self._reported.discard(job_id)
        self._starts.pop(job_id, None)
        self.release_job(job_id)
        self._has_queued.set()

    # ---- news of jobs that no keeper reports

    def report_waiting(self, form: TrialJobForm, clause: str) -> None:
        """Say why a job does not run yet."""
        self._reported.add(form.job_id)
        self.queue_change(self.submitted(form, detail=f"waiting: {clause}"))

    def _withdraw_wait(self, form: TrialJobForm) -> None:
        """What was reported of a job that does not run yet is over."""
        if form.job_id in self._reported:
            self._reported.discard(form.job_id)
            self.queue_change(self.submitted(form, detail="waiting: its job is being started"))

    def submitted(self, form: TrialJobForm, **news: Any) -> StatusChange:
        """What is new of a job that does not run yet, now."""
        return self.news(form, TrialJobStatus.SUBMITTED, **news)

    def news(self, form: TrialJobForm, status: TrialJobStatus, **news: Any) -> StatusChange:
        """What is new of a job, now."""
        return StatusChange(form.job_id, form.token, status, datetime.fromtimestamp(self._now(), UTC), **news)

    def _end_unsent(self, form: TrialJobForm, reason: EndReason, detail: str) -> None:
        """End a job that was never sent."""
        if form.job_id not in self._jobs:
            return
        self._hub.forget(form.job_id)
        end = Exit(reason=reason, code=None, signal=None, started_at=0.0, ended_at=self._now(), detail=detail)
        self.queue_change(self.news(form, TrialJobStatus.ENDED, detail=detail, node_id=self.place_of(form), exit=end))

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        assert self._group is not None, "nodes are used only while the service runs"
        task = self._group.create_task(work, name=f"experiment {self._experiment_id}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _detail(self, form: TrialJobForm) -> TrialJobDetail:
        return TrialJobDetail(
            id=form.job_id,
            status=TrialJobStatus.SUBMITTED,
            form=form,
            submit_time=datetime.fromtimestamp(self._now(), UTC),
            tags=form.tags,
            working_directory=form.code_directory,
        )
