"""The machine behind the in-memory training service: jobs that follow scripts, and what they have to say."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from proctor.sdk.metrics import encode_metric
from proctor.sdk.protocol import KIND_FINAL, KIND_INTERMEDIATE
from proctor.training_services.base import (
    EndReason,
    Exit,
    JournalChunk,
    StatusChange,
    TrialJobDetail,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.in_memory import scripts
from proctor.training_services.in_memory.scripts import Script, Step, first_step_made

DEFAULT_NODE = "memory"


class SimulatedJob:
    """One job: where it is in its script, and what its listeners have not taken yet."""

    __slots__ = (
        "changes",
        "chunks",
        "deadline",
        "detail",
        "id",
        "is_over",
        "sizes",
        "started_at",
        "started_monotonic",
        "steps",
        "timer",
        "token",
    )

    def __init__(self, detail: TrialJobDetail, steps: Iterator[Step]) -> None:
        self.id = detail.id
        self.token = detail.form.token
        self.detail = detail
        self.steps = steps
        self.sizes: dict[int, int] = {}  # of its members' journals, in bytes
        self.chunks: list[JournalChunk] = []
        self.changes: list[StatusChange] = []
        self.started_at = 0.0
        self.started_monotonic = 0.0
        self.is_over = False
        self.timer: asyncio.Handle | None = None
        self.deadline: asyncio.Handle | None = None

    @property
    def run_seconds(self) -> float:
        """How long it has run."""
        return asyncio.get_running_loop().time() - self.started_monotonic if self.started_at else 0.0


class InMemoryPlatform:
    """The jobs of one experiment, alive on the running event loop.

    `changed` is set whenever there is something to deliver; `waiting` holds the jobs that have something to deliver.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.jobs: dict[str, SimulatedJob] = {}
        self.waiting: dict[str, SimulatedJob] = {}
        self.changed = asyncio.Event()
        self._now = now

    def wake(self) -> None:
        """Try to deliver again."""
        self.changed.set()

    def start(self, form: TrialJobForm, script: Script) -> SimulatedJob:
        """Begin a job's script. Raises what the script raises before its first step."""
        steps = first_step_made(script(form))
        detail = TrialJobDetail(
            id=form.job_id,
            status=TrialJobStatus.SUBMITTED,
            form=form,
            submit_time=self._time(),
            tags=form.tags,
            working_directory=form.directory,
        )
        job = self.jobs[form.job_id] = SimulatedJob(detail, steps)
        self._schedule(job, 0.0, self._proceed, job)
        return job

    def watch_deadline(self, job: SimulatedJob) -> None:
        """End the job when its time, counted from its start, is over."""
        if job.deadline is not None:
            job.deadline.cancel()
            job.deadline = None
        limit = job.detail.form.max_duration_seconds
        if limit is not None and job.detail.status is TrialJobStatus.RUNNING:
            job.deadline = asyncio.get_running_loop().call_at(
                job.started_monotonic + limit,
                lambda: self.end(job, EndReason.DEADLINE, detail=f"longer than {limit:g} s"),
            )

    def end(
        self,
        job: SimulatedJob,
        reason: EndReason,
        *,
        code: int | None = None,
        signal: int | None = None,
        detail: str = "",
        **more: Any,
    ) -> None:
        """End a job; the first end counts. `more`: further fields of `Exit`."""
        if job.is_over:
            return
        self._release(job)
        now = self._now()
        ended = Exit(reason, code, signal, job.started_at or now, now, detail, run_seconds=job.run_seconds, **more)
        time = self._time()
        job.detail = replace(job.detail, status=TrialJobStatus.ENDED, end_time=time, exit=ended)
        self._add_change(job, TrialJobStatus.ENDED, detail, time, ended)

    def forget(self, job: SimulatedJob) -> None:
        """Stop a job without reporting it."""
        self._release(job)
        self.jobs.pop(job.id, None)
        self.waiting.pop(job.id, None)

    def settle(self, job: SimulatedJob) -> None:
        """After a delivery: forget the job if its end was taken."""
        if not job.chunks and not job.changes:
            self.waiting.pop(job.id, None)
            if job.is_over:
                self.jobs.pop(job.id, None)

    def _release(self, job: SimulatedJob) -> None:
        job.is_over = True
        for handle in (job.timer, job.deadline):
            if handle is not None:
                handle.cancel()
        job.timer = job.deadline = None

    def _proceed(self, job: SimulatedJob) -> None:
        """Take steps until one is in the future."""
        while not job.is_over:
            step = next(job.steps, scripts.ScriptedExit())
            if isinstance(step, scripts.Hang):
                self._run(job)
                return
            if step.delay > 0:
                if not isinstance(step, scripts.Wait | scripts.ScriptedStart):
                    self._run(job)
                self._schedule(job, step.delay, self._take_and_proceed, job, step)
                return
            self._take(job, step)

    def _take_and_proceed(self, job: SimulatedJob, step: Step) -> None:
        self._take(job, step)
        self._proceed(job)

    def _take(self, job: SimulatedJob, step: Step) -> None:
        match step:
            case scripts.Wait():
                self._add_change(job, TrialJobStatus.SUBMITTED, step.reason, start=step.start)
            case scripts.ScriptedStart():
                self._run(job, step.node_id)
            case scripts.ScriptedReport():
                self._run(job)
                record = _record(KIND_INTERMEDIATE, step.value, self._now(), job.run_seconds, step.step)
                self._write(job, record, step.member)
            case scripts.Final():
                self._run(job)
                self._write(job, _record(KIND_FINAL, step.value, self._now(), job.run_seconds), step.member)
            case scripts.Raw():
                self._write(job, step.data, step.member)
            case scripts.ScriptedExit():
                self._exit(job, step)
            case scripts.Vanish():
                self.forget(job)

    def _exit(self, job: SimulatedJob, step: scripts.ScriptedExit) -> None:
        if step.reason in {EndReason.EXITED_OK, EndReason.EXITED_ERROR}:
            self._run(job)
        more = {"lost": step.lost, "lost_finals": list(step.lost_finals), "cpu_seconds": step.cpu_seconds}
        self.end(job, step.reason, code=step.code, signal=step.signal, detail=step.detail, **more)

    def _run(self, job: SimulatedJob, node_id: str | None = None) -> None:
        if job.detail.status is not TrialJobStatus.SUBMITTED:
            return
        job.started_at, job.started_monotonic = self._now(), asyncio.get_running_loop().time()
        time = self._time()
        job.detail = replace(job.detail, status=TrialJobStatus.RUNNING, start_time=time)
        placement = job.detail.form.placement
        chosen = node_id or (placement.node_id if placement else DEFAULT_NODE)
        self._add_change(job, TrialJobStatus.RUNNING, "", time, node_id=chosen)
        self.watch_deadline(job)

    def _write(self, job: SimulatedJob, data: bytes, member: int) -> None:
        self._run(job)
        offset = job.sizes.get(member, 0)
        job.chunks.append(JournalChunk(job.id, job.token, member, offset, data, job.started_at or None))
        job.sizes[member] = offset + len(data)
        self._announce(job)

    def _add_change(
        self,
        job: SimulatedJob,
        status: TrialJobStatus,
        detail: str,
        time: datetime | None = None,
        ended: Exit | None = None,
        **more: Any,
    ) -> None:
        time = time or self._time()
        job.changes.append(StatusChange(job.id, job.token, status, time, detail=detail, exit=ended, **more))
        self._announce(job)

    def _announce(self, job: SimulatedJob) -> None:
        self.waiting[job.id] = job
        self.changed.set()

    def _schedule(self, job: SimulatedJob, delay: float, callback: Callable[..., None], *arguments: object) -> None:
        loop = asyncio.get_running_loop()
        job.timer = loop.call_later(delay, callback, *arguments) if delay > 0 else loop.call_soon(callback, *arguments)

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)


def _record(kind: str, value: object, now: float, seconds: float | None, step: int | None = None) -> bytes:
    """A journal record as the SDK writes it."""
    named = "" if step is None else f'"step":{step},'
    times = f'"time":{now:.6f},"seconds":{seconds or 0.0:.6f}'
    return f'{{"kind":"{kind}","value":{encode_metric(value)},{named}{times}}}\n'.encode("ascii")
