"""The tree-structured Parzen estimator, by Optuna."""

from typing import Any

from optuna.samplers import TPESampler

from proctor.manager.dispatcher.algorithms.tuners.optuna_tuner import OptunaDistribution, OptunaSampler, OptunaTuner

STARTUP_JOBS = 20
CANDIDATES = 24


class TpeTuner(OptunaTuner):
    """Models good and bad trials and proposes what is likely among the good ones. Running trials count as bad."""

    def __init__(self, *, seed: int, optimize_mode: str = "minimize", tpe_args: dict[str, Any] | None = None) -> None:
        super().__init__(seed=seed, optimize_mode=optimize_mode)
        arguments = tpe_args or {}
        self._startup_jobs = int(arguments.get("n_startup_jobs", STARTUP_JOBS))
        self._candidates = int(arguments.get("n_ei_candidates", CANDIDATES))
        self._constant_liar = arguments.get("constant_liar_type", "best") is not None

    def make_sampler(self, seed: int, distributions: dict[str, OptunaDistribution]) -> OptunaSampler:
        """Return an estimator that models the common axes together and those of branches one by one."""
        return _KnownSpaceSampler(
            distributions,
            seed=seed,
            n_startup_trials=self._startup_jobs,
            n_ei_candidates=self._candidates,
            constant_liar=self._constant_liar,
            multivariate=True,
        )


class _KnownSpaceSampler(TPESampler):  # type: ignore[misc]
    """Gets the axes that all trials share instead of searching all trials for them each time."""

    def __init__(self, distributions: dict[str, OptunaDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._common = {name: known for name, known in distributions.items() if not known.single()}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, OptunaDistribution]:
        return self._common
