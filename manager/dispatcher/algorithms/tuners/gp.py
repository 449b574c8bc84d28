"""Bayesian optimization with a Gaussian process, by Optuna. Needs the extra `gp`."""

import math
import warnings
from statistics import median
from typing import Any

import torch
from optuna.samplers import GPSampler

from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.dispatcher.algorithms.tuners.flat_space import OptunaDistribution, OptunaSampler
from proctor.manager.dispatcher.algorithms.tuners.optuna_tuner import OptunaTuner

COLD_START = 10

torch.set_num_threads(1)  # sums do not depend on the number of cores, and the cores are left to the trials


class GpTuner(OptunaTuner):
    """Proposes where the improvement expected by a Gaussian process is largest."""

    def __init__(
        self,
        *,
        seed: int,
        optimize_mode: str = "maximize",
        cold_start_num: int = COLD_START,
        rules: int = CURRENT_RULES,
        **without_effect: Any,
    ) -> None:
        super().__init__(seed=seed, optimize_mode=optimize_mode)
        self.takes_pruned_as_full = rules > 1
        del without_effect  # NNI's kernel settings: Optuna fits its own kernel
        self._cold_start = int(cold_start_num)

    def make_sampler(self, seed: int, distributions: dict[str, OptunaDistribution]) -> OptunaSampler:
        """Return a process that models all axes together."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _KnownSpaceSampler(distributions, seed=seed, n_startup_trials=self._cold_start)

    def study_loss(self, loss: float, *, is_pruned: bool = False) -> float:
        """A process cannot learn from infinity: what is no number counts as the worst finite result so far. Optuna's
        learns from full results only: a pruned one counts as one that is no better than the median of those."""
        finite = [known for known in self._known if known.loss is not None and known.loss < math.inf]
        if loss == math.inf:
            return max((known.loss for known in finite if known.loss is not None), default=0.0)
        full = [known.loss for known in finite if known.loss is not None and known.pruned_at is None]
        return max(loss, median(full)) if is_pruned and full else loss


class _KnownSpaceSampler(GPSampler):  # type: ignore[misc]
    """Gets the axes that all trials share instead of searching all trials for them each time."""

    def __init__(self, distributions: dict[str, OptunaDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._common = {name: known for name, known in distributions.items() if not known.single()}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, OptunaDistribution]:
        return self._common
