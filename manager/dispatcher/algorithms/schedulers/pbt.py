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
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.dispatcher.algorithms.schedulers.base import (
    MetricScheduler,
    counted,
    number_text,
    ordinal,
    plain,
    table,
)
from proctor.manager.dispatcher.algorithms.schedulers.mutations import MutationAxes, Mutations, read_mutations
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
from proctor.sdk.space import SearchSpace, parse_search_space


@dataclass(frozen=True)
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


class _Population:
    """The trials of a population, in order of what they are chosen by: a change costs about the same however many there
    are."""

    def __init__(self) -> None:
        self._trials: dict[int, _Trial] = {}
        self._ranked: list[tuple[float, int]] = []
        """Those that have been compared, best first, by loss."""
        self._ready: list[tuple[float, int]] = []
        """Those that wait for a place only, by how far they have trained."""
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, trial: int) -> _Trial:
        return self._trials[trial]

    def __contains__(self, trial: int) -> bool:
        return trial in self._trials

    def get(self, trial: int) -> _Trial | None:
        """Return a trial, if it is here."""
        return self._trials.get(trial)

    @property
    def all(self) -> Mapping[int, _Trial]:
        """Return all of them, in the order in which they joined."""
        return self._trials

    def put(self, trial: int, state: _Trial) -> None:
        """Add a trial, or replace what is known of it."""
        before = self._trials.get(trial)
        if before is not None:
            self._take_out(trial, before)
        self._trials[trial] = state
        if state.loss is not None:
            insort(self._ranked, (state.loss, trial))
        if state.is_ready:
            insort(self._ready, (state.time, trial))
        self._waiting += state.waits

    def change(self, trial: int, **fields: Any) -> _Trial:
        """Replace some of what is known of a trial."""
        state = replace(self._trials[trial], **fields)
        self.put(trial, state)
        return state

    def pop(self, trial: int) -> _Trial | None:
        """Remove a trial, if it is here."""
        state = self._trials.pop(trial)
        if state is not None:
            self._take_out(trial, state)
        return state

    def _take_out(self, trial: int, state: _Trial) -> None:
        if state.loss is not None:
            del self._ranked[bisect_left(self._ranked, (state.loss, trial))]
        if state.is_ready:
            del self._ready[bisect_left(self._ready, (state.time, trial))]
        self._waiting -= state.waits

    @property
    def compared(self) -> int:
        """How many have been compared."""
        return len(self._ranked)

    @property
    def missing(self) -> int:
        """How many have not come to the point at which all are compared."""
        return len(self._trials) - self._waiting

    def rank(self, trial: int) -> int:
        """Return how many are better than a trial that has been compared."""
        return bisect_left(self._ranked, (_loss_of(self._trials[trial]), trial))

    def first_ready(self) -> int | None:
        """Return the one with the least training of those that wait for a place only."""
        return self._ready[0][1] if self._ready else None

    def exploits(self, trial: int, quantile: float) -> bool:
        """Whether a trial is one of the worst, and one of the best is better than it."""
        state = self._trials[trial]
        if state.loss is None or self.rank(trial) < len(self._ranked) - self._share(quantile):
            return False
        return self._ranked[0][0] < state.loss

    def worst(self, quantile: float) -> list[int]:
        """Return the worst of them, best first."""
        share = self._share(quantile)
        return [trial for _, trial in self._ranked[len(self._ranked) - share :]]

    def donors(self, trial: int, quantile: float) -> list[int]:
        """Return those of the best that are better than a trial, by number."""
        better = bisect_left(self._ranked, (_loss_of(self._trials[trial]), -1))
        return sorted(each for _, each in self._ranked[: min(self._share(quantile), better)])

    def _share(self, quantile: float) -> int:
        return min(math.ceil(len(self._ranked) * quantile), len(self._ranked) // 2)


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
        rules: int = CURRENT_RULES,
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
        self._rules = rules
        self._mutations = self._mutations_in(SearchSpace({}))
        self._trials = _Population()
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
        self._trials.put(trial, _Trial(parameters))
        self._added += 1
        self._is_complete = self._added >= self._size or (self._synch and self._is_complete)

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        """Compare a trial that has trained for an interval since the last time."""
        state = self._trials.get(trial)
        time = result.time(self._time_attr)
        if state is None or math.isnan(time):
            return CONTINUE
        if state.waits or state.exploits:
            return self._pause(trial)
        if time < self._burn_in:
            return CONTINUE
        if self._synch:
            return self._compare_at_once(trial, time, self._loss(result))
        state = self._trials.change(trial, time=min(state.time, time))
        # it may have gone back, or count its time from its clone's start
        if time - state.time < self._interval:
            return CONTINUE
        self._trials.change(trial, time=time, loss=self._loss(result))
        exploits = self._exploits(trial)
        self._trials.change(trial, exploits=exploits)
        makes_room = not self._is_complete or self._trials.first_ready() is not None
        return self._pause(trial) if exploits or makes_room else CONTINUE

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        """Continue with the rest of the population."""
        state = self._trials.get(trial)
        if state is not None and result is not None and not math.isnan(time := result.time(self._time_attr)):
            self._trials.change(trial, time=time, loss=self._loss(result))
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
        exploits = self._trials[trial].exploits and bool(self._trials.donors(trial, self._quantile))
        self._trials.change(trial, exploits=exploits, paused=False)

    def on_trial_clone(self, trial: int, donor: int, parameters: Any) -> None:
        """Count the trial as trained as far as its donor. Until its next comparison it keeps its own place in the
        population: it is no donor yet, and no other trial moves down in its stead."""
        state = self._trials.get(trial)
        if state is None:
            return
        self._complete_for(trial, state)
        state = self._trials[trial]
        self._trials.change(
            trial,
            parameters=parameters,
            parent=donor,
            generation=state.generation + 1,
            time=self._trials[donor].time if donor in self._trials else state.time,
            paused=False,
            exploits=False,
        )

    # ---- decisions

    def choose_trial_to_run(self, request: int, can_start: bool) -> scheduler.NextTrial | None:
        """Fill the population; then let the trial continue that has trained least, as itself or as a clone."""
        if can_start and self._added < self._size:
            return START
        trial = self._trials.first_ready()
        if trial is not None:
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
        donors = self._trials.donors(trial, self._quantile) if exploits else []
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

    def _pause(self, trial: int) -> PauseVerdict:
        return PauseVerdict(self._reason(self._trials.change(trial, paused=True), trial))

    def _reason(self, state: _Trial, trial: int) -> str:
        at = number_text(state.time)
        if state.waits:
            missing = self._trials.missing + (0 if self._is_complete else self._size - self._added)
            if missing > 0:
                return f"waits at {at} for {counted(missing, 'more trial')} of the population"
            return f"has reached {at} with all of the population"
        if state.exploits:
            place = f"{ordinal(self._trials.rank(trial) + 1)} of {counted(self._trials.compared, 'trial')}"
            return f"is {place}, at {self._value_text(state.loss)}, and is to continue from a better one"
        return f"has trained to {at} and makes room for others of the population"

    # ---- comparing

    def _compare_at_once(self, trial: int, time: float, loss: float) -> Verdict:
        """Let a trial wait that has come to the next comparison; if it is the last one, compare."""
        if time < self._next_sync:
            return CONTINUE
        state = self._trials.change(trial, time=time, loss=loss, waits=True, paused=True)
        reason = self._reason(state, trial)
        if self._is_complete and self._all_wait():
            self._compare_all()
        return PauseVerdict(reason)

    def _all_wait(self) -> bool:
        return len(self._trials) > 0 and not self._trials.missing

    def _compare_all(self) -> None:
        """Mark the worst, and set the next comparison."""
        exploiting = {trial for trial in self._trials.worst(self._quantile) if self._exploits(trial)}
        states = dict(self._trials.all)
        furthest = max(state.time for state in states.values())
        self._next_sync = max(self._next_sync + self._interval, furthest)
        for trial, state in states.items():
            self._trials.change(trial, waits=False, exploits=state.exploits or trial in exploiting)

    def _exploits(self, trial: int) -> bool:
        return self._trials.exploits(trial, self._quantile)

    def _first_if_complete_now(self) -> scheduler.NextTrial | None:
        """Return what continues first if the population counts as complete as it is."""
        paused = [(state.time, trial) for trial, state in self._trials.all.items() if state.paused]
        if not paused:
            return None
        trial = min(paused)[1]
        return self._continuation(trial, self._exploits(trial))

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
        state = self._trials.pop(trial)
        if state is not None:
            self._former[trial] = state
        if self._synch and self._is_complete and self._all_wait():
            self._compare_all()

    def _mutations_in(self, space: SearchSpace) -> Mutations:
        axes = space.parameters if self._written_axes is None else self._written_axes
        return Mutations(axes, space, self._resample_probability, self._factors, self._rules > 1)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the population, and when it is compared next."""
        return {
            "added": self._added,
            "is_complete": self._is_complete,
            "next_sync": self._next_sync,
            "trials": [
                {**vars(state), "trial": trial, "loss": to_json_word(state.loss), "has_left": trial in self._former}
                for trial, state in sorted({**self._trials.all, **self._former}.items())
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another one's population."""
        self._added, self._is_complete = state["added"], state["is_complete"]
        self._next_sync = state["next_sync"]
        for saved in state["trials"]:
            fields = dict(saved)
            trial, loss = fields.pop("trial"), from_json_word(fields.pop("loss"))
            put = self._former.__setitem__ if fields.pop("has_left") else self._trials.put
            put(trial, _Trial(**fields, loss=loss))

    def describe(self) -> list[dict[str, Any]]:
        """Return the population, best first, then the trials that have left it."""
        rows = []
        for trials, has_left in ((self._trials.all, False), (self._former, True)):
            for trial in sorted(trials, key=lambda each: (_loss_of(trials[each]), each)):
                state = trials[trial]
                where = "ended" if has_left else "waiting" if state.waits else "paused" if state.paused else "running"
                rows.append((trial, self._value(state.loss), plain(state.time), state.generation, state.parent, where))
        columns = ("trial", "value", "trained to", "generation", "clone of", "state")
        return [table(f"Population ({self._added} of {self._size} added)", columns, rows, trial_columns=[0, 4])]


def _loss_of(state: _Trial) -> float:
    """At its last comparison; infinite before the first."""
    return math.inf if state.loss is None else state.loss
