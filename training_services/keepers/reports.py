"""From a keeper's report to the listeners of the experiments it concerns, and back to what may be acknowledged."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from proctor.training_services.base import EndReason, Exit, JournalChunk, StatusChange, TrialJobStatus
from proctor.training_services.errors import MalformedReport, ServiceUnavailable
from proctor.training_services.keepers.jobs import ExpectedJob
from proctor.trial_keeper.journal_tail import MOST_RANK, is_rank
from proctor.trial_keeper.protocol import Acknowledgement, Chunk, End, ReportHeader, Start

log = logging.getLogger(__name__)


class HubClient(ABC):
    """The part of a training service to which the hub delivers what keepers report about its jobs."""

    @abstractmethod
    async def store_chunks(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        """As a `MetricListener`: returns the stored offsets; raising means that the keeper sends them again."""

    @abstractmethod
    async def deliver_changes(self, changes: Sequence[StatusChange]) -> None:
        """As a `StatusListener`: raising means that it is delivered again, ends by the keeper, starts by the hub
        through `queue_change`."""

    @abstractmethod
    def queue_change(self, change: StatusChange) -> None:
        """A change that no keeper will report again: a start, the end of a job that was abandoned with its node or
        stopped before it was sent. The client delivers it to its listeners, before anything newer, until they accept
        it. Must not block."""


@dataclass
class ExperimentReport:
    """The part of one report about the jobs of one experiment, and what of it was stored."""

    client: HubClient
    chunks: list[JournalChunk] = field(default_factory=list)
    starts: list[StatusChange] = field(default_factory=list)
    ends: list[StatusChange] = field(default_factory=list)
    stored: dict[tuple[str, int], int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)

    async def deliver(self) -> None:
        """Deliver it to the client. Never raises: what was not accepted is simply not acknowledged.

        Metrics and status changes are delivered concurrently, except that the end of a job waits until its metrics are
        stored.
        """
        with_chunks = {chunk.job_id for chunk in self.chunks}
        without_chunks = [end for end in self.ends if end.job_id not in with_chunks]
        if self.chunks and (self.starts or without_chunks):
            async with asyncio.TaskGroup() as group:
                storing = group.create_task(_attempt(self._store()), name="store metrics")
                delivering = group.create_task(
                    _attempt(self._deliver_changes(self.starts, without_chunks)), name="deliver status"
                )
            taken = storing.result() and delivering.result()
        else:
            taken = await _attempt(self._store() if self.chunks else self._deliver_changes(self.starts, without_chunks))
        if taken and with_chunks:
            last = [end for end in self.ends if end.job_id in with_chunks and self._is_stored(end.job_id)]
            await _attempt(self._deliver_changes([], last))

    @property
    def is_taken(self) -> bool:
        """Whether all of it is stored, or was refused for good."""
        live = [chunk for chunk in self.chunks if chunk.job_id not in self.refused]
        ends = {end.job_id for end in self.ends} - self.refused
        return all(self._is_stored(chunk.job_id) for chunk in live) and ends <= set(self.ended)

    def acknowledgements(self) -> list[Acknowledgement]:
        """What of the chunks is stored."""
        return [Acknowledgement(job_id, str(member), offset) for (job_id, member), offset in self.stored.items()]

    async def _store(self) -> None:
        self.stored.update(await self.client.store_chunks(self.chunks))
        self.refused = {chunk.job_id for chunk in self.chunks if (chunk.job_id, chunk.member) not in self.stored}

    def _is_stored(self, job_id: str) -> bool:
        return all(
            self.stored.get((job_id, chunk.member), -1) >= chunk.end for chunk in self.chunks if chunk.job_id == job_id
        )

    async def _deliver_changes(self, starts: Sequence[StatusChange], ends: Sequence[StatusChange]) -> None:
        if not starts and not ends:
            return
        try:
            await self.client.deliver_changes([*starts, *ends])
        except Exception:
            for start in starts:  # a keeper reports a start once
                self.client.queue_change(start)
            raise
        self.ended.extend(end.job_id for end in ends)


def report_on(
    job_id: str, token: str, header: ReportHeader, body: bytes, *, client: HubClient, node_id: str
) -> ExperimentReport:
    """The part of a report that is about one job. Raises MalformedReport."""
    return ExperimentReport(
        client,
        chunks=[chunk for chunk in split_body(header, body) if (chunk.job_id, chunk.token) == (job_id, token)],
        starts=[started(start, node_id) for start in header.starts if (start.job_id, start.token) == (job_id, token)],
        ends=[ended(end, node_id) for end in header.ends if (end.job_id, end.token) == (job_id, token)],
    )


async def deliver_all(reports: Sequence[ExperimentReport]) -> None:
    """Deliver to all experiments concurrently."""
    if len(reports) == 1:
        await reports[0].deliver()
        return
    async with asyncio.TaskGroup() as group:
        for report in reports:
            group.create_task(report.deliver(), name="deliver a keeper's report")


async def _attempt(delivery: Awaitable[None]) -> bool:
    """Whether the client accepted it."""
    try:
        await delivery
    except ServiceUnavailable as error:  # the client reports the reason itself
        log.debug("a keeper's report cannot be stored now; the keeper sends it again: %s", error)
        return False
    except Exception:
        log.warning("a keeper's report was not stored; the keeper sends it again", exc_info=True)
        return False
    return True


def split_body(header: ReportHeader, body: bytes | memoryview) -> list[JournalChunk]:
    """The chunks of a report with their bytes. Raises MalformedReport."""
    chunks: list[JournalChunk] = []
    starts = {start.job_id: start.started_at for start in header.starts}
    position = 0
    for chunk in header.chunks:
        data = bytes(body[position : position + chunk.length])
        position += chunk.length
        if chunk.length < 0 or len(data) != chunk.length or chunk.offset < 0:
            raise MalformedReport(
                f"the report announces {chunk.length} bytes of the journal of {chunk.job_id} from byte {chunk.offset}; "
                f"{len(data)} follow its header"
            )
        started_at = starts.get(chunk.job_id)
        chunks.append(JournalChunk(chunk.job_id, chunk.token, _member(chunk), chunk.offset, data, started_at))
    if position != len(body):
        raise MalformedReport(f"the report announces {position} bytes of journals; {len(body)} follow its header")
    return chunks


def started(start: Start, node_id: str) -> StatusChange:
    """The status change of a start."""
    time = _moment(start.started_at, start.job_id)
    return StatusChange(start.job_id, start.token, TrialJobStatus.RUNNING, time, node_id=node_id, pid=start.pid)


def ended(end: End, node_id: str) -> StatusChange:
    """The status change of an end."""
    return StatusChange(
        job_id=end.job_id,
        token=end.token,
        status=TrialJobStatus.ENDED,
        time=_moment(end.exit.ended_at, end.job_id),
        detail=end.exit.detail,
        node_id=node_id,
        exit=end.exit,
    )


def abandoned(job: ExpectedJob, reason: EndReason, *, detail: str, now: float) -> StatusChange:
    """The status change of an end that no keeper will report. `now` is Unix time. How long the job ran is not known: 0,
    and the manager counts until its last report."""
    return StatusChange(
        job_id=job.job_id,
        token=job.token,
        status=TrialJobStatus.ENDED,
        time=datetime.fromtimestamp(now, UTC),
        detail=detail,
        node_id=job.node_id,
        exit=Exit(reason, code=None, signal=None, started_at=now, ended_at=now, detail=detail, run_seconds=0.0),
    )


def held_up(job: ExpectedJob, node_id: str, place: str, clause: str, *, now: float) -> StatusChange:
    """The status change of a job that is stuck or, with "", continues again. `place` is what its node is called, `now`
    is Unix time."""
    status = TrialJobStatus.RUNNING if job.started else TrialJobStatus.SUBMITTED
    if not job.started:
        clause = f"waiting: {clause or f'it is being started on {place}'}"
    return StatusChange(job.job_id, job.token, status, datetime.fromtimestamp(now, UTC), detail=clause, node_id=node_id)


def _member(chunk: Chunk) -> int:
    if not is_rank(chunk.member):
        raise MalformedReport(
            f"member {chunk.member[:30]!r} of {chunk.job_id} should be a rank from 0 to {MOST_RANK}, without zeros "
            "before it"
        )
    return int(chunk.member)


def _moment(seconds: float, job_id: str) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise MalformedReport(f"{seconds:g} of {job_id} should be a time, in seconds since 1970") from None
