"""BOHB: Hyperband whose new configurations come from a model of the results.

Falkner, Klein, Hutter: BOHB, robust and efficient hyperparameter optimization at scale, ICML 2018. The model is a pair
of kernel density estimates, one of the good results and one of the bad, at the largest budget that has enough of
them; what is proposed is probable among the good and improbable among the bad.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, pstdev

from proctor.manager.dispatcher.algorithms.base import Parameters
from proctor.manager.dispatcher.algorithms.tuners.hyperband import BracketTuner
from proctor.sdk.space import Choice, Parameter, SearchSpace

_LEAST_DENSITY = 1e-32
"""Densities below this are all the same, as in the authors' implementation."""
_LEAST_TAIL = 2.0**-53
_LEAST_WIDTH = 1e-9
"""Of a kernel, in case that class arguments say 0."""

_Point = tuple[float, ...]
"""Hyperparameters as quantiles, one for each axis; those of a choice are the middles of its options' slices."""


class BohbTuner(BracketTuner):
    """Plays Hyperband's brackets between two budgets; `random_fraction` of the new configurations are random."""

    def __init__(
        self,
        *,
        seed: int,
        optimize_mode: str = "maximize",
        min_budget: int = 1,
        max_budget: int = 3,
        eta: int = 3,
        min_points_in_model: int | None = None,
        top_n_percent: int = 15,
        num_samples: int = 64,
        random_fraction: float = 1 / 3,
        bandwidth_factor: float = 3.0,
        min_bandwidth: float = 1e-3,
        config_space: str | None = None,
    ) -> None:
        del config_space  # NNI's way to a space of another format; there is one space here
        super().__init__(
            seed=seed,
            optimize_mode=optimize_mode,
            eta=eta,
            min_budget=min_budget,
            max_budget=max_budget,
            serial=False,
        )
        self._min_points = int(min_points_in_model or 0)
        self._top_percent = top_n_percent
        self._samples = int(num_samples)
        self._random_fraction = random_fraction
        self._bandwidth_factor = max(bandwidth_factor, _LEAST_WIDTH)
        self._min_bandwidth = max(min_bandwidth, _LEAST_WIDTH)
        self._results: list[tuple[float, float, Parameters]] = []

    def update_search_space(self, space: SearchSpace) -> None:
        """Model the results that belong to `space`."""
        super().update_search_space(space)
        self._axes = list(space.parameters.values())
        self._losses: dict[float, list[tuple[float, _Point]]] = {}
        for budget, loss, hyperparameters in self._results:
            self._add(budget, loss, hyperparameters)
        self._model: tuple[_Density, _Density] | None = None
        self._is_current = False

    def learn(self, hyperparameters: Parameters, budget: float, loss: float) -> None:
        """Add a result to those of its budget."""
        self._results.append((budget, loss, hyperparameters))
        self._add(budget, loss, hyperparameters)
        self._is_current = False

    def draw(self, rng: random.Random) -> Parameters:
        """Return the best of some candidates near good results; at random where there is no model."""
        if not self._is_current:
            self._model, self._is_current = self._fitted_model(), True
        if self._model is None or rng.random() < self._random_fraction:
            return super().draw(rng)
        good, bad = self._model
        candidates = [good.sample(rng, self._bandwidth_factor) for _ in range(self._samples)]
        best = max(candidates, key=lambda point: good.at(point) / bad.at(point))
        return {name: axis.from_unit(u) for (name, axis), u in zip(self._space.parameters.items(), best, strict=True)}

    def _add(self, budget: float, loss: float, hyperparameters: Parameters) -> None:
        if self._space.contains(hyperparameters):
            point = tuple(axis.to_unit(hyperparameters[name]) for name, axis in self._space.parameters.items())
            self._losses.setdefault(budget, []).append((loss, point))

    def _fitted_model(self) -> "tuple[_Density, _Density] | None":
        """The densities of the good and the bad results; None where no budget has enough of them."""
        least = max(self._min_points, len(self._axes) + 1)
        for budget in sorted(self._losses, reverse=True):
            ranked = sorted(self._losses[budget], key=lambda result: result[0])
            if sum(math.isfinite(loss) for loss, _ in ranked) < least + 2:
                continue
            points = [point for _, point in ranked]
            good = max(least, len(points) * self._top_percent // 100)
            bad = max(least, len(points) - good)
            return self._density(points[:good]), self._density(points[-bad:])
        return None

    def _density(self, points: Sequence[_Point]) -> "_Density":
        return _Density(self._axes, points, self._min_bandwidth)


class _Density:
    """A kernel density estimate: Gaussian kernels on numbers, those of Aitchison and Aitken on choices.

    Bandwidths follow the normal reference rule; the deviation of a choice does not depend on the order of its options,
    and that of one with two options is the usual one.
    """

    def __init__(self, axes: Sequence[Parameter], points: Sequence[_Point], min_bandwidth: float) -> None:
        self._axes, self._points = axes, points
        rule = 1.06 * len(points) ** (-1.0 / (4 + len(axes)))
        columns = zip(axes, zip(*points, strict=True), strict=True)
        self._bandwidths = [
            _bandwidth(axis, rule * _deviation(axis, column), min_bandwidth) for axis, column in columns
        ]
        self._height = 1.0 / len(points)
        self._scales: list[tuple[int, float]] = []
        """Of the axes with numbers: a distance divided by the bandwidth is as far as in a standard normal kernel."""
        self._penalties: list[tuple[int, float]] = []
        """Of the choices: another option counts as a distance whose square is this."""
        for index, (axis, bandwidth) in enumerate(zip(axes, self._bandwidths, strict=True)):
            if not isinstance(axis, Choice):
                self._height /= bandwidth
                self._scales.append((index, 1.0 / bandwidth))
            elif axis.size > 1:
                self._height *= 1.0 - bandwidth
                odds = bandwidth / (axis.size - 1) / (1.0 - bandwidth)
                self._penalties.append((index, max(-2.0 * math.log(odds), 0.0)))
        self._centers = [(self._scaled(point), self._options(point)) for point in points]

    def at(self, point: _Point) -> float:
        """Return the density at `point`, up to a factor that is the same for all points and is left out."""
        numbers, options = self._scaled(point), self._options(point)
        penalties = [penalty for _, penalty in self._penalties]
        total = 0.0
        for center, its_options in self._centers:
            squared = math.dist(numbers, center) ** 2
            if options != its_options:
                squared += sum(
                    penalty for x, at, penalty in zip(options, its_options, penalties, strict=True) if x != at
                )
            total += math.exp(-0.5 * squared)
        return max(self._height * total, _LEAST_DENSITY)

    def sample(self, rng: random.Random, bandwidth_factor: float) -> _Point:
        """Draw a point near one of those that the estimate is made of, on numbers from wider kernels."""
        center = self._points[rng.randrange(len(self._points))]
        return tuple(
            _near(rng, axis, at, bandwidth, bandwidth_factor)
            for axis, bandwidth, at in zip(self._axes, self._bandwidths, center, strict=True)
        )

    def _scaled(self, point: _Point) -> _Point:
        return tuple(point[index] * scale for index, scale in self._scales)

    def _options(self, point: _Point) -> _Point:
        return tuple(point[index] for index, _ in self._penalties)


def _bandwidth(axis: Parameter, found: float, least: float) -> float:
    """At the most, every option of a choice is as probable as the point's own."""
    return min(max(found, least), 1.0 - 1.0 / axis.size) if isinstance(axis, Choice) else max(found, least)


def _near(rng: random.Random, axis: Parameter, at: float, bandwidth: float, factor: float) -> float:
    if isinstance(axis, Choice):
        return at if rng.random() < 1.0 - bandwidth else axis.to_unit(axis.sample(rng))
    kernel = NormalDist(at, bandwidth * factor)
    low, high = kernel.cdf(0.0), kernel.cdf(1.0)  # cut off at the ends of the axis
    share = min(max(low + rng.random() * (high - low), _LEAST_TAIL), 1.0 - _LEAST_TAIL)
    return min(max(kernel.inv_cdf(share), 0.0), 1.0)


def _deviation(axis: Parameter, column: Sequence[float]) -> float:
    if not isinstance(axis, Choice):
        return pstdev(column)
    shares = [count / len(column) for count in Counter(column).values()]
    return math.sqrt(max(1.0 - sum(share * share for share in shares), 0.0) / 2.0)
