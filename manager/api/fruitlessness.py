"""Said of an experiment none of whose trials has succeeded: how many have ended, and what ended most of them."""

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store import trials
from proctor.manager.store.rows import ExperimentRow, TrialRow

MOST_LOOKED_AT = 100
"""Of the newest ends. The cost of the sentence does not grow with the experiment."""

_NUMBER = re.compile(r"\d+(\.\d+)?")


def failure_of(
    connection: sqlite3.Connection,
    experiment: ExperimentRow,
    *,
    counts: Mapping[TrialStatus, int],
    best: TrialRow | None,
) -> str:
    """Where trials have ended and none has succeeded, a clause that says so, with the most frequent reason; else ''.

    A trial that was stopped early may be as intended: it counts once the experiment is over, and only without a metric.
    """
    ended = {status: number for status, number in counts.items() if status.is_terminal and number}
    if not ended or best is not None or ended.keys() & {TrialStatus.SUCCEEDED, TrialStatus.UNKNOWN}:
        return ""
    if experiment.ended_at is None and TrialStatus.EARLY_STOPPED in ended:
        return ""
    reasons = trials.newest_reasons(connection, experiment.id, statuses=tuple(ended), limit=MOST_LOOKED_AT)
    return _sentence(sum(ended.values()), reasons)


def _sentence(total: int, reasons: Sequence[str]) -> str:
    """`reasons` are those of the newest of `total` ended trials, newest first."""
    reason, times = most_frequent(reasons)
    reason = reason or "no reason was given"
    if total == 1:
        return f"the only trial that has ended has not succeeded: {reason}"
    looked = f"{len(reasons)}" if len(reasons) == total else f"the newest {len(reasons)}"
    return f"none of {total} trials has succeeded; {times} of {looked} ended with: {reason}"


def most_frequent(reasons: Sequence[str]) -> tuple[str, int]:
    """The first of the reasons that occur most often, and how often; reasons that differ in numbers only are one."""
    counts = Counter(_NUMBER.sub("0", reason) for reason in reasons)
    [(kind, times)] = counts.most_common(1) or [("", 0)]
    return next((reason for reason in reasons if _NUMBER.sub("0", reason) == kind), ""), times
