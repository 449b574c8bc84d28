"""What the ends of trials say about their experiment: whether all fail with one cause, too many fail, and which causes
there are. Pure.

The counts start over when an experiment is resumed. They are committed together with the end of the trial that they
count, so a restarted manager decides as the one before it would have.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from proctor.manager.lifecycle.states import TrialStatus
from proctor.training_services.base import EndReason

FIRST_ENDS = 10
"""How many trials end before the experiment is judged by what they have in common."""

FAILURES = frozenset(
    {
        EndReason.EXITED_ERROR,
        EndReason.OUT_OF_MEMORY,
        EndReason.SIGNALED,
        EndReason.LAUNCH_FAILED,
        EndReason.UNPLACEABLE,
    }
)
"""The end reasons of last jobs by which a trial has failed for a cause that further trials may share. All others are
the doing of the user, of an algorithm or of the infrastructure."""

_PATH = re.compile(r"(?<![\w.~])(?:[A-Za-z]:\\|~?/|\.{1,2}/)[^\s'\":,;()<>\[\]]+")
_HEX = re.compile(r"\b(?:0[xX][0-9a-fA-F]+|(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,})\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class TrialEnds:
    """What is counted of the trials that have ended since the experiment was created or resumed last.

    Trials that were canceled, or that infrastructure has ended, are left out; so are failures of jobs that had been
    submitted before the resume.
    """

    ended: int = 0
    failed: int = 0
    alike: int = 0  # of the first FIRST_ENDS those that failed with one cause, up to the first that did not
    cause: str = ""  # of the first one that failed
    without_final: int = 0  # that succeeded without a final metric


NO_ENDS = TrialEnds()


def cause_of_failure(status: TrialStatus, end: EndReason, detail: str) -> str:
    """Why a trial has failed, if its end counts as a failure of its experiment's trials; else ""."""
    if status.has_result or end not in FAILURES:
        return ""
    return f"{end.value} ({detail})" if detail else end.value


def count_end(ends: TrialEnds, status: TrialStatus, cause: str, *, has_final: bool) -> TrialEnds:
    """The counts after one more trial has ended.

    :param cause: from `cause_of_failure`.
    """
    if status.has_result:
        missing = status is TrialStatus.SUCCEEDED and not has_final
        return replace(ends, ended=ends.ended + 1, without_final=ends.without_final + missing)
    if not cause:
        return ends
    first = ends.cause or cause
    is_alike = ends.ended < FIRST_ENDS and ends.alike == ends.ended and normalized(cause) == normalized(first)
    return replace(ends, ended=ends.ended + 1, failed=ends.failed + 1, alike=ends.alike + is_alike, cause=first)


def fatal_failures(ends: TrialEnds, max_failed: int | None, *, is_over: bool) -> str:
    """Why the experiment must not continue, as a sentence; "" if it may.

    :param is_over: no trial is left, and none would be created.
    """
    judged = min(ends.ended, FIRST_ENDS)
    if ends.alike == judged and judged >= (1 if is_over else FIRST_ENDS):
        if judged == 1:
            found = "the only finished trial failed"
        else:
            which = f"the first {judged}" if judged == FIRST_ENDS else f"all {judged}"
            found = f"{which} trials that have ended failed with one cause"
        return f"{found}: {ends.cause}; correct it, then resume the experiment"
    if max_failed is not None and ends.failed >= max_failed:
        trials = "1 trial has" if ends.failed == 1 else f"{ends.failed} trials have"
        return f"{trials} failed, maxFailedTrials is {max_failed}; the first one: {ends.cause}"
    return ""


def normalized(reason: str) -> str:
    """A reason without what differs between trials that fail with one cause: paths, hexadecimal and other numbers."""
    return _NUMBER.sub("0", _HEX.sub("0", _PATH.sub("/", reason)))


def first_line(reason: str) -> str:
    """The first line of a reason that has something in it."""
    return reason.strip().partition("\n")[0].rstrip()


def most_frequent(reasons: Sequence[str]) -> tuple[str, int]:
    """The first of the reasons that occur most often, and how often. Those that are equal when normalized are one."""
    kinds = [normalized(reason) for reason in reasons]
    [(kind, times)] = Counter(kinds).most_common(1) or [("", 0)]
    return next((reason for reason, each in zip(reasons, kinds, strict=True) if each == kind), ""), times


def is_worth_a_notice(number: int) -> bool:
    """Whether the trial that makes a count reach this number is noticed: 1, 10, 100, …"""
    return number >= 1 and set(str(number)[1:]) <= {"0"} and str(number)[0] == "1"


# ---- the causes of all failures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailedTrial:
    """A trial that has failed; `end_reason` and `node_id` are those of its last job, None where there is none."""

    id: str
    sequence_id: int
    end_reason: str | None
    reason: str
    node_id: str | None


@dataclass(slots=True)
class FailureCause:
    """The trials that failed with one end reason and equal first lines of their reasons, when normalized."""

    example: FailedTrial
    """The first that was counted."""
    trials: int = 0
    by_node: Counter[str | None] = field(default_factory=Counter)


def group_by_cause(trials: Iterable[FailedTrial]) -> list[FailureCause]:
    """The causes by which these trials failed, the most frequent first."""
    causes: dict[tuple[str | None, str], FailureCause] = {}
    for trial in trials:
        kind = (trial.end_reason, normalized(first_line(trial.reason)))
        cause = causes.setdefault(kind, FailureCause(trial))
        cause.trials += 1
        cause.by_node[trial.node_id] += 1
    return sorted(causes.values(), key=lambda cause: -cause.trials)
