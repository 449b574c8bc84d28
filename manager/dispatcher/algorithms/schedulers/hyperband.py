"""HyperBand: brackets of trials that train to the same milestone, wait for each other there, and are then cut down to
the best.

A bracket of n trials waits at its first milestone until all of them are there, keeps the best n/`reduction_factor`,
trains these up to `reduction_factor` times as long, and so on, up to `max_t`. The brackets of one band range from many
trials with little training each to a few that are trained to the end at once, for about the same sum. When a band is
full, the next one begins. As in the paper, every bracket ends at `max_t`; Ray Tune rounds each first milestone down and
multiplies it, so that most brackets end earlier unless `max_t` is a power of `reduction_factor`.

Nothing waits forever. A trial that ends in any way leaves its bracket, which then waits for the others only. A bracket
that is not full yet waits for new trials as long as there can be any. When a place is free and no new trial may start,
it counts as full: what `choose_trial_to_run` returns is the choice after that cut. The cut itself is made when the
choice is carried out, in `on_trial_resume`, because a choice changes nothing. A trial that resumes by itself closes no
bracket; it is paused again at its next result.
"""

import copy
import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import takewhile
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
from proctor.sdk.metrics import from_json_word, to_json_word
from proctor.sdk.scheduler import (
    CONTINUE,
    MOST_ROWS,
    START,
    TRAINING_ITERATION,
    NextTrial,
    PauseVerdict,
    ResumeChoice,
    StopVerdict,
    TrialReport,
    Verdict,
)


@dataclass(frozen=True)
class _Member:
    """A living trial of a bracket."""

    loss: float = math.inf
    """At its milestone; before that, at its last result."""
    time: float = 0.0
    arrived: bool = False
    """Whether it has reached the milestone of its bracket, and so is not to run now."""
    paused: bool = False
    place: int = 0
    """Among the `of` trials of the last cut."""
    of: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether it is to be resumed."""
        return self.paused and not self.arrived


@dataclass
class _Bracket:
    number: int
    size: int
    """How many trials belong in it now, those that have crashed on the way included."""
    milestones: tuple[float, ...]
    stops_last: bool
    factor: float
    round: int = 0
    added: int = 0
    is_full: bool = False
    work: float = 0.0
    """The training that all its rounds take."""
    used: float = 0.0
    """The training of all its trials so far."""
    best: float = math.inf
    """The lowest loss that any of its trials has reported."""
    members: dict[int, _Member] = field(default_factory=dict)
    """Changed by the methods below only, which keep the next two."""
    arrived: int = 0
    """How many of them have arrived."""
    ready: list[tuple[int, int]] = field(default_factory=list)
    """Those that are to be resumed, best first: place and trial."""

    def __post_init__(self) -> None:
        self.work = self.work or self._sum_of_rounds()

    @property
    def milestone(self) -> float:
        return self.milestones[self.round]

    @property
    def is_last_round(self) -> bool:
        return self.round + 1 == len(self.milestones)

    @property
    def missing(self) -> int:
        """How many trials it waits for."""
        absent = 0 if self.is_full else self.size - self.added
        return absent + len(self.members) - self.arrived

    @property
    def all_arrived(self) -> bool:
        return bool(self.members) and self.arrived == len(self.members)

    def put(self, trial: int, member: _Member) -> None:
        """Let a trial be a member."""
        self.members[trial] = member
        self.arrived += member.arrived
        if member.is_ready:
            insort(self.ready, (member.place, trial))

    def remove(self, trial: int) -> _Member:
        """Let a trial be a member no longer."""
        member = self.members.pop(trial)
        self.arrived -= member.arrived
        if member.is_ready:
            del self.ready[bisect_left(self.ready, (member.place, trial))]
        return member

    def change(self, trial: int, **fields: Any) -> _Member:
        """Replace some of what is known of a member."""
        before = self.members[trial]
        member = replace(before, **fields)
        self.members[trial] = member
        self.arrived += member.arrived - before.arrived
        if before.is_ready:
            del self.ready[bisect_left(self.ready, (before.place, trial))]
        if member.is_ready:
            insort(self.ready, (member.place, trial))
        return member

    def add(self, trial: int) -> None:
        """Let a new trial join."""
        self.put(trial, _Member())
        self.added += 1
        self.is_full = self.added >= self.size

    def close(self) -> None:
        """Count as full with those that have joined."""
        self.size, self.is_full = self.added, True
        self.work = self._sum_of_rounds()

    def cut(self) -> "list[_Leaving]":
        """Keep the best as often as all have arrived; return those that leave."""
        left: list[_Leaving] = []
        while self.is_full and not self.is_last_round and self.all_arrived:
            kept, reached = math.ceil(self.size / self.factor), number_text(self.milestone)
            order = sorted(self.members, key=lambda trial: (self.members[trial].loss, trial))
            self.size, self.round = kept, self.round + 1
            for place, trial in enumerate(order, 1):
                has_arrived = self.members[trial].time >= self.milestone
                has_arrived = has_arrived and not (self.is_last_round and not self.stops_last)
                member = self.change(trial, place=place, of=len(order), arrived=has_arrived)
                if place > kept:
                    reason = f"is not among the best {kept} of the {counted(len(order), 'trial')}"
                    verdict = StopVerdict(f"{reason} of bracket {self.number} at {reached}")
                    left.append((trial, self.remove(trial), verdict))
                elif member.arrived and self.is_last_round:
                    left.append((trial, self.remove(trial), self.end))
        return left

    @property
    def end(self) -> StopVerdict:
        """What a trial gets at the end of the last round."""
        return StopVerdict(
            f"has used {number_text(self.milestones[-1])}, the most of bracket {self.number}", is_full=True
        )

    def next_ready(self) -> int | None:
        """Return the best trial that is to be resumed."""
        return self.ready[0][1] if self.ready else None

    def _sum_of_rounds(self) -> float:
        total, size, before = 0.0, self.size, 0.0
        for milestone in self.milestones:
            total += size * (milestone - before)
            size, before = math.ceil(size / self.factor), milestone
        return total


_Leaving = tuple[int, _Member, StopVerdict]
"""A trial that leaves its bracket, and its verdict."""


class HyperBandScheduler(MetricScheduler):
    """Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization" (JMLR 2018), with Ray Tune's
    arguments and brackets. The brackets with the fewest trials are filled first."""

    fills_largest_first = False
    """Whether it is those with the most."""

    def __init__(
        self,
        *,
        time_attr: str = TRAINING_ITERATION,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
        ray_brackets: bool = False,
        seed: int = 0,
        optimize_mode: str = "maximize",
        rules: int = CURRENT_RULES,
    ) -> None:
        super().__init__(time_attr=time_attr, optimize_mode=optimize_mode, seed=seed)
        if reduction_factor <= 1:
            raise ValueError(f"reduction_factor: expected more than 1, found {reduction_factor}")
        if max_t < 1:
            raise ValueError(f"max_t: expected at least 1, found {max_t}")
        self._factor = reduction_factor
        self._stops_last = stop_last_trials
        self._plan = (
            rays_band(max_t, reduction_factor)
            if ray_brackets or rules == 1
            else band(max_t, reduction_factor, in_steps=time_attr == TRAINING_ITERATION)
        )
        """Of each bracket of a band, in the order in which they are filled."""
        if self.fills_largest_first:
            self._plan.reverse()
        self._brackets: dict[int, _Bracket] = {}
        """Those with living trials, and the one that is being filled."""
        self._ready: list[int] = []
        """The numbers of those that have a trial to resume, in order."""
        self._opened = 0
        self._done: deque[tuple[int, int, float]] = deque(maxlen=MOST_ROWS)
        """Of the brackets that were finished last: number, how many trials there were, and the lowest loss."""
        self._bracket_of: dict[int, int] = {}
        self._stopped: dict[int, StopVerdict] = {}
        """Trials that are to end, until they have."""
        self._due: list[int] = []
        """The paused ones of these that `take_stops` has not returned yet."""

    @property
    def plan(self) -> "list[Bracket]":
        """The brackets of a band, in the order in which they are filled."""
        return self._plan

    def describe_plan(self) -> str:
        """Return these brackets, as a clause for people: how many trials train up to which milestone."""
        brackets = []
        for size, milestones in self._plan:
            rounds = []
            for milestone in milestones:
                rounds.append(f"{size} to {number_text(milestone)}")
                size = math.ceil(size / self._factor)
            brackets.append(", ".join(rounds))
        return "; ".join(brackets)

    # ---- what happens to trials

    def on_trial_add(self, trial: int, parameters: Any) -> None:
        """Put the trial in the bracket that is being filled."""
        bracket = self._brackets.get(self._opened - 1)
        if bracket is None or bracket.is_full:
            size, milestones = self._plan[self._opened % len(self._plan)]
            bracket = _Bracket(self._opened, size, milestones, self._stops_last, self._factor)
            self._brackets[self._opened] = bracket
            self._opened += 1
        bracket.add(trial)
        self._bracket_of[trial] = bracket.number

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        """Pause a trial at its milestone; the last one to arrive there decides who is kept."""
        if trial in self._stopped:
            return self._stopped[trial]
        time = result.time(self._time_attr)
        if trial not in self._bracket_of or math.isnan(time):
            return CONTINUE
        bracket = self._brackets[self._bracket_of[trial]]
        bracket.used += max(time - bracket.members[trial].time, 0.0)
        member, loss = bracket.change(trial, time=time), self._loss(result)
        bracket.best = min(bracket.best, loss)
        if self._stops_last and time >= bracket.milestones[-1]:
            bracket.change(trial, paused=False)
            self._end(bracket, [(trial, bracket.remove(trial), bracket.end)])
            self._end(bracket, bracket.cut())
        elif not member.arrived and not member.paused:
            has_arrived = time >= bracket.milestone and not bracket.is_last_round
            bracket.change(trial, loss=loss, arrived=has_arrived)
            if has_arrived:
                self._end(bracket, bracket.cut())
        if trial in self._stopped:
            return self._stopped[trial]
        member = bracket.members[trial]
        if member.is_ready:  # one more result, of the time before it paused
            return PauseVerdict(f"waits for a free place for bracket {bracket.number}")
        if not member.arrived or time < bracket.milestone:
            return CONTINUE
        bracket.change(trial, paused=True)
        waits_for = counted(bracket.missing, "more trial")
        return PauseVerdict(f"waits at {number_text(bracket.milestone)} for {waits_for} of bracket {bracket.number}")

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        """Let the others of its bracket continue without it."""
        self._leave(trial)

    def on_trial_error(self, trial: int) -> None:
        """Let the others of its bracket continue without it: it would not have been kept, but it still counts in the
        number of which the best are kept."""
        self._leave(trial)

    def on_trial_remove(self, trial: int) -> None:
        """Let the others of its bracket continue without it."""
        self._leave(trial)

    def on_trial_resume(self, trial: int, chosen: bool = True) -> None:
        """Note that the trial runs. If it is the one that was chosen to close its bracket, close it."""
        if trial not in self._bracket_of:
            return
        bracket = self._brackets[self._bracket_of[trial]]
        if chosen and not bracket.is_full and trial == self._closed(bracket).next_ready():
            bracket.close()
            self._end(bracket, bracket.cut())
        if trial in bracket.members:
            bracket.change(trial, paused=False)
            self._note_ready(bracket)

    # ---- decisions

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        """Resume a trial that was kept, of the bracket of which the least is done; else start a new one; if that
        cannot be, take the bracket that is not full as it is."""
        if self._ready:
            first = self._band(self._ready[0])  # as many as a band has, however many wait in later ones
            numbers = takewhile(lambda number: self._band(number) == first, self._ready)
            bracket = min((self._brackets[number] for number in numbers), key=self._order)
        elif can_start:
            return START
        else:
            filling = self._brackets.get(self._opened - 1)
            if filling is None or filling.is_full:
                return None
            bracket = self._closed(filling)
        trial = bracket.next_ready()
        if trial is None:
            return None
        member = bracket.members[trial]
        kept = f"{ordinal(member.place)} of the {counted(member.of, 'trial')} of bracket {bracket.number}"
        return ResumeChoice(trial, f"continues to {number_text(bracket.milestone)}: {kept}")

    def take_stops(self) -> list[tuple[int, str]]:
        """Return the paused trials that were not kept."""
        taken = [(trial, self._stopped[trial].reason) for trial in self._due]
        self._due.clear()
        return taken

    def next_milestone(self, trial: int) -> int | None:
        """Return the step where the trial waits for the others of its bracket."""
        if trial not in self._bracket_of:
            return None
        bracket = self._brackets[self._bracket_of[trial]]
        if bracket.is_last_round and not self._stops_last:
            return None
        return self._step_of(bracket.milestone)

    def _order(self, bracket: _Bracket) -> tuple[float, int]:
        """Of the brackets of a band that have trials to resume, the lowest is served first: by how much is done."""
        return bracket.used / bracket.work, bracket.number

    def _note_ready(self, bracket: _Bracket) -> None:
        """A bracket may have a trial to resume now, or none any more."""
        place = bisect_left(self._ready, bracket.number)
        is_noted = place < len(self._ready) and self._ready[place] == bracket.number
        if bracket.ready and not is_noted:
            self._ready.insert(place, bracket.number)
        elif is_noted and not bracket.ready:
            del self._ready[place]

    def _band(self, number: int) -> int:
        return number // len(self._plan)

    def _milestones(self, number: int) -> tuple[float, ...]:
        return self._plan[number % len(self._plan)][1]

    def _closed(self, bracket: _Bracket) -> _Bracket:
        """Return what a bracket would be if it counted as full."""
        if not bracket.all_arrived:
            return bracket
        closed = copy.deepcopy(bracket)
        closed.close()
        closed.cut()
        return closed

    def _end(self, bracket: _Bracket, left: list[_Leaving]) -> None:
        """End trials that have left a bracket: the paused ones are due, the others are stopped at their next result."""
        for trial, member, verdict in left:
            del self._bracket_of[trial]
            self._stopped[trial] = verdict
            if member.paused:
                self._due.append(trial)
        if bracket.is_full and not bracket.members and self._brackets.pop(bracket.number, None) is not None:
            self._done.append((bracket.number, bracket.added, bracket.best))
        self._note_ready(bracket)

    def _leave(self, trial: int) -> None:
        self._stopped.pop(trial, None)
        self._due = [each for each in self._due if each != trial]
        number = self._bracket_of.pop(trial, None)
        if number is not None:
            bracket = self._brackets[number]
            bracket.remove(trial)
            self._end(bracket, bracket.cut())

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the brackets with living trials, and what is to end."""
        return {
            "opened": self._opened,
            "brackets": [
                [
                    bracket.number,
                    bracket.size,
                    bracket.round,
                    bracket.added,
                    bracket.is_full,
                    bracket.work,
                    bracket.used,
                    to_json_word(bracket.best),
                    [
                        [trial, to_json_word(m.loss), m.time, m.arrived, m.paused, m.place, m.of]
                        for trial, m in sorted(bracket.members.items())
                    ],
                ]
                for bracket in self._brackets.values()
            ],
            "stopped": [[trial, stop.reason, stop.is_full] for trial, stop in sorted(self._stopped.items())],
            "due": list(self._due),
            "done": [[number, added, to_json_word(best)] for number, added, best in self._done],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another one's brackets."""
        self._opened = state["opened"]
        for number, size, round_number, added, is_full, work, used, best, members in state["brackets"]:
            bracket = _Bracket(
                number,
                size,
                self._milestones(number),
                self._stops_last,
                self._factor,
                round_number,
                added,
                is_full,
                work,
                used,
                from_json_word(best),
            )
            for trial, loss, *rest in members:
                bracket.put(trial, _Member(from_json_word(loss), *rest))
                self._bracket_of[trial] = number
            self._brackets[number] = bracket
            self._note_ready(bracket)
        self._stopped = {trial: StopVerdict(reason, is_full) for trial, reason, is_full in state["stopped"]}
        self._due = list(state["due"])
        self._done.extend((number, added, from_json_word(best)) for number, added, best in state["done"])

    def describe(self) -> list[dict[str, Any]]:
        """Return the brackets with living trials, then those that are done, the last one first."""
        rows: list[tuple[Any, ...]] = []
        for bracket in self._brackets.values():
            waiting = sum(member.paused and member.arrived for member in bracket.members.values())
            counts = (len(bracket.members), waiting)
            rows.append((bracket.number, bracket.size, plain(bracket.milestone), *counts, self._value(bracket.best)))
        for number, added, best in reversed(self._done):
            rows.append((number, added, plain(self._milestones(number)[-1]), 0, 0, self._value(best)))
        columns = ("bracket", "band", "size", "milestone", "trials", "waiting", "best value")
        title = f"Brackets ({self._opened - len(self._brackets)} of {self._opened} are done)"
        return [table(title, columns, ((number, self._band(number), *rest) for number, *rest in rows))]


class BohbScheduler(HyperBandScheduler):
    """Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale" (ICML 2018): HyperBand for a
    tuner that learns, TPE. The brackets with the most trials and the least training of each are filled first, so that
    the tuner has results to learn from early."""

    fills_largest_first = True


Bracket = tuple[int, tuple[float, ...]]
"""How many trials, and the milestones of their rounds."""


def band(max_t: float, factor: float, *, in_steps: bool) -> list[Bracket]:
    """Return the brackets of one band, fewest trials first, as in the paper: each ends at `max_t`.

    :param in_steps: the milestones before that are whole numbers, rounded up.
    """
    most = 0
    while round(max_t / factor ** (most + 1), 9) >= 1:
        most += 1

    def milestone(halvings: int) -> float:
        if not halvings:
            return max_t
        exact = round(max_t / factor**halvings, 9)
        return math.ceil(exact) if in_steps else exact

    return [
        (_size(most, halvings, factor), tuple(milestone(halvings - each) for each in range(halvings + 1)))
        for halvings in range(most + 1)
    ]


def rays_band(max_t: float, factor: float) -> list[Bracket]:
    """Return the brackets of one band as Ray Tune makes them: what a first milestone loses by rounding, its bracket
    lacks at the end by as many times as it is multiplied."""
    most = round(math.log(max_t) / math.log(factor))
    brackets = []
    for halvings in range(most + 1):
        first = int(max_t / factor**halvings + 1e-9)
        if first >= 1:
            milestones = tuple(min(first * factor**each, max_t) for each in range(halvings + 1))
            brackets.append((_size(most, halvings, factor), milestones))
    return brackets


def _size(most: int, halvings: int, factor: float) -> int:
    return math.ceil(round((most + 1) * factor**halvings / (halvings + 1), 9))
