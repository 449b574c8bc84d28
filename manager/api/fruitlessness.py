"""Said of an experiment without a success: how many trials have ended, and what ended most of them; or, without a
best trial, what became of the final metrics."""

import json
import sqlite3
from collections.abc import Mapping, Sequence

from proctor.manager.lifecycle.failures import most_frequent
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store import trials
from proctor.manager.store.rows import ExperimentRow, TrialRow

MOST_LOOKED_AT = 100
"""Of the newest ends. The cost of the sentence does not grow with the experiment."""

MOST_SHOWN = 60
"""Characters of a final metric."""


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


def no_best_reason(
    connection: sqlite3.Connection,
    experiment: ExperimentRow,
    *,
    counts: Mapping[TrialStatus, int],
    best: TrialRow | None,
) -> str:
    """Where there is no best trial, a clause that says why; else ''. Looks at the newest trials of each status only."""
    if best is not None:
        return ""
    present = [status for status, number in counts.items() if number]
    for status in sorted(present, key=lambda status: (status not in trials.RANKED, not status.is_terminal)):
        found = trials.a_final_metric(connection, experiment.id, status, limit=MOST_LOOKED_AT)
        if found is None:
            continue
        if status in trials.RANKED:
            data = json.dumps(found.final_data, ensure_ascii=False)[:MOST_SHOWN].strip('"')
            return (
                f"no final metric is a finite number that could be compared; trial {found.sequence_id} reported {data}"
            )
        if status.is_terminal:
            return f"only trials without success have reported a final metric; trial {found.sequence_id} is {status}"
        return f"trial {found.sequence_id} has reported a final metric, but has not ended yet"
    newest = f"none of the newest {MOST_LOOKED_AT} trials" if sum(counts.values()) > MOST_LOOKED_AT else "no trial"
    return f"{newest} has reported a final metric" + ("" if experiment.ended_at else " yet")


def _sentence(total: int, reasons: Sequence[str]) -> str:
    """`reasons` are those of the newest of `total` ended trials, newest first."""
    reason, times = most_frequent(reasons)
    reason = reason or "no reason was given"
    if total == 1:
        return f"the only trial that has ended has not succeeded: {reason}"
    looked = f"{len(reasons)}" if len(reasons) == total else f"the newest {len(reasons)}"
    return f"none of {total} trials has succeeded; {times} of {looked} ended with: {reason}"
