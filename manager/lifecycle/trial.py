"""The life of a trial: one set of parameters, through retries and pauses to exactly one end."""

from enum import StrEnum

from proctor.manager.lifecycle.machine import Lifecycle
from proctor.manager.lifecycle.states import TrialStatus as Status


class TrialEvent(StrEnum):
    """What can happen to a trial."""

    START = "START"  # its job runs
    WAIT = "WAIT"  # its job has ended and another one will follow
    PAUSE = "PAUSE"  # give up the place, keep the checkpoint
    RESUME = "RESUME"  # wait for a place again
    SUCCEED = "SUCCEED"
    FAIL = "FAIL"
    STOP_EARLY = "STOP_EARLY"
    CANCEL_BY_USER = "CANCEL_BY_USER"
    CANCEL_BY_SYSTEM = "CANCEL_BY_SYSTEM"


class DecisionKind(StrEnum):
    """What an algorithm can decide of a trial that exists, when it is asked which one runs next."""

    RESUME = "resume"
    CLONE = "clone"


class PausedBy(StrEnum):
    """Who has paused a trial. Only that one has it run again."""

    USER = "USER"  # a user has paused this trial
    EXPERIMENT = "EXPERIMENT"  # a user has paused its experiment together with its trials
    SCHEDULER = "SCHEDULER"  # its trial scheduler


_LIVE = tuple(status for status in Status if not status.is_terminal)

ENDS = {
    Status.SUCCEEDED: TrialEvent.SUCCEED,
    Status.FAILED: TrialEvent.FAIL,
    Status.EARLY_STOPPED: TrialEvent.STOP_EARLY,
    Status.USER_CANCELED: TrialEvent.CANCEL_BY_USER,
    Status.SYS_CANCELED: TrialEvent.CANCEL_BY_SYSTEM,
}
"""Which event leads to which terminal status."""

TRIAL = Lifecycle(
    "trial",
    {
        TrialEvent.START: {Status.WAITING: Status.RUNNING},
        TrialEvent.WAIT: {Status.RUNNING: Status.WAITING, Status.WAITING: Status.WAITING},
        TrialEvent.PAUSE: {Status.WAITING: Status.PAUSED, Status.RUNNING: Status.PAUSED},
        TrialEvent.RESUME: {Status.PAUSED: Status.WAITING},
        **{event: dict.fromkeys(_LIVE, status) for status, event in ENDS.items()},
    },
)
