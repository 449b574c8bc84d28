"""Population based training: trials that do badly continue from the checkpoints of those that do well, with changed
parameters.

After every `perturbation_interval` of training a trial is compared with the rest of the population. One of the worst
`quantile_fraction` is paused, and then continues from the checkpoint of a random one of the best, with that one's
parameters changed a little. `synch` compares all of the population at once: each trial waits for the others at the next
multiple of the interval.

A population is the first `population_size` trials, and those that the user adds; trials that end are not replaced. If
there are fewer places than trials, they take turns: a trial that has trained for an interval makes room, and the one
with the least training is next.

Who the donor is, and what is changed, is drawn when a place is free; it depends on the seed, the trial and how often it
has been cloned, so the choice is the same however often it is asked for.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.manager.dispatcher.algorithms.catalog import unknown_name
from proctor.manager.dispatcher.algorithms.schedulers.base import (
    MetricScheduler,
    counted,
    number_text,
    ordinal,
    plain,
    table,
)
from proctor.sdk import scheduler
from proctor.sdk.metrics import from_json_word, to_json_word
from proctor.sdk.scheduler import (
    CONTINUE,
    START,
    TIME_TOTAL,
    CloneChoice,
    PauseVerdict,
    ResumeChoice,
    TrialReport,
    Verdict,
)
from proctor.sdk.space import (
    Choice,
    NestedChoice,
    Normal,
    Parameter,
    RandInt,
    SearchSpace,
    SearchSpaceError,
    Uniform,
    parse_search_space,
)
from proctor.sdk.space.parameters import is_number, shown

MutationAxes = Mapping[str, Any]
"""By name, each a `Parameter`, or again such a mapping for a parameter that is one."""


@dataclass(frozen=True)
class Mutations:
    """What changes in the parameters that a trial takes over from a better one.

    Each parameter is resampled with some probability. Otherwise one of a list moves to a neighbor in it, and a number
    is multiplied by a factor. Whatever comes out is a value of the search space: moved to the nearest end of its range,
    and to the nearest step.
    """

    axes: MutationAxes
    space: SearchSpace
    """Whose ranges hold for whatever the axes produce."""
    resample_probability: float
    factors: tuple[float, ...]

    def explore(self, parameters: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        """Return changed parameters; those without an axis are as they were."""
        return self._explored(self.axes, self.space.parameters, parameters, rng)

    def _explored(
        self, axes: MutationAxes, limits: Mapping[str, Parameter], parameters: Mapping[str, Any], rng: random.Random
    ) -> dict[str, Any]:
        explored = dict(parameters)
        for name, axis in axes.items():
            known = name in parameters
            value = parameters.get(name)
            limit = limits.get(name, axis)
            if not isinstance(axis, Parameter):
                inner = value if isinstance(value, Mapping) else {}
                explored[name] = self._explored(axis, _limits_in(limit, inner), inner, rng)
                continue
            if rng.random() < self.resample_probability or not known or not axis.contains(value):
                found = axis.sample(rng)
            else:
                found = self._neighbor(axis, value, rng)
            explored[name] = found if limit.contains(found) else nearest(limit, found, value if known else found)
        return explored

    def _neighbor(self, axis: Parameter, value: Any, rng: random.Random) -> Any:
        if isinstance(axis, Choice):
            return axis.neighbor(value, rng.choice((-1, 1)))
        if isinstance(axis, NestedChoice):
            branch = axis.branches[axis.index_of(value)]
            return self._explored(branch.parameters, branch.parameters, value, rng)
        return nearest(axis, value * rng.choice(self.factors), value)


def _limits_in(limit: Any, value: Mapping[str, Any]) -> Mapping[str, Parameter]:
    """Return the axes of the branch of a nested choice that a value has taken."""
    if isinstance(limit, NestedChoice):
        return next((branch.parameters for branch in limit.branches if branch.name == value.get("_name")), {})
    return {}


def nearest(axis: Parameter, value: Any, otherwise: Any) -> Any:
    """Return the value of an axis that is closest to a number; `otherwise` if that says nothing."""
    if not is_number(value):
        return otherwise
    if isinstance(axis, RandInt):
        return min(max(round(value), axis.low), axis.high - 1)
    if isinstance(axis, Uniform):
        return axis.nearest(min(max(float(value), axis.low), axis.high))
    if isinstance(axis, Normal):
        found = axis.nearest(value)
        return found if axis.contains(found) else otherwise
    return otherwise


def read_mutations(written: Mapping[str, Any]) -> MutationAxes:
    """Read `hyperparam_mutations`: lists of values, axes as in a search space, and mappings of these.

    Raises SearchSpaceError if an axis is not valid.
    """
    axes: dict[str, Any] = {}
    for name, given in written.items():
        if isinstance(given, Mapping) and "_type" not in given:
            axes[name] = read_mutations(given)
        elif isinstance(given, Sequence) and not isinstance(given, str):
            axes[name] = Choice(tuple(given))
        else:
            axes[name] = parse_search_space({name: given}).parameters[name]
    return axes


def check_mutations(written: Mapping[str, Any], space: SearchSpace | None) -> list[tuple[tuple[str, ...], str]]:
    """Return what is wrong with `hyperparam_mutations`, each with its place in it.

    :param space: of the experiment, where it is sound.
    """
    if not written:
        return [((), "is empty: name what is to be explored, or leave it out to explore the whole search space")]
    return _check_axes(written, None if space is None else space.parameters, ())


def _check_axes(
    written: Mapping[str, Any], limits: Mapping[str, Parameter] | None, path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], str]]:
    problems: list[tuple[tuple[str, ...], str]] = []
    for name, given in written.items():
        at = (*path, str(name))
        limit = None if limits is None else limits.get(name)
        if limits is not None and limit is None:
            problems.append((at, unknown_name("parameter of the search space", str(name), limits)))
        elif isinstance(given, Mapping) and "_type" not in given:
            inner = None
            if isinstance(limit, NestedChoice):
                inner = {key: axis for branch in limit.branches for key, axis in branch.parameters.items()}
            problems.extend(_check_axes(given, inner, at))
        else:
            problems.extend((at, message) for message in _check_axis(str(name), given, limit))
    return problems


def _check_axis(name: str, given: Any, limit: Parameter | None) -> list[str]:
    if isinstance(given, Sequence) and not isinstance(given, str) and not given:
        return ["expected at least one value, found an empty list"]
    try:
        (axis,) = read_mutations({name: given}).values()
    except SearchSpaceError as error:
        return [problem.message for problem in error.problems]
    outside = [] if limit is None else [value for value in _bounds(axis) if not _is_within(limit, value)]
    return [f"{shown(value)} is outside of the search space, where {name} is {limit.to_json()}" for value in outside]  # type: ignore[union-attr]


def _bounds(axis: Parameter) -> Sequence[Any]:
    """The values between which those of an axis lie, or all of them."""
    if isinstance(axis, Choice):
        return axis.options
    if isinstance(axis, RandInt):
        return (axis.low, axis.high - 1)
    return (axis.low, axis.high) if isinstance(axis, Uniform) else ()


def _is_within(limit: Parameter, value: Any) -> bool:
    if isinstance(limit, Uniform):
        return is_number(value) and limit.low <= value <= limit.high
    if isinstance(limit, RandInt):
        return is_number(value) and limit.low <= value < limit.high
    return isinstance(limit, Normal) or limit.contains(value)


@dataclass
class _Trial:
    parameters: Any
    loss: float | None = None
    """At its last comparison; None before the first."""
    time: float = 0.0
    """At its last comparison."""
    generation: int = 0
    """How often it has been cloned."""
    parent: int | None = None
    """The donor of its last clone."""
    paused: bool = False
    exploits: bool = False
    """Whether it is to continue from a better one."""
    waits: bool = False
    """Whether it has reached the point at which all of the population are compared."""

    @property
    def is_ready(self) -> bool:
        return self.paused and not self.waits


class PbtScheduler(MetricScheduler):
    """Jaderberg et al., "Population Based Training of Neural Networks" (2017), with Ray Tune's arguments and
    `population_size`."""

    def __init__(
        self,
        *,
        time_attr: str = TIME_TOTAL,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        synch: bool = False,
        population_size: int = 10,
        seed: int = 0,
        optimize_mode: str = "maximize",
    ) -> None:
        super().__init__(time_attr=time_attr, optimize_mode=optimize_mode, seed=seed)
        if perturbation_interval <= 0:
            raise ValueError(f"perturbation_interval: expected more than 0, found {perturbation_interval}")
        if not 0 <= quantile_fraction <= 0.5:
            raise ValueError(f"quantile_fraction: expected 0 to 0.5, found {quantile_fraction}")
        if not perturbation_factors:
            raise ValueError("perturbation_factors: expected at least one number")
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._written_axes: MutationAxes | None = read_mutations(hyperparam_mutations) if hyperparam_mutations else None
        self._quantile = quantile_fraction
        self._resample_probability = resample_probability
        self._factors = tuple(float(factor) for factor in perturbation_factors)
        self._synch = synch
        self._size = population_size
        self._mutations = self._mutations_in(SearchSpace({}))
        self._trials: dict[int, _Trial] = {}
        """The population."""
        self._former: dict[int, _Trial] = {}
        """What was known of trials when they left it, for people to see."""
        self._added = 0
        self._is_complete = False
        """Whether all of the population have been added, or are taken to be."""
        self._next_sync = float(max(perturbation_interval, burn_in_period))

    def set_search_space(self, search_space: Any) -> None:
        """Mutate within this space from now on."""
        self._mutations = self._mutations_in(parse_search_space(search_space))

    # ---- what happens to trials

    def on_trial_add(self, trial: int, parameters: Any) -> None:
        """Let a trial join the population."""
        self._trials[trial] = _Trial(parameters)
        self._added += 1
        self._is_complete = self._added >= self._size or (self._synch and self._is_complete)

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        """Compare a trial that has trained for an interval since the last time."""
        state = self._trials.get(trial)
        time = result.time(self._time_attr)
        if state is None or math.isnan(time):
            return CONTINUE
        if state.waits or state.exploits:
            state.paused = True
            return PauseVerdict(self._reason(trial, state))
        if time < self._burn_in:
            return CONTINUE
        if self._synch:
            return self._compare_at_once(trial, state, time, self._loss(result))
        state.time = min(state.time, time)  # it may have gone back, or count its time from its clone's start
        if time - state.time < self._interval:
            return CONTINUE
        state.time, state.loss = time, self._loss(result)
        state.exploits = trial in self._exploiting()
        makes_room = not self._is_complete or any(each.is_ready for each in self._trials.values())
        if not state.exploits and not makes_room:
            return CONTINUE
        state.paused = True
        return PauseVerdict(self._reason(trial, state))

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        """Continue with the rest of the population."""
        state = self._trials.get(trial)
        if state is not None and result is not None and not math.isnan(time := result.time(self._time_attr)):
            state.time, state.loss = time, self._loss(result)
        self._leave(trial)

    def on_trial_error(self, trial: int) -> None:
        """Continue with the rest of the population."""
        self._leave(trial)

    def on_trial_remove(self, trial: int) -> None:
        """Continue with the rest of the population."""
        self._leave(trial)

    def on_trial_resume(self, trial: int, chosen: bool = True) -> None:
        """Note that the trial runs. If it was chosen because no more trials can join, compare those that are there."""
        state = self._trials.get(trial)
        if state is None:
            return
        if chosen:
            self._complete_for(trial, state)
        if state.exploits and not self._donors(trial):
            state.exploits = False
        state.paused = False

    def on_trial_clone(self, trial: int, donor: int, parameters: Any) -> None:
        """Count the trial as trained as far as its donor. Until its next comparison it keeps its own place in the
        population: it is no donor yet, and no other trial moves down in its stead."""
        state = self._trials.get(trial)
        if state is None:
            return
        self._complete_for(trial, state)
        state.parameters, state.parent = parameters, donor
        state.generation += 1
        if donor in self._trials:
            state.time = self._trials[donor].time
        state.paused = state.exploits = False

    # ---- decisions

    def choose_trial_to_run(self, request: int, can_start: bool) -> scheduler.NextTrial | None:
        """Fill the population; then let the trial continue that has trained least, as itself or as a clone."""
        if can_start and self._added < self._size:
            return START
        ready = [(state.time, trial) for trial, state in self._trials.items() if state.is_ready]
        if ready:
            _, trial = min(ready)
            return self._continuation(trial, self._trials[trial].exploits)
        if not can_start and self._all_wait():
            return self._first_if_complete_now()
        return None

    def next_milestone(self, trial: int) -> int | None:
        """Return the step of the next comparison."""
        state = self._trials.get(trial)
        if state is None:
            return None
        return self._step_of(max(self._next_sync if self._synch else state.time + self._interval, self._burn_in))

    def _continuation(self, trial: int, exploits: bool) -> scheduler.NextTrial:
        donors = self._donors(trial) if exploits else []
        state = self._trials[trial]
        if not donors:
            return ResumeChoice(
                trial, f"continues from {number_text(state.time)}, the least training of those that wait"
            )
        donor = self.rng("donor", trial, state.generation).choice(donors)
        parameters = self._trials[donor].parameters
        if isinstance(parameters, Mapping):
            parameters = self._mutations.explore(parameters, self.rng("explore", trial, state.generation))
        value = self._value_text(self._trials[donor].loss)
        return CloneChoice(trial, donor, parameters, f"the donor is at {value}")

    def _reason(self, trial: int, state: _Trial) -> str:
        at = number_text(state.time)
        if state.waits:
            missing = sum(not each.waits for each in self._trials.values())
            missing += 0 if self._is_complete else self._size - self._added
            if missing > 0:
                return f"waits at {at} for {counted(missing, 'more trial')} of the population"
            return f"has reached {at} with all of the population"
        if state.exploits:
            ranked = self._ranked()
            place = f"{ordinal(ranked.index(trial) + 1)} of {counted(len(ranked), 'trial')}"
            return f"is {place}, at {self._value_text(state.loss)}, and is to continue from a better one"
        return f"has trained to {at} and makes room for others of the population"

    # ---- comparing

    def _ranked(self) -> list[int]:
        """Return the living trials that have been compared, best first."""
        return [
            trial
            for _, trial in sorted(
                (state.loss, trial) for trial, state in self._trials.items() if state.loss is not None
            )
        ]

    def _quantiles(self) -> tuple[list[int], list[int]]:
        """Return the worst and the best of the population; the best only as far as they have a number."""
        ranked = self._ranked()
        count = min(math.ceil(len(ranked) * self._quantile), len(ranked) // 2)
        best = [trial for trial in ranked[:count] if math.isfinite(_loss_of(self._trials[trial]))]
        return (ranked[-count:] if count else []), best

    def _donors(self, trial: int) -> list[int]:
        """Return those of the best that are better than a trial, by number."""
        _, upper = self._quantiles()
        return sorted(self._better(upper, trial))

    def _better(self, others: list[int], trial: int) -> list[int]:
        return [each for each in others if _loss_of(self._trials[each]) < _loss_of(self._trials[trial])]

    def _compare_at_once(self, trial: int, state: _Trial, time: float, loss: float) -> Verdict:
        """Let a trial wait that has come to the next comparison; if it is the last one, compare."""
        if time < self._next_sync:
            return CONTINUE
        state.time, state.loss, state.waits, state.paused = time, loss, True, True
        reason = self._reason(trial, state)
        if self._is_complete and self._all_wait():
            self._compare_all()
        return PauseVerdict(reason)

    def _all_wait(self) -> bool:
        return bool(self._trials) and all(state.waits for state in self._trials.values())

    def _compare_all(self) -> None:
        """Mark the worst, and set the next comparison."""
        for trial in self._exploiting():
            self._trials[trial].exploits = True
        furthest = max(state.time for state in self._trials.values())
        self._next_sync = max(self._next_sync + self._interval, furthest)
        for state in self._trials.values():
            state.waits = False

    def _exploiting(self) -> list[int]:
        """The worst of the population, as far as there are better ones among the best."""
        lower, upper = self._quantiles()
        return [trial for trial in lower if self._better(upper, trial)]

    def _first_if_complete_now(self) -> scheduler.NextTrial | None:
        """Return what continues first if the population counts as complete as it is."""
        paused = [(state.time, trial) for trial, state in self._trials.items() if state.paused]
        if not paused:
            return None
        trial = min(paused)[1]
        return self._continuation(trial, trial in self._exploiting())

    def _complete_for(self, trial: int, state: _Trial) -> None:
        """Count the population as complete, if that is why the trial was chosen: a new one would have come first.
        Where all are compared at once, compare them now."""
        if not self._synch:
            self._is_complete = True
        if not state.waits or self._is_complete or not self._all_wait():
            return
        choice = self._first_if_complete_now()
        if isinstance(choice, (ResumeChoice, CloneChoice)) and choice.trial == trial:
            self._is_complete = True
            self._compare_all()

    def _leave(self, trial: int) -> None:
        state = self._trials.pop(trial, None)
        if state is not None:
            self._former[trial] = state
        if self._synch and self._is_complete and self._all_wait():
            self._compare_all()

    def _mutations_in(self, space: SearchSpace) -> Mutations:
        axes = space.parameters if self._written_axes is None else self._written_axes
        return Mutations(axes, space, self._resample_probability, self._factors)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the population, and when it is compared next."""
        return {
            "added": self._added,
            "is_complete": self._is_complete,
            "next_sync": self._next_sync,
            "trials": [
                {**vars(state), "trial": trial, "loss": to_json_word(state.loss), "has_left": trial in self._former}
                for trial, state in sorted({**self._trials, **self._former}.items())
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another one's population."""
        self._added, self._is_complete = state["added"], state["is_complete"]
        self._next_sync = state["next_sync"]
        for saved in state["trials"]:
            fields = dict(saved)
            trial, loss = fields.pop("trial"), from_json_word(fields.pop("loss"))
            population = self._former if fields.pop("has_left") else self._trials
            population[trial] = _Trial(**fields, loss=loss)

    def describe(self) -> list[dict[str, Any]]:
        """Return the population, best first, then the trials that have left it."""
        rows = []
        for trials, has_left in ((self._trials, False), (self._former, True)):
            for trial in sorted(trials, key=lambda each: (_loss_of(trials[each]), each)):
                state = trials[trial]
                where = "ended" if has_left else "waiting" if state.waits else "paused" if state.paused else "running"
                rows.append((trial, self._value(state.loss), plain(state.time), state.generation, state.parent, where))
        columns = ("trial", "value", "trained to", "generation", "clone of", "state")
        return [table(f"Population ({self._added} of {self._size} added)", columns, rows, trial_columns=[0, 4])]


def _loss_of(state: _Trial) -> float:
    """At its last comparison; infinite before the first."""
    return math.inf if state.loss is None else state.loss
