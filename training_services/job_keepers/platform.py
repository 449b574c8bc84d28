"""What a platform that starts a keeper for each job is asked, and what it says of one."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from proctor.training_services.base import EndReason, TrialJobForm
from proctor.trial_keeper.protocol import ReportHeader


class PlatformStatus(StrEnum):
    """How the keeper of a job is, as its platform says."""

    PENDING = "PENDING"  # the platform has taken it, and it does not run yet
    RUNNING = "RUNNING"  # it runs
    ENDED = "ENDED"  # it is over; the platform still knows of it
    GONE = "GONE"  # the platform no longer has it; only of a change, never in a list


@dataclass(frozen=True)
class PlatformJob:
    """What a platform has of one trial job: the keeper that was started for it."""

    job_id: str
    token: str
    experiment_id: str
    status: PlatformStatus
    created_at: float  # Unix time
    detail: str = ""
    """A clause in the platform's own words: why it is pending, how it ended ("0/3 nodes are available: …")."""
    node: str = ""  # the machine it runs on, as the platform calls it
    instances: tuple[str, ...] = ()
    """The keepers that the platform has started for it, the first one first. More than one: it was started again."""
    reason: EndReason | None = None
    """How it, or its first instance, ended, where the platform knows what the keeper cannot: OUT_OF_MEMORY, PREEMPTED,
    NODE_LOST. Of one that is RUNNING: it is lost."""
    exit_code: int | None = None  # of a keeper that is over; 0: it left by itself
    output: str = ""  # the last lines that a keeper which is over has printed


@dataclass
class JobKeeper:
    """The keeper of one job, and what is known of it."""

    form: TrialJobForm
    secret: str
    is_resumed: bool = False  # an earlier manager may have started it; the next list shows that
    is_taken: bool = False  # the platform has it
    is_pending: bool = False  # the platform has said that it does not run yet
    is_connected: bool = False  # it has registered
    is_over: bool = False  # the platform has said so, or it is being removed; its end follows
    is_lost: bool = False  # its platform has started another one in its place, or has lost its machine
    is_removed: bool = False  # the platform has nothing of it any more
    instance: str = ""
    node: str = ""
    obstacle: str = ""  # why the job does not run yet, as it was reported
    silence: str = ""  # why there are no reports, as a clause
    starting: asyncio.Task[None] | None = None
    stopping: asyncio.Task[None] | None = None  # waits for its job to be stopped
    stop_due: float = 0.0  # when its job must have stopped, in the loop's time
    dropped: asyncio.Event = field(default_factory=asyncio.Event)  # its job is over, or no longer wanted
    timer: asyncio.TimerHandle | None = None  # until it must have connected
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # it may answer now, or no longer

    def stop_timer(self) -> None:
        """Nothing is due any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(frozen=True)
class LeftReport:
    """A report that no manager has taken, with the bytes of its chunks."""

    header: ReportHeader
    body: bytes
    is_cut: bool = False
    """What is missing between its chunks, and before them, is lost."""


class KeeperPlatform(ABC):
    """What `JobKeeperService` asks of a platform, which is a subclass of that."""

    @property
    @abstractmethod
    def place_name(self) -> str:
        """What the platform is called where unknown jobs on it are named: "platform kubernetes, namespace ml"."""

    @abstractmethod
    async def start_keeper(self, form: TrialJobForm, secret: str) -> None:
        """Ask the platform to start the keeper of a job, with the id `keeper_of(form)` and this secret. Returns when
        the platform has taken it; does not wait until it runs, and ends within a minute or so, whatever becomes of the
        platform. Idempotent by job id, also after a restart of the manager: a job never has two keepers that were asked
        for.

        Nothing of the trial goes to the platform but what it needs to choose a place. Raises SubmissionRefused, with a
        sentence, for what the platform can never run, and ServiceUnavailable, with a clause, for what it may take
        later: then this is called again with growing pauses, for as long as it takes.
        """

    @abstractmethod
    async def stop_keeper(self, job_id: str) -> None:
        """Remove everything that the platform has of a job, its keeper and all processes included, within the
        platform's time of grace. Idempotent; what is not there is removed already. Returns when the platform has taken
        it. Raises ServiceUnavailable: then this is called again."""

    @abstractmethod
    async def list_keepers(self) -> Sequence[PlatformJob]:
        """All that the platform has of this manager's jobs in the place of this experiment, those of its other
        experiments included. Raises ServiceUnavailable, with a clause."""

    @abstractmethod
    def watch_keepers(self) -> AsyncIterator[PlatformJob]:
        """How each has changed since the last `list_keepers`, without an end. Ends when it may have missed something
        (then they are listed again), and raises ServiceUnavailable, with a clause, when the platform is away."""

    async def reach_keeper(self, seen: PlatformJob) -> None:  # noqa: B027 - most keepers connect by themselves
        """The keeper of a job that is over, as the platform says, runs and is to connect to the manager, for its files.
        Where it cannot by itself, the platform connects it now. Raises ServiceUnavailable."""

    def leave_keeper(self, job_id: str) -> None:  # noqa: B027
        """The manager needs no connection with the keeper of a job any more. Must not block."""

    async def read_left_report(self, job: PlatformJob) -> LeftReport | None:
        """What the keeper of a job that is over has left on the platform, because it had no manager to report it to.
        None: nothing. Raises ServiceUnavailable: then this is called again."""
        return None

    def code_place(self, form: TrialJobForm) -> str | None:
        """The folder in which the trial code is where a job will run, such as in its image; None: it is sent."""
        return None


def how_it_ended(seen: PlatformJob, *, was_connected: bool, has_run: bool) -> tuple[EndReason, str]:
    """How a job ended whose keeper has not reported its end.

    :param was_connected: its keeper had registered.
    :param has_run: its trial may have begun.
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
    """Clauses as one."""
    return "; ".join(clause for clause in clauses if clause)
