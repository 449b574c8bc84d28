"""Median stopping: a trial whose best is worse than the median of what the others averaged by the same time is stopped.

A trial counts among the others if it has come as far, whether it still runs or has ended. So the curves of ended trials
are kept. Where training is counted in steps, the means of all trials are also kept in order for each step, so that a
judgment takes about the same time among ten trials and among many thousands. Seconds are another number for each
report, and so may be the values of a metric: a judgment by them looks at each trial once.

A mean is the exact sum by the number of values, rounded once: the mean of equal values is that value, so that a trial
which is as good as all others is never worse than their median. The first version of the rules took differences of
rounded sums.
"""

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.manager.dispatcher.algorithms.base import ExactMean
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.dispatcher.algorithms.schedulers.base import (
    MetricScheduler,
    counted,
    number_text,
    table,
)
from proctor.sdk.metrics import from_json_word, to_json_word
from proctor.sdk.scheduler import (
    CONTINUE,
    START,
    TIME_TOTAL,
    TRAINING_ITERATION,
    NextTrial,
    PauseVerdict,
    ResumeChoice,
    StopVerdict,
    TrialReport,
    Verdict,
)


def _numbers() -> "array[float]":
    return array("d")


def _median(ordered: "Sequence[float] | _Others") -> float:
    """Return the median of numbers in order, as `statistics.median` does."""
    middle, is_odd = divmod(len(ordered), 2)
    return ordered[middle] if is_odd else (ordered[middle - 1] + ordered[middle]) / 2


class _RoundedSums:
    """The means of the first version of the rules: differences of rounded sums, from all values."""

    def __init__(self) -> None:
        self._sums = _numbers()
        self._before = 0.0

    def add(self, losses: "array[float]", first: int) -> float:
        """Return the mean of the losses from `first` on, of which the last one is new."""
        self._sums.append(losses[-1] + (self._sums[-1] if self._sums else 0.0))
        if first >= len(losses):
            return math.inf
        before = self._sums[first - 1] if first else 0.0
        if math.isinf(before):  # an infinity before the start; the difference of sums would be no number
            return sum(losses[first:]) / (len(losses) - first)
        return (self._sums[-1] - before) / (len(losses) - first)

    def cut(self, losses: "array[float]", first: int) -> None:
        """Forget what is not among the losses any more."""
        del self._sums[len(losses) :]


class _ExactSum:
    """Means from an exact sum."""

    def __init__(self) -> None:
        self._mean = ExactMean()
        self._is_infinite = False

    def add(self, losses: "array[float]", first: int) -> float:
        """Return the mean of the losses from `first` on, of which the last one is new."""
        if first >= len(losses):
            return math.inf
        self._include(losses[-1])
        return math.inf if self._is_infinite else self._mean.value()

    def cut(self, losses: "array[float]", first: int) -> None:
        """Forget what is not among the losses any more."""
        self._mean, self._is_infinite = ExactMean(), False
        for loss in losses[first:]:
            self._include(loss)

    def _include(self, loss: float) -> None:
        if math.isfinite(loss):
            self._mean.add(loss)
        else:
            self._is_infinite = True


@dataclass
class _History:
    """The results of one trial, by rising time."""

    grace_period: float
    sum: _RoundedSums | _ExactSum
    times: "array[float]" = field(default_factory=_numbers)
    losses: "array[float]" = field(default_factory=_numbers)
    best: "array[float]" = field(default_factory=_numbers)
    """The lowest loss up to each of them."""
    means: "array[float]" = field(default_factory=_numbers)
    """The mean from the grace period on, up to each of them; infinity if there is none, or a loss is infinite."""
    ungraced: int = 0
    """How many are of the time before."""

    def cut(self, time: float) -> None:
        """Forget the results from this time on: a trial that went back repeats them."""
        kept = bisect_left(self.times, time)
        if kept == len(self.times):
            return
        del self.times[kept:], self.losses[kept:], self.best[kept:], self.means[kept:]
        self.ungraced = min(self.ungraced, kept)
        self.sum.cut(self.losses, self.ungraced)

    def add(self, time: float, loss: float) -> None:
        """Append a result, later than all others."""
        self.best.append(min(loss, self.best[-1]) if self.best else loss)
        self.times.append(time)
        self.losses.append(loss)
        if time < self.grace_period:
            self.ungraced += 1
        self.means.append(self.sum.add(self.losses, self.ungraced))

    def mean_at(self, time: float) -> float:
        """Return the mean up to a time; infinity if there is none, or a loss is infinite."""
        last = bisect_right(self.times, time)
        return self.means[last - 1] if last else math.inf


class _MeansByStep:
    """For each step that a trial has reported, the finite means up to it of all trials that have come as far, in order.
    One that has passed a step without reporting there counts with its mean so far."""

    def __init__(self) -> None:
        self._steps = _numbers()
        """In order."""
        self._means: dict[float, array[float]] = {}

    def add(self, history: _History, histories: Iterable[_History]) -> None:
        """Put the newest mean of a trial in its place; also those of the steps that it has passed since the one before.

        :param histories: of all trials, this one too.
        """
        time = history.times[-1]
        before = history.times[-2] if len(history.times) > 1 else -math.inf
        for step in self._steps[bisect_right(self._steps, before) : bisect_left(self._steps, time)]:
            self._insert(step, history.mean_at(step))
        if time in self._means:
            self._insert(time, history.means[-1])
            return
        is_furthest = not self._steps or time > self._steps[-1]
        insort(self._steps, time)
        others = (history,) if is_furthest else (each for each in histories if each.times[-1] >= time)
        self._means[time] = array("d", sorted(filter(math.isfinite, (each.mean_at(time) for each in others))))

    def remove(self, history: _History, time: float) -> None:
        """Take the means of a trial away from a time on, before its history is cut there."""
        last = history.times[-1] if history.times else -math.inf
        for step in self._steps[bisect_left(self._steps, time) : bisect_right(self._steps, last)]:
            mean = history.mean_at(step)
            if math.isfinite(mean):
                means = self._means[step]
                del means[bisect_left(means, mean)]

    def others(self, time: float, own: float) -> "_Others":
        """Return the means up to a step, but one that is equal to `own`, if that is finite."""
        means = self._means[time]
        return _Others(means, bisect_left(means, own) if math.isfinite(own) else len(means))

    def _insert(self, step: float, mean: float) -> None:
        if math.isfinite(mean):
            insort(self._means[step], mean)


@dataclass(frozen=True)
class _Others:
    """Numbers in order without one of them."""

    means: "array[float]"
    left_out: int
    """Its place; where that is the end, none is left out."""

    def __len__(self) -> int:
        return len(self.means) - (self.left_out < len(self.means))

    def __getitem__(self, place: int) -> float:
        return self.means[place + (place >= self.left_out)]


class MedianStoppingScheduler(MetricScheduler):
    """The rule of Golovin et al., "Google Vizier: A Service for Black-Box Optimization" (KDD 2017), with Ray Tune's
    arguments."""

    def __init__(
        self,
        *,
        time_attr: str = TIME_TOTAL,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        hard_stop: bool = True,
        seed: int = 0,
        optimize_mode: str = "maximize",
        rules: int = CURRENT_RULES,
    ) -> None:
        super().__init__(time_attr=time_attr, optimize_mode=optimize_mode, seed=seed)
        self._grace_period = grace_period
        self._min_samples = min_samples_required
        self._hard_stop = hard_stop
        self._rules = rules
        self._means = _MeansByStep() if time_attr == TRAINING_ITERATION else None
        self._histories: dict[int, _History] = {}
        """Of all trials that have reported, ended ones too."""
        self._judged: dict[int, str] = {}
        """Living trials that were found to be worse than the median, and why."""
        self._paused: list[int] = []
        """Those of them that are paused, in the order in which they were."""
        self._exempt: set[int] = set()
        """Those that run again, and are judged no more."""
        self._stopped = 0

    # ---- what happens to trials

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        """Compare the trial's best with the median of the others."""
        if trial in self._exempt:
            return CONTINUE
        if trial in self._judged:
            return self._verdict(trial)
        time = result.time(self._time_attr)
        if math.isnan(time):
            return CONTINUE
        history = self._add(trial, time, self._loss(result))
        if time < self._grace_period:
            return CONTINUE
        means = self._means_of_others(trial, time)
        if len(means) < max(self._min_samples, 1):
            return CONTINUE
        middle = _median(means)
        if history.best[-1] <= middle:
            return CONTINUE
        self._judged[trial] = (
            f"has a best of {self._value_text(history.best[-1])} by {number_text(time)}, worse than"
            f" {self._value_text(middle)}, the median of {counted(len(means), 'other trial')}"
        )
        self._stopped += 1
        return self._verdict(trial)

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        """Keep its curve for comparison, with its final metric in the place of the last one."""
        if result is not None and trial not in self._exempt and not math.isnan(time := result.time(self._time_attr)):
            self._add(trial, time, self._loss(result))
        self._forget(trial)

    def on_trial_error(self, trial: int) -> None:
        """Keep its curve for comparison."""
        self._forget(trial)

    def on_trial_remove(self, trial: int) -> None:
        """Keep its curve for comparison."""
        self._forget(trial)

    def on_trial_resume(self, trial: int, chosen: bool = True) -> None:
        """Let it run to its end from now on."""
        if trial in self._judged:
            self._forget(trial)
            self._exempt.add(trial)

    # ---- comparing

    def _add(self, trial: int, time: float, loss: float) -> _History:
        history = self._histories.get(trial)
        if history is None:
            sums = _RoundedSums() if self._rules == 1 else _ExactSum()
            history = self._histories[trial] = _History(self._grace_period, sums)
        if self._means is not None:
            self._means.remove(history, time)
        history.cut(time)
        history.add(time, loss)
        if self._means is not None and time >= self._grace_period:
            self._means.add(history, self._histories.values())
        return history

    def _means_of_others(self, trial: int, time: float) -> Sequence[float] | _Others:
        """Return the finite means of the other trials that have come to a time, in order."""
        if self._means is not None:
            return self._means.others(time, self._histories[trial].means[-1])
        means = (
            others.mean_at(time)
            for other, others in self._histories.items()
            if other != trial and others.times[-1] >= time
        )
        return sorted(filter(math.isfinite, means))

    # ---- decisions

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        """Start new trials; then resume the paused ones, first in, first out."""
        if can_start:
            return START
        if not self._paused:
            return None
        return ResumeChoice(self._paused[0], "continues, since no better trial needs the place")

    def _verdict(self, trial: int) -> Verdict:
        if self._hard_stop:
            return StopVerdict(self._judged[trial])
        if trial not in self._paused:
            self._paused.append(trial)
        return PauseVerdict(self._judged[trial])

    def _forget(self, trial: int) -> None:
        self._exempt.discard(trial)
        if self._judged.pop(trial, None) is not None and trial in self._paused:
            self._paused.remove(trial)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return all curves, and who was found worse than the median."""
        return {
            "histories": [
                [trial, list(history.times), [to_json_word(loss) for loss in history.losses]]
                for trial, history in sorted(self._histories.items())
            ],
            "judged": [[trial, reason] for trial, reason in sorted(self._judged.items())],
            "paused": list(self._paused),
            "exempt": sorted(self._exempt),
            "stopped": self._stopped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another one's curves."""
        for trial, times, losses in state["histories"]:
            for time, loss in zip(times, losses, strict=True):
                self._add(trial, time, from_json_word(loss))
        self._judged = dict(state["judged"])
        self._paused = list(state["paused"])
        self._exempt = set(state["exempt"])
        self._stopped = state["stopped"]

    def describe(self) -> list[dict[str, Any]]:
        """Return how many trials were compared and stopped, and which are paused."""
        fate = "stopped" if self._hard_stop else "paused so far"
        columns = ("trials with results", fate, "paused now")
        tables = [table("Median stopping", columns, [(len(self._histories), self._stopped, len(self._paused))])]
        if self._paused:
            rows = ((trial, self._judged[trial]) for trial in self._paused)
            tables.append(table("Paused trials", ("trial", "because it"), rows, trial_columns=[0]))
        return tables
