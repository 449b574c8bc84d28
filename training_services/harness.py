"""Tools of the conformance suite: what jobs it wants, what an implementation gives it, listeners that record."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any

from proctor.sdk.quick_json import loads
from proctor.training_services.base import (
    JournalChunk,
    StatusChange,
    SupportsEvents,
    TrainingService,
    TrialJobForm,
    TrialJobStatus,
)

PATIENCE_SECONDS = 60.0
VALUES = (0.25, 0.5, 0.75)
"""The intermediate metrics of a `Behaviour.REPORT` job; its final metric is `FINAL_VALUE`."""
FINAL_VALUE = 1.5
EXIT_CODE = 3
"""The exit code of a `Behaviour.FAIL` job."""


class Behaviour(StrEnum):
    """What a job of the suite shall do; the harness turns it into a form."""

    REPORT = "REPORT"  # report `VALUES` as intermediate metrics and `FINAL_VALUE` as the final one, then exit with 0
    FAIL = "FAIL"  # exit with `EXIT_CODE`
    HANG = "HANG"  # run until stopped


class ServiceHarness(ABC):
    """A platform under test, with one service on it."""

    service: TrainingService
    metadata: tuple[str, Any]
    """A key that `set_cluster_metadata` takes, and a value for it that is not the one it has."""

    @abstractmethod
    def form(self, behaviour: Behaviour, name: str = "first") -> TrialJobForm:
        """A form for a job with this behaviour. The same name gives the same job id and token."""

    @abstractmethod
    def impossible_form(self) -> TrialJobForm:
        """A form that can never run."""

    @abstractmethod
    async def restart(self) -> TrainingService:
        """The manager was restarted: another service on the same platform, whose jobs went on. Asked only of services
        that are `SupportsReattach`, when the first one no longer runs."""

    async def reattached(self) -> None:  # noqa: B027 - most platforms have nothing to do
        """Called after `restart`, when the new service was told by `reattach` of all its jobs."""

    @abstractmethod
    async def leftovers(self) -> list[str]:
        """What is left of jobs: processes, locks, temporary files. Asked after `clean_up`."""


class Recorder:
    """The listeners of a test: keeps what it took and can refuse to take it.

    :param refusals: how many calls of each listener to refuse by raising, before any is taken.
    :param patience_seconds: how long what a test waits for may take.
    """

    def __init__(self, refusals: int = 0, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.journals: dict[str, bytes] = {}
        self.changes: list[StatusChange] = []
        self.refused: list[JournalChunk | StatusChange] = []
        self._refusals = {"metrics": refusals, "status": refusals}
        self._patience_seconds = patience_seconds
        self._news = asyncio.Condition()

    def listen(self, service: TrainingService) -> None:
        """Listen to a service."""
        service.add_trial_job_metric_listener(self.take_metrics)
        assert isinstance(service, SupportsEvents), "a training service must be SupportsEvents"
        service.add_status_listener(self.take_changes)

    async def take_metrics(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        """A MetricListener. Chunks may repeat what was taken, and may not leave anything out."""
        await self._refuse("metrics", chunks)
        for chunk in chunks:
            assert chunk.data.endswith(b"\n"), "a chunk holds whole lines"
            journal = self.journals.get(chunk.job_id, b"")
            assert chunk.offset <= len(journal), "a chunk was left out"
            assert journal[chunk.offset : chunk.end] == chunk.data[: len(journal) - chunk.offset], "bytes have changed"
            self.journals[chunk.job_id] = journal + chunk.data[len(journal) - chunk.offset :]
            assert not any(change.exit for change in self.of(chunk.job_id)) or chunk.end <= len(journal), (
                "metrics came after the end of their job"
            )
        await self._tell()
        return {(chunk.job_id, chunk.member): len(self.journals[chunk.job_id]) for chunk in chunks}

    async def take_changes(self, changes: Sequence[StatusChange]) -> None:
        """A StatusListener."""
        await self._refuse("status", changes)
        for change in changes:
            assert (change.exit is not None) == (change.status is TrialJobStatus.ENDED)
            assert change.time.tzinfo is not None, "times are aware"
            self.changes.append(change)
        await self._tell()

    def of(self, job_id: str) -> list[StatusChange]:
        """What was taken about a job."""
        return [change for change in self.changes if change.job_id == job_id]

    def statuses(self, job_id: str) -> list[TrialJobStatus]:
        """The statuses of a job in the order they were taken, repetitions left out."""
        found: list[TrialJobStatus] = []
        for change in self.of(job_id):
            if change.status is not TrialJobStatus.SUBMITTED and change.status not in found[-1:]:
                found.append(change.status)
        return found

    def records(self, job_id: str) -> list[tuple[str, Any]]:
        """(kind, value) of every record in a job's journal."""
        lines = self.journals.get(job_id, b"").splitlines()
        records = [loads(line.decode()) for line in lines]
        return [(record["kind"], record["value"]) for record in records]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be taken or refused."""
        async with asyncio.timeout(self._patience_seconds), self._news:
            await self._news.wait_for(condition)

    async def end_of(self, job_id: str) -> StatusChange:
        """Wait for a job's end."""
        await self.until(lambda: any(change.exit for change in self.of(job_id)))
        return next(change for change in self.of(job_id) if change.exit)

    async def start_of(self, job_id: str) -> None:
        """Wait until a job runs."""
        await self.until(lambda: TrialJobStatus.RUNNING in self.statuses(job_id))

    async def _refuse(self, kind: str, items: Sequence[JournalChunk] | Sequence[StatusChange]) -> None:
        if self._refusals[kind] > 0:
            self._refusals[kind] -= 1
            self.refused.extend(items)
            await self._tell()
            raise RuntimeError("this listener does not take it yet; deliver it again")

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


@asynccontextmanager
async def serving(service: TrainingService) -> AsyncIterator[None]:
    """Run a service in the background; it is cancelled on leaving."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(service.run(), name="training service")
        try:
            yield
        finally:
            task.cancel()
