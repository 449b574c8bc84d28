"""Tells a run that the metric that is to judge it does not come, before days have gone by without a best checkpoint."""

import warnings

from proctor.sdk.pytorch.errors import MetricWarning
from proctor.sdk.pytorch.observing import Observer, Record
from proctor.sdk.pytorch.options import Phase
from proctor.sdk.pytorch.state import TrainingState


class ExpectedMetric(Observer):
    """Warns once, after the first validation of this start; of a run without validations, after the first epoch.

    :param metric: `best_metric`.
    :param validates: whether the run has validations.
    """

    name = "best_metric"

    def __init__(self, metric: str, *, validates: bool) -> None:
        self._metric = metric
        self._validates = validates
        self._logged: dict[str, None] = {}  # the names, in their order
        self._phase = ""
        self._has_ended_epoch = False
        self._is_told = False

    def on_metrics(self, record: Record) -> None:
        """Remember the names."""
        self._logged.update(dict.fromkeys(record.metrics))

    def on_evaluation_start(self, phase: str, batches: int) -> None:
        """Remember what it is; a test judges no run."""
        self._phase = phase

    def on_evaluation_end(self) -> None:
        """Look for the metric after a validation."""
        if self._phase == Phase.VALIDATION.value:
            self._look("validation")

    def on_epoch_end(self, state: TrainingState) -> None:
        """Wait for what is logged between two epochs: a loop of the user's own validates there."""
        self._has_ended_epoch = True

    def on_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Look for the metric after an epoch."""
        self._look_after_epoch()

    def on_end(self, reason: str) -> None:
        """Look for the metric after the only epoch."""
        self._look_after_epoch()

    def _look_after_epoch(self) -> None:
        if self._has_ended_epoch and not self._validates:
            self._look("epoch")

    def _look(self, after: str) -> None:
        if self._is_told or self._metric in self._logged:
            return
        self._is_told = True
        logged = ", ".join(repr(name) for name in self._logged) or "nothing"
        warnings.warn(
            MetricWarning(
                f"best_metric is {self._metric!r}, and by the end of the first {after} since this start no metric of "
                f"that name was logged, only {logged}. Without it no checkpoint is among the best, and a trial has no "
                "default metric. Correct the name, or log it."
            ),
            stacklevel=2,
        )
