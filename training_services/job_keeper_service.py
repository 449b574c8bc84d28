"""The base of training services whose platform starts a keeper for each trial job (Kubernetes, and Slurm later).

Placement, queues and machines are the platform's. A platform implements four methods: start a keeper, stop it, list
the keepers, watch them change. A keeper connects to the manager by itself, and everything of the trial, including its
files, is transferred over that connection; decisions 0039 and 0044 have the reasons.

This module follows the platform and the keepers' connections; starting, stopping and removing keepers is in
`job_keepers.lifecycle`.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from proctor.training_services.base import (
    EndReason,
    SupportsCheckpointCopies,
    SupportsCheckpointDeletion,
    SupportsCheckpoints,
    SupportsCollection,
    SupportsLogs,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.errors import KeeperReplaced, MalformedReport, NoJobRuns, ServiceUnavailable
from proctor.training_services.job_keepers.lifecycle import JobKeeperLifecycle
from proctor.training_services.job_keepers.platform import JobKeeper, PlatformJob, PlatformStatus, how_it_ended, joined
from proctor.training_services.keepers.reports import report_on
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.trial_keeper.linux.backoff import BackOff
from proctor.trial_keeper.protocol import JobReport, Registration, ReportHeader

__all__ = ["JobKeeperService", "PlatformJob", "PlatformStatus"]

log = logging.getLogger(__name__)

LAST_REPORT_SECONDS = 2.0
"""How long the last report of a keeper may take to arrive after the platform has reported that the keeper ended."""
LEFT_REPORT_SECONDS = 600.0
"""How long to try to read what a keeper left on its platform before what cannot be read counts as lost."""
LEFT_REPORT_STOP_SECONDS = 30.0
"""The same for a job that is to stop."""
RECONNECT_SECONDS = 60.0
"""How long the keeper of a running job may take to connect to a new manager before the trial says so."""


class JobKeeperService(
    JobKeeperLifecycle,
    SupportsLogs,
    SupportsCollection,
    SupportsCheckpoints,
    SupportsCheckpointDeletion,
    SupportsCheckpointCopies,
):
    """One experiment's jobs on a platform that starts a keeper for each.

    :param pending_timeout_seconds: how long a job may wait for its platform and its keeper's connection; None: no
        limit.
    :param grace_seconds: the platform's grace period for a keeper that it ends.
    :param collect_limit_bytes: larger files of a job are not collected, except for checkpoints.
    :param checkpoint_limit_bytes: larger checkpoints are not copied to the manager.
    """

    def begin_serving(self) -> None:
        super().begin_serving()
        self._start(self._follow_platform(), "jobs on the platform")

    # ---- following the platform

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
                    log.warning("%s is unavailable: %s", self.place_name, error, extra={"action": "platform.watch"})
            await asyncio.sleep(backoff.take())

    def _compare(self, taken: Sequence[JobKeeper], found: Sequence[PlatformJob]) -> None:
        """Compare our jobs with a list of the platform; `taken` are those that it had, or may have had, before."""
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
        if unexpected and self._group is not None:
            self._start(self._remove_unexpected(unexpected), "unexpected jobs on the platform")
        else:
            self._departures.are_known.set()

    async def _remove_unexpected(self, found: Sequence[PlatformJob]) -> None:
        """Remove what is left of jobs that have ended or were deleted; those in no database are only reported."""
        reports = [
            JobReport(seen.job_id, seen.token, None, seen.created_at, experiment_id=seen.experiment_id)
            for seen in found
        ]
        removable = await self._hub.removable_jobs(self.place_name, reports, experiment_id=self._experiment_id)
        for seen in found:
            if seen.job_id in removable and seen.job_id not in self._departures and self._group is not None:
                ours = seen if seen.experiment_id == self._experiment_id else replace(seen, status=PlatformStatus.GONE)
                self._departures.add_left(seen)
                self._start(self._take_down_left(ours), f"removal of {seen.job_id}")
        self._departures.are_known.set()

    def _observe(self, seen: PlatformJob) -> None:
        keeper = self._keepers.get(seen.job_id)
        if keeper is None or keeper.form.token != seen.token or keeper.is_over or self._group is None:
            return
        keeper.node = seen.node or keeper.node
        if seen.instances and keeper.instance and keeper.instance not in seen.instances:
            self._replace(keeper, None, "")  # what the platform reports is about another instance
        elif len(seen.instances) > 1:
            self._replace(keeper, seen.reason, seen.detail)
        elif seen.status is PlatformStatus.RUNNING and seen.reason is not None:
            self._lose(keeper, seen.reason, seen.detail)
        elif seen.status is PlatformStatus.GONE:
            self._end_gone(keeper, seen.reason, seen.detail)
        elif seen.status is PlatformStatus.ENDED:
            how = how_it_ended(seen, was_connected=keeper.is_connected, has_run=self._has_run(keeper))
            self._end_over(keeper, *how, seen=seen)
        else:
            if keeper.is_resumed and seen.status is PlatformStatus.PENDING and not self._is_stopping(seen.job_id):
                self._begin_starting(seen.job_id)  # it may have been created only in part
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

    def _was_up(self, keeper: JobKeeper) -> bool:
        """Whether it has connected to this manager, or has reported the start of its job to an earlier one."""
        return keeper.is_connected or self._hub.was_started(keeper.form.job_id)

    def _has_run(self, keeper: JobKeeper) -> bool:
        """Whether its job may have run: the keeper was up, and the job is not still being prepared."""
        job_id = keeper.form.job_id
        return self._hub.was_started(job_id) or (keeper.is_connected and self._waiting.get(job_id) is not False)

    # ---- jobs that wait

    def _watch_pending(self, keeper: JobKeeper, seen: PlatformJob) -> None:
        """Report why a job waits for its platform or its keeper, and limit that to `pending_timeout_seconds`."""
        clause = seen.detail or "its platform has not started its keeper yet"
        if seen.status is PlatformStatus.RUNNING:
            where = f" on {seen.node}" if seen.node else ""
            clause = joined(f"its keeper was started{where} and has not connected yet", seen.detail)
        self._report_obstacle(keeper, clause)
        if seen.is_impossible and self._group is not None:
            ending = self._remove_and_end(keeper, EndReason.UNPLACEABLE, f"it cannot be started: {clause}")
            self._start(ending, f"end of {seen.job_id}")
            return
        limit = self._pending_timeout_seconds
        if limit is not None and keeper.timer is None:
            # How long one has waited that an earlier manager has submitted only the clocks of both sides tell.
            waited = max(0.0, self._now() - seen.created_at) if keeper.was_found else 0.0
            left = max(0.0, limit - waited)
            keeper.timer = asyncio.get_running_loop().call_later(left, self._end_pending, keeper, limit)

    def _end_pending(self, keeper: JobKeeper, limit: float) -> None:
        if self._group is not None and self._is_current(keeper) and not keeper.is_over:
            detail = f"it waited for {limit:g} s, which is pendingTimeout: {keeper.obstacle}"
            ending = self._remove_and_end(keeper, EndReason.UNPLACEABLE, detail)
            self._start(ending, f"end of {keeper.form.job_id}")

    def note_unreachable(self, job_id: str, clause: str) -> None:
        """Report that the platform cannot connect to the keeper of a running job."""
        if (keeper := self._keepers.get(job_id)) is not None:
            report = self._set_silence if self._was_up(keeper) else self._report_obstacle
            report(keeper, clause)

    # ---- keepers that have ended or are lost

    def _end_over(self, keeper: JobKeeper, reason: EndReason, detail: str, *, seen: PlatformJob | None = None) -> None:
        """The platform has reported the end of a keeper; `seen` is its record, if it still has one."""
        keeper.is_over = True
        self._start(self._end_after_last_report(keeper, seen, reason, detail), f"end of {keeper.form.job_id}")

    def _end_gone(self, keeper: JobKeeper, reason: EndReason | None = None, detail: str = "") -> None:
        """The platform no longer has a job. If it has not run, its trial is not charged for it."""
        otherwise = EndReason.EXIT_UNKNOWN if self._has_run(keeper) else EndReason.PREEMPTED
        self._end_over(keeper, reason or otherwise, joined("its platform no longer has it", detail))

    async def _end_after_last_report(
        self, keeper: JobKeeper, seen: PlatformJob | None, reason: EndReason, detail: str
    ) -> None:
        """End a job whose keeper has ended. The keeper's last report may still be being stored, or was left there."""
        if keeper.is_connected:
            await asyncio.sleep(LAST_REPORT_SECONDS)
        if seen is not None and self._is_current(keeper):
            await self._deliver_left_report(keeper, seen)
        if self._is_current(keeper):
            self._hub.end(keeper.form.job_id, reason, detail)

    async def _deliver_left_report(self, keeper: JobKeeper, seen: PlatformJob) -> None:
        """Read the report that a keeper left on the platform, and deliver it until the listeners accept it."""
        backoff, keeper_id, loop = BackOff(), self.keeper_of(keeper.form), asyncio.get_running_loop()
        began = loop.time()
        while self._is_current(keeper):
            patience = LEFT_REPORT_STOP_SECONDS if self._is_stopping(seen.job_id) else LEFT_REPORT_SECONDS
            is_last = loop.time() - began >= patience
            try:
                left = await self.read_left_report(seen, is_last=is_last)
                if left is None:
                    return
                job_id, token = keeper.form.job_id, keeper.form.token
                report = report_on(job_id, token, left.header, left.body, client=self, node_id=keeper_id)
                report.chunks = [replace(chunk, after_loss=left.is_cut) for chunk in report.chunks]
                await report.deliver()
                if report.is_taken:
                    break
            except ServiceUnavailable as error:
                text = "the last report of job %s cannot be read: %s"
                log.info(text, seen.job_id, error, extra={"action": "job.read_report", "job_id": seen.job_id})
                if is_last:
                    return
                self._set_silence(keeper, f"it has ended, and its last report cannot be read: {error}")
            except MalformedReport as error:
                extra = {"action": "job.read_report", "job_id": seen.job_id}
                log.warning(
                    "the report that the keeper of job %s left behind is ignored: %s", seen.job_id, error, extra=extra
                )
                return
            await asyncio.sleep(backoff.take())
        if not self._is_current(keeper):
            self._hub.forget(seen.job_id)

    def _replace(self, keeper: JobKeeper, reason: EndReason | None, detail: str) -> None:
        """The platform has started another instance of a keeper."""
        text = joined("its platform has started another keeper for it, so the first one is lost", detail)
        self._lose(keeper, reason or EndReason.NODE_LOST, text)

    def _lose(self, keeper: JobKeeper, reason: EndReason, detail: str) -> None:
        """The platform has lost a keeper, which may still be running where nothing can reach it."""
        if self._group is not None and not keeper.is_over and not keeper.is_lost:
            keeper.is_lost = True
            self._start(self._end_lost(keeper, reason, detail), f"end of {keeper.form.job_id}")

    async def _end_lost(self, keeper: JobKeeper, reason: EndReason, detail: str) -> None:
        """As long as the keeper answers, its trial may save, and it reports the end by itself."""
        if not self.absence(self.keeper_of(keeper.form)):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace_seconds):
                    await keeper.dropped.wait()
        await self._remove_and_end(keeper, reason, detail)

    # ---- presence of the keepers, reported by the hub

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
            self._assign_instance(keeper, registration.instance)
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
        """Record why a keeper does not report, and show it with the job."""
        if clause == keeper.silence:
            return
        keeper.silence = clause
        keeper.changed.set()
        if self._is_current(keeper) and self._hub.was_started(keeper.form.job_id):
            self.queue_change(self.news(keeper.form, TrialJobStatus.RUNNING, detail=clause))

    # ---- files

    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        return await self._files.read(form, path, offset, limit)

    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        return await self._files.list(form)

    def end_collection(self) -> None:
        self._departures.end_collection()

    async def copy_checkpoint(self, form: TrialJobForm, path: str) -> None:
        await self._files.copy_checkpoint(form, path)

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        if not os.path.isabs(path):
            await self._files.delete_checkpoint(form, path)
            return
        connected = [keeper_id for job_id in self._keepers if not self.absence(keeper_id := job_keeper_id(job_id))]
        if not connected:
            raise NoJobRuns(
                "only jobs of the experiment can see the folder of checkpointStorage, and none runs; they are deleted "
                "once one does"
            )
        await self._hub.remove_checkpoint(connected[0], path)  # any of them can
