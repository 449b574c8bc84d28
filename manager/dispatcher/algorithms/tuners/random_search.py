"""Random search without repetition."""

from typing import Any

from proctor.manager.dispatcher.algorithms.base import (
    DistinctParameters,
    Parameters,
    Suggestion,
    TunerAlgorithm,
    suggestion_rng,
)
from proctor.sdk.space import SearchSpace


class RandomTuner(TunerAlgorithm):
    """Draws every suggestion from the search space, whatever the results; ends when a finite space is used up."""

    def __init__(self, *, seed: int, optimize_mode: str = "maximize") -> None:
        del optimize_mode  # NNI's files may set it; a random search has no use for it
        self._seed = seed
        self._past: list[Parameters] = []

    def update_search_space(self, space: SearchSpace) -> None:
        """Draw from `space`; what was proposed before is not proposed again."""
        self._space = space
        self._distinct = DistinctParameters(space)
        for parameters in self._past:
            self._distinct.add(parameters)

    def suggest(self, parameter_id: int) -> Suggestion:
        """Draw one parameter set."""
        rng = suggestion_rng(self._seed, parameter_id)
        parameters = self._distinct.draw(rng, lambda: self._space.sample(rng))
        self._remember(parameters)
        return Suggestion(parameters)

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Remember an earlier draw."""
        self._remember(parameters)

    def import_data(self, parameters: Parameters, value: float) -> None:
        """Do not try again what was tried elsewhere."""
        self._remember(parameters)

    def accept_customized(self, parameter_id: int, parameters: Parameters) -> None:
        """Do not try again what the user tries."""
        self._remember(parameters)

    def state_dict(self) -> dict[str, Any]:
        """Return what is not to be drawn again."""
        return {"past": list(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another one's past."""
        for parameters in state["past"]:
            self._remember(parameters)

    def _remember(self, parameters: Parameters) -> None:
        self._distinct.add(parameters)
        if self._space.size is not None:
            self._past.append(parameters)
