"""Not proposing the same parameters twice, as far as the search space allows."""

import random
from collections.abc import Callable

from proctor.manager.dispatcher.algorithms.base import NoMoreTrials, Parameters
from proctor.sdk.space import SearchSpace

_DRAWS = 16


class DistinctParameters:
    """Remembers what has been proposed, imported or added by hand, and keeps new proposals apart from it.

    Only finite spaces are watched: in the others a repetition has probability nought, and remembering every
    proposal would cost memory for ever.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._known: set[str] = set()

    def add(self, parameters: Parameters) -> None:
        """Remember `parameters`; those of another space are ignored."""
        if self._space.size is not None and self._space.contains(parameters):
            self._known.add(self._space.key(parameters))

    def require_room(self) -> None:
        """Raise NoMoreTrials if every member of the space is known."""
        if self._space.size is not None and len(self._known) >= self._space.size:
            raise NoMoreTrials(f"all {self._space.size} parameter sets of the search space have been used")

    def draw(self, rng: random.Random, propose: Callable[[], Parameters]) -> Parameters:
        """Return the first unknown one of a few proposals, else the unknown member next to a random one."""
        self.require_room()
        if self._space.size is None:
            return propose()
        for _ in range(_DRAWS):
            parameters = propose()
            if self._space.key(parameters) not in self._known:
                return parameters
        return self._next_unknown(rng.randrange(self._space.size), self._space.size)

    def _next_unknown(self, start: int, size: int) -> Parameters:
        for step in range(size):
            parameters = self._space.value_at((start + step) % size)
            if self._space.key(parameters) not in self._known:
                return parameters
        raise NoMoreTrials("the search space is used up")
