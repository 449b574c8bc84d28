"""`choice`: a list of alternatives, which may themselves hold a search space."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from proctor.sdk.space.parameters import Parameter, SpaceProblem, shown

_MOST_SHOWN = 8
"""Options that an error lists."""


def canonical(value: Any) -> str:
    """Return a text that is the same for equal JSON values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)


@dataclass(frozen=True)
class Choice(Parameter):
    """One of `options`, each equally likely; an option written twice is twice as likely."""

    options: tuple[Any, ...]

    type_name = "choice"

    @property
    def size(self) -> int:
        """Number of different options."""
        return len(self._distinct)

    def index_from_unit(self, u: float) -> int:
        """Return the number of the option whose slice of the unit interval holds `u`."""
        return min(max(int(u * len(self.options)), 0), len(self.options) - 1)

    def from_unit(self, u: float) -> Any:
        """Return the option whose slice of the unit interval holds `u`."""
        return self.options[self.index_from_unit(u)]

    def to_unit(self, value: Any) -> float:
        """Return the middle of the slice that belongs to `value`."""
        return (self.index_of(value) + 0.5) / len(self.options)

    def index_of(self, value: Any) -> int:
        """Return the number of the first option equal to `value`. Raises ValueError if there is none."""
        try:
            return self._first[canonical(value)]
        except KeyError:
            raise self._not_mine(value) from None

    def neighbor(self, value: Any, distance: int) -> Any:
        """Return the option that is so many places after that of `value`; at most the first or the last one."""
        return self.options[min(max(self.index_of(value) + distance, 0), len(self.options) - 1)]

    def value_at(self, index: int) -> Any:
        """Return different option number `index`, in the order they are written."""
        if not 0 <= index < self.size:
            raise self._no_such_index(index)
        return self.options[self._distinct[index]]

    def contains(self, value: Any) -> bool:
        """Say whether `value` equals an option."""
        return canonical(value) in self._first

    @property
    def expected(self) -> str:
        """The options."""
        return _one_of(self.options)

    def fit(self, value: Any) -> Any:
        """Return the option that equals `value`; 3 equals 3.0, which other languages write as 3."""
        if self.contains(value):
            return self.options[self.index_of(value)]
        key = canonical(_with_whole_numbers(value))
        for option in self.options:
            if canonical(_with_whole_numbers(option)) == key:
                return option
        raise self._not_mine(value)

    def to_json(self) -> dict[str, Any]:
        """Return `{"_type": "choice", "_value": [...]}`."""
        return {"_type": self.type_name, "_value": list(self.options)}

    @cached_property
    def _first(self) -> dict[str, int]:
        first: dict[str, int] = {}
        for index, option in enumerate(self.options):
            first.setdefault(canonical(option), index)
        return first

    @cached_property
    def _distinct(self) -> list[int]:
        return list(self._first.values())


@dataclass(frozen=True)
class Branch:
    """One alternative of a nested choice: its `_name` and the parameters that exist only there."""

    name: Any
    parameters: Mapping[str, Parameter]

    @property
    def size(self) -> int | None:
        """Number of different parameter sets in this branch, or None."""
        return product_size(self.parameters)


@dataclass(frozen=True)
class NestedChoice(Parameter):
    """A choice whose every option is a dictionary with `_name`: the chosen branch brings its own parameters."""

    branches: tuple[Branch, ...]

    type_name = "choice"

    @property
    def size(self) -> int | None:
        """Sum over the branches, or None if one of them is endless."""
        total = 0
        for branch in self.branches:
            if branch.size is None:
                return None
            total += branch.size
        return total

    def index_from_unit(self, u: float) -> int:
        """Return the number of the branch whose slice of the unit interval holds `u`."""
        return min(max(int(u * len(self.branches)), 0), len(self.branches) - 1)

    def index_of(self, value: Any) -> int:
        """Return the number of the branch that `value` names. Raises ValueError if there is none."""
        if isinstance(value, Mapping):
            for index, branch in enumerate(self.branches):
                if branch.name == value.get("_name"):
                    return index
        raise self._not_mine(value)

    def sample(self, rng: random.Random) -> dict[str, Any]:
        """Draw a branch, then its parameters in the order they are written."""
        branch = self.branches[self.index_from_unit(rng.random())]
        return self._value(branch, {name: child.sample(rng) for name, child in branch.parameters.items()})

    def from_unit(self, u: float) -> dict[str, Any]:
        """Return the branch at quantile `u`; what is left of `u` decides all its parameters alike."""
        index = self.index_from_unit(u)
        rest = min(max(u * len(self.branches) - index, 0.0), 1.0)
        branch = self.branches[index]
        return self._value(branch, {name: child.from_unit(rest) for name, child in branch.parameters.items()})

    def to_unit(self, value: Any) -> float:
        """Return the middle of the slice of the branch; its parameters cannot be derived from one number."""
        return (self.index_of(value) + 0.5) / len(self.branches)

    def value_at(self, index: int) -> dict[str, Any]:
        """Return parameter set number `index`, branch after branch."""
        if self.size is None or index < 0:
            raise self._no_such_index(index)
        rest = index
        for branch in self.branches:
            size = branch.size or 0
            if rest < size:
                return self._value(branch, product_at(branch.parameters, rest))
            rest -= size
        raise self._no_such_index(index)

    def contains(self, value: Any) -> bool:
        """Say whether `value` names a branch and has exactly its parameters."""
        try:
            branch = self.branches[self.index_of(value)]
        except ValueError:
            return False
        return product_contains(branch.parameters, {k: v for k, v in value.items() if k != "_name"})

    @property
    def expected(self) -> str:
        """The names of the branches."""
        return f"a mapping with _name, {_one_of([branch.name for branch in self.branches])}"

    def to_json(self) -> dict[str, Any]:
        """Return `{"_type": "choice", "_value": [{"_name": ..., ...}, ...]}`."""
        options = [self._value(b, {k: p.to_json() for k, p in b.parameters.items()}) for b in self.branches]
        return {"_type": self.type_name, "_value": options}

    @staticmethod
    def _value(branch: Branch, children: dict[str, Any]) -> dict[str, Any]:
        return {"_name": branch.name, **children}


def product_size(parameters: Mapping[str, Parameter]) -> int | None:
    """Return the number of different parameter sets, or None if there is no end of them."""
    sizes = [parameter.size for parameter in parameters.values()]
    return None if any(size is None for size in sizes) else math.prod(size or 0 for size in sizes)


def product_at(parameters: Mapping[str, Parameter], index: int) -> dict[str, Any]:
    """Return parameter set number `index` of a finite product; the last parameter changes fastest."""
    chosen: dict[str, Any] = {}
    for name in reversed(list(parameters)):
        index, digit = divmod(index, parameters[name].size or 1)
        chosen[name] = parameters[name].value_at(digit)
    return {name: chosen[name] for name in parameters}


def product_contains(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> bool:
    """Say whether `values` has exactly the keys of `parameters` and a possible value for each."""
    return values.keys() == parameters.keys() and all(p.contains(values[k]) for k, p in parameters.items())


def product_fit(
    path: tuple[str | int, ...], parameters: Mapping[str, Parameter], values: Any, problems: list[SpaceProblem]
) -> dict[str, Any]:
    """Return `values` as `parameters` would give them; what does not fit is added to `problems`."""
    if not isinstance(values, Mapping):
        problems.append(SpaceProblem(path, f"expected a mapping of parameter names, found {shown(values)}"))
        return {}
    fitted = {}
    for name, parameter in parameters.items():
        if name not in values:
            problems.append(SpaceProblem((*path, name), f"expected {parameter.expected}, found nothing"))
            continue
        fitted[name] = _fitted((*path, name), parameter, values[name], problems)
    for name in values:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            message = f"unknown parameter, found {shown(values[name])}; the search space has {known}"
            problems.append(SpaceProblem((*path, str(name)), message))
    return fitted


def _fitted(path: tuple[str | int, ...], parameter: Parameter, value: Any, problems: list[SpaceProblem]) -> Any:
    try:
        if not isinstance(parameter, NestedChoice):
            return parameter.fit(value)
        branch = parameter.branches[parameter.index_of(value)]
    except ValueError:
        problems.append(SpaceProblem(path, f"expected {parameter.expected}, found {shown(value)}"))
        return None
    children = {name: child for name, child in value.items() if name != "_name"}
    return {"_name": branch.name, **product_fit(path, branch.parameters, children, problems)}


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_whole_numbers(item) for item in value]
    return value


def _one_of(values: Sequence[Any]) -> str:
    listed = ", ".join(shown(value) for value in values[:_MOST_SHOWN])
    return f"one of {listed}" + (f" and {len(values) - _MOST_SHOWN} more" if len(values) > _MOST_SHOWN else "")
