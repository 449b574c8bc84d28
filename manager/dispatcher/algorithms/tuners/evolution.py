"""Evolution: mutate the better of two good trials, one parameter at a time."""

import math
import random
from bisect import insort
from collections.abc import Mapping
from typing import Any

from proctor.manager.dispatcher.algorithms.base import (
    DistinctParameters,
    Parameters,
    Suggestion,
    TunerAlgorithm,
    loss_of,
    suggestion_rng,
)
from proctor.sdk.space import Choice, NestedChoice, Parameter, SearchSpace

_STEP_SHARE = 0.75
"""How often a number takes a small step instead of being drawn again."""
_STEP_DEVIATION = 0.1
"""Size of a step, as a share of the distribution."""


class EvolutionTuner(TunerAlgorithm):
    """Starts with a random population, then draws two of its best trials and mutates the better one."""

    def __init__(self, *, seed: int, optimize_mode: str = "maximize", population_size: int = 32) -> None:
        self._seed = seed
        self._maximize = optimize_mode == "maximize"
        self._population_size = int(population_size)
        self._proposed = 0
        self._past: list[Parameters] = []
        self._results = 0
        self._population: list[tuple[float, int, Parameters]] = []

    def update_search_space(self, space: SearchSpace) -> None:
        """Mutate within `space`; members that do not fit into it leave the population."""
        self._space = space
        self._population = [member for member in self._population if space.contains(member[2])]
        self._distinct = DistinctParameters(space)
        for parameters in self._past:
            self._distinct.add(parameters)

    def suggest(self, parameter_id: int) -> Suggestion:
        """Return a random set for the first generation, later a mutated one."""
        rng = suggestion_rng(self._seed, parameter_id)
        grown = self._proposed >= self._population_size and self._population
        breed = self._mutant if grown else self._space.sample
        parameters = self._distinct.draw(rng, lambda: breed(rng))
        self.restore(parameter_id, parameters, None)
        return Suggestion(parameters)

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Count an earlier suggestion."""
        self._proposed += 1
        self._remember(parameters)

    def receive_result(self, parameter_id: int, parameters: Parameters, value: float) -> None:
        """Let the trial into the population if it is good enough."""
        loss = loss_of(value, self._maximize)
        if math.isfinite(loss) and self._space.contains(parameters):
            self._results += 1
            insort(self._population, (loss, self._results, parameters), key=lambda member: member[:2])
            del self._population[self._population_size :]

    def import_data(self, parameters: Parameters, value: float) -> None:
        """Let a result from elsewhere into the population."""
        self._remember(parameters)
        self.receive_result(-1, parameters, value)

    def accept_customized(self, parameter_id: int, parameters: Parameters) -> None:
        """Do not try again what the user tries."""
        self._remember(parameters)

    def _remember(self, parameters: Parameters) -> None:
        self._distinct.add(parameters)
        if self._space.size is not None:
            self._past.append(parameters)

    def _mutant(self, rng: random.Random) -> Parameters:
        size = len(self._population)
        parent = self._population[min(rng.randrange(size), rng.randrange(size))][2]
        return mutate(rng, self._space.parameters, parent)


def mutate(rng: random.Random, axes: Mapping[str, Parameter], values: Mapping[str, Any]) -> Parameters:
    """Return `values` with one parameter changed; in a nested choice either the branch or something inside it."""
    name = rng.choice(list(axes))
    return {key: _mutated(rng, axis, values[key]) if key == name else values[key] for key, axis in axes.items()}


def _mutated(rng: random.Random, axis: Parameter, value: Any) -> Any:
    if isinstance(axis, NestedChoice):
        branch = axis.branches[axis.index_of(value)]
        if branch.parameters and rng.random() < 0.5:
            return {"_name": branch.name, **mutate(rng, branch.parameters, value)}
    elif not isinstance(axis, Choice) and rng.random() < _STEP_SHARE:
        unit = abs(axis.to_unit(value) + rng.gauss(0.0, _STEP_DEVIATION)) % 2.0
        return axis.from_unit(2.0 - unit if unit > 1.0 else unit)  # reflected at the bounds
    return axis.sample(rng)
