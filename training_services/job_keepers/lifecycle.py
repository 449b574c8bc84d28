"""Starting, stopping and removing the keepers of one experiment's jobs.

A job's keeper is started when the job is submitted, and requested again until the platform accepts it. A job is stopped
by its keeper or, if that fails, by the platform. When it has ended, its files are collected, and then the platform
removes everything of it.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import make_folder, remove_file, replace_file
from proctor.training_services.base import (
    EndReason,
    JobStart,
    SoftStop,
    StatusChange,
    TrialJobDetail,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused
from proctor.training_services.hub_service import HubTrainingService
from proctor.training_services.job_keepers.files import CHECKPOINT_LIMIT_BYTES, COLLECT_LIMIT_BYTES, JobKeeperFiles
from proctor.training_services.job_keepers.platform import JobKeeper, KeeperPlatform, PlatformJob, PlatformStatus
from proctor.training_services.keepers.presence import KeeperPresence
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.linux.backoff import BackOff
from proctor.trial_keeper.protocol import Launch, Shutdown

__all__ = ["JobKeeperLifecycle"]

log = logging.getLogger(__name__)

AT_ONCE = 8
"""How many keepers of an experiment are started or stopped at the same time."""
STOP_SECONDS = 30.0
"""How long a keeper may take to stop its job, beyond the time that the trial has to save. After that the platform ends
the job of a keeper that does not answer."""
LONGEST_STOP_SECONDS = 300.0
"""How much longer a keeper that answers may take; meanwhile the trial says why. Then the platform ends its job, too."""
_INSTANCES_FOLDER = "keeper-instances"


class JobKeeperLifecycle(KeeperPlatform, HubTrainingService, KeeperPresence):
    """The base class of `JobKeeperService`, with everything about jobs and keepers that does not depend on what the
    platform reports. Parameters: see there."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        pending_timeout_seconds: float | None = None,
        grace_seconds: float = STOP_SECONDS,
        collect_limit_bytes: int = COLLECT_LIMIT_BYTES,
        checkpoint_limit_bytes: int = CHECKPOINT_LIMIT_BYTES,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self._pending_timeout_seconds = pending_timeout_seconds
        self._grace_seconds = grace_seconds
        self._keepers: dict[str, JobKeeper] = {}
        self._files = JobKeeperFiles(
            self, context, collect_limit=collect_limit_bytes, checkpoint_limit=checkpoint_limit_bytes
        )
        self._departures = self._files.departures
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._instances = context.experiment_directory / _INSTANCES_FOLDER

    # ---- jobs

    async def submit_trial_job(self, form: TrialJobForm) -> TrialJobDetail:
        if form.job_id not in self._jobs and self.code_place(form) is None:
            await self._files.scan_code(form)
        self._hub.hold(self._experiment_id)
        return await super().submit_trial_job(form)

    async def reattach(self, forms: Sequence[TrialJobForm], ended: Sequence[str]) -> None:
        self._hub.hold(self._experiment_id)
        await super().reattach(forms, ended)

    def must_prepare(self, form: TrialJobForm) -> bool:
        return self.code_place(form) is None or super().must_prepare(form)

    async def prepare(self, form: TrialJobForm) -> JobStart | None:
        return await self._files.prepare(form, self.code_place(form))

    def launch_order(self, form: TrialJobForm) -> Launch:
        return self._files.complete_launch(self.launch(form), form, self.code_place(form))

    def release_job(self, job_id: str) -> None:
        self._files.release(job_id)

    def keeper_of(self, form: TrialJobForm) -> str:
        return job_keeper_id(form.job_id)

    def place_of(self, form: TrialJobForm) -> str | None:
        keeper = self._keepers.get(form.job_id)
        return None if keeper is None else keeper.node or None

    def where(self, form: TrialJobForm) -> str:
        return self.place_name

    async def wait_changed(self, form: TrialJobForm) -> None:
        changed = self._keepers[form.job_id].changed
        changed.clear()
        await changed.wait()

    async def wait_connected(self, form: TrialJobForm) -> None:
        while self.absence(self.keeper_of(form)):
            await self.wait_changed(form)

    def begin(self, form: TrialJobForm) -> None:
        self._add_keeper(form)
        if self.must_prepare(form):
            self._await_launch(form, arrived=False)
        else:
            self._hub.send(self.keeper_of(form), self.launch_order(form))  # delivered when it registers
        self._begin_starting(form.job_id)

    def resume(self, form: TrialJobForm) -> None:
        """The next list of the platform shows whether it has the job."""
        keeper = self._add_keeper(form)
        keeper.is_resumed = keeper.was_found = True
        with suppress(OSError):
            keeper.instance = (self._instances / form.job_id).read_text()
        if self.must_prepare(form):
            self._await_launch(form, arrived=True)
        else:
            self._hub.resume_launch(self.keeper_of(form), self.launch_order(form))

    def _add_keeper(self, form: TrialJobForm) -> JobKeeper:
        self._hub.expect(form.job_id, form.token, form.experiment_id, node_id=self.keeper_of(form))
        secret = self._hub.add_job_keeper(form.job_id, form.token, self)
        keeper = self._keepers[form.job_id] = JobKeeper(form, secret)
        return keeper

    def _assign_instance(self, keeper: JobKeeper, instance: str) -> None:
        """The first instance of a keeper that registers gets the job and keeps it, also after a restart of the manager.
        If a power cut loses the record, the first one that registers with the next manager gets it."""
        if instance == keeper.instance:
            return
        keeper.instance = instance
        try:
            make_folder(str(self._instances))
            replace_file(self._instances / keeper.form.job_id, instance.encode(), durable=False)
        except OSError as error:
            text = "the instance of the keeper of job %s cannot be recorded: %s"
            log.warning(text, keeper.form.job_id, error, extra={"action": "job.start", "job_id": keeper.form.job_id})

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        await super().cancel_trial_job(job_id, is_early_stopped)
        self._enforce_stop(job_id, 0.0)

    async def cancel_softly(self, job_id: str, stop: SoftStop) -> None:
        await super().cancel_softly(job_id, stop)
        self._enforce_stop(job_id, stop.save_seconds)

    async def clean_up(self) -> None:
        self._hub.hold(self._experiment_id)
        await super().clean_up()
        found = [seen for seen in await self.list_keepers() if seen.experiment_id == self._experiment_id]
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                done = await asyncio.gather(*map(self._clean_up_keeper, found), return_exceptions=True)
            finally:
                self._group = None
                for task in tuple(self._tasks):
                    task.cancel()
        for failure in done:
            if failure is not None:
                raise failure
        for job_id in self._departures.jobs():
            self._remove_departed(job_id)
        self._hub.release(self._experiment_id)

    async def _clean_up_keeper(self, seen: PlatformJob) -> None:
        await self._collect_left(seen)
        async with self._turns:
            failpoint("manager.job_keeper.stop.before")
            await self.stop_keeper(seen.job_id)
            failpoint("manager.job_keeper.stop.after")

    def begin_serving(self) -> None:
        self._files.remove_leftovers()
        for job_id, keeper in self._keepers.items():
            if not keeper.is_resumed:
                self._begin_starting(job_id)
            if self._is_stopping(job_id):
                self._enforce_stop(job_id, 0.0)

    def end_serving(self) -> None:
        for keeper in self._keepers.values():
            keeper.stop_timer()

    def _drop(self, job_id: str) -> None:
        """The platform removes everything of the job, now or, after a restart, when it is listed."""
        keeper = self._keepers.pop(job_id, None)
        super()._drop(job_id)
        if keeper is None:
            return
        keeper.stop_timer()
        if keeper.instance:
            with suppress(OSError):
                remove_file(self._instances / job_id)
        self._departures.add(keeper)
        if self._group is not None:
            self._start(self._take_down(keeper), f"removal of {job_id}")
        elif not self._is_cleaning:
            self._remove_departed(job_id)

    def _remove_departed(self, job_id: str) -> None:
        self._departures.remove(job_id)
        self.leave_keeper(job_id)

    def complete(self, change: StatusChange) -> StatusChange:
        """The hub does not know on which node a job runs; the platform may."""
        job = self._jobs.get(change.job_id)
        return replace(super().complete(change), node_id=None if job is None else self.place_of(job.form))

    # ---- starting

    def _begin_starting(self, job_id: str) -> None:
        keeper = self._keepers[job_id]
        if self._group is not None and keeper.starting is None:
            keeper.starting = self._start(self._start_job(keeper), f"start of {job_id}")

    def _start_again(self, job_id: str) -> None:
        """Request the keeper of a waiting job once more, because the platform may lack some of what it needs."""
        keeper = self._keepers.get(job_id)
        if keeper is None or not keeper.is_taken or keeper.is_over or self._is_stopping(job_id):
            return
        if keeper.starting is None or keeper.starting.done():
            keeper.starting = None
            self._begin_starting(job_id)

    async def _start_job(self, keeper: JobKeeper) -> None:
        await asyncio.sleep(0)  # the job is added to the list of jobs first
        form, backoff = keeper.form, BackOff()
        while True:
            try:
                async with self._turns:
                    if keeper.dropped.is_set():
                        return
                    failpoint("manager.job_keeper.start.before")
                    await self.start_keeper(form, keeper.secret)
                    failpoint("manager.job_keeper.start.after")
            except ServiceUnavailable as error:
                self._report_obstacle(keeper, str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.take()):
                        await keeper.dropped.wait()
            except SubmissionRefused as error:
                self._hub.end(form.job_id, EndReason.UNPLACEABLE, str(error))
                return
            except Exception as error:
                extra = {"action": "job.launch", "job_id": form.job_id}
                log.exception("the keeper of job %s cannot be started", form.job_id, extra=extra)
                detail = f"its keeper cannot be started: {error!r}; see the manager's log"
                self._hub.end(form.job_id, EndReason.INFRASTRUCTURE, detail)
                return
            else:  # even if it was removed meanwhile: it is removed again
                keeper.is_taken, keeper.is_removed = True, False
                return

    def _report_obstacle(self, keeper: JobKeeper, clause: str) -> None:
        if clause != keeper.obstacle and self._is_current(keeper):
            keeper.obstacle = clause
            self.report_waiting(keeper.form, clause)

    # ---- stopping

    def _enforce_stop(self, job_id: str, save_seconds: float) -> None:
        """Make sure that a job stops: at once if it does not run yet, else by its keeper or, in the end, its platform.
        Of several requests, the earliest deadline counts."""
        keeper = self._keepers.get(job_id)
        if keeper is None or self._group is None:
            return
        if not keeper.is_taken and not keeper.is_resumed:
            self._hub.end(job_id, EndReason.CANCELED, "stopped before it was started")
        elif keeper.is_pending:
            ending = self._remove_and_end(keeper, EndReason.CANCELED, "stopped before it was started")
            self._start(ending, f"end of {job_id}")
        else:
            due = asyncio.get_running_loop().time() + save_seconds + STOP_SECONDS
            if keeper.stopping is None or due < keeper.stop_due:
                if keeper.stopping is not None:
                    keeper.stopping.cancel()
                keeper.stop_due = due
                keeper.stopping = self._start(self._await_stop(keeper), f"stop of {job_id}")

    async def _await_stop(self, keeper: JobKeeper) -> None:
        """Have the platform end a job that its keeper does not stop, and report meanwhile why it is still running."""
        form, keeper_id, loop = keeper.form, self.keeper_of(keeper.form), asyncio.get_running_loop()
        reported = ""
        await asyncio.sleep(keeper.stop_due - loop.time())
        while self._is_current(keeper) and not keeper.is_over:
            absence = self.absence(keeper_id)
            if not absence and self._hub.is_over(keeper_id, form.job_id):
                clause = "its keeper has reported its end, which is not stored yet"
            else:
                clause = self._hub.suspension(keeper_id, form.job_id) or "its keeper answers and has not ended it yet"
                if absence or loop.time() >= keeper.stop_due + LONGEST_STOP_SECONDS:
                    detail = f"stopped by its platform, because {absence or clause}"
                    await self._remove_and_end(keeper, EndReason.CANCELED, detail)
                    return
            if clause != reported:
                reported = clause
                self._report_stop(form, clause)
            await asyncio.sleep(STOP_SECONDS)

    def _report_stop(self, form: TrialJobForm, clause: str) -> None:
        """Say why a job is still stopping."""
        if self._hub.was_started(form.job_id):
            self.queue_change(self.news(form, TrialJobStatus.RUNNING, detail=clause))
        else:
            self.queue_change(self.submitted(form, detail=f"stopping: {clause}"))

    async def _remove_and_end(self, keeper: JobKeeper, reason: EndReason, detail: str) -> None:
        """End a job whose keeper may still be running: the platform removes the keeper first."""
        if keeper.is_over:
            return
        keeper.is_over = True
        await self._stop(keeper.form.job_id)
        keeper.is_removed = True
        if self._is_current(keeper):
            self._hub.end(keeper.form.job_id, reason, detail)

    def _is_stopping(self, job_id: str) -> bool:
        return self._jobs[job_id].status is TrialJobStatus.STOPPING

    def _is_current(self, keeper: JobKeeper) -> bool:
        return self._keepers.get(keeper.form.job_id) is keeper

    # ---- removing

    async def _take_down(self, keeper: JobKeeper) -> None:
        """Collect the files of a job that has ended, and have the platform remove everything of it. A request to start
        it may still be under way and take effect after it was canceled, so wait for that first."""
        job_id = keeper.form.job_id
        keeper.dropped.set()
        try:
            if keeper.starting is not None:
                await asyncio.wait({keeper.starting})
            if keeper.is_connected and not keeper.is_over:
                await self._departures.collect(job_id)
            self._departures.skip(job_id)
            self._hub.send(self.keeper_of(keeper.form), Shutdown())
            if not keeper.is_removed:
                await self._stop(job_id)
        finally:
            self._remove_departed(job_id)

    async def _take_down_left(self, seen: PlatformJob) -> None:
        """The same for a job that an earlier manager left behind."""
        try:
            await self._collect_left(seen)
            log.info("job %s is over and is removed from its platform", seen.job_id, extra={"action": "job.remove"})
            await self._stop(seen.job_id)
        finally:
            self._remove_departed(seen.job_id)

    async def _collect_left(self, seen: PlatformJob) -> None:
        self._departures.add_left(seen)
        if seen.status is PlatformStatus.RUNNING:
            with suppress(ServiceUnavailable):  # then collecting times out
                await self.reach_keeper(seen)
            await self._departures.collect(seen.job_id)
        self._departures.skip(seen.job_id)

    async def _stop(self, job_id: str) -> None:
        """Have the platform remove everything of a job, trying until it accepts the request."""
        backoff, problem = BackOff(), ""
        while True:
            try:
                async with self._turns:
                    failpoint("manager.job_keeper.stop.before")
                    await self.stop_keeper(job_id)
                    failpoint("manager.job_keeper.stop.after")
                return
            except Exception as error:
                if repr(error) != problem:
                    problem = repr(error)
                    fault = None if isinstance(error, ServiceUnavailable) else error
                    extra = {"action": "job.remove", "job_id": job_id}
                    text = "job %s cannot be removed from its platform now: %s"
                    log.warning(text, job_id, error, extra=extra, exc_info=fault)
                    if (keeper := self._keepers.get(job_id)) is not None:
                        self._report_stop(keeper.form, f"it cannot be removed from its platform now: {error}")
                await asyncio.sleep(backoff.take())
