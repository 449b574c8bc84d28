"""Population based training: the worst of a population continue from the best, with other hyperparameters.

Jaderberg et al.: Population based training of neural networks, 2017 (arXiv:1711.09846). As in NNI, each generation is
made of new trials, and where a trial reads and writes its checkpoint is among its parameters.
"""

import math
import posixpath
import random
from dataclasses import dataclass
from typing import Any

from proctor.manager.dispatcher.algorithms.base import (
    Parameters,
    SpaceExhausted,
    Suggestion,
    TunerAlgorithm,
    loss_of,
    suggestion_rng,
)
from proctor.sdk.space import Choice, Normal, Parameter, RandInt, SearchSpace, Uniform

LOAD_KEY, SAVE_KEY = "load_checkpoint_dir", "save_checkpoint_dir"
"""The parameters that name a trial's folders. In the first generation they name the same one, as in NNI."""
_DEFAULT_FOLDER = "checkpoint"


@dataclass
class _Member:
    """A trial of the present generation."""

    parameters: Parameters
    loss: float = math.inf
    has_ended: bool = False


@dataclass(frozen=True)
class _Origin:
    """What a trial of the next generation begins with."""

    parent: int
    parameters: Parameters
    explores: bool
    """Whether the hyperparameters are changed: the parent is another member's."""


class PbtTuner(TunerAlgorithm):
    """Proposes generation after generation, each when every trial of the former one has ended."""

    has_parents = True

    def __init__(
        self,
        *,
        seed: int,
        optimize_mode: str = "maximize",
        all_checkpoint_dir: str | None = None,
        population_size: int = 10,
        factor: float = 0.2,
        resample_probability: float = 0.25,
        fraction: float = 0.2,
    ) -> None:
        self._seed = seed
        self._maximize = optimize_mode == "maximize"
        self._folder = all_checkpoint_dir or posixpath.join(_DEFAULT_FOLDER, str(seed))
        self._size = int(population_size)
        self._factor = factor
        self._resample_probability = resample_probability
        self._replaced = min(math.ceil(fraction * self._size), self._size // 2)
        self._generation = 0
        self._origins: list[_Origin | None] = [None] * self._size
        self._members: dict[int, _Member] = {}
        """By parameter id, in the order of the population."""

    def update_search_space(self, space: SearchSpace) -> None:
        """Propose within `space`; members keep the values that belong to it."""
        self._space = space

    def suggest(self, parameter_id: int) -> Suggestion:
        """Return the next member of the present generation."""
        number = len(self._members)
        if number == self._size:
            raise SpaceExhausted(f"generation {self._generation} is still running")
        rng = suggestion_rng(self._seed, parameter_id)
        origin = self._origins[number]
        save = posixpath.join(self._folder, str(number), str(self._generation))
        if origin is None:
            parameters = {**self._space.sample(rng), LOAD_KEY: save, SAVE_KEY: save}
            parent = None
        else:
            hyperparameters = self._inherited(rng, origin)
            parameters = {**hyperparameters, LOAD_KEY: origin.parameters[SAVE_KEY], SAVE_KEY: save}
            parent = origin.parent
        self.restore(parameter_id, parameters, None)
        return Suggestion(parameters, parent=parent)

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Wait for the end of an earlier suggestion."""
        self._members[parameter_id] = _Member(parameters)

    def receive_result(self, parameter_id: int, parameters: Parameters, value: float) -> None:
        """Remember the value until the generation has ended; that of a user's trial is part of none."""
        if parameter_id in self._members:
            self._members[parameter_id].loss = loss_of(value, self._maximize)

    def trial_end(self, parameter_id: int, succeeded: bool) -> None:
        """Begin the next generation with the end of the last member."""
        if parameter_id in self._members:
            self._members[parameter_id].has_ended = True
        if len(self._members) == self._size and all(member.has_ended for member in self._members.values()):
            self._begin_generation()

    def _begin_generation(self) -> None:
        """Members of the worst `fraction`, and those without a value, continue from one of the best."""
        order = sorted(self._members, key=lambda parameter_id: (self._members[parameter_id].loss, parameter_id))
        valued = [parameter_id for parameter_id in order if math.isfinite(self._members[parameter_id].loss)]
        best, kept = valued[: self._replaced], {*valued} & {*order[: self._size - self._replaced]}
        rng = suggestion_rng(self._seed, -1 - self._generation)
        self._origins = []
        for parameter_id, member in self._members.items():
            if parameter_id in kept:
                self._origins.append(_Origin(parameter_id, member.parameters, explores=False))
            elif best:
                source = rng.choice(best)
                self._origins.append(_Origin(source, self._members[source].parameters, explores=True))
            else:
                self._origins.append(None)
        self._generation += 1
        self._members = {}

    def _inherited(self, rng: random.Random, origin: _Origin) -> Parameters:
        """The hyperparameters of the origin, explored if they are another member's, all within the space."""
        values: Parameters = {}
        for name, axis in self._space.parameters.items():
            known = name in origin.parameters and axis.contains(origin.parameters[name])
            if not known or (origin.explores and rng.random() < self._resample_probability):
                values[name] = axis.sample(rng)
            else:
                value = origin.parameters[name]
                values[name] = perturbed(axis, value, self._factor, rng.choice((-1, 1))) if origin.explores else value
        return values


def perturbed(axis: Parameter, value: Any, factor: float, sign: int) -> Any:
    """Return the value a step up or down, never outside of the axis.

    A step is the next option, whole number or multiple of `q`; elsewhere `factor` of the range, or of the deviation of
    a normal axis (in the logarithm, if the axis is logarithmic).
    """
    if isinstance(axis, Choice):
        return axis.neighbor(value, sign)
    if isinstance(axis, RandInt):
        return min(max(int(value) + sign, axis.low), axis.high - 1)
    if not isinstance(axis, Uniform | Normal):
        return value
    if axis.q is not None:
        step = float((round(value / axis.q) + sign) * axis.q)
        if isinstance(axis, Uniform):
            return axis.nearest(min(max(step, axis.low), axis.high))
        return max(step, 0.0) if axis.log else step
    if isinstance(axis, Uniform):
        return axis.from_unit(axis.to_unit(value) + sign * factor)
    moved = value * math.exp(sign * axis.sigma * factor) if axis.log else value + sign * axis.sigma * factor
    return moved if axis.contains(moved) else value
