"""Hyperband: many configurations with a small budget, the best of them again with a larger one.

Li, Jamieson, DeSalvo, Rostamizadeh, Talwalkar: Hyperband, a novel bandit-based approach to hyperparameter optimization,
JMLR 18 (2018). As in NNI, each rung of a bracket is made of new trials, whose budget is among their parameters.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proctor.manager.dispatcher.algorithms.base import (
    Parameters,
    SpaceExhausted,
    Suggestion,
    TunerAlgorithm,
    loss_of,
    suggestion_rng,
)
from proctor.sdk.space import SearchSpace
from proctor.sdk.space.parameters import is_number

BUDGET_KEY = "TRIAL_BUDGET"
"""The parameter that says how long a trial trains, in whatever unit the budgets are."""

Fits = Callable[[Parameters], bool]


@dataclass(frozen=True)
class Rung:
    """Trials of one bracket that have the same budget."""

    size: int
    budget: int


def most_halvings(eta: int, min_budget: int, max_budget: int) -> int:
    """Return how often `max_budget` can be divided by `eta` without being less than `min_budget`: the paper's s_max."""
    halvings = 0
    while min_budget * eta ** (halvings + 1) <= max_budget:
        halvings += 1
    return halvings


def bracket_rungs(halvings: int, most: int, eta: int, max_budget: int) -> list[Rung]:
    """Return the rungs of the bracket that multiplies its budget `halvings` times: the paper's s, of s_max."""
    size = -(-(most + 1) * eta**halvings // (halvings + 1))  # rounded up
    return [Rung(size // eta**i, max_budget * eta**i // eta**halvings) for i in range(halvings + 1)]


@dataclass(frozen=True)
class _Proposal:
    """A trial that can begin: one of an earlier rung again, or (without a parent) a new draw."""

    parent: int | None = None
    hyperparameters: Parameters | None = None


@dataclass
class _Trial:
    hyperparameters: Parameters
    loss: float = math.inf


@dataclass
class _Bracket:
    """One round of successive halving. A rung begins when every trial of the former one has ended."""

    rungs: list[Rung]
    rung: int = 0
    waiting: list[_Proposal] = field(default_factory=list)
    running: dict[int, _Trial] = field(default_factory=dict)
    ended: dict[int, _Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = [_Proposal()] * self.rungs[0].size

    @property
    def budget(self) -> int:
        """The budget of the present rung."""
        return self.rungs[self.rung].budget

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to propose or to wait for."""
        return not self.waiting and not self.running

    def begin(self, parameter_id: int, hyperparameters: Parameters) -> None:
        """The first proposal is a trial now."""
        del self.waiting[0]
        self.running[parameter_id] = _Trial(hyperparameters)

    def end(self, parameter_id: int, fits: Fits) -> _Trial:
        """The trial has ended; with the last one of its rung the next rung begins."""
        trial = self.ended[parameter_id] = self.running.pop(parameter_id)
        self._advance(fits)
        return trial

    def keep(self, fits: Fits) -> None:
        """Propose only what belongs to the search space."""
        self.waiting = [each for each in self.waiting if each.hyperparameters is None or fits(each.hyperparameters)]
        self._advance(fits)

    def _advance(self, fits: Fits) -> None:
        """Begin the next rung when it is time for it. What has no value is not trained any longer."""
        if not self.is_done or self.rung + 1 == len(self.rungs):
            return
        self.rung += 1
        order = sorted(self.ended, key=lambda parameter_id: (self.ended[parameter_id].loss, parameter_id))
        valued = ((parameter_id, self.ended[parameter_id]) for parameter_id in order)
        able = [
            _Proposal(parameter_id, trial.hyperparameters)
            for parameter_id, trial in valued
            if math.isfinite(trial.loss) and fits(trial.hyperparameters)
        ]
        self.waiting, self.ended = able[: self.rungs[self.rung].size], {}


class BracketTuner(TunerAlgorithm):
    """Plays bracket after bracket, those with the most rungs first, and then all of them again.

    How the first rung of a bracket is filled, and what is learned from results, is up to the tuner.
    """

    has_parents = True

    def __init__(
        self, *, seed: int, optimize_mode: str, eta: int, min_budget: int, max_budget: int, serial: bool
    ) -> None:
        self._seed = seed
        self._maximize = optimize_mode == "maximize"
        self._eta, self._max_budget = int(eta), int(max_budget)
        self._most = most_halvings(self._eta, int(min_budget), self._max_budget)
        self._serial = serial
        self._begun = 0
        self._brackets: dict[int, _Bracket] = {}
        self._bracket_of: dict[int, int] = {}

    def draw(self, rng: random.Random) -> Parameters:
        """Return the hyperparameters of a new trial in the first rung of a bracket."""
        return self._space.sample(rng)

    def learn(self, hyperparameters: Parameters, budget: float, loss: float) -> None:
        """A trial with this budget has ended; its loss is infinite if it has no value."""

    def update_search_space(self, space: SearchSpace) -> None:
        """Draw from `space`, and continue with what belongs to it."""
        self._space = space
        for number in list(self._brackets):
            self._brackets[number].keep(space.contains)
            self._drop_if_done(number)

    def suggest(self, parameter_id: int) -> Suggestion:
        """Return the next trial of the oldest bracket that has one, else the first one of a new bracket."""
        number = next((number for number, bracket in self._brackets.items() if bracket.waiting), self._begun)
        if number == self._begun and self._serial and self._brackets:
            raise SpaceExhausted("the trials of this rung are still running")
        bracket = self._brackets.get(number) or self._new_bracket(number)
        proposal = bracket.waiting[0]
        hyperparameters = proposal.hyperparameters
        if hyperparameters is None:
            hyperparameters = self.draw(suggestion_rng(self._seed, parameter_id))
        parameters = {**hyperparameters, BUDGET_KEY: bracket.budget}
        state = {"bracket": number}
        self.restore(parameter_id, parameters, state)
        return Suggestion(parameters, state, proposal.parent)

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Let the trial begin in its bracket."""
        number = state["bracket"]
        if number == self._begun:
            self._brackets[number] = self._new_bracket(number)
            self._begun += 1
        self._bracket_of[parameter_id] = number
        self._brackets[number].begin(parameter_id, without_budget(parameters))

    def receive_result(self, parameter_id: int, parameters: Parameters, value: float) -> None:
        """Remember the value until the trial has ended; that of a user's trial is part of no bracket."""
        loss = loss_of(value, self._maximize)
        number = self._bracket_of.get(parameter_id)
        if number is None:
            self.learn(without_budget(parameters), self._budget_in(parameters), loss)
        else:
            self._brackets[number].running[parameter_id].loss = loss

    def trial_end(self, parameter_id: int, succeeded: bool) -> None:
        """Rank the trial among those of its rung; without a value it comes last."""
        number = self._bracket_of.pop(parameter_id, None)
        if number is None:
            return
        bracket = self._brackets[number]
        budget = bracket.budget
        trial = bracket.end(parameter_id, self._space.contains)
        self._drop_if_done(number)
        self.learn(trial.hyperparameters, budget, trial.loss)

    def import_data(self, parameters: Parameters, value: float) -> None:
        """Learn from a result from elsewhere; it is part of no bracket."""
        self.learn(without_budget(parameters), self._budget_in(parameters), loss_of(value, self._maximize))

    def _budget_in(self, parameters: Parameters) -> float:
        """The budget that parameters name; that of a whole training if they name none."""
        budget = parameters.get(BUDGET_KEY)
        return float(budget) if budget is not None and is_number(budget) else self._max_budget

    def _new_bracket(self, number: int) -> _Bracket:
        halvings = self._most - number % (self._most + 1)
        return _Bracket(bracket_rungs(halvings, self._most, self._eta, self._max_budget))

    def _drop_if_done(self, number: int) -> None:
        if self._brackets[number].is_done:
            del self._brackets[number]


def without_budget(parameters: Parameters) -> Parameters:
    """Return the hyperparameters alone."""
    return {name: value for name, value in parameters.items() if name != BUDGET_KEY}


class HyperbandTuner(BracketTuner):
    """Fills the brackets with random draws. Budgets go up to `R`; the smallest is at least 1."""

    def __init__(
        self,
        *,
        seed: int,
        optimize_mode: str = "maximize",
        R: int = 60,
        eta: int = 3,
        exec_mode: str = "parallelism",
    ) -> None:
        serial = exec_mode == "serial"
        super().__init__(seed=seed, optimize_mode=optimize_mode, eta=eta, min_budget=1, max_budget=R, serial=serial)
