"""A tuner around one of Optuna's samplers. The only module that imports Optuna.

The study lives in memory. Every suggestion gets a fresh sampler with a seed of its own, so nothing but the trials
told so far decides what comes next; running trials are in the study as running ones.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from proctor.manager.dispatcher.algorithms.base import (
    Parameters,
    Suggestion,
    TunerAlgorithm,
    loss_of,
    suggestion_rng,
    suggestion_seed,
)
from proctor.manager.dispatcher.algorithms.tuners.distinct import DistinctParameters
from proctor.manager.dispatcher.algorithms.tuners.flat_space import Flat, FlatAxis, FlatSpace
from proctor.sdk.space import SearchSpace

Sampler = Any
Distribution = Any

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass
class _Known:
    """One parameter set the tuner knows of. `loss` is None until its result comes; `failed` if none will."""

    parameters: Parameters
    flat: Flat | None
    number: int | None = None
    """Its number in the study; None if it does not belong to the search space."""
    loss: float | None = None
    failed: bool = False


class OptunaTuner(TunerAlgorithm):
    """Keeps the study; subclasses choose the sampler."""

    def __init__(self, *, seed: int, optimize_mode: str) -> None:
        self._seed = seed
        self._maximize = optimize_mode == "maximize"
        self._known: list[_Known] = []
        self._pending: dict[int, _Known] = {}

    @abstractmethod
    def make_sampler(self, seed: int, distributions: dict[str, Distribution]) -> Sampler:
        """Return a new sampler. `distributions` are those of the axes that every parameter set has."""

    def update_search_space(self, space: SearchSpace) -> None:
        """Begin a new study with what is known and belongs to `space`."""
        self._flat_space = FlatSpace(space)
        self._distinct = DistinctParameters(space)
        self._distributions: dict[str, Distribution] = {
            axis.name: distribution_of(axis) for axis in self._flat_space.common_axes
        }
        self._study = optuna.create_study(direction="minimize")
        self._numbers = 0
        for known in self._known:
            known.flat = self._flattened(known.parameters)
            self._enter(known)

    def suggest(self, parameter_id: int) -> Suggestion:
        """Ask the sampler; in a finite space, something unknown at random if it repeats itself."""
        self._distinct.require_room()
        known = self._asked(parameter_id)
        rng = suggestion_rng(self._seed, parameter_id)
        proposals = iter([known.parameters])
        space = self._flat_space.space
        parameters = self._distinct.draw(rng, lambda: next(proposals, None) or space.sample(rng))
        if parameters is not known.parameters:
            self._study.tell(known.number, state=TrialState.FAIL)
            known = _Known(parameters, self._flat_space.flatten(parameters))
            self._enter(known)
        self._remember(parameter_id, known)
        return Suggestion(parameters, known.flat)

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Enter an earlier suggestion as a running trial."""
        known = _Known(parameters, state)
        self._enter(known)
        self._remember(parameter_id, known)

    def receive_result(self, parameter_id: int, parameters: Parameters, value: float) -> None:
        """Complete the running trial."""
        known = self._pending.pop(parameter_id, None)
        if known is None:
            self.import_data(parameters, value)
            return
        known.loss = loss_of(value, self._maximize)
        self._tell(known)

    def trial_end(self, parameter_id: int, succeeded: bool) -> None:
        """Close a trial that ended without a result."""
        known = self._pending.pop(parameter_id, None)
        if known is not None:
            known.failed = True
            self._tell(known)

    def import_data(self, parameters: Parameters, value: float) -> None:
        """Enter a finished trial, if it belongs to the search space."""
        known = _Known(parameters, self._flattened(parameters), loss=loss_of(value, self._maximize))
        self._enter(known)
        self._known.append(known)

    def accept_customized(self, parameter_id: int, parameters: Parameters) -> None:
        """Enter the user's trial as a running one."""
        known = _Known(parameters, self._flattened(parameters))
        self._enter(known)
        self._remember(parameter_id, known)

    def _remember(self, parameter_id: int, known: _Known) -> None:
        self._distinct.add(known.parameters)
        self._known.append(known)
        self._pending[parameter_id] = known

    def _asked(self, parameter_id: int) -> _Known:
        self._study.sampler = self.make_sampler(suggestion_seed(self._seed, parameter_id), self._distributions)
        trial = self._study.ask()
        self._numbers += 1
        flat: Flat = {}

        def ask(axis: FlatAxis) -> Any:
            flat[axis.name] = _ask_optuna(trial, axis)
            return flat[axis.name]

        return _Known(self._flat_space.compose(ask), flat, number=trial.number)

    def _flattened(self, parameters: Parameters) -> Flat | None:
        try:
            return self._flat_space.flatten(parameters)
        except (ValueError, TypeError, AttributeError):
            return None

    def _enter(self, known: _Known) -> None:
        """Make a running trial of the study, and finish it if the result is there already."""
        self._distinct.add(known.parameters)
        known.number = None
        if known.flat is None:
            return
        distributions = {axis.name: distribution_of(axis) for axis in self._flat_space.axes_of(known.flat)}
        trial = create_trial(state=TrialState.RUNNING, params=known.flat, distributions=distributions)
        self._study.add_trial(trial)
        known.number = self._numbers
        self._numbers += 1
        if known.loss is not None or known.failed:
            self._tell(known)

    def _tell(self, known: _Known) -> None:
        if known.number is None:
            return
        if known.failed or known.loss is None:
            self._study.tell(known.number, state=TrialState.FAIL)
        else:
            self._study.tell(known.number, self.told_loss(known.loss))

    def told_loss(self, loss: float) -> float:
        """Return what the study is told; infinity stands for results that are no numbers."""
        return loss


def distribution_of(axis: FlatAxis) -> Distribution:
    """Return Optuna's word for an axis."""
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
