"""What the keeper still has to tell the manager, and the next report made of it.

One report is under way at a time; whatever happens meanwhile goes into the next one, so that reports grow with the load
and an idle keeper answers at once.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.protocol import (
    Chunk,
    Device,
    End,
    RefusedCommand,
    ReportAnswer,
    ReportHeader,
    Start,
    SystemLoad,
    to_json,
)

REPORT_BYTES = 1024 * 1024
LEAST_SHARE_BYTES = 16 * 1024  # what one job gets of a report, if it gets anything
ROOM_FOR_RUNNING_BYTES = REPORT_BYTES // 4  # which the journals of jobs that have ended leave to the others
_START_DELAY_SECONDS = 0.1

log = logging.getLogger(__name__)


@dataclass
class KeeperReport:
    """One report: the header, the bytes of its chunks, and which jobs it speaks of."""

    header: ReportHeader
    data: list[bytes] = field(default_factory=list)
    started: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)
    is_incomplete: bool = False  # something could not be read now

    @property
    def has_news(self) -> bool:
        """It says more than that the keeper lives, or should."""
        return bool(self.sent or self.started or self.ended or self.header.refused or self.is_incomplete)

    @property
    def body(self) -> bytes:
        """The body of the HTTP request."""
        return b"".join([json.dumps(to_json(self.header)).encode(), b"\n", *self.data])


@dataclass
class SettledReport:
    """What the manager's answer to a report means: the jobs whose end it has stored, and those that are no
    longer its jobs. None of them is reported again."""

    stored: list[Job] = field(default_factory=list)
    fenced: list[Job] = field(default_factory=list)
    has_progress: bool = False
    """Whether anything that was reported is now done with."""


class Outbox:
    """Jobs with news."""

    def __init__(self) -> None:
        self._dirty: dict[str, Job] = {}
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._start_timer: asyncio.TimerHandle | None = None
        self._devices: list[Device] | None = None
        self._refused: list[RefusedCommand] = []
        self.notes: list[str] = []
        self.disk_free_mb: int | None = None
        self.system: SystemLoad | None = None
        self.full: dict[str, str] = {}
        self.suspended: dict[str, str] = {}
        self.waiting: dict[str, str] = {}

    def queue(self, job: Job) -> None:
        """The job has something to report: journal bytes or its end."""
        self._dirty[job.job_id] = job
        self._wake.set()
        if job.exit is not None:
            self._urgent.set()

    def queue_start(self, job: Job) -> None:
        """The job runs. A short job's start travels with its end: it waits a moment for company."""
        self._dirty[job.job_id] = job
        if self._start_timer is None:
            loop = asyncio.get_running_loop()
            self._start_timer = loop.call_later(_START_DELAY_SECONDS, self._report_starts)

    def refuse(self, command: RefusedCommand) -> None:
        """A command about a job cannot be carried out."""
        self._refused.append(command)
        self._wake.set()
        self._urgent.set()

    def set_devices(self, devices: list[Device]) -> None:
        """The devices have changed; sent with the next report."""
        self._devices = devices

    def set_full(self, full: dict[str, str]) -> None:
        """Where no jobs can be started has changed."""
        if full != self.full:
            self.full = full
            self._wake.set()

    def set_suspended(self, suspended: dict[str, str]) -> None:
        """What is held up by suspended processes has changed."""
        if suspended != self.suspended:
            self.suspended = suspended
            self._wake.set()

    def set_waiting(self, waiting: dict[str, str]) -> None:
        """Which trials wait for a verdict has changed."""
        if waiting != self.waiting:
            self.waiting = waiting
            self._wake.set()

    def drop(self, job: Job) -> None:
        """This job must no longer be reported."""
        self._dirty.pop(job.job_id, None)

    async def wait(self, seconds: float) -> None:
        """Until there is something to report, or the time is over."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def rest(self, seconds: float) -> None:
        """Between two reports, so that a manager of many nodes gets fewer and larger ones; a start or an end does not
        wait."""
        if seconds > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), seconds)

    def build(self, session: str) -> KeeperReport:
        """The next report. The jobs share its room fairly, those that have ended come first: an end can be reported
        only with the last byte of its journals, and it frees a place for another trial."""
        self._wake.clear()
        self._urgent.clear()
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        header = ReportHeader(
            session,
            devices=self._devices,
            disk_free_mb=self.disk_free_mb,
            notes=list(self.notes),
            full=self.full,
            stopped=self.suspended,
            waiting=self.waiting,
            system=self.system,
            refused=list(self._refused),
        )
        report = KeeperReport(header)
        ended = [job for job in self._dirty.values() if job.exit is not None]
        running = [job for job in self._dirty.values() if job.exit is None]
        for job in tuple(ended):
            if not job.find_journals():  # its end is reported with all of its journals
                report.is_incomplete = True
                ended.remove(job)
        kept = min(sum(job.backlog for job in running), ROOM_FOR_RUNNING_BYTES)
        used = self._add_fairly(report, ended, REPORT_BYTES - kept)
        self._add_fairly(report, running, max(REPORT_BYTES - used, kept))
        return report

    def settle(self, report: KeeperReport, answer: ReportAnswer) -> SettledReport:
        """Take the manager's answer to a report."""
        for job in report.started:
            job.start_reported = True
        known = {job.job_id: job for job in (*self._dirty.values(), *report.ended)}
        settled = SettledReport(
            stored=[known[job_id] for job_id in answer.ended if job_id in known],
            fenced=[known[job_id] for job_id in answer.fenced if job_id in known],
        )
        settled.has_progress = bool(report.started or answer.fenced or settled.stored or report.header.refused)
        del self._refused[: len(report.header.refused)]
        for item in answer.acknowledged:
            owner = known.get(item.job_id)
            tail = owner.tails.get(item.member) if owner is not None else None
            if tail is None:
                continue
            settled.has_progress = settled.has_progress or tail.acknowledged != item.offset
            tail.acknowledged = item.offset
        for job in (*settled.stored, *settled.fenced):
            self.drop(job)
        if report.header.devices is self._devices:
            self._devices = None
        self._clean(report)
        return settled

    def _report_starts(self) -> None:
        self._wake.set()
        self._urgent.set()

    def _add_fairly(self, report: KeeperReport, jobs: Sequence[Job], room: int) -> int:
        """Add what is new of these jobs, with about `room` bytes of their journals; returns how many bytes.

        Who gets a share of the room goes to the end of `_dirty`, so that who gets none comes first in the next report.
        """
        backlogs = [job.backlog for job in jobs]
        used = 0
        for job, backlog, share in zip(jobs, backlogs, _shares_in_turn(backlogs, room), strict=True):
            if backlog and (not share or used >= room):
                self._add_start(report, job)
                self._wake.set()
            elif size := self._add(report, job, share):
                used += size
                self._dirty[job.job_id] = self._dirty.pop(job.job_id)
        return used

    def _add(self, report: KeeperReport, job: Job, share: int) -> int:
        """Add what is new of a job, and about `share` bytes of its journals; returns how many bytes."""
        header, size, complete = report.header, 0, True
        self._add_start(report, job)
        tails = list(job.tails.values())
        shares = [share] if len(tails) == 1 else _shares([tail.backlog for tail in tails], share)
        for tail, limit in zip(tails, shares, strict=True):
            try:
                data = tail.read(final=job.exit is not None, limit=max(limit, LEAST_SHARE_BYTES))
            except OSError as error:  # a failing disk: the other jobs need not wait for it
                log.error("%s cannot be read; it will be tried again: %s", tail.path, error.strerror)
                data, complete, report.is_incomplete = b"", False, True
            if data:
                header.chunks.append(Chunk(job.job_id, job.token, tail.member, tail.acknowledged, len(data)))
                report.data.append(data)
                size += len(data)
            complete = complete and tail.is_complete(after=len(data))
        if job.exit is not None and complete:
            header.ends.append(End(job.job_id, job.token, job.exit))
            report.ended.append(job)
        if size:
            report.sent.add(job.job_id)
        return size

    def _add_start(self, report: KeeperReport, job: Job) -> None:
        if not job.start_reported and job.process is not None:
            report.header.starts.append(Start(job.job_id, job.token, job.process.trial.pid, job.process.started_at))
            report.started.append(job)

    def _clean(self, report: KeeperReport) -> None:
        """Forget what has been reported; what remains goes into the next report. A line that is still being written
        wakes us by itself when it is whole."""
        for job in list(self._dirty.values()):
            more = any(tail.needs_report for tail in job.tails.values())
            if job.exit is not None or (more and job.job_id in report.sent):
                self._wake.set()
            elif not more and (job.start_reported or job.process is None):
                del self._dirty[job.job_id]


def _shares_in_turn(wanted: Sequence[int], room: int) -> list[int]:
    """Divide the room of a report among jobs in the order of their turns: each gets what it wants or an equal share,
    but not less than LEAST_SHARE_BYTES; those that come too late for that get nothing."""
    served, taken = 0, 0
    for amount in wanted:
        taken += min(amount, LEAST_SHARE_BYTES)
        if taken > room:
            break
        served += 1
    return _shares(wanted[:served], room) + [0] * (len(wanted) - served)


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room`: who wants less than an equal share gets what it wants, the others share the rest equally."""
    shares = [0] * len(wanted)
    left = len(wanted)
    for number in sorted(range(left), key=wanted.__getitem__):
        shares[number] = min(wanted[number], room // left)
        room -= shares[number]
        left -= 1
    return shares
