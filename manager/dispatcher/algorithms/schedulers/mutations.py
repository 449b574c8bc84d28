"""How population based training changes the parameters that a trial takes over from a better one."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.manager.dispatcher.algorithms.catalog import unknown_name
from proctor.sdk.space import (
    Choice,
    NestedChoice,
    Normal,
    Parameter,
    RandInt,
    SearchSpace,
    SearchSpaceError,
    Uniform,
    parse_search_space,
)
from proctor.sdk.space.parameters import is_number, shown

MutationAxes = Mapping[str, Any]
"""By name, each a `Parameter`, or again such a mapping for a parameter that is one."""


@dataclass(frozen=True)
class Mutations:
    """What changes in the parameters that a trial takes over from a better one.

    Each parameter is resampled with some probability. Otherwise one of a list moves to a neighbor in it, and a number
    is multiplied by a factor. Whatever comes out is a value of the search space: moved to the nearest end of its range,
    and to the nearest step; to the next one where the nearest is the same as before.
    """

    axes: MutationAxes
    space: SearchSpace
    """Whose ranges hold for whatever the axes produce."""
    resample_probability: float
    factors: tuple[float, ...]
    steps: bool = True
    """Whether a number that a factor would leave where it is, because it is rounded, moves one step instead."""

    def explore(self, parameters: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        """Return changed parameters; those without an axis are as they were."""
        return self._explored(self.axes, self.space.parameters, parameters, rng)

    def _explored(
        self, axes: MutationAxes, limits: Mapping[str, Parameter], parameters: Mapping[str, Any], rng: random.Random
    ) -> dict[str, Any]:
        explored = dict(parameters)
        for name, axis in axes.items():
            known = name in parameters
            value = parameters.get(name)
            limit = limits.get(name, axis)
            if not isinstance(axis, Parameter):
                inner = value if isinstance(value, Mapping) else {}
                explored[name] = self._explored(axis, _limits_in(limit, inner), inner, rng)
                continue
            if rng.random() < self.resample_probability or not known or not axis.contains(value):
                found, direction = axis.sample(rng), 0
            else:
                found, direction = self._neighbor(axis, value, rng)
            fitted = found if limit.contains(found) else nearest(limit, found, value if known else found)
            if self.steps and direction and fitted == value:
                fitted = _next_step((axis, limit), value, direction)
            explored[name] = fitted
        return explored

    def _neighbor(self, axis: Parameter, value: Any, rng: random.Random) -> tuple[Any, int]:
        """Return a value near another one; of a number also whether it was to grow (1), to shrink (-1) or neither."""
        if isinstance(axis, Choice):
            return axis.neighbor(value, rng.choice((-1, 1))), 0
        if isinstance(axis, NestedChoice):
            branch = axis.branches[axis.index_of(value)]
            return self._explored(branch.parameters, branch.parameters, value, rng), 0
        factor = rng.choice(self.factors)
        grows = (factor > 1) - (factor < 1)
        return nearest(axis, value * factor, value), -grows if value < 0 else grows


def _next_step(axes: tuple[Parameter, Parameter], value: Any, direction: int) -> Any:
    """Return the next value of the first axis that has steps, if the other one has it, too; else of the other one;
    else, and at the end of both, the same value."""
    axis, limit = axes
    for each in axes:
        found = _step_beyond(each, value, direction)
        fitted = found if limit.contains(found) else nearest(limit, found, value)
        if fitted != value and axis.contains(fitted):
            return fitted
    return value


def _step_beyond(axis: Parameter, value: Any, direction: int) -> Any:
    if isinstance(axis, RandInt):
        return min(max(int(value) + direction, axis.low), axis.high - 1)
    if isinstance(axis, Uniform) and axis.q is not None and axis.size is not None:
        place = round(value / axis.q) - round(axis.low / axis.q) + direction
        return axis.value_at(min(max(place, 0), axis.size - 1))
    if isinstance(axis, Normal) and axis.q is not None:
        found = axis.nearest(value + direction * axis.q)
        return found if axis.contains(found) else value
    return value


def _limits_in(limit: Any, value: Mapping[str, Any]) -> Mapping[str, Parameter]:
    """Return the axes of the branch of a nested choice that a value has taken."""
    if isinstance(limit, NestedChoice):
        return next((branch.parameters for branch in limit.branches if branch.name == value.get("_name")), {})
    return {}


def nearest(axis: Parameter, value: Any, otherwise: Any) -> Any:
    """Return the value of an axis that is closest to a number; `otherwise` if that says nothing."""
    if not is_number(value):
        return otherwise
    if isinstance(axis, RandInt):
        return min(max(round(value), axis.low), axis.high - 1)
    if isinstance(axis, Uniform):
        return axis.nearest(min(max(float(value), axis.low), axis.high))
    if isinstance(axis, Normal):
        found = axis.nearest(value)
        return found if axis.contains(found) else otherwise
    return otherwise


def read_mutations(written: Mapping[str, Any]) -> MutationAxes:
    """Read `hyperparam_mutations`: lists of values, axes as in a search space, and mappings of these.

    Raises SearchSpaceError if an axis is not valid.
    """
    axes: dict[str, Any] = {}
    for name, given in written.items():
        if isinstance(given, Mapping) and "_type" not in given:
            axes[name] = read_mutations(given)
        elif isinstance(given, Sequence) and not isinstance(given, str):
            axes[name] = Choice(tuple(given))
        else:
            axes[name] = parse_search_space({name: given}).parameters[name]
    return axes


def check_mutations(written: Mapping[str, Any], space: SearchSpace | None) -> list[tuple[tuple[str, ...], str]]:
    """Return what is wrong with `hyperparam_mutations`, each with its place in it.

    :param space: of the experiment, where it is sound.
    """
    if not written:
        return [((), "is empty: name what is to be explored, or leave it out to explore the whole search space")]
    return _check_axes(written, None if space is None else space.parameters, ())


def _check_axes(
    written: Mapping[str, Any], limits: Mapping[str, Parameter] | None, path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], str]]:
    problems: list[tuple[tuple[str, ...], str]] = []
    for name, given in written.items():
        at = (*path, str(name))
        limit = None if limits is None else limits.get(name)
        if limits is not None and limit is None:
            problems.append((at, unknown_name("parameter of the search space", str(name), limits)))
        elif isinstance(given, Mapping) and "_type" not in given:
            inner = None
            if isinstance(limit, NestedChoice):
                inner = {key: axis for branch in limit.branches for key, axis in branch.parameters.items()}
            problems.extend(_check_axes(given, inner, at))
        else:
            problems.extend((at, message) for message in _check_axis(str(name), given, limit))
    return problems


def _check_axis(name: str, given: Any, limit: Parameter | None) -> list[str]:
    if isinstance(given, Sequence) and not isinstance(given, str) and not given:
        return ["expected at least one value, found an empty list"]
    try:
        (axis,) = read_mutations({name: given}).values()
    except SearchSpaceError as error:
        return [problem.message for problem in error.problems]
    outside = [] if limit is None else [value for value in _bounds(axis) if not _is_within(limit, value)]
    return [f"{shown(value)} is outside of the search space, where {name} is {limit.to_json()}" for value in outside]  # type: ignore[union-attr]


def _bounds(axis: Parameter) -> Sequence[Any]:
    """The values between which those of an axis lie, or all of them."""
    if isinstance(axis, Choice):
        return axis.options
    if isinstance(axis, RandInt):
        return (axis.low, axis.high - 1)
    return (axis.low, axis.high) if isinstance(axis, Uniform) else ()


def _is_within(limit: Parameter, value: Any) -> bool:
    if isinstance(limit, Uniform):
        return is_number(value) and limit.low <= value <= limit.high
    if isinstance(limit, RandInt):
        return is_number(value) and limit.low <= value < limit.high
    return isinstance(limit, Normal) or limit.contains(value)
