"""A tuner around one of Optuna's samplers. The only module that imports Optuna.

The study lives in memory. Every suggestion gets a fresh sampler with a seed of its own, so nothing but the trials that
are in the study decides what comes next; running trials are in it as running ones.

Optuna sees a search space as flat, bounded axes (`FlatSpace`). Every parameter, those inside nested choices included,
is one axis with a name; a choice is the number of its option, a normal axis its quantile, a stepped axis the number
before it is rounded. Axes of branches that were not chosen are absent.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from proctor.manager.dispatcher.algorithms.base import (
    DistinctParameters,
    Parameters,
    Suggestion,
    TunerAlgorithm,
    loss_of,
    suggestion_rng,
    suggestion_seed,
)
from proctor.sdk.metrics import from_json_word, to_json_word
from proctor.sdk.space import Choice, NestedChoice, Normal, Parameter, RandInt, SearchSpace, Uniform

optuna.logging.set_verbosity(optuna.logging.ERROR)

OptunaSampler = Any
OptunaDistribution = Any
FlatParameters = dict[str, Any]
"""Values by the names of axes; plain numbers."""

_LOWEST_QUANTILE = 1e-6
_WIDEST_WHOLE = 100_000
"""A longer randint is a real axis that is rounded: Optuna's process lists every value of a whole one."""


@dataclass(frozen=True)
class FlatAxis:
    """One axis: `size` options, or numbers from `low` to `high` (whole ones, or on a logarithmic scale)."""

    name: str
    size: int = 0
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False


AskAxis = Callable[[FlatAxis], Any]
"""Decides the value of an axis: the number of an option, or a number of the range."""


def flat_axis(name: str, parameter: Parameter) -> FlatAxis:
    """Return the axis of one parameter."""
    if isinstance(parameter, Choice):
        return FlatAxis(name, size=len(parameter.options))
    if isinstance(parameter, NestedChoice):
        return FlatAxis(name, size=len(parameter.branches))
    if isinstance(parameter, RandInt):
        return FlatAxis(name, low=parameter.low, high=parameter.high - 1, whole=parameter.size <= _WIDEST_WHOLE)
    if isinstance(parameter, Uniform):
        return FlatAxis(name, low=parameter.low, high=parameter.high, log=parameter.log)
    return FlatAxis(name, low=_LOWEST_QUANTILE, high=1.0 - _LOWEST_QUANTILE)


class FlatSpace:
    """Translates between parameters and flat values."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.common_axes = [flat_axis(name, parameter) for name, parameter in space.parameters.items()]
        """The axes that every parameter set has."""

    def compose(self, ask: AskAxis) -> Parameters:
        """Return the parameters made of the answers of `ask`, which is called once for every axis that exists."""
        return _compose("", self.space.parameters, ask)

    def flatten(self, parameters: Parameters) -> FlatParameters:
        """Return the flat values of parameters that belong to the space. Raises ValueError for others."""
        flat: FlatParameters = {}
        _flatten("", self.space.parameters, parameters, flat)
        return flat

    def axes_of(self, flat: Mapping[str, Any]) -> list[FlatAxis]:
        """Return the axes that a set of flat values has, in order."""
        axes: list[FlatAxis] = []

        def ask(axis: FlatAxis) -> Any:
            axes.append(axis)
            return flat[axis.name]

        self.compose(ask)
        return axes


def _compose(prefix: str, parameters: Mapping[str, Parameter], ask: AskAxis) -> Parameters:
    values: Parameters = {}
    for name, parameter in parameters.items():
        full_name = prefix + name
        answer = ask(flat_axis(full_name, parameter))
        if isinstance(parameter, NestedChoice):
            branch = parameter.branches[answer]
            inside = _compose(f"{full_name}/{answer}/", branch.parameters, ask)
            values[name] = {"_name": branch.name, **inside}
        else:
            values[name] = _value(parameter, answer)
    return values


def _value(parameter: Parameter, answer: Any) -> Any:
    if isinstance(parameter, Choice):
        return parameter.options[answer]
    if isinstance(parameter, RandInt):
        return min(max(round(answer), parameter.low), parameter.high - 1)
    if isinstance(parameter, Uniform):
        return parameter.nearest(answer)
    return parameter.from_unit(answer)


def _flatten(prefix: str, parameters: Mapping[str, Parameter], values: Mapping[str, Any], flat: FlatParameters) -> None:
    if values.keys() - {"_name"} != parameters.keys():
        raise ValueError(f"expected the parameters {sorted(parameters)}, found {sorted(values)}")
    for name, parameter in parameters.items():
        full_name, value = prefix + name, values[name]
        if isinstance(parameter, NestedChoice):
            index = parameter.index_of(value)
            flat[full_name] = index
            _flatten(f"{full_name}/{index}/", parameter.branches[index].parameters, value, flat)
        else:
            flat[full_name] = _flat_value(parameter, value)


def _flat_value(parameter: Parameter, value: Any) -> Any:
    if isinstance(parameter, Choice):
        return parameter.index_of(value)
    if isinstance(parameter, Normal):
        return min(max(parameter.to_unit(value), _LOWEST_QUANTILE), 1.0 - _LOWEST_QUANTILE)
    if not parameter.contains(value):
        raise ValueError(f"{value!r} is not a value of {parameter.to_json()}")
    if isinstance(parameter, Uniform):
        return min(max(float(value), parameter.low), parameter.high)
    return int(value)


@dataclass
class _Known:
    """One parameter set the tuner knows of. `loss` is None until its result comes; `failed` if none will."""

    parameters: Parameters
    flat: FlatParameters | None
    number: int | None = None
    """Its number in the study; None if it does not belong to the search space."""
    loss: float | None = None
    failed: bool = False
    pruned_at: int | None = None
    """The step of `loss`, where that is no full result."""
    pruned_number: int | None = None
    """The number of the pruned trial of the study that took its place."""
    study_value: float | None = None
    """What the study has for `loss`."""


class OptunaTuner(TunerAlgorithm):
    """Keeps the study; subclasses choose the sampler."""

    def __init__(self, *, seed: int, optimize_mode: str) -> None:
        self._seed = seed
        self._maximize = optimize_mode == "maximize"
        self._known: list[_Known] = []
        self._pending: dict[int, _Known] = {}

    @abstractmethod
    def make_sampler(self, seed: int, distributions: dict[str, OptunaDistribution]) -> OptunaSampler:
        """Return a new sampler. `distributions` are those of the axes that every parameter set has."""

    def update_search_space(self, space: SearchSpace) -> None:
        """Begin a new study with what is known and belongs to `space`."""
        self._flat_space = FlatSpace(space)
        self._distinct = DistinctParameters(space)
        self._distributions: dict[str, OptunaDistribution] = {
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
        self._finish(known)

    def receive_pruned(self, parameter_id: int, parameters: Parameters, value: float, step: int) -> None:
        """Enter the trial as a pruned one: Optuna ranks it behind full results, and among its like by step first."""
        known = self._pending.pop(parameter_id, None)
        if known is not None:
            known.loss, known.pruned_at = loss_of(value, self._maximize), step
            self._finish(known)

    def trial_end(self, parameter_id: int, succeeded: bool) -> None:
        """Close a trial that ended without a result."""
        known = self._pending.pop(parameter_id, None)
        if known is not None:
            known.failed = True
            self._finish(known)

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

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, and in which order the study has it."""
        places = [(known.number, index) for index, known in enumerate(self._known) if known.number is not None]
        pruned = [
            (known.pruned_number, ~index) for index, known in enumerate(self._known) if known.pruned_number is not None
        ]
        indexes = {id(known): index for index, known in enumerate(self._known)}
        return {
            "known": [
                [known.parameters, known.flat, to_json_word(known.loss), known.failed, known.pruned_at,
                 to_json_word(known.study_value)]
                for known in self._known
            ],
            "order": [index for _, index in sorted([*places, *pruned])],
            "pending": [[parameter_id, indexes[id(known)]] for parameter_id, known in self._pending.items()],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Build the study again, trial by trial in the same order."""
        for parameters, flat, loss, failed, pruned_at, study_value in state["known"]:
            value = from_json_word(study_value)
            known = _Known(parameters, flat, None, from_json_word(loss), failed, pruned_at, study_value=value)
            self._known.append(known)
            self._distinct.add(parameters)
        self._pending = {parameter_id: self._known[index] for parameter_id, index in state["pending"]}
        for index in state["order"]:
            known = self._known[index if index >= 0 else ~index]
            assert known.flat is not None, "only what belongs to the search space is in the study"
            if index < 0:
                assert known.pruned_at is not None, "this is the pruned one"
                steps = {known.pruned_at: known.study_value or 0.0}
                known.pruned_number = self._add(known.flat, TrialState.PRUNED, steps=steps)
            elif known.failed or known.pruned_at is not None:
                known.number = self._add(known.flat, TrialState.FAIL)
            elif known.loss is None:
                known.number = self._add(known.flat, TrialState.RUNNING)
            else:
                known.number = self._add(known.flat, TrialState.COMPLETE, value=known.study_value)

    def _remember(self, parameter_id: int, known: _Known) -> None:
        self._distinct.add(known.parameters)
        self._known.append(known)
        self._pending[parameter_id] = known

    def _asked(self, parameter_id: int) -> _Known:
        self._study.sampler = self.make_sampler(suggestion_seed(self._seed, parameter_id), self._distributions)
        trial = self._study.ask()
        self._numbers += 1
        flat: FlatParameters = {}

        def ask(axis: FlatAxis) -> Any:
            flat[axis.name] = _ask_optuna(trial, axis)
            return flat[axis.name]

        return _Known(self._flat_space.compose(ask), flat, number=trial.number)

    def _flattened(self, parameters: Parameters) -> FlatParameters | None:
        try:
            return self._flat_space.flatten(parameters)
        except (ValueError, TypeError, AttributeError):
            return None

    def _enter(self, known: _Known) -> None:
        """Make a running trial of the study, and finish it if the result is there already."""
        self._distinct.add(known.parameters)
        known.number = known.pruned_number = None
        if known.flat is None:
            return
        known.number = self._add(known.flat, TrialState.RUNNING)
        if known.loss is not None or known.failed:
            self._finish(known)

    def _add(
        self,
        flat: FlatParameters,
        state: TrialState,
        *,
        value: float | None = None,
        steps: dict[int, float] | None = None,
    ) -> int:
        """Add a trial to the study; return its number."""
        distributions = {axis.name: distribution_of(axis) for axis in self._flat_space.axes_of(flat)}
        trial = create_trial(
            state=state, value=value, params=flat, distributions=distributions, intermediate_values=steps
        )
        self._study.add_trial(trial)
        self._numbers += 1
        return self._numbers - 1

    def _finish(self, known: _Known) -> None:
        """Complete the study's trial, if it is there."""
        if known.number is None:
            return
        if known.failed or known.loss is None or known.pruned_at is not None:
            self._study.tell(known.number, state=TrialState.FAIL)
        else:
            known.study_value = self.study_loss(known.loss)
            self._study.tell(known.number, known.study_value)
        if known.pruned_at is not None:
            self._enter_pruned(known, known.pruned_at)

    def _enter_pruned(self, known: _Known, step: int) -> None:
        """A running trial takes intermediate values only while it is being asked for: so it fails, and one that was
        pruned takes its place."""
        assert known.flat is not None, "only what is in the study is finished there"
        assert known.loss is not None, "what was pruned had a value"
        known.study_value = self.study_loss(known.loss)
        known.pruned_number = self._add(known.flat, TrialState.PRUNED, steps={step: known.study_value})

    def study_loss(self, loss: float) -> float:
        """The loss for the study; infinity stands for results that are no numbers."""
        return loss


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
