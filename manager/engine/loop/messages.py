"""What can reach an experiment's loop, from its service, its dispatcher, its timers and its user; and its inbox.

A message of which the store refuses a value must not hurt others: the loop takes such messages apart (`parts`) and
handles each part alone. Of a part that is refused again, `substitutes` makes messages that say so without the value.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from proctor.manager.actors import ASSESSOR, MANAGER, TRIAL_SCHEDULER, TUNER, USER, Actor
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import DispatcherRestarted, DispatcherSilent
from proctor.manager.dispatcher.protocol import Error, Initialized, KillTrial, NewTrial, NoMoreTrials
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables.metrics import StoredChunk
from proctor.sdk.json_input import LATEST_TIME
from proctor.training_services.base import CheckpointOffer, EndReason, Exit, JobStart, StatusChange

LAZY_SECONDS = 0.02
"""How long a lazy message may wait for company, so that a metric and the exit right after it share a commit."""


@dataclass(frozen=True)
class JobsChanged:
    """The service has seen jobs move."""

    changes: Sequence[StatusChange]


@dataclass(frozen=True)
class MetricsStored:
    """Journal chunks of live jobs are committed in the metrics database."""

    chunks: Sequence[tuple[str, StoredChunk]]  # by job id, in the order they were stored


@dataclass(frozen=True)
class JobRefused:
    """The service would not take a job."""

    job_id: str
    token: str
    reason: EndReason
    detail: str


@dataclass(frozen=True)
class SuggestionRefused:
    """The store refuses the parameters of a suggestion."""

    parameter_id: int
    position: int
    why: str


@dataclass(frozen=True)
class MetricsRefused:
    """The store refuses what a job has reported."""

    job_id: str
    why: str


@dataclass(frozen=True)
class Delayed:
    """The service cannot do at the moment what it was asked to do with a job; it is asked again."""

    job_id: str
    token: str
    reason: str = ""  # of the trial; "": it stays
    notice: str = ""


@dataclass(frozen=True)
class NoticePosted:
    """Something that the user should know of the experiment."""

    text: str


@dataclass(frozen=True)
class DispatcherFailed:
    """The dispatcher cannot be kept alive."""

    summary: str


@dataclass(frozen=True)
class DispatcherLeft:
    """The dispatcher is no longer there."""


@dataclass(frozen=True)
class Wake:
    """Something outside has changed (capacity, a deadline): look again."""


# ---- the user's commands; each is answered when it is committed -----------------------------------------------------


@dataclass(frozen=True)
class CancelTrial:
    """End a trial because the user asked for it."""

    trial_id: str


@dataclass(frozen=True)
class PauseByUser:
    """Keep a live trial without a place until a user resumes it."""

    trial_id: str


@dataclass(frozen=True)
class ResumeByUser:
    """Have a trial that a user has paused run again."""

    trial_id: str


@dataclass(frozen=True)
class TrialOrigin:
    """What a new trial is cloned or retried from; with a checkpoint, it begins with that."""

    trial: TrialRow
    checkpoint: CheckpointOffer | None = None
    checkpoint_id: int | None = None  # its own, where it is registered


@dataclass(frozen=True)
class AddTrial:
    """Run a trial with these parameters, which no tuner has suggested."""

    parameters: Any
    source: str = "customized"
    origin: TrialOrigin | None = None
    outside: str = ""
    """How they are outside of the search space, as a clause: those of an earlier trial may be."""


@dataclass(frozen=True)
class ImportRows:
    """Give the tuner imported results: rows of {"parameter", "value"}."""

    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ChangeLimits:
    """New values of columns of the experiment's row: limits, search space."""

    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Stop starting new trials."""

    trials: bool = False  # and pause the live ones


@dataclass(frozen=True)
class Continue:
    """Create trials again."""

    trials: bool = False  # and resume those that were paused with it


@dataclass(frozen=True)
class StopExperiment:
    """Stop the experiment: its jobs end, its waiting trials are kept for a resume."""


LoopMessage = (
    JobsChanged
    | MetricsStored
    | JobRefused
    | SuggestionRefused
    | MetricsRefused
    | Delayed
    | NoticePosted
    | DispatcherRestarted
    | DispatcherSilent
    | DispatcherFailed
    | DispatcherLeft
    | Wake
    | CancelTrial
    | PauseByUser
    | ResumeByUser
    | AddTrial
    | ImportRows
    | ChangeLimits
    | Pause
    | Continue
    | StopExperiment
    | Initialized
    | NewTrial
    | protocol.ResumeTrial
    | protocol.CloneTrial
    | NoMoreTrials
    | protocol.PauseTrial
    | KillTrial
    | protocol.StateSaved
    | protocol.Milestone
    | protocol.SchedulerTables
    | Error
)


@dataclass
class Envelope:
    """A message and, when a caller waits for it, where its answer goes."""

    message: LoopMessage
    answer: asyncio.Future[Any] | None = None
    actor: Actor | None = None
    """Who asks; None: no user does."""

    def resolve(self, value: Any) -> None:
        """Give the answer, if it is still wanted."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(value)

    def refuse(self, error: BaseException) -> None:
        """Give an error instead."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)


@dataclass
class Inbox:
    """Messages in order, each with the future of the caller that waits for its commit.

    Unbounded, but everything that fills it is paced by commits.
    """

    _waiting: list[Envelope] = field(default_factory=list)
    _taken: list[Envelope] = field(default_factory=list)  # the loop handles them
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: BaseException | None = None

    def post(self, message: LoopMessage, *, lazy: bool = False) -> None:
        """Leave a message. A lazy one is read with the next message, at the latest after LAZY_SECONDS."""
        self._waiting.append(Envelope(message))
        if lazy:
            asyncio.get_running_loop().call_later(LAZY_SECONDS, self._arrived.set)
        else:
            self._arrived.set()

    async def ask(self, message: LoopMessage, actor: Actor = USER) -> Any:
        """Leave a message of a user and wait until what it led to is committed. Raises what its handler raised."""
        if self._closed is not None:
            raise self._closed
        envelope = Envelope(message, asyncio.get_running_loop().create_future(), actor)
        self._waiting.append(envelope)
        self._arrived.set()
        return await envelope.answer  # type: ignore[misc]

    async def take(self, timeout_seconds: float | None) -> list[Envelope]:
        """Everything that has come; empty when the time is over. What was taken before is done with."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._arrived.wait()
        self._arrived.clear()
        self._taken, self._waiting = self._waiting, []
        return list(self._taken)

    def close(self, error: BaseException) -> None:
        """The loop has ended: `error` is the answer to every message that has none yet, also of those that the loop had
        taken, and to every later one. Idempotent: the first error stands."""
        self._closed = self._closed or error
        for envelope in (*self._taken, *self._waiting):
            envelope.refuse(error)
        self._taken, self._waiting = [], []


# ---- values that the store refuses -----------------------------------------------------------------------------------

_REQUESTS = (
    CancelTrial | PauseByUser | ResumeByUser | AddTrial | ImportRows | ChangeLimits | Pause | Continue | StopExperiment
)


def named_checkpoints(messages: Iterable[LoopMessage]) -> list[int]:
    """The ids of the checkpoints with which new trials are to begin."""
    origins = [message.origin for message in messages if isinstance(message, AddTrial) and message.origin is not None]
    return [origin.checkpoint_id for origin in origins if origin.checkpoint_id is not None]


def concerned_trials(message: LoopMessage) -> set[str] | None:
    """The trials, perhaps PAUSED ones, that a message is about; None: all that were paused with their experiment."""
    match message:
        case PauseByUser(trial_id) | ResumeByUser(trial_id) | CancelTrial(trial_id):
            return {trial_id}
        case protocol.ResumeTrial(trial_id=trial_id) | protocol.CloneTrial(trial_id=trial_id):
            return {trial_id}
        case KillTrial(trial_id=trial_id):
            return {trial_id}
        case Continue(trials=True):
            return None
    return set()


def is_request(message: LoopMessage) -> bool:
    """Whether a user waits for its answer, which may be that it is refused."""
    return isinstance(message, _REQUESTS)


def actor_of(message: LoopMessage) -> Actor:
    """Who causes what a message leads to that no user has sent."""
    match message:
        case protocol.KillTrial(by=by):
            return TRIAL_SCHEDULER if by == "scheduler" else ASSESSOR
        case protocol.PauseTrial() | protocol.ResumeTrial() | protocol.CloneTrial() | protocol.SchedulerTables():
            return TRIAL_SCHEDULER
        case protocol.NewTrial() | protocol.NoMoreTrials():
            return TUNER
    return MANAGER


def parts(message: LoopMessage) -> Sequence[LoopMessage]:
    """The same as messages that are each about one job."""
    match message:
        case JobsChanged(changes):
            return [JobsChanged((change,)) for change in changes]
        case MetricsStored(chunks):
            return [MetricsStored((chunk,)) for chunk in chunks]
    return [message]


def substitutes(message: LoopMessage, why: str, now: float) -> Sequence[LoopMessage]:
    """What to handle instead of a part that the store refuses.

    :param why: a clause.
    :param now: Unix time.
    """
    match message:
        case protocol.NewTrial(position=position, parameter_id=parameter_id):
            text = f"the parameters that were suggested cannot be stored: {why}"
            return [SuggestionRefused(parameter_id, position, text)]
        case protocol.CloneTrial(position=position, parameter_id=parameter_id, trial_id=trial_id):
            text = f"the parameters with which trial {trial_id} was to continue cannot be stored: {why}"
            return [protocol.ResumeTrial(position, parameter_id, trial_id), NoticePosted(text)]
        case MetricsStored(((job_id, _),)):
            return [MetricsRefused(job_id, f"its final metric cannot be stored: {why}")]
        case JobsChanged((change,)):
            text = f"what its platform reported cannot be stored: {why}"
            short = JobsChanged((_without_words(change, text, now),))
            return [short, NoticePosted(f"trial job {change.job_id}: {text}")]
        case JobRefused(job_id, token, reason):
            return [JobRefused(job_id, token, reason, f"the reason cannot be stored: {why}")]
        case protocol.Error() | DispatcherFailed():
            return [DispatcherFailed(f"the dispatcher failed; its error message cannot be stored: {why}")]
        case _:
            return [NoticePosted(f"something that cannot be stored was omitted ({type(message).__name__}): {why}")]


def _without_words(change: StatusChange, text: str, now: float) -> StatusChange:
    """Only what the trial's fate depends on. The end of a job remains an end, for the same reason."""
    time = datetime.fromtimestamp(now, UTC)
    if change.exit is None:
        start = None if change.start is None else JobStart(change.start.checkpoint)
        return StatusChange(change.job_id, change.token, change.status, time, detail=text, start=start)
    end = change.exit
    by_times = end.ended_at - end.started_at if end.started_at else 0.0
    ran = by_times if end.run_seconds is None else end.run_seconds
    ran = min(ran, LATEST_TIME) if ran >= 0 else 0.0
    exit = Exit(end.reason, None, None, 0.0, now, text, end.lost, end.lost_finals, run_seconds=ran)
    return replace(StatusChange(change.job_id, change.token, change.status, time, detail=text), exit=exit)
