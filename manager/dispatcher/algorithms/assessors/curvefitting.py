"""Curve fitting: a trial whose predicted end is worse than the best finished trial is stopped."""

import math

from proctor.manager.dispatcher.algorithms.base import AssessorAlgorithm


class CurvefittingAssessor(AssessorAlgorithm):
    """Predicts metric number `epoch_num` of each running trial by twelve curve families.

    A trial keeps running while the prediction is above `threshold` times the best end of a finished trial (below
    2 - `threshold` times for minimize). A metric that is not finite counts as the worst finite one of its trial.
    """

    def __init__(
        self,
        *,
        epoch_num: int,
        start_step: int = 6,
        threshold: float = 0.95,
        gap: int = 1,
        optimize_mode: str = "maximize",
    ) -> None:
        self._epoch_num = int(epoch_num)
        self._start_step = int(start_step)
        self._threshold = float(threshold)
        self._gap = int(gap)
        self._sign = 1.0 if optimize_mode == "maximize" else -1.0
        self._histories: dict[str, list[float]] = {}
        self._judged: dict[str, int] = {}
        self._best: float | None = None

    def assess(self, trial_id: str, sequence: int, value: float) -> bool:
        """Return False if the trial is not expected to come near the best."""
        history = self._histories.setdefault(trial_id, [])
        del history[sequence:]
        history.append(self._sign * value)
        step = len(history)
        if self._best is None or step < self._start_step or step >= self._epoch_num:
            return True
        if trial_id in self._judged and step - self._judged[trial_id] < self._gap:
            return True
        self._judged[trial_id] = step
        return self._is_promising(history, self._best)

    def trial_restarted(self, trial_id: str, from_sequence: int) -> None:
        """Forget what the new job will report again."""
        del self._histories.setdefault(trial_id, [])[from_sequence:]
        self._judged.pop(trial_id, None)

    def trial_end(self, trial_id: str, succeeded: bool) -> None:
        """Take the last metric of a trial that succeeded as its end."""
        history = self._histories.pop(trial_id, [])
        self._judged.pop(trial_id, None)
        if succeeded and history and math.isfinite(history[-1]):
            self._best = history[-1] if self._best is None else max(self._best, history[-1])

    def _is_promising(self, history: list[float], best: float) -> bool:
        finite = [value for value in history if math.isfinite(value)]
        if not finite:
            return False
        from proctor.manager.dispatcher.algorithms.assessors.curves import predict

        worst = min(finite)
        expected = predict([value if math.isfinite(value) else worst for value in history], self._epoch_num)
        return expected is None or expected > best - abs(best) * (1.0 - self._threshold)
