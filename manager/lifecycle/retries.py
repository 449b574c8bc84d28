"""What the end of a trial job means for its trial: whether it is retried, which budget pays, and how long it waits."""

from dataclasses import dataclass
from enum import StrEnum

from proctor.manager.lifecycle.states import TrialStatus
from proctor.training_services.base import EndReason


class Charge(StrEnum):
    """Whose retry budget a job's end is charged to."""

    FINAL = "FINAL"  # none: the trial is over
    TRIAL = "TRIAL"  # maxTrialRetries
    INFRASTRUCTURE = "INFRASTRUCTURE"  # maxInfrastructureRetries
    FREE = "FREE"  # none: it runs again however often this happens
    PAUSE = "PAUSE"  # none: it runs again when it is resumed


@dataclass(frozen=True)
class Meaning:
    """`status` is what the trial becomes when it is not retried, `with_final` what it becomes when its final metric is
    stored, in which case it is never retried."""

    status: TrialStatus
    charge: Charge
    with_final: TrialStatus = TrialStatus.SUCCEEDED


MEANINGS: dict[EndReason, Meaning] = {
    EndReason.EXITED_OK: Meaning(TrialStatus.SUCCEEDED, Charge.FINAL),
    EndReason.EXITED_ERROR: Meaning(TrialStatus.FAILED, Charge.TRIAL, with_final=TrialStatus.FAILED),
    EndReason.OUT_OF_MEMORY: Meaning(TrialStatus.FAILED, Charge.TRIAL),
    EndReason.SIGNALED: Meaning(TrialStatus.FAILED, Charge.INFRASTRUCTURE),
    EndReason.DEADLINE: Meaning(TrialStatus.EARLY_STOPPED, Charge.FINAL, with_final=TrialStatus.EARLY_STOPPED),
    EndReason.CANCELED: Meaning(TrialStatus.SYS_CANCELED, Charge.INFRASTRUCTURE),
    EndReason.EARLY_STOPPED: Meaning(TrialStatus.EARLY_STOPPED, Charge.FINAL, with_final=TrialStatus.EARLY_STOPPED),
    EndReason.BUDGET_USED: Meaning(TrialStatus.SUCCEEDED, Charge.FINAL),
    EndReason.USER_CANCELED: Meaning(TrialStatus.USER_CANCELED, Charge.FINAL, with_final=TrialStatus.USER_CANCELED),
    EndReason.EXPERIMENT_STOPPED: Meaning(TrialStatus.SYS_CANCELED, Charge.FREE),
    EndReason.PAUSED: Meaning(TrialStatus.PAUSED, Charge.PAUSE),
    EndReason.CLONED: Meaning(TrialStatus.SYS_CANCELED, Charge.FREE),
    EndReason.LAUNCH_FAILED: Meaning(TrialStatus.FAILED, Charge.TRIAL),
    EndReason.EXIT_UNKNOWN: Meaning(TrialStatus.SYS_CANCELED, Charge.INFRASTRUCTURE),
    EndReason.NODE_LOST: Meaning(TrialStatus.SYS_CANCELED, Charge.INFRASTRUCTURE),
    EndReason.LEASE_EXPIRED: Meaning(TrialStatus.SYS_CANCELED, Charge.INFRASTRUCTURE),
    EndReason.NO_ROOM: Meaning(TrialStatus.SYS_CANCELED, Charge.FREE),
    EndReason.RESULT_LOST: Meaning(TrialStatus.FAILED, Charge.INFRASTRUCTURE),
    EndReason.CHECKPOINT_DAMAGED: Meaning(TrialStatus.SYS_CANCELED, Charge.FREE),
    EndReason.PREEMPTED: Meaning(TrialStatus.SYS_CANCELED, Charge.FREE),
    EndReason.UNPLACEABLE: Meaning(TrialStatus.SYS_CANCELED, Charge.FINAL),
    EndReason.INFRASTRUCTURE: Meaning(TrialStatus.SYS_CANCELED, Charge.INFRASTRUCTURE),
}

_INTERRUPTIONS = frozenset(
    {
        EndReason.EXPERIMENT_STOPPED,
        EndReason.PAUSED,
        EndReason.CLONED,
        EndReason.CHECKPOINT_DAMAGED,
        EndReason.PREEMPTED,
    }
)
"""Decisions after which the trial is meant to run again."""
_DECISIONS = _INTERRUPTIONS - {EndReason.PREEMPTED} | {
    EndReason.DEADLINE,
    EndReason.EARLY_STOPPED,
    EndReason.BUDGET_USED,
    EndReason.USER_CANCELED,
}
"""Reasons that say who decided to end a job, rather than how it left. PREEMPTED may be the platform's word, too."""

_MOST_DOUBLINGS = 64
"""Of a delay: far beyond every limit, and still a number that a float can hold."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a trial may be tried again, and how long it waits: not at all after a job that made progress, else
    `backoff_seconds`, doubled after each further job in a row that has not."""

    max_trial_retries: int = 0  # negative: without a limit
    max_infrastructure_retries: int = 5  # negative: without a limit
    retry_exit_codes: frozenset[int] = frozenset()
    """Exit codes of a command that are charged to infrastructure."""
    backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0
    no_room_seconds: float = 5.0
    """How long a trial waits that was given back by a full disk. Its node tells when it has room; this is for those
    that do not."""


@dataclass(frozen=True)
class RetryDecision:
    """What becomes of the trial. `retry_after_seconds` is None unless `status` is WAITING."""

    status: TrialStatus
    failures: int
    infrastructure_failures: int
    retry_after_seconds: float | None


def settled_reason(
    end: EndReason, stop_reason: EndReason | None, *, has_final: bool, final_lost: bool = False
) -> EndReason:
    """Why a job ended, given who had asked it to stop: a stop that was committed first wins over how the job left, so
    that a trial the user has canceled does not run again because its node was lost meanwhile.

    Except that a trial which finished its work while it was to be interrupted has simply finished. One that has
    reported a final metric that was lost has not.
    """
    if end is EndReason.EXITED_OK and final_lost and not has_final:
        end = EndReason.RESULT_LOST
    if stop_reason is None or end in _DECISIONS:
        return end
    if end is EndReason.EXITED_OK and has_final and stop_reason in {*_INTERRUPTIONS, EndReason.BUDGET_USED}:
        return end
    return stop_reason


def judge(
    end: EndReason,
    *,
    failures: int,
    infrastructure_failures: int,
    policy: RetryPolicy,
    fruitless_jobs: int = 1,
    has_final: bool = False,
    exit_code: int | None = None,
) -> RetryDecision:
    """Apply the table: end the trial, keep it PAUSED, or send it back to WAITING and charge the budget it says.

    :param fruitless_jobs: how many of its newest jobs, this one included, have ended without a report or a checkpoint.
    :param has_final: the trial's final metric is stored. It is the trial's result, so nothing runs again.
    :param exit_code: of the command, if it has exited.
    """
    meaning = MEANINGS[end]
    if has_final:
        return RetryDecision(meaning.with_final, failures, infrastructure_failures, None)
    delay = retry_delay(fruitless_jobs, policy)
    charge = meaning.charge
    if end is EndReason.EXITED_ERROR and exit_code in policy.retry_exit_codes:
        charge = Charge.INFRASTRUCTURE
    if charge is Charge.FREE:
        delay = max(delay, policy.no_room_seconds) if end is EndReason.NO_ROOM else delay
        return RetryDecision(TrialStatus.WAITING, failures, infrastructure_failures, delay)
    if charge is Charge.TRIAL and _has_left(policy.max_trial_retries, failures):
        return RetryDecision(TrialStatus.WAITING, failures + 1, infrastructure_failures, delay)
    if charge is Charge.INFRASTRUCTURE and _has_left(policy.max_infrastructure_retries, infrastructure_failures):
        return RetryDecision(TrialStatus.WAITING, failures, infrastructure_failures + 1, delay)
    return RetryDecision(meaning.status, failures, infrastructure_failures, None)


def _has_left(budget: int, spent: int) -> bool:
    return budget < 0 or spent < budget


def retry_delay(fruitless_jobs: int, policy: RetryPolicy) -> float:
    """Seconds that a trial waits after so many jobs in a row that ended without a report or a checkpoint."""
    if fruitless_jobs < 1:
        return 0.0
    doublings = min(fruitless_jobs - 1, _MOST_DOUBLINGS)
    return min(policy.backoff_seconds * 2.0**doublings, policy.max_backoff_seconds)
