"""A search space as flat, bounded axes, as Optuna sees it.

Every parameter, those inside nested choices included, is one axis with a name; a choice is the number of its option, a
normal axis its quantile, a stepped axis the number before it is rounded. Axes of branches that were not chosen are
absent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proctor.manager.dispatcher.algorithms.base import Parameters
from proctor.sdk.space import Choice, NestedChoice, Normal, Parameter, RandInt, SearchSpace, Uniform

FlatParameters = dict[str, Any]
"""Values by the names of axes; plain numbers."""
OptunaSampler = Any
OptunaDistribution = Any

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
