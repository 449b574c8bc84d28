"""The methods of a platform that starts a keeper for each job, and how it describes one."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from proctor.training_services.base import EndReason, TrialJobForm
from proctor.trial_keeper.protocol import ReportHeader


class PlatformStatus(StrEnum):
    """The state of a job's keeper, as reported by its platform."""

    PENDING = "PENDING"  # accepted by the platform, not running yet
    RUNNING = "RUNNING"  # it runs
    ENDED = "ENDED"  # it has ended; the platform still has its record
    GONE = "GONE"  # the platform no longer has it; only as a change, never in a list


@dataclass(frozen=True, slots=True)
class PlatformJob:
    """A trial job as its platform sees it: the keeper that was started for it."""

    job_id: str
    token: str
    experiment_id: str
    status: PlatformStatus
    created_at: float  # Unix time
    detail: str = ""
    """The platform's own words, as a clause: why it is pending, how it ended ("0/3 nodes are available: …")."""
    node: str = ""  # the platform's name of the machine it runs on
    instances: tuple[str, ...] = ()
    """The keepers that the platform has started for it, in order. More than one: it was started again."""
    reason: EndReason | None = None
    """How it, or its first instance, ended, if the platform knows what the keeper cannot know: OUT_OF_MEMORY,
    PREEMPTED, NODE_LOST. With RUNNING: it is lost."""
    is_impossible: bool = False  # with PENDING: its platform refuses to start it as it is, for the reason in `detail`
    exit_code: int | None = None  # of a keeper that has ended; 0: it left by itself
    output: str = ""  # the last lines of the log of a keeper that has ended


@dataclass
class JobKeeper:
    """The keeper of one job, and its known state.

    At most one of `is_resumed` and `is_taken` is set; neither: it is yet to be started. One that `is_taken` may also be
    either `is_pending` or `is_connected`. `is_lost` and `is_over` come on top of any of these; nothing but the end of
    the job follows `is_over`. `is_removed` implies `is_over`; a start that takes effect after it clears it.
    """

    form: TrialJobForm
    secret: str
    is_resumed: bool = False  # an earlier manager may have started it; the next list will show
    was_found: bool = False  # an earlier manager has submitted its job
    is_taken: bool = False  # the platform has accepted it
    is_pending: bool = False  # the platform has reported that it does not run yet
    is_connected: bool = False  # it has registered
    is_over: bool = False  # it has ended, or is being removed; the end of its job follows
    is_lost: bool = False  # the platform has started a replacement, or has lost its machine
    is_removed: bool = False  # nothing of it is left on the platform
    instance: str = ""  # the one that registered first, also with an earlier manager; no other one is admitted
    node: str = ""
    obstacle: str = ""  # the last reported reason why the job does not run yet
    silence: str = ""  # why there are no reports, as a clause
    starting: asyncio.Task[None] | None = None
    stopping: asyncio.Task[None] | None = None  # waits for its job to be stopped
    stop_due: float = 0.0  # deadline of the stop, in the loop's time
    dropped: asyncio.Event = field(default_factory=asyncio.Event)  # its job has ended, or is no longer wanted
    timer: asyncio.TimerHandle | None = None  # limits how long it may take to connect
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # it may have connected or become silent

    def stop_timer(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(frozen=True)
class LeftReport:
    """A report that no manager has stored, with the bytes of its chunks."""

    header: ReportHeader
    body: bytes
    is_cut: bool = False
    """Whatever is missing before and between its chunks is lost."""


class KeeperPlatform(ABC):
    """The methods that a platform implements as a subclass of `JobKeeperService`."""

    @property
    @abstractmethod
    def place_name(self) -> str:
        """The name of the place in messages: "platform kubernetes, namespace ml"."""

    @abstractmethod
    async def start_keeper(self, form: TrialJobForm, secret: str) -> None:
        """Request the keeper of a job, with the id `keeper_of(form)` and this secret. Returns when the platform has
        accepted the request, without waiting until the keeper runs, and in any case within about a minute. Idempotent
        by job id, also after a restart of the manager: no job has two keepers that were requested.

        The platform receives nothing about the trial except what it needs to place it. Raises SubmissionRefused, with a
        sentence, for what the platform can never run, and ServiceUnavailable, with a clause, for what it may accept
        later: then this is called again with growing pauses, indefinitely.
        """

    @abstractmethod
    async def stop_keeper(self, job_id: str) -> None:
        """Remove everything of a job, including its keeper and all processes, within the platform's grace period.
        Idempotent; does nothing if nothing is there. Returns when the platform has accepted the request. Raises
        ServiceUnavailable: then this is called again."""

    @abstractmethod
    async def list_keepers(self) -> Sequence[PlatformJob]:
        """All jobs of this manager in the place of this experiment, including those of its other experiments. Raises
        ServiceUnavailable, with a clause."""

    @abstractmethod
    def watch_keepers(self) -> AsyncIterator[PlatformJob]:
        """The changes since the last `list_keepers`, indefinitely. Ends when changes may have been missed (then the
        jobs are listed again), and raises ServiceUnavailable, with a clause, when the platform cannot be reached."""

    async def reach_keeper(self, seen: PlatformJob) -> None:  # noqa: B027 - most keepers connect by themselves
        """Connect the keeper of a job that has ended and whose files are to be collected, if it cannot connect to the
        manager by itself. Raises ServiceUnavailable."""

    def leave_keeper(self, job_id: str) -> None:  # noqa: B027
        """Close what `reach_keeper` has opened: the keeper is no longer needed. Must not block."""

    async def read_left_report(self, job: PlatformJob, *, is_last: bool) -> LeftReport | None:
        """Read what a keeper that has ended left on the platform because there was no manager to report it to; None if
        there is nothing. Raises ServiceUnavailable: then this is called again, unless it `is_last`: what cannot be read
        now is lost."""
        return None

    def code_place(self, form: TrialJobForm) -> str | None:
        """The folder that has the trial code where a job will run, such as in its image; None: the code is sent."""
        return None


def how_it_ended(seen: PlatformJob, *, was_connected: bool, has_run: bool) -> tuple[EndReason, str]:
    """The end of a job whose keeper has not reported one.

    :param was_connected: the keeper had registered.
    :param has_run: the trial may have started.
    """
    printed = f"it printed last: {seen.output.strip()}" if seen.output.strip() and not has_run else ""
    if seen.reason is not None:
        return seen.reason, joined(seen.detail, printed)
    if has_run:
        return EndReason.EXIT_UNKNOWN, joined("its keeper ended and has not reported how the job did", seen.detail)
    if was_connected:
        reason = EndReason.PREEMPTED if seen.exit_code == 0 else EndReason.INFRASTRUCTURE
        return reason, joined("its keeper ended before the job was launched", seen.detail, printed)
    if seen.exit_code == 0:
        return EndReason.PREEMPTED, joined("its keeper left, because no manager answered it", seen.detail)
    return EndReason.LAUNCH_FAILED, joined("its keeper ended before it had connected", seen.detail, printed)


def joined(*clauses: str) -> str:
    """Join clauses that are not empty."""
    return "; ".join(clause for clause in clauses if clause)
