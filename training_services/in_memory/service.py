"""A training service without processes: a script says what every job does and when (see `scripts.py`).

It is a full implementation, used for benchmarks, for tests of the engine and as the example of the contract. Time is
the event loop's alone (`loop.call_later`, `asyncio.sleep`), so that under a virtual-time loop days pass in a moment.

Jobs live in an `InMemoryPlatform`, which outlives the service as a real platform outlives the manager: give the same
platform to a second service and it finds the jobs of the first again. Their journals are the bytes that the SDK would
have written.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from proctor.sdk.files import remove_tree
from proctor.training_services.base import (
    EndReason,
    JournalChunk,
    MetricListener,
    StatusListener,
    SupportsCheckpointDeletion,
    SupportsEvents,
    SupportsReattach,
    TrainingService,
    TrialJobDetail,
    TrialJobForm,
    TrialJobStatus,
    updated,
)
from proctor.training_services.errors import SubmissionRefused, TrainingServiceError, UnknownTrialJob
from proctor.training_services.hub_service import Listeners
from proctor.training_services.in_memory import scripts
from proctor.training_services.in_memory.machine import InMemoryPlatform, SimulatedJob
from proctor.training_services.in_memory.scripts import Script, one_report
from proctor.training_services.registry import ServiceContext

__all__ = ["InMemoryPlatform", "InMemoryTrainingService"]

log = logging.getLogger(__name__)


class InMemoryTrainingService(TrainingService, SupportsEvents, SupportsReattach, SupportsCheckpointDeletion):
    """Runs jobs by a script on the running event loop.

    :param script: what a job does; the default reports the sum of its parameters and exits.
    :param platform: where the jobs live; give the one of an earlier service to play a restart of the manager.
    :param now: Unix time for the records.
    :param retry_seconds: the pause before something is delivered again that a listener has not taken.
    """

    def __init__(
        self,
        script: Script = one_report,
        *,
        platform: InMemoryPlatform | None = None,
        now: Callable[[], float] = time.time,
        retry_seconds: float = 1.0,
        stop_seconds: float = 0.0,
    ) -> None:
        self.platform = platform or InMemoryPlatform(now)
        self._script = script
        self._stop_seconds = stop_seconds
        self._settings: dict[str, Any] = {"retry_seconds": retry_seconds}
        self._listeners = Listeners(self.platform.wake)

    @property
    def is_multi_phase_job_supported(self) -> bool:
        return False

    async def list_trial_jobs(self) -> list[TrialJobDetail]:
        return [job.detail for job in self.platform.jobs.values()]

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
        known = self.platform.jobs.get(form.job_id)
        if known is None:
            return self.platform.start(form, self._script).detail
        if known.token != form.token:
            raise SubmissionRefused(
                f"trial job {form.job_id} is already here with another token; a new attempt needs a new job id"
            )
        return known.detail

    async def update_trial_job(self, job_id: str, form: TrialJobForm) -> TrialJobDetail:
        job = self._find(job_id)
        job.detail = replace(job.detail, form=updated(job.detail.form, form))
        self.platform.watch_deadline(job)
        return job.detail

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        job = self.platform.jobs.get(job_id)
        if job is None or job.is_over:
            return
        job.detail = replace(job.detail, status=TrialJobStatus.STOPPING, is_early_stopped=is_early_stopped)
        if self._stop_seconds:
            asyncio.get_running_loop().call_later(self._stop_seconds, self._end_canceled, job)
        else:
            self._end_canceled(job)

    def _end_canceled(self, job: SimulatedJob) -> None:
        if not job.is_over:
            self.platform.end(job, EndReason.CANCELED, detail="stopped by the manager")

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        self._settings[key]  # raises KeyError for an unknown key
        self._settings[key] = value

    async def get_cluster_metadata(self, key: str) -> Any:
        return self._settings[key]

    async def reattach(self, forms: Sequence[TrialJobForm], ended: Sequence[str]) -> None:
        ours = {form.job_id: form.token for form in forms}
        for job in list(self.platform.jobs.values()):
            if ours.get(job.id) != job.token:
                self.platform.forget(job)
        for form in forms:
            if form.job_id not in self.platform.jobs:
                self._start_again(form)

    def _start_again(self, form: TrialJobForm) -> None:
        """Start a job that has not arrived before the restart; an exception would have no caller."""
        try:
            self.platform.start(form, self._script)
        except TrainingServiceError as error:
            reason = EndReason.UNPLACEABLE if isinstance(error, SubmissionRefused) else EndReason.INFRASTRUCTURE
            step = scripts.ScriptedExit(reason=reason, code=None, detail=str(error))
            self.platform.start(form, lambda _: iter((step,)))

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        remove_tree(str(Path(form.directory, path)))  # at once: threads have no place under virtual time

    async def clean_up(self) -> None:
        for job in list(self.platform.jobs.values()):
            self.platform.forget(job)

    async def run(self) -> None:
        while True:
            await self.platform.changed.wait()
            self.platform.changed.clear()
            if not await self._deliver(list(self.platform.waiting.values())):
                await asyncio.sleep(self._settings["retry_seconds"])
                self.platform.wake()

    def _find(self, job_id: str) -> SimulatedJob:
        try:
            return self.platform.jobs[job_id]
        except KeyError:
            raise UnknownTrialJob(f"there is no trial job {job_id} on the in-memory training service") from None

    async def _deliver(self, jobs: Sequence[SimulatedJob]) -> bool:
        """Hand over all that these jobs have to say, metrics before the ends; False if a listener has not taken it."""
        try:
            all_stored = await self._deliver_metrics([job for job in jobs if job.chunks])
            await self._deliver_changes(jobs)
        except Exception:
            log.warning(
                "a listener has not accepted the changes of %d jobs; they are delivered again", len(jobs), exc_info=True
            )
            return False
        return all_stored

    async def _deliver_metrics(self, jobs: Sequence[SimulatedJob]) -> bool:
        if not jobs or not self._listeners.has_metric_listeners:
            return True
        given = [(job, list(job.chunks)) for job in jobs]
        stored = await self._listeners.store([chunk for _, chunks in given for chunk in chunks])
        for job, chunks in given:
            self._acknowledge(job, {chunk.member for chunk in chunks}, stored)
        return all(
            stored.get((job.id, chunk.member), chunk.end) >= chunk.end for job, chunks in given for chunk in chunks
        )

    def _acknowledge(self, job: SimulatedJob, members: Collection[int], stored: Mapping[tuple[str, int], int]) -> None:
        """Forget what is stored of the journals of these members; a job of which one was refused is over."""
        if any((job.id, member) not in stored for member in members):
            log.warning("the metrics of trial job %s were refused; it is stopped and forgotten", job.id)
            self.platform.forget(job)
            return
        ends = {member: stored[job.id, member] for member in members}
        job.chunks = [rest for chunk in job.chunks if (rest := _after(chunk, ends.get(chunk.member, chunk.offset)))]
        self.platform.settle(job)

    async def _deliver_changes(self, jobs: Sequence[SimulatedJob]) -> None:
        if not self._listeners.has_status_listeners:
            return
        pending = [(job, len(job.changes)) for job in jobs if job.changes and not job.chunks]
        if not pending:
            return
        await self._listeners.deliver([change for job, count in pending for change in job.changes[:count]])
        for job, count in pending:
            del job.changes[:count]
            self.platform.settle(job)


def _after(chunk: JournalChunk, offset: int) -> JournalChunk | None:
    """What of the chunk is at or after `offset`."""
    if chunk.end <= offset:
        return None
    return chunk if chunk.offset >= offset else replace(chunk, offset=offset, data=chunk.data[offset - chunk.offset :])


def from_context(context: ServiceContext) -> InMemoryTrainingService:
    """The service as the registry makes it: every trial reports the sum of its parameters."""
    return InMemoryTrainingService()
