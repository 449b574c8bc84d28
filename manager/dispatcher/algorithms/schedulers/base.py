"""What every built-in trial scheduler shares: one direction of values, one measure of time, and words for reasons."""

import math
from collections.abc import Iterable
from typing import Any

from proctor.manager.dispatcher.algorithms.base import loss_of
from proctor.sdk.scheduler import MOST_ROWS, TRAINING_ITERATION, TrialReport, TrialScheduler


class MetricScheduler(TrialScheduler):
    """Compares trials by one number. Inside, lower is better: a loss, which is infinite for NaN and infinities."""

    def __init__(self, *, time_attr: str, optimize_mode: str, seed: int) -> None:
        self.seed = seed
        self._time_attr = time_attr
        self._maximize = optimize_mode == "maximize"

    def _loss(self, result: TrialReport) -> float:
        return loss_of(result.value, self._maximize)

    def _value(self, loss: float | None) -> float | None:
        """Return the value behind a loss; None where there is no finite one."""
        if loss is None or not math.isfinite(loss):
            return None
        return -loss + 0.0 if self._maximize else loss

    def _value_text(self, loss: float | None) -> str:
        value = self._value(loss)
        return "no number" if value is None else f"{value:.4g}"

    def _step_of(self, milestone: float) -> int | None:
        """Return the first step that reaches a milestone; None where time is not counted in steps."""
        return math.ceil(milestone) if self._time_attr == TRAINING_ITERATION and math.isfinite(milestone) else None


def table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]], *, trial_columns: Iterable[int] = ()
) -> dict[str, Any]:
    """Return what `describe` returns of one table, cut to the rows that can be read."""
    kept = [list(row) for row in rows]
    if len(kept) > MOST_ROWS:
        title = f"{title} (the first {MOST_ROWS} of {len(kept)})"
    return {
        "title": title,
        "columns": list(columns),
        "rows": kept[:MOST_ROWS],
        "trial_columns": list(trial_columns),
    }


def plain(number: float) -> float:
    """Return a time without the .0 of a whole one."""
    return int(number) if float(number).is_integer() else number


def number_text(number: float) -> str:
    """Return a time or a factor as people write it: 9, 2.5."""
    return str(int(number)) if float(number).is_integer() else f"{number:.6g}"


def ordinal(position: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, 11th."""
    if position % 100 in (11, 12, 13):
        return f"{position}th"
    return f"{position}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(position % 10, 'th') }"


def counted(count: int, noun: str) -> str:
    """Return "1 trial", "2 trials"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
