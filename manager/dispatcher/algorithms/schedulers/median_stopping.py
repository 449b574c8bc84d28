"""Median stopping: a trial whose best is worse than the median of what the others averaged by the same time is stopped.

A trial counts among the others if it has come as far, whether it still runs or has ended. So the curves of ended trials
are kept, and a judgment takes time in proportion to the number of trials: this scheduler is for hundreds or a few
thousand of them, ASHA for more.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from statistics import median
from typing import Any

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
    NextTrial,
    PauseVerdict,
    ResumeChoice,
    StopVerdict,
    TrialReport,
    Verdict,
)


def _numbers() -> "array[float]":
    return array("d")


@dataclass
class _History:
    """The results of one trial, by rising time."""

    times: "array[float]" = field(default_factory=_numbers)
    losses: "array[float]" = field(default_factory=_numbers)
    best: "array[float]" = field(default_factory=_numbers)
    """The lowest loss up to each of them."""
    sums: "array[float]" = field(default_factory=_numbers)
    """Of the losses up to each of them."""

    def add(self, time: float, loss: float) -> None:
        """Append a result; a trial that went back repeats what it had done from there."""
        kept = bisect_left(self.times, time)
        del self.times[kept:], self.losses[kept:], self.best[kept:], self.sums[kept:]
        self.best.append(min(loss, self.best[-1]) if kept else loss)
        self.sums.append(loss + (self.sums[-1] if kept else 0.0))
        self.times.append(time)
        self.losses.append(loss)

    def mean(self, start: float, end: float) -> float:
        """Return the mean loss between two times; infinity if there is none, or one is infinite."""
        first, last = bisect_left(self.times, start), bisect_right(self.times, end)
        if first >= last:
            return math.inf
        before = self.sums[first - 1] if first else 0.0
        if math.isinf(before):  # an infinity before the start; the difference of sums would be no number
            return sum(self.losses[first:last]) / (last - first)
        return (self.sums[last - 1] - before) / (last - first)


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
    ) -> None:
        super().__init__(time_attr=time_attr, optimize_mode=optimize_mode, seed=seed)
        self._grace_period = grace_period
        self._min_samples = min_samples_required
        self._hard_stop = hard_stop
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
        history = self._histories.setdefault(trial, _History())
        history.add(time, self._loss(result))
        if time < self._grace_period:
            return CONTINUE
        means = [
            mean
            for other, others in self._histories.items()
            if other != trial and others.times[-1] >= time
            if math.isfinite(mean := others.mean(self._grace_period, time))
        ]
        if len(means) < max(self._min_samples, 1):
            return CONTINUE
        middle = median(means)
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
            self._histories.setdefault(trial, _History()).add(time, self._loss(result))
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
            history = self._histories[trial] = _History()
            for time, loss in zip(times, losses, strict=True):
                history.add(time, from_json_word(loss))
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
