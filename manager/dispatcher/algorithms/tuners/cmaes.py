"""Covariance matrix adaptation (CMA-ES). Needs the extra `cmaes`.

Optuna's own CMA-ES keeps its state inside its trials, pickled; here the strategy is rebuilt from the results alone,
which are passed on generation by generation, so that a restarted dispatcher is where it was.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from cmaes import CMA

from proctor.manager.dispatcher.algorithms.base import (
    DistinctParameters,
    Parameters,
    Suggestion,
    TunerAlgorithm,
    loss_of,
    suggestion_rng,
    suggestion_seed,
)
from proctor.sdk.space import SearchSpace

FIRST_SIGMA = 0.25
"""The first deviation, in the unit interval."""


class CmaEsTuner(TunerAlgorithm):
    """Moves a normal distribution over the unit cube; each axis of the space is one edge, choices in their order."""

    def __init__(self, *, seed: int, optimize_mode: str = "maximize", cold_start_num: int = 1) -> None:
        self._seed = seed
        self._maximize = optimize_mode == "maximize"
        self._cold_start = int(cold_start_num)
        self._past: list[Parameters] = []
        self._restarts = 0

    def update_search_space(self, space: SearchSpace) -> None:
        """Begin a new strategy over `space`, in its middle."""
        self._space = space
        self._distinct = DistinctParameters(space)
        for parameters in self._past:
            self._distinct.add(parameters)
        self._dimensions = max(len(space.parameters), 2)
        self._suggested = 0
        self._pending: dict[int, tuple[int, list[float]]] = {}
        self._best_import: tuple[float, list[float]] | None = None
        self._begin([0.5] * self._dimensions)

    def suggest(self, parameter_id: int) -> Suggestion:
        """Draw from the present distribution; the first ones from the space itself."""
        rng = suggestion_rng(self._seed, parameter_id)
        self._strategy.reseed_rng(suggestion_seed(self._seed, parameter_id))
        drawn: list[float] = []

        def propose() -> Parameters:
            if self._suggested < self._cold_start or drawn:
                return self._space.sample(rng)
            drawn.extend(float(x) for x in self._strategy.ask())
            units = zip(self._space.parameters.items(), drawn, strict=False)
            return {name: parameter.from_unit(x) for (name, parameter), x in units}

        parameters = self._distinct.draw(rng, propose)
        point = drawn if drawn and self._belongs(parameters, drawn) else self._point(parameters)
        state = {"generation": self._generation, "point": point}
        self.restore(parameter_id, parameters, state)
        return Suggestion(parameters, state)

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Expect the result of an earlier suggestion."""
        self._suggested += 1
        self._pending[parameter_id] = (state["generation"], state["point"])
        self._remember(parameters)

    def receive_result(self, parameter_id: int, parameters: Parameters, value: float) -> None:
        """Collect a result of the present generation; a full generation moves the distribution."""
        generation, point = self._pending.pop(parameter_id, (-1, []))
        if generation != self._generation:
            return
        self._collected.append((point, loss_of(value, self._maximize)))
        if len(self._collected) == self._strategy.population_size:
            self._advance()

    def trial_end(self, parameter_id: int, succeeded: bool) -> None:
        """Do not wait for a trial that ended without a result."""
        self._pending.pop(parameter_id, None)

    def import_data(self, parameters: Parameters, value: float) -> None:
        """Begin at the best result from elsewhere, as long as nothing has been suggested."""
        self._remember(parameters)
        loss = loss_of(value, self._maximize)
        if self._suggested or not math.isfinite(loss) or not self._space.contains(parameters):
            return
        if self._best_import is None or loss < self._best_import[0]:
            self._best_import = (loss, self._point(parameters))
            self._begin(self._best_import[1])

    def accept_customized(self, parameter_id: int, parameters: Parameters) -> None:
        """Do not try again what the user tries."""
        self._remember(parameters)

    def _remember(self, parameters: Parameters) -> None:
        self._distinct.add(parameters)
        if self._space.size is not None:
            self._past.append(parameters)

    def _begin(self, mean: Sequence[float]) -> None:
        bounds = np.array([[0.0, 1.0]] * self._dimensions)
        self._generation = getattr(self, "_generation", -1) + 1
        self._collected: list[tuple[list[float], float]] = []
        inside = np.clip(np.array(mean), 0.01, 0.99)
        self._strategy = CMA(mean=inside, sigma=FIRST_SIGMA, bounds=bounds, seed=0)

    def _advance(self) -> None:
        finite = [loss for _, loss in self._collected if math.isfinite(loss)]
        worst = max(finite, default=0.0)
        results = [(np.array(point), min(loss, worst + 1.0)) for point, loss in self._collected]
        self._collected = []
        self._generation += 1
        if not finite:
            return
        self._strategy.tell(results)
        if self._strategy.should_stop():
            self._restarts += 1
            rng = suggestion_rng(self._seed, -self._restarts)
            self._begin([rng.random() for _ in range(self._dimensions)])

    def _point(self, parameters: Parameters) -> list[float]:
        units = [axis.to_unit(parameters[name]) for name, axis in self._space.parameters.items()]
        return units + [0.5] * (self._dimensions - len(units))

    def _belongs(self, parameters: Parameters, point: list[float]) -> bool:
        units = zip(self._space.parameters.items(), point, strict=False)
        return all(axis.from_unit(x) == parameters[name] for (name, axis), x in units)
