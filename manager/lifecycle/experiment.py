"""The life of an experiment, and the pure rules by which it moves on by itself."""

from dataclasses import dataclass
from enum import StrEnum

from proctor.manager.lifecycle.experiment_failures import NO_ENDS, TrialEnds, fatal_failures
from proctor.manager.lifecycle.machine import Lifecycle
from proctor.manager.lifecycle.states import ExperimentStatus as Status


class ExperimentEvent(StrEnum):
    """What can happen to an experiment."""

    START = "START"  # its dispatcher is ready
    REACH_LIMIT = "REACH_LIMIT"  # maxTrialNumber, maxExperimentDuration or maxGpuHours
    EXHAUST = "EXHAUST"  # the tuner has nothing more to suggest
    DRAIN = "DRAIN"  # the last running trial has ended
    RAISE_LIMIT = "RAISE_LIMIT"  # there is room for new trials again
    PAUSE = "PAUSE"  # the user wants no new trials
    CONTINUE = "CONTINUE"  # the user wants them again
    FAIL = "FAIL"  # it cannot continue by itself
    STOP = "STOP"  # the user stops it
    FINISH_STOP = "FINISH_STOP"  # the last of it is gone
    RESUME = "RESUME"  # the user starts it again
    VIEW = "VIEW"  # opened for reading only
    CLOSE = "CLOSE"  # no longer viewed


_WORKING = tuple(status for status in Status if status.is_working)

EXPERIMENT = Lifecycle(
    "experiment",
    {
        ExperimentEvent.START: {Status.INITIALIZED: Status.RUNNING},
        ExperimentEvent.REACH_LIMIT: {Status.RUNNING: Status.NO_MORE_TRIAL},
        ExperimentEvent.EXHAUST: {Status.RUNNING: Status.TUNER_NO_MORE_TRIAL},
        ExperimentEvent.DRAIN: {Status.NO_MORE_TRIAL: Status.DONE, Status.TUNER_NO_MORE_TRIAL: Status.DONE},
        ExperimentEvent.RAISE_LIMIT: {
            Status.NO_MORE_TRIAL: Status.RUNNING,
            Status.TUNER_NO_MORE_TRIAL: Status.RUNNING,
            Status.DONE: Status.RUNNING,
        },
        ExperimentEvent.PAUSE: {Status.RUNNING: Status.PAUSED},
        ExperimentEvent.CONTINUE: {Status.PAUSED: Status.RUNNING},
        ExperimentEvent.FAIL: dict.fromkeys((*_WORKING, Status.DONE), Status.ERROR),
        ExperimentEvent.STOP: dict.fromkeys((*_WORKING, Status.DONE, Status.ERROR), Status.STOPPING),
        ExperimentEvent.FINISH_STOP: {Status.STOPPING: Status.STOPPED},
        ExperimentEvent.RESUME: {
            Status.STOPPED: Status.INITIALIZED,
            Status.ERROR: Status.INITIALIZED,
            Status.VIEWED: Status.INITIALIZED,
        },
        ExperimentEvent.VIEW: {Status.STOPPED: Status.VIEWED},
        ExperimentEvent.CLOSE: {Status.VIEWED: Status.STOPPED},
    },
)


@dataclass(frozen=True)
class ExperimentProgress:
    """What the rules look at. Numbers of trials; durations in seconds."""

    status: Status
    created: int  # trials that count against the limit
    max_trials: int | None
    active_seconds: float
    max_seconds: float | None
    live: int  # trials that are WAITING or RUNNING
    requested: int  # suggestions asked for and not yet given
    exhausted: bool  # the tuner's last word was "no more"
    ends: TrialEnds = NO_ENDS
    max_failed: int | None = None
    paused: int = 0  # trials that are PAUSED: they hold no place, but the experiment is not done without them
    paused_by_scheduler: int = 0  # those of them that their trial scheduler has paused, and can have run again
    gpu_hours: float = 0.0  # of all its jobs, up to now
    max_gpu_hours: float | None = None
    has_scheduler: bool = False  # of trials, which can have those that it has paused run again
    idle: bool = False  # the trial scheduler has nothing to run until there is news


def spent_limit(progress: ExperimentProgress) -> str:
    """A sentence about the limit that is reached, or ''."""
    if progress.max_trials is not None and progress.created >= progress.max_trials:
        return f"maxTrialNumber {progress.max_trials} is reached"
    return _spent_budget(progress)


def _spent_budget(progress: ExperimentProgress) -> str:
    """As `spent_limit`, of the limits that also hold for trials that are PAUSED."""
    if progress.max_seconds is not None and progress.active_seconds >= progress.max_seconds:
        return f"maxExperimentDuration {progress.max_seconds:g} s is over"
    if progress.max_gpu_hours is not None and progress.gpu_hours >= progress.max_gpu_hours:
        return f"maxGpuHours {progress.max_gpu_hours:g} is reached"
    return ""


def next_event(progress: ExperimentProgress) -> tuple[ExperimentEvent, str] | None:
    """The move that the experiment makes by itself now, with its reason; None to stay."""
    limit = spent_limit(progress)
    status = progress.status
    unfinished = progress.live + progress.requested + progress.paused
    is_over = status in {Status.NO_MORE_TRIAL, Status.TUNER_NO_MORE_TRIAL} and not unfinished
    failures = fatal_failures(progress.ends, progress.max_failed, is_over=is_over)
    if failures and EXPERIMENT.allows(status, ExperimentEvent.FAIL):
        return ExperimentEvent.FAIL, failures
    if status is Status.RUNNING and limit:
        return ExperimentEvent.REACH_LIMIT, limit
    if status is Status.RUNNING and progress.exhausted and progress.requested == 0:
        return ExperimentEvent.EXHAUST, "the tuner has no more suggestions"
    if status in {Status.NO_MORE_TRIAL, Status.DONE} and not limit and not progress.exhausted:
        return ExperimentEvent.RAISE_LIMIT, "a limit was raised"
    if status is Status.TUNER_NO_MORE_TRIAL and not progress.exhausted and not limit:
        return ExperimentEvent.RAISE_LIMIT, "the tuner may have suggestions again"
    if is_over:
        return ExperimentEvent.DRAIN, limit or "the tuner has no more suggestions"
    return None


@dataclass(frozen=True)
class WantedTrials:
    """How many decisions to ask for, and whether they may be for new trials."""

    count: int
    can_start: bool = True


def wanted_trials(progress: ExperimentProgress, concurrency: int) -> WantedTrials:
    """What to ask for now, so that all places are taken and no limit is passed."""
    room = concurrency - progress.live - progress.requested
    if room <= 0 or progress.idle:
        return WantedTrials(0)
    if progress.status.creates_trials and not progress.exhausted:
        left = room
        if progress.max_trials is not None:
            left = min(room, progress.max_trials - progress.created - progress.requested)
        if left > 0:
            return WantedTrials(left)
    if _resumes_trials(progress) and not progress.requested:
        return WantedTrials(min(room, progress.paused_by_scheduler), can_start=False)
    return WantedTrials(0)


def has_forgotten_trials(progress: ExperimentProgress) -> bool:
    """Whether nothing runs or will, but what the trial scheduler has paused."""
    if not (progress.has_scheduler and progress.paused_by_scheduler) or progress.live or progress.requested:
        return False
    return progress.status.counts_time and (progress.idle or not _resumes_trials(progress))


def _resumes_trials(progress: ExperimentProgress) -> bool:
    """Whether trials that are PAUSED can be asked for: their trial scheduler's."""
    may = progress.has_scheduler and progress.paused_by_scheduler > 0 and progress.status.counts_time
    return may and not _spent_budget(progress)
