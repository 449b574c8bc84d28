"""Batch: the parameter sets of one list, in order."""

from collections import Counter
from typing import Any

from proctor.manager.dispatcher.algorithms.base import SpaceExhausted, Suggestion, TunerAlgorithm
from proctor.sdk.space import Choice, SearchSpace
from proctor.sdk.space.choices import canonical


class BatchTuner(TunerAlgorithm):
    """Proposes each option of the only `choice` once. The option itself, any JSON, is the parameter set, as in NNI.

    An option that is written twice is proposed twice. An imported result takes the place of one proposal.
    """

    def __init__(self, *, seed: int = 0, optimize_mode: str = "maximize") -> None:
        del seed, optimize_mode  # a list needs neither
        self._used: Counter[str] = Counter()

    def update_search_space(self, space: SearchSpace) -> None:
        """Take the list of `space`, less what was proposed before."""
        choices = [axis for axis in space.parameters.values() if isinstance(axis, Choice)]
        if len(choices) != 1 or len(space.parameters) != 1:
            raise ValueError("Batch needs exactly one parameter, a choice of parameter sets")
        spent = Counter(self._used)
        self._remaining: list[Any] = []
        for option in choices[0].options:
            if spent[canonical(option)] > 0:
                spent[canonical(option)] -= 1
            else:
                self._remaining.append(option)
        self._remaining.reverse()

    def suggest(self, parameter_id: int) -> Suggestion:
        """Return the next option."""
        if not self._remaining:
            raise SpaceExhausted("every parameter set of the batch has been used")
        parameters = self._remaining.pop()
        self._used[canonical(parameters)] += 1
        return Suggestion(parameters)

    def restore(self, parameter_id: int, parameters: Any, state: Any) -> None:
        """Take one option off the list."""
        self._take(parameters)

    def import_data(self, parameters: Any, value: float) -> None:
        """Take one option off the list: its result is known."""
        self._take(parameters)

    def _take(self, parameters: Any) -> None:
        key = canonical(parameters)
        self._used[key] += 1
        for index in range(len(self._remaining) - 1, -1, -1):
            if canonical(self._remaining[index]) == key:
                del self._remaining[index]
                return
