"""The tree-structured Parzen estimator, by Optuna."""

import math
import random
from typing import Any

from proctor.manager.dispatcher.algorithms.tuners.flat_space import AskAxis, FlatAxis, OptunaDistribution, OptunaSampler
from proctor.manager.dispatcher.algorithms.tuners.optuna_tuner import OptunaTuner

STARTUP_JOBS = 20
CANDIDATES = 24
_WORDS = 624
"""Of the state of a Mersenne Twister."""


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
        from proctor.manager.dispatcher.algorithms.tuners.optuna_study import KnownSpaceTpe

        return KnownSpaceTpe(
            distributions,
            seed=seed,
            n_startup_trials=self._startup_jobs,
            n_ei_candidates=self._candidates,
            constant_liar=self._constant_liar,
            multivariate=True,
        )

    def draw_at_random(self, seed: int, results: int) -> AskAxis | None:
        """Return the draws of Optuna's random sampler, which chooses until there are results for a model."""
        return random_draws(seed) if results < self._startup_jobs else None


def random_draws(seed: int) -> AskAxis:
    """Return what decides axis after axis as Optuna's RandomSampler with this seed does, to the last bit, without
    Optuna and numpy: importing them takes longer than all the rest of a dispatcher's start."""
    generator = _numpy_generator(seed)

    def draw(axis: FlatAxis) -> Any:
        if axis.size:
            return _random_option(axis.size, generator)
        if axis.low == axis.high:
            return int(axis.low) if axis.whole else float(axis.low)
        return _random_whole(axis, generator) if axis.whole else _random_number(axis, generator)

    return draw


def _numpy_generator(seed: int) -> random.Random:
    """The generator of `numpy.random.RandomState(seed)`: the same Mersenne Twister as Python's, seeded otherwise."""
    words = [seed]
    for number in range(1, _WORDS):
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + number) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*words, _WORDS), None))
    return generator


def _random_option(size: int, generator: random.Random) -> int:
    """Each option gets a number, and the first of the greatest wins."""
    if size == 1:
        return 0
    numbers = [generator.random() for _ in range(size)]
    return numbers.index(max(numbers))


def _random_whole(axis: FlatAxis, generator: random.Random) -> int:
    low, high = int(axis.low), int(axis.high)
    found = math.floor(_between(low - 0.5, high + 0.5, generator) - low + 0.5) + low
    return min(max(found, low), high)


def _random_number(axis: FlatAxis, generator: random.Random) -> float:
    """At most the number below the upper end."""
    low, high = float(axis.low), float(axis.high)
    if axis.log:
        found = max(math.exp(_between(math.log(low), math.log(high), generator)), low)
    else:
        found = _between(low, high, generator)
    return min(found, math.nextafter(high, high - 1))


def _between(low: float, high: float, generator: random.Random) -> float:
    if not math.isfinite(high - low):
        raise OverflowError("Range exceeds valid bounds")
    return low + (high - low) * generator.random()
