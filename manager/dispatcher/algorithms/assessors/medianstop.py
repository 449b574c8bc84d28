"""Median stopping: a trial whose best is worse than what finished trials averaged at the same step is stopped."""

import math
from array import array
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from proctor.manager.dispatcher.algorithms.base import AssessorAlgorithm, ExactMean, loss_of
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES


def _numbers() -> "array[float]":
    return array("d")


@dataclass
class _Curve:
    """A running trial: its losses, and after each step the best so far."""

    losses: "array[float]" = field(default_factory=_numbers)
    best: "array[float]" = field(default_factory=_numbers)

    def add(self, loss: float) -> None:
        self.losses.append(loss)
        self.best.append(min(loss, self.best[-1]) if self.best else loss)

    def cut(self, length: int) -> None:
        """Forget everything from step `length` on."""
        del self.losses[length:], self.best[length:]

    def means(self, rules: int) -> Iterator[float]:
        """Yield the mean of the finite losses so far, step by step; infinity while there is none. By the first rules
        sums are rounded at each step."""
        exact, total, count = ExactMean(), 0.0, 0
        for loss in self.losses:
            if math.isfinite(loss):
                exact.add(loss)
                total, count = total + loss, count + 1
            if rules > 1:
                yield exact.value()
            else:
                yield total / count if count else math.inf


class MedianstopAssessor(AssessorAlgorithm):
    """Judges at every step from `start_step` on. NaN and infinities count as the worst there is.

    The means of finished trials are kept sorted for every step, so a judgment costs the same whatever their number.
    """

    def __init__(self, *, optimize_mode: str = "maximize", start_step: int = 0, rules: int = CURRENT_RULES) -> None:
        self._rules = rules
        self._maximize = optimize_mode == "maximize"
        self._start_step = int(start_step)
        self._running: dict[str, _Curve] = {}
        self._finished_means: list[list[float]] = []

    def assess(self, trial_id: str, sequence: int, value: float) -> bool:
        """Return False if the trial's best is worse than the median of the finished trials' means at this step."""
        curve = self._running.setdefault(trial_id, _Curve())
        if sequence < len(curve.best):
            curve.cut(sequence)
        curve.add(loss_of(value, self._maximize))
        step = len(curve.best)
        if step < self._start_step or step > len(self._finished_means):
            return True
        means = self._finished_means[step - 1]
        return curve.best[-1] <= means[len(means) // 2]

    def trial_restarted(self, trial_id: str, from_sequence: int) -> None:
        """Forget what the new job will report again."""
        if trial_id in self._running:
            self._running[trial_id].cut(from_sequence)

    def trial_end(self, trial_id: str, succeeded: bool) -> None:
        """Count a trial that succeeded among the finished ones."""
        curve = self._running.pop(trial_id, None)
        if curve is None or not succeeded:
            return
        for step, mean in enumerate(curve.means(self._rules)):
            if step == len(self._finished_means):
                self._finished_means.append([])
            insort(self._finished_means[step], mean)
