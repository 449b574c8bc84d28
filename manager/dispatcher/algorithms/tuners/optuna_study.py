"""Optuna's study. The only module of the tuners that imports Optuna at once, which takes longer than all the rest of a
dispatcher's start: it is imported when a suggestion needs a model for the first time.

The study lives in memory. Every suggestion gets a fresh sampler with a seed of its own, so nothing but the trials that
are in the study decides what comes next; running trials are in it as running ones.
"""

import math
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState, create_trial

from proctor.manager.dispatcher.algorithms.base import Parameters
from proctor.manager.dispatcher.algorithms.tuners.flat_space import (
    FlatAxis,
    FlatParameters,
    FlatSpace,
    OptunaDistribution,
    OptunaSampler,
)

optuna.logging.set_verbosity(optuna.logging.ERROR)


class OptunaStudy:
    """Trials by their numbers, from 0 in the order in which they were added or asked for."""

    def __init__(self, space: FlatSpace) -> None:
        self._space = space
        self._study = optuna.create_study(direction="minimize")
        self.common_distributions: dict[str, OptunaDistribution] = {
            axis.name: distribution_of(axis) for axis in space.common_axes
        }
        """Those of the axes that every parameter set has."""

    def add(
        self, flat: FlatParameters, state: str, *, value: float | None = None, steps: dict[int, float] | None = None
    ) -> None:
        """Add a trial.

        :param state: a name of Optuna's TrialState.
        :param steps: intermediate values by their steps.
        """
        distributions = {axis.name: distribution_of(axis) for axis in self._space.axes_of(flat)}
        self._study.add_trial(
            create_trial(
                state=TrialState[state],
                value=value,
                params=flat,
                distributions=distributions,
                intermediate_values=steps,
            )
        )

    def end(self, number: int, value: float | None) -> None:
        """Complete a running trial; without a value it has failed."""
        if value is None:
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, value)

    def put(self, number: int, state: str, *, value: float | None, steps: dict[int, float] | None) -> str:
        """Replace the result of a trial, or give it one; returns the state that it had. Optuna itself lets no trial
        change that has one; its study in memory returns the trials that it has."""
        trial = self._study.get_trials(deepcopy=False)[number]
        before = str(trial.state.name)
        trial.state, trial.value, trial.intermediate_values = TrialState[state], value, steps or {}
        return before

    def ask(self, sampler: OptunaSampler) -> tuple[Parameters, FlatParameters]:
        """Add a running trial that the sampler chooses; its parameters, and these as flat values."""
        self._study.sampler = sampler
        trial = self._study.ask()
        flat: FlatParameters = {}

        def ask(axis: FlatAxis) -> Any:
            flat[axis.name] = _ask_optuna(trial, axis)
            return flat[axis.name]

        return self._space.compose(ask), flat


def distribution_of(axis: FlatAxis) -> OptunaDistribution:
    """An axis as Optuna describes it."""
    if axis.size:
        return CategoricalDistribution(range(axis.size))
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high))
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.log and axis.low > 0)


def _ask_optuna(trial: Any, axis: FlatAxis) -> Any:
    if axis.size:
        return trial.suggest_categorical(axis.name, range(axis.size))
    if axis.whole:
        return trial.suggest_int(axis.name, int(axis.low), int(axis.high))
    value = trial.suggest_float(axis.name, float(axis.low), float(axis.high), log=axis.log)
    return min(max(value, axis.low), axis.high) if math.isfinite(value) else axis.low


class KnownSpaceTpe(TPESampler):  # type: ignore[misc]
    """Gets the axes that all trials share instead of searching all trials for them each time."""

    def __init__(self, distributions: dict[str, OptunaDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._common = {name: known for name, known in distributions.items() if not known.single()}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, OptunaDistribution]:
        return self._common
