"""The base of training services whose platform starts a keeper for each trial job (Kubernetes, and Slurm later).

Placement, queues and machines are the platform's. A platform says four things: start a keeper, stop it, list what there
is, watch how it changes. The keeper connects to the manager by itself, and everything of the trial goes over that
connection, its files included; decisions 0039 and 0044 have the reasons.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import (
    EndReason,
    JobStart,
    SoftStop,
    StatusChange,
    SupportsCheckpointCopies,
    SupportsCheckpointDeletion,
    SupportsCheckpoints,
    SupportsLogs,
    TrialJobDetail,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.errors import KeeperReplaced, MalformedReport, ServiceUnavailable, SubmissionRefused
from proctor.training_services.hub_service import HubTrainingService
from proctor.training_services.job_keepers.files import CHECKPOINT_LIMIT_BYTES, COLLECT_LIMIT_BYTES, JobKeeperFiles
from proctor.training_services.job_keepers.platform import (
    JobKeeper,
    KeeperPlatform,
    PlatformJob,
    PlatformStatus,
    how_it_ended,
    joined,
)
from proctor.training_services.keepers.presence import KeeperPresence
from proctor.training_services.keepers.reports import report_on
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.linux.backoff import BackOff
from proctor.trial_keeper.protocol import JobReport, Launch, Registration, ReportHeader, Shutdown

__all__ = ["JobKeeperService", "PlatformJob", "PlatformStatus"]

log = logging.getLogger(__name__)

AT_ONCE = 8
"""How many keepers of an experiment are started, or stopped, at the same time."""
LAST_REPORT_SECONDS = 2.0
"""How long the last report of a keeper may take that is over, as its platform says."""
STOP_SECONDS = 30.0
"""How long a keeper that does not answer may take to end its job, beyond the time that the trial has to save."""
RECONNECT_SECONDS = 60.0
"""How long the keeper of a job that runs may take to connect to a new manager before that is shown."""


class JobKeeperService(
    KeeperPlatform,
    HubTrainingService,
    KeeperPresence,
    SupportsLogs,
    SupportsCheckpoints,
    SupportsCheckpointDeletion,
    SupportsCheckpointCopies,
):
    """One experiment's jobs on a platform that starts a keeper for each.

    :param pending_timeout_seconds: how long a job may wait on its platform until its keeper is connected; None: for
        ever.
    :param grace_seconds: how long the platform lets a keeper live that it takes away.
    :param collect_limit_bytes: larger files of a job, but for checkpoints, are not collected.
    :param checkpoint_limit_bytes: larger checkpoints are not copied to the manager.
    """

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
            self._hub.send(self.keeper_of(form), self.launch_order(form))  # it gets it when it registers
        self._begin_starting(form.job_id)

    def resume(self, form: TrialJobForm) -> None:
        """The list will show whether the platform has it."""
        self._add_keeper(form).is_resumed = True
        if self.must_prepare(form):
            self._await_launch(form, arrived=True)
        else:
            self._hub.resume_launch(self.keeper_of(form), self.launch_order(form))

    def _add_keeper(self, form: TrialJobForm) -> JobKeeper:
        self._hub.expect(form.job_id, form.token, form.experiment_id, node_id=self.keeper_of(form))
        secret = self._hub.add_job_keeper(form.job_id, form.token, self)
        keeper = self._keepers[form.job_id] = JobKeeper(form, secret)
        return keeper

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
        self._start(self._follow_platform(), "jobs on the platform")

    def end_serving(self) -> None:
        for keeper in self._keepers.values():
            keeper.stop_timer()

    def _drop(self, job_id: str) -> None:
        """What the platform has of it is removed, now or, after a restart, when it is listed."""
        keeper = self._keepers.pop(job_id, None)
        super()._drop(job_id)
        if keeper is None:
            return
        keeper.stop_timer()
        self._departures.add(keeper)
        if self._group is not None:
            self._start(self._take_down(keeper), f"removal of {job_id}")
        elif not self._is_cleaning:
            self._remove_departed(job_id)

    def _remove_departed(self, job_id: str) -> None:
        self._departures.remove(job_id)
        self.leave_keeper(job_id)

    def complete(self, change: StatusChange) -> StatusChange:
        """The hub's name of a job's keeper is no node; the platform may know on which one it runs."""
        job = self._jobs.get(change.job_id)
        return replace(super().complete(change), node_id=None if job is None else self.place_of(job.form))

    # ---- starting and removing keepers

    def _begin_starting(self, job_id: str) -> None:
        keeper = self._keepers[job_id]
        if self._group is not None and keeper.starting is None:
            keeper.starting = self._start(self._start_job(keeper), f"start of {job_id}")

    async def _start_job(self, keeper: JobKeeper) -> None:
        await asyncio.sleep(0)  # a job that is just being submitted is listed first
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
            else:  # also of one that was removed meanwhile: then it is removed again
                keeper.is_taken, keeper.is_removed = True, False
                return

    async def _take_down(self, keeper: JobKeeper) -> None:
        """Collect the files of a job that is over, and remove what the platform has of it. A request to start it that
        is under way may still arrive after it was canceled, so it is waited for."""
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
        """The same for a job that an earlier manager has left."""
        try:
            await self._collect_left(seen)
            log.info("job %s is over and is removed from its platform", seen.job_id, extra={"action": "job.remove"})
            await self._stop(seen.job_id)
        finally:
            self._remove_departed(seen.job_id)

    async def _collect_left(self, seen: PlatformJob) -> None:
        self._departures.add_left(seen)
        if seen.status is PlatformStatus.RUNNING:
            with suppress(ServiceUnavailable):  # then it is waited for in vain
                await self.reach_keeper(seen)
            await self._departures.collect(seen.job_id)
        self._departures.skip(seen.job_id)

    async def _stop(self, job_id: str) -> None:
        """Until the platform has taken it."""
        backoff = BackOff()
        while True:
            try:
                async with self._turns:
                    failpoint("manager.job_keeper.stop.before")
                    await self.stop_keeper(job_id)
                    failpoint("manager.job_keeper.stop.after")
                return
            except Exception as error:
                fault = None if isinstance(error, ServiceUnavailable) else error
                extra = {"action": "job.remove", "job_id": job_id}
                log.warning(
                    "job %s cannot be removed from its platform now: %s", job_id, error, extra=extra, exc_info=fault
                )
                await asyncio.sleep(backoff.take())

    def _enforce_stop(self, job_id: str, save_seconds: float) -> None:
        """A job is to stop. One that does not run yet is over at once; one whose keeper does not answer is ended by its
        platform."""
        keeper = self._keepers.get(job_id)
        if keeper is None or self._group is None:
            return
        if not keeper.is_taken and not keeper.is_resumed:
            self._hub.end(job_id, EndReason.CANCELED, "stopped before it was started")
        elif keeper.is_pending:
            ending = self._remove_and_end(keeper, EndReason.CANCELED, "stopped before it was started")
            self._start(ending, f"end of {job_id}")
        else:
            self._start(self._await_stop(keeper, save_seconds), f"stop of {job_id}")

    async def _await_stop(self, keeper: JobKeeper, save_seconds: float) -> None:
        await asyncio.sleep(save_seconds + STOP_SECONDS)
        while self._is_current(keeper) and not keeper.is_over:
            if absence := self.absence(self.keeper_of(keeper.form)):
                await self._remove_and_end(keeper, EndReason.CANCELED, f"stopped by its platform, because {absence}")
                return
            await asyncio.sleep(STOP_SECONDS)

    async def _remove_and_end(self, keeper: JobKeeper, reason: EndReason, detail: str) -> None:
        """End a job although its keeper may still run: first its platform removes that."""
        if keeper.is_over:
            return
        keeper.is_over = True
        await self._stop(keeper.form.job_id)
        keeper.is_removed = True
        if self._is_current(keeper):
            self._hub.end(keeper.form.job_id, reason, detail)

    def _is_stopping(self, job_id: str) -> bool:
        return self._jobs[job_id].status is TrialJobStatus.STOPPING

    def _was_up(self, keeper: JobKeeper) -> bool:
        """Whether it has connected to this manager, or reported the start of its job to an earlier one."""
        return keeper.is_connected or self._hub.was_started(keeper.form.job_id)

    def _has_run(self, keeper: JobKeeper) -> bool:
        """Whether its job may have run: it was up, and is not waiting for what its job needs before that."""
        job_id = keeper.form.job_id
        return self._hub.was_started(job_id) or (keeper.is_connected and self._waiting.get(job_id) is not False)

    def _is_current(self, keeper: JobKeeper) -> bool:
        return self._keepers.get(keeper.form.job_id) is keeper

    # ---- what the platform says of its jobs

    async def _follow_platform(self) -> None:
        backoff, problem = BackOff(), ""
        while True:
            taken = [keeper for keeper in self._keepers.values() if keeper.is_taken or keeper.is_resumed]
            try:
                self._compare(taken, await self.list_keepers())
                backoff.reset()
                problem = ""
                async for seen in self.watch_keepers():
                    self._observe(seen)
            except ServiceUnavailable as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("%s is away: %s", self.place_name, error, extra={"action": "platform.watch"})
            await asyncio.sleep(backoff.take())

    def _compare(self, taken: Sequence[JobKeeper], found: Sequence[PlatformJob]) -> None:
        """Find the jobs again in the platform's list; `taken` are those that it had, or may have had, before."""
        for seen in found:
            self._observe(seen)
        listed = {seen.job_id for seen in found}
        for keeper in taken:
            job_id = keeper.form.job_id
            if job_id in listed or not self._is_current(keeper) or keeper.is_over:
                continue
            if keeper.is_resumed and not self._was_up(keeper) and not self._is_stopping(job_id):
                keeper.is_resumed = False
                self._begin_starting(job_id)
            else:
                self._end_gone(keeper)
        known = self._keepers.keys()
        unexpected = [seen for seen in found if seen.job_id not in known and seen.job_id not in self._departures]
        if unexpected:
            self._start(self._remove_unexpected(unexpected), "unexpected jobs on the platform")
        else:
            self._departures.are_known.set()

    async def _remove_unexpected(self, found: Sequence[PlatformJob]) -> None:
        """Remove what is left of jobs that are over, or were deleted; what no database knows is reported."""
        reports = [
            JobReport(seen.job_id, seen.token, None, seen.created_at, experiment_id=seen.experiment_id)
            for seen in found
        ]
        removable = await self._hub.removable_jobs(self.place_name, reports, experiment_id=self._experiment_id)
        for seen in found:
            if seen.job_id in removable and seen.job_id not in self._departures:
                ours = seen if seen.experiment_id == self._experiment_id else replace(seen, status=PlatformStatus.GONE)
                self._departures.add_left(seen)
                self._start(self._take_down_left(ours), f"removal of {seen.job_id}")
        self._departures.are_known.set()

    def _observe(self, seen: PlatformJob) -> None:
        keeper = self._keepers.get(seen.job_id)
        if keeper is None or keeper.form.token != seen.token or keeper.is_over:
            return
        keeper.node = seen.node or keeper.node
        if len(seen.instances) > 1 or (seen.instances and keeper.instance and keeper.instance not in seen.instances):
            self._replace(keeper, seen.reason, seen.detail)
        elif seen.status is PlatformStatus.GONE:
            self._end_gone(keeper, seen.reason, seen.detail)
        elif seen.status is PlatformStatus.ENDED:
            how = how_it_ended(seen, was_connected=keeper.is_connected, has_run=self._has_run(keeper))
            self._end_over(keeper, *how, seen=seen)
        else:
            if keeper.is_resumed and seen.status is PlatformStatus.PENDING and not self._is_stopping(seen.job_id):
                self._begin_starting(seen.job_id)  # not all of it may be there
            keeper.is_taken, keeper.is_resumed = True, False
            keeper.is_pending = seen.status is PlatformStatus.PENDING and not self._was_up(keeper)
            if keeper.is_pending and self._is_stopping(seen.job_id):
                self._enforce_stop(seen.job_id, 0.0)
            elif not self._was_up(keeper):
                self._watch_pending(keeper, seen)
            elif not keeper.is_connected and keeper.timer is None:
                clause = "no report from its keeper, which has not connected since the manager was started"
                loop = asyncio.get_running_loop()
                keeper.timer = loop.call_later(RECONNECT_SECONDS, self._set_silence, keeper, clause)

    def _watch_pending(self, keeper: JobKeeper, seen: PlatformJob) -> None:
        """A job waits for its platform, and then for its keeper to connect, at most for `pending_timeout_seconds`."""
        clause = seen.detail or "its platform has not started its keeper yet"
        if seen.status is PlatformStatus.RUNNING:
            where = f" on {seen.node}" if seen.node else ""
            clause = joined(f"its keeper was started{where} and has not connected yet", seen.detail)
        self._report_obstacle(keeper, clause)
        limit = self._pending_timeout_seconds
        if limit is not None and keeper.timer is None:
            left = max(0.0, seen.created_at + limit - self._now())
            keeper.timer = asyncio.get_running_loop().call_later(left, self._end_pending, keeper, limit)

    def _end_pending(self, keeper: JobKeeper, limit: float) -> None:
        if self._group is not None and self._is_current(keeper) and not keeper.is_over:
            detail = f"it waited for {limit:g} s, which is pendingTimeout: {keeper.obstacle}"
            ending = self._remove_and_end(keeper, EndReason.UNPLACEABLE, detail)
            self._start(ending, f"end of {keeper.form.job_id}")

    def _end_over(self, keeper: JobKeeper, reason: EndReason, detail: str, *, seen: PlatformJob | None = None) -> None:
        """The platform says that a keeper is over; `seen` is what it still has of it."""
        keeper.is_over = True
        self._start(self._end_after_last_report(keeper, seen, reason, detail), f"end of {keeper.form.job_id}")

    def _end_gone(self, keeper: JobKeeper, reason: EndReason | None = None, detail: str = "") -> None:
        """The platform no longer has a job; one that has not run costs its trial nothing."""
        otherwise = EndReason.EXIT_UNKNOWN if self._has_run(keeper) else EndReason.PREEMPTED
        self._end_over(keeper, reason or otherwise, joined("its platform no longer has it", detail))

    async def _end_after_last_report(
        self, keeper: JobKeeper, seen: PlatformJob | None, reason: EndReason, detail: str
    ) -> None:
        """End a job whose keeper is over. What that has reported last may just be being stored, or was left there."""
        if keeper.is_connected:
            await asyncio.sleep(LAST_REPORT_SECONDS)
        if seen is not None and self._is_current(keeper):
            await self._deliver_left_report(keeper, seen)
        if self._is_current(keeper):
            self._hub.end(keeper.form.job_id, reason, detail)

    async def _deliver_left_report(self, keeper: JobKeeper, seen: PlatformJob) -> None:
        """Read what a keeper has left on the platform, and deliver it until the listeners take it."""
        backoff, keeper_id = BackOff(), self.keeper_of(keeper.form)
        while self._is_current(keeper):
            try:
                left = await self.read_left_report(seen)
                if left is None:
                    return
                report = report_on(keeper.form.job_id, keeper.form.token, *left, client=self, node_id=keeper_id)
                await report.deliver()
                if report.is_taken:
                    break
            except ServiceUnavailable as error:
                log.info("the last report of job %s: %s", seen.job_id, error, extra={"action": "job.read_report"})
            except MalformedReport as error:
                extra = {"action": "job.read_report", "job_id": seen.job_id}
                log.warning("what the keeper of job %s has left is not used: %s", seen.job_id, error, extra=extra)
                return
            await asyncio.sleep(backoff.take())
        if not self._is_current(keeper):
            self._hub.forget(seen.job_id)

    def _replace(self, keeper: JobKeeper, reason: EndReason | None, detail: str) -> None:
        """The platform has started another instance of a keeper. The first may still run, where nothing reaches it."""
        if self._group is not None and not keeper.is_over and not keeper.is_replaced:
            keeper.is_replaced = True
            text = joined("its platform has started another keeper for it, so the first one is lost", detail)
            self._start(self._end_replaced(keeper, reason or EndReason.NODE_LOST, text), f"end of {keeper.form.job_id}")

    async def _end_replaced(self, keeper: JobKeeper, reason: EndReason, detail: str) -> None:
        """While the first one answers, its trial may save, and it reports the end by itself."""
        if not self.absence(self.keeper_of(keeper.form)):
            with suppress(TimeoutError):
                await asyncio.wait_for(keeper.dropped.wait(), self._grace_seconds)
        await self._remove_and_end(keeper, reason, detail)

    def _report_obstacle(self, keeper: JobKeeper, clause: str) -> None:
        if clause != keeper.obstacle and self._is_current(keeper):
            keeper.obstacle = clause
            self.report_waiting(keeper.form, clause)

    def note_unreachable(self, job_id: str, clause: str) -> None:
        """A platform cannot connect to the keeper of a job that runs there."""
        if (keeper := self._keepers.get(job_id)) is not None:
            report = self._set_silence if self._was_up(keeper) else self._report_obstacle
            report(keeper, clause)

    # ---- files

    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        return await self._files.read(form, path, offset, limit)

    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        return await self._files.list(form)

    async def copy_checkpoint(self, form: TrialJobForm, path: str) -> None:
        await self._files.copy_checkpoint(form, path)

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        if os.path.isabs(path):  # any keeper will do
            up = (keeper.form for keeper in self._keepers.values() if not self.absence(self.keeper_of(keeper.form)))
            await self._hub.remove_checkpoint(self.keeper_of(next(up, form)), path)
        else:
            await self._files.delete_checkpoint(form, path)

    # ---- how the keepers are, as the hub says

    def place(self, keeper_id: str) -> str:
        return f"trial job {keeper_id.removeprefix(job_keeper_id(''))}"

    def admit(self, keeper_id: str, registration: Registration) -> None:
        keeper = self._keeper(keeper_id)
        if keeper is None or keeper.is_over:
            raise KeeperReplaced(f"{self.place(keeper_id)} is over and needs no keeper")
        if keeper.instance and registration.instance != keeper.instance:
            self._replace(keeper, None, "")
            raise KeeperReplaced(
                f"the keeper of {self.place(keeper_id)} is instance {keeper.instance}, not {registration.instance}"
            )

    def connected(self, keeper_id: str, registration: Registration, now: float) -> None:
        if (keeper := self._keeper(keeper_id)) is not None:
            keeper.instance = registration.instance
            keeper.is_connected = keeper.is_taken = True
            keeper.is_resumed = keeper.is_pending = False
            keeper.stop_timer()
            keeper.changed.set()
            self._set_silence(keeper, "")

    def heard(self, keeper_id: str, header: ReportHeader, now: float) -> None:
        if (keeper := self._keeper(keeper_id)) is not None:
            self._set_silence(keeper, "")

    def silent(self, keeper_id: str, clause: str) -> None:
        if (keeper := self._keeper(keeper_id)) is not None:
            self._set_silence(keeper, clause)

    def absence(self, keeper_id: str) -> str:
        keeper = self._keeper(keeper_id)
        if keeper is None:
            return f"{self.place(keeper_id)} is over"
        return keeper.silence or ("" if keeper.is_connected else keeper.obstacle or "its keeper has not connected yet")

    def _keeper(self, keeper_id: str) -> JobKeeper | None:
        return self._keepers.get(keeper_id.removeprefix(job_keeper_id("")))

    def _set_silence(self, keeper: JobKeeper, clause: str) -> None:
        """The job is shown with it, as one of a node is with its node's."""
        if clause == keeper.silence:
            return
        keeper.silence = clause
        keeper.changed.set()
        if self._is_current(keeper) and self._hub.was_started(keeper.form.job_id):
            self.queue_change(self.news(keeper.form, TrialJobStatus.RUNNING, detail=clause))
