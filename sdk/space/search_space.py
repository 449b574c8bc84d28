"""A whole search space: named parameters, drawn together."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from proctor.sdk.space.choices import NestedChoice, canonical, product_at, product_contains, product_fit, product_size
from proctor.sdk.space.parameters import Parameter, SearchSpaceError, SpaceProblem

SpacePath = tuple[str | int, ...]


@dataclass(frozen=True)
class SearchSpace:
    """What a tuner may propose. Made by `parse_search_space`."""

    parameters: Mapping[str, Parameter]

    @cached_property
    def size(self) -> int | None:
        """Number of different parameter sets, or None if there is no end of them."""
        return product_size(self.parameters)

    @cached_property
    def is_nested(self) -> bool:
        """True if a choice holds parameters of its own."""
        return any(isinstance(parameter, NestedChoice) for parameter in self.parameters.values())

    def sample(self, rng: random.Random) -> dict[str, Any]:
        """Draw one parameter set, each parameter from its own distribution, in the order they are written."""
        return {name: parameter.sample(rng) for name, parameter in self.parameters.items()}

    def value_at(self, index: int) -> dict[str, Any]:
        """Return parameter set number `index`, 0 <= index < size. Raises IndexError outside, or if endless."""
        if self.size is None or not 0 <= index < self.size:
            raise IndexError(f"the search space has {self.size} parameter sets, number {index} was asked for")
        return product_at(self.parameters, index)

    def contains(self, parameters: Any) -> bool:
        """Say whether the space can produce `parameters`."""
        return isinstance(parameters, Mapping) and product_contains(self.parameters, parameters)

    def fit(self, parameters: Any) -> dict[str, Any]:
        """Return `parameters` as the space itself would give them: 3 for the 3.0 of a randint, options as written.

        Raises SearchSpaceError, with every problem, if they are outside of the space.
        """
        problems: list[SpaceProblem] = []
        fitted = product_fit((), self.parameters, parameters, problems)
        if problems:
            raise SearchSpaceError(problems)
        return fitted

    def key(self, parameters: Mapping[str, Any]) -> str:
        """Return a text that is the same for equal parameter sets."""
        return canonical(parameters)

    def axes(self) -> Iterator[tuple[SpacePath, Parameter]]:
        """Walk all parameters, those of nested choices included, with their path in the search space file."""
        return _axes((), self.parameters)

    def to_json(self) -> dict[str, Any]:
        """Return the space as it is written in a search space file."""
        return {name: parameter.to_json() for name, parameter in self.parameters.items()}


def _axes(prefix: SpacePath, parameters: Mapping[str, Parameter]) -> Iterator[tuple[SpacePath, Parameter]]:
    for name, parameter in parameters.items():
        path = (*prefix, name)
        yield path, parameter
        if isinstance(parameter, NestedChoice):
            for index, branch in enumerate(parameter.branches):
                yield from _axes((*path, "_value", index), branch.parameters)
