"""One job on this node, as the keeper knows it at the moment."""

import asyncio
import logging
import socket
from dataclasses import dataclass, field, replace

from proctor.sdk.protocol import ENV_JUDGED_RANK, boot_time
from proctor.trial_keeper.jobs.lost_reports import Losses
from proctor.trial_keeper.jobs.records import JobRecord, ProcessRecord, write_milestone
from proctor.trial_keeper.journal_tail import FIRST_MEMBER, JournalTail, find_members
from proctor.trial_keeper.linux.files import present_wait, verdict_seconds
from proctor.trial_keeper.protocol import Exit, JobReport

log = logging.getLogger(__name__)

_LONG_WAIT_SECONDS = 2.0
"""A trial that has waited for a verdict for so long says that it does; most have theirs in hundredths of a second."""
_SHORTAGE_RETRY_SECONDS = 0.5


@dataclass(eq=False)
class Job:
    """What is written down of a job, who runs it, and how far its journals have been sent."""

    record: JobRecord
    process: ProcessRecord | None = None
    reaper: int | None = None  # a pidfd while the reaper lives
    exit: Exit | None = None
    of_earlier_boot: bool = False
    start_reported: bool = False
    attempts: int = 0
    stop_unwritten: bool = False  # its record does not say that it is to stop: the disk is full
    milestone_unwritten: bool = False  # control.json names an earlier milestone: the same
    channel: socket.socket | None = None  # to its reaper, if this keeper has had it started
    losses: Losses | None = None  # what it has lost, once it has ended and something was
    deadline: asyncio.TimerHandle | None = None
    saving: asyncio.TimerHandle | None = None  # until it is over the trial may save; then comes SIGTERM
    tails: dict[str, JournalTail] = field(default_factory=dict)

    @property
    def job_id(self) -> str:
        """Its id."""
        return self.record.launch.job_id

    @property
    def token(self) -> str:
        """The fencing token of its launch."""
        return self.record.launch.token

    @property
    def tag(self) -> tuple[str, str]:
        """What its processes carry in their environment."""
        return self.job_id, self.directory

    @property
    def directory(self) -> str:
        """Its directory."""
        return self.record.launch.directory

    @property
    def seconds_left(self) -> float | None:
        """How long it may still run, without its waits for verdicts; None where it has no limit, or is to stop. While
        these waits are not known for lack of descriptors, at least the time until it should be asked again."""
        limit = self.record.launch.max_duration_seconds
        if limit is None or self.process is None or self.record.stop is not None:
            return None
        left = limit - self.process.seconds
        try:
            return left + verdict_seconds(self.directory, boot_time())
        except OSError:
            return max(left, _SHORTAGE_RETRY_SECONDS)

    def show_milestone(self) -> None:
        """Write to control.json at which step its trial waits, if that is known, and it is not to stop. On a full disk
        the trial waits meanwhile where it did."""
        milestone, before = self.record.launch.milestone, self.milestone_unwritten
        self.milestone_unwritten = False
        if milestone is None or self.record.stop is not None:
            return
        try:
            write_milestone(self.directory, milestone)
        except OSError as error:
            self.milestone_unwritten = True
            if not before:
                log.warning("control.json of job %s cannot be written yet: %s", self.job_id, error)

    def describe_wait(self, now: float) -> str:
        """Why its trial stands still, as a clause, if that has waited for a verdict for a while; "" if it has not.

        :param now: by `boot_time`.
        """
        launch = self.record.launch
        if ENV_JUDGED_RANK not in launch.environment or self.process is None or self.record.stop is not None:
            return ""
        seconds, longest = present_wait(self.directory, now)
        if seconds < _LONG_WAIT_SECONDS:
            return ""
        return f"waits for the verdict of its trial scheduler, for at most {longest:g} s (verdictTimeout)"

    @property
    def backlog(self) -> int:
        """About how many bytes of its journals are not acknowledged."""
        return sum(tail.backlog for tail in self.tails.values())

    def find_journals(self) -> bool:
        """Take notice of all journals that are there. False: the machine has no descriptors left, look again."""
        try:
            for member in find_members(self.directory):
                if member not in self.tails:
                    self.tails[member] = self._tail(member)
        except OSError:
            return False
        return True

    def open_journals(self) -> None:
        """Open all journals that are there, before their trial can rename them."""
        self.find_journals()
        for tail in self.tails.values():
            tail.open()

    def acknowledge(self, offsets: dict[str, int]) -> None:
        """Start all journals from what a manager says it has; 0 for what it does not name."""
        for member in offsets:
            if member not in self.tails:
                self.tails[member] = self._tail(member)
        for member, tail in self.tails.items():
            tail.acknowledged = offsets.get(member, 0)

    def end(self, end: Exit, losses: Losses) -> None:
        """It has ended; what it has lost is reported behind its journals, and with its end."""
        if losses.lost or losses.endings:
            self.losses = losses
        detail = "; ".join(filter(None, (end.detail, losses.describe())))
        self.exit = replace(end, detail=detail, lost=losses.lost, lost_finals=losses.finals, memory="")
        for member in (FIRST_MEMBER, *losses.endings):
            if member not in self.tails:
                self.tails[member] = self._tail(member)
            must_exist = member == FIRST_MEMBER and self.process is not None
            self.tails[member].end(losses.endings.get(member, b""), must_exist=must_exist)

    def _tail(self, member: str) -> JournalTail:
        return JournalTail(self.directory, member, of_earlier_boot=self.of_earlier_boot)

    def close(self) -> None:
        """Close its files and forget its timer."""
        for tail in self.tails.values():
            tail.close()
        self.rest()

    def rest(self) -> None:
        """Close the files that can be opened again, and forget its timer."""
        for tail in self.tails.values():
            tail.rest()
        for timer in (self.deadline, self.saving):
            if timer is not None:
                timer.cancel()
        self.deadline = self.saving = None

    def report(self) -> JobReport:
        """What is reported about it at registration."""
        self.find_journals()
        return JobReport(
            job_id=self.job_id,
            token=self.token,
            pid=self.process.trial.pid if self.process is not None else None,
            started_at=self.process.started_at if self.process is not None else 0.0,
            sizes={member: tail.size for member, tail in self.tails.items()},
            exit=self.exit,
            experiment_id=self.record.launch.experiment_id,
        )
