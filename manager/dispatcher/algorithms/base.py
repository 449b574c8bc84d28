"""The contract of a built-in algorithm, and what several of them need.

A built-in algorithm is a function of its inputs: the same calls in the same order give exactly the same suggestions
and judgments. It keeps no clock, reads no file and draws no number from a shared generator. So a dispatcher that was
killed is brought back by making the same calls again, with `restore` in the place of every `suggest` that had
been answered.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proctor.sdk.space import SearchSpace

Parameters = dict[str, Any]
"""What a search space of named parameters gives."""

DEFAULT_KEY = "default"

_DRAWS = 16
"""How many proposals are drawn before a neighbor is taken."""


_SMALLEST_BIT = 1074
"""Every float is a whole number of 2 to the minus this."""


class SpaceExhausted(Exception):
    """The tuner has nothing to suggest now; a later result or a new search space may change that."""


@dataclass(frozen=True)
class Suggestion:
    """One set of parameters, and the state with which the tuner can restore it."""

    parameters: Any
    state: Any = None
    """JSON, opaque to everyone else; given back to `restore`."""
    parent: int | None = None
    """The parameter id of the trial whose checkpoint the new one begins with, if it has one."""


class TunerAlgorithm(ABC):
    """A built-in tuner. Calls come one at a time, the search space before anything else."""

    has_parents = False
    """Whether its suggestions may name a parent: a trial that has ended."""

    @abstractmethod
    def update_search_space(self, space: SearchSpace) -> None:
        """Suggest from `space` from now on. What is already known stays known as far as it fits."""

    @abstractmethod
    def suggest(self, parameter_id: int) -> Suggestion:
        """Propose one set of parameters. Ids are never reused; their order is the order of suggestions.

        Raises NoMoreTrials, and then has changed nothing.
        """

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:  # noqa: B027 - optional
        """Be as after a `suggest(parameter_id)` that returned these parameters and this state."""

    def receive_result(self, parameter_id: int, parameters: Parameters, value: float) -> None:  # noqa: B027 - optional
        """Learn the final value of a trial. `value` may be NaN or infinite, which is as bad as can be."""

    def receive_pruned(  # noqa: B027 - optional
        self, parameter_id: int, parameters: Parameters, value: float, step: int
    ) -> None:
        """Learn the last value of a trial that its scheduler has ended at this step: no full result."""

    def trial_paused(self, parameter_id: int, value: float, step: int) -> None:  # noqa: B027 - optional
        """Learn the value at the step at which a trial scheduler has paused a trial. It may run again: then this comes
        again with a later step, or its result, or its end alone."""

    def trial_end(self, parameter_id: int, succeeded: bool) -> None:  # noqa: B027 - optional
        """A trial has ended for good; its result, if it has one, came before."""

    def import_data(self, parameters: Parameters, value: float) -> None:  # noqa: B027 - optional
        """Learn a result from elsewhere; the parameters need not belong to the search space."""

    def accept_customized(self, parameter_id: int, parameters: Parameters) -> None:  # noqa: B027 - optional
        """The user has added a trial; its result and end come under this id."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return everything that later suggestions depend on but the search space, as JSON; None if that is not
        possible, so that after a restart all calls are made again."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as the tuner that returned this from `state_dict`. Called on a new one with the same search space."""
        raise NotImplementedError(f"{type(self).__name__}.load_state_dict is missing")


class AssessorAlgorithm(ABC):
    """A built-in assessor. Calls come one at a time."""

    @abstractmethod
    def assess(self, trial_id: str, sequence: int, value: float) -> bool:
        """Receive intermediate metric number `sequence` (from 0, without gaps) of a running trial.

        Returns True to continue, False to stop the trial early. `value` may be NaN or infinite.
        """

    @abstractmethod
    def trial_restarted(self, trial_id: str, from_sequence: int) -> None:
        """The trial runs again; metric `from_sequence` comes next and those from there on never happened."""

    @abstractmethod
    def trial_end(self, trial_id: str, succeeded: bool) -> None:
        """A trial has ended for good."""


def suggestion_rng(seed: int | str, parameter_id: int) -> random.Random:
    """Return the generator that belongs to one suggestion of one experiment."""
    return random.Random(f"{seed}:{parameter_id}")


def suggestion_seed(seed: int | str, parameter_id: int) -> int:
    """Return a 32-bit seed that belongs to one suggestion, for libraries that bring their own generators."""
    return suggestion_rng(seed, parameter_id).getrandbits(32)


def read_value(value: Any) -> float:
    """Return the number in a metric: itself, or under "default" in a mapping; NaN where there is none."""
    if isinstance(value, Mapping):
        value = value.get(DEFAULT_KEY)
    if isinstance(value, bool) or value is None:
        return math.nan if value is None else float(value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def loss_of(value: float, maximize: bool) -> float:
    """Return what is to be minimized: infinity for everything that is not a finite number."""
    if not math.isfinite(value):
        return math.inf
    return -value if maximize else value


class ExactMean:
    """The mean of finite numbers: their exact sum by their count, rounded once. So the mean of equal numbers is that
    number, and no sum is too large."""

    def __init__(self) -> None:
        self._sum = 0
        """In units of the smallest part that floats are made of."""
        self._count = 0

    def add(self, number: float) -> None:
        """Take another number into account."""
        numerator, denominator = number.as_integer_ratio()
        self._sum += numerator << (_SMALLEST_BIT + 1 - denominator.bit_length())
        self._count += 1

    def value(self) -> float:
        """Return the mean; infinity of no numbers."""
        return self._sum / (self._count << _SMALLEST_BIT) if self._count else math.inf


class DistinctParameters:
    """Remembers what has been proposed, imported or added by the user, and keeps new proposals apart from it.

    Only finite spaces are watched: in the others a repetition has probability nought, and remembering every
    proposal would cost memory forever.
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
            raise SpaceExhausted(f"all {self._space.size} parameter sets of the search space have been used")

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
        raise SpaceExhausted("the search space is used up")
