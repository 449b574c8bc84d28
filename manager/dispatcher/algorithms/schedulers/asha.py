"""ASHA, asynchronous successive halving, of which there are two kinds.

Both compare a trial with those that were at the same rung before, and wait for none. A rung is an amount of training,
`grace_period` times a power of `reduction_factor`; the last one is `max_t`.

* `stopping` judges a trial when it reaches a rung: it stops unless it is among the best 1/`reduction_factor` so far.
* `promotion` pauses every trial at every rung, and gives a free place to the best one that has earned it; to a new
  trial only if there is none. A trial that is paused early may still win, when more have been there. When no new trial
  may start, none runs and none has come to the last rung, the best one of the highest rung is promoted anyway:
  else a few trials would end with no result at all.

A trial has one rung at a time: the highest at which it has been recorded. Rungs that it skipped, because it reports
rarely, count as passed: its value there is not known, and that of a later step would be unfair to the others.
"""

import heapq
import math
import struct
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

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
    START,
    TRAINING_ITERATION,
    NextTrial,
    PauseVerdict,
    ResumeChoice,
    StopVerdict,
    TrialReport,
    Verdict,
)

_BEFORE_FIRST = -1


class Ranking:
    """Losses in order, best first. Adding one costs about the same whether there are ten or a hundred thousand: they
    lie in blocks of bounded length."""

    def __init__(self, losses: Iterable[float] = (), *, block: int = 4000) -> None:
        ordered = array("d", sorted(losses))
        self._block = block
        self._blocks = [ordered[start : start + block] for start in range(0, len(ordered), block)]
        self._worst = [each[-1] for each in self._blocks]
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def add(self, loss: float) -> None:
        """Put a loss in its place."""
        self._count += 1
        if not self._blocks:
            self._blocks, self._worst = [array("d", (loss,))], [loss]
            return
        index = min(bisect_left(self._worst, loss), len(self._blocks) - 1)
        block = self._blocks[index]
        insort(block, loss)
        if len(block) > 2 * self._block:
            self._blocks.insert(index + 1, block[self._block :])
            self._worst.insert(index + 1, block[-1])
            del block[self._block :]
        self._worst[index] = block[-1]

    def count_better(self, loss: float) -> int:
        """Return how many losses are lower."""
        index = bisect_left(self._worst, loss)
        if index == len(self._blocks):
            return self._count
        return sum(map(len, self._blocks[:index])) + bisect_left(self._blocks[index], loss)

    def at(self, position: int) -> float:
        """Return the loss that `position` others precede."""
        for block in self._blocks:
            if position < len(block):
                return block[position]
            position -= len(block)
        raise IndexError(position)

    def packed(self) -> str:
        """Return all of them, best first, as 8 bytes each in base64: a tenth of the time that decimals take."""
        return b64encode(struct.pack(f"<{self._count}d", *chain.from_iterable(self._blocks))).decode()

    @classmethod
    def unpack(cls, packed: str) -> "Ranking":
        """Return the ranking whose `packed` was this."""
        return cls(loss for (loss,) in struct.iter_unpack("<d", b64decode(packed)))


@dataclass
class _Rung:
    """What is known of the trials that have been there; those that crashed on their way count as the worst."""

    milestone: float
    losses: Ranking = field(default_factory=Ranking)
    promoted: int = 0
    stopped: int = 0
    waiting: list[tuple[float, int]] = field(default_factory=list)
    """A heap of paused trials, best first, by loss and trial. It may hold some that wait no longer, never on top."""

    @property
    def name(self) -> str:
        return f"rung {number_text(self.milestone)}"


@dataclass(slots=True)
class _Trial:
    bracket: int
    rung: int = _BEFORE_FIRST
    """The highest rung at which it has been recorded; a rung is never recorded again."""
    loss: float = math.inf
    """There."""
    due: bool = False
    """Whether it may not pass its rung: it is to be paused, or to be stopped."""
    paused: bool = False


class AshaScheduler(MetricScheduler):
    """Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), with Ray Tune's arguments."""

    version = 2

    def __init__(
        self,
        *,
        type: str = "stopping",
        time_attr: str = TRAINING_ITERATION,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        seed: int = 0,
        optimize_mode: str = "maximize",
    ) -> None:
        super().__init__(time_attr=time_attr, optimize_mode=optimize_mode, seed=seed)
        if type not in ("stopping", "promotion"):
            raise ValueError(f"type: expected stopping or promotion, found {type!r}")
        if not 0 < grace_period <= max_t:
            raise ValueError(f"grace_period: expected more than 0 and at most max_t ({max_t}), found {grace_period}")
        if reduction_factor <= 1:
            raise ValueError(f"reduction_factor: expected more than 1, found {reduction_factor}")
        milestones = [float(grace_period)]
        while milestones[-1] * reduction_factor <= max_t:
            milestones.append(milestones[-1] * reduction_factor)
        if not 1 <= brackets <= len(milestones):
            raise ValueError(f"brackets: expected 1 to {len(milestones)}, the number of rungs, found {brackets}")
        self._promotes = type == "promotion"
        self._max_t = max_t
        self._factor = reduction_factor
        self._stops_last = stop_last_trials
        self._weights = [math.exp(-start) for start in range(brackets)]
        """Of the brackets: the softmax of their numbers of rungs, of which each has one less than the one before."""
        end = [float(max_t)] if stop_last_trials and milestones[-1] < max_t else []
        self._brackets = [[_Rung(each) for each in (*milestones[start:], *end)] for start in range(brackets)]
        self._trials: dict[int, _Trial] = {}
        self._paused = 0
        """How many of them are paused."""
        self._promotion_order = sorted(
            (
                (bracket, index)
                for bracket, rungs in enumerate(self._brackets)
                for index in range(len(rungs) - 1 if self._promotes else 0)
            ),
            key=lambda place: (-self._brackets[place[0]][place[1]].milestone, place),
        )
        """Of rungs: those with the most training first. The last of a bracket promotes none."""

    # ---- what happens to trials

    def on_trial_add(self, trial: int, parameters: Any) -> None:
        """Put the trial in a bracket at random; one with more rungs is more likely."""
        bracket = 0
        if len(self._weights) > 1:
            bracket = self.rng("bracket", trial).choices(range(len(self._weights)), self._weights)[0]
        self._trials[trial] = _Trial(bracket)

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        """Judge a trial that has reached a rung."""
        state = self._trials.get(trial)
        time = result.time(self._time_attr)
        if state is None or math.isnan(time):
            return CONTINUE
        rungs = self._brackets[state.bracket]
        if self._stops_last and time >= self._max_t:
            left = rungs[state.rung]
            self._record(state, len(rungs) - 1, self._loss(result))
            self._set_paused(state, False)  # it may have been to pause earlier
            self._clear_top(left)
            return StopVerdict(f"has used max_t, {number_text(self._max_t)}", is_full=True)
        if state.due:
            return self._verdict(trial, state) if time >= rungs[state.rung].milestone else CONTINUE
        reached = self._reached(rungs, time)
        if reached <= state.rung:
            return CONTINUE
        rung, loss = rungs[reached], self._loss(result)
        if self._promotes:
            state.due = reached + 1 < len(rungs)
        else:
            state.due = not self._is_among_best(rung, loss)
            rung.stopped += state.due
        self._record(state, reached, loss)
        return self._verdict(trial, state) if state.due else CONTINUE

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        """Record a final metric at the rung that only it has reached."""
        state = self._trials.get(trial)
        if state is not None and result is not None and not state.due:
            rungs = self._brackets[state.bracket]
            self._record(state, self._reached(rungs, result.time(self._time_attr)), self._loss(result))
        self.on_trial_remove(trial)

    def on_trial_error(self, trial: int) -> None:
        """Count the trial as the worst of the rung that it was on its way to."""
        state = self._trials.get(trial)
        if state is not None and not state.due and state.rung + 1 < len(self._brackets[state.bracket]):
            self._record(state, state.rung + 1, math.inf)
        self.on_trial_remove(trial)

    def on_trial_remove(self, trial: int) -> None:
        """Forget the trial, but not what it has left in rungs."""
        state = self._trials.pop(trial, None)
        if state is not None and state.paused:
            self._set_paused(state, False)
            self._clear_top(self._brackets[state.bracket][state.rung])

    def on_trial_resume(self, trial: int, chosen: bool = True) -> None:
        """Promote the trial if it has earned it; else it runs without being promoted, and pauses at its next result."""
        state = self._trials.get(trial)
        if state is None or not state.due:
            return
        rung = self._brackets[state.bracket][state.rung]
        is_last_resort = chosen and self._promotes and self._last_resort() == trial
        self._set_paused(state, False)
        if self._promotes and self._is_promotable(rung, state.loss):
            state.due = False
            rung.promoted += 1
        elif is_last_resort:
            state.due = False
        self._clear_top(rung)

    # ---- decisions

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        """Promote the best trial of the highest rung that has one to promote; else start a new one."""
        for bracket, index in self._promotion_order:
            rungs = self._brackets[bracket]
            rung = rungs[index]
            if rung.waiting and self._is_promotable(rung, rung.waiting[0][0]):
                loss, trial = rung.waiting[0]
                place = f"{ordinal(rung.losses.count_better(loss) + 1)} of {len(rung.losses)}"
                return ResumeChoice(trial, f"promoted to {rungs[index + 1].name}: {place} in {rung.name}")
        last = None if can_start else self._last_resort()
        if last is None:
            return START if can_start else None
        state = self._trials[last]
        rungs = self._brackets[state.bracket]
        where = f"the best of {rungs[state.rung].name}, as no trial has come to {rungs[-1].name}"
        return ResumeChoice(last, f"promoted to {rungs[state.rung + 1].name}: {where}")

    def _last_resort(self) -> int | None:
        """Return the best trial of the highest rung, if all trials are paused and none has come to a last rung."""
        if self._paused < len(self._trials) or any(len(rungs[-1].losses) for rungs in self._brackets):
            return None
        waiting = (self._brackets[bracket][index].waiting for bracket, index in self._promotion_order)
        return next((heap[0][1] for heap in waiting if heap), None)

    def _set_paused(self, state: _Trial, paused: bool) -> None:
        self._paused += paused - state.paused
        state.paused = paused

    def next_milestone(self, trial: int) -> int | None:
        """Return the step of the next rung."""
        state = self._trials.get(trial)
        if state is None or state.rung + 1 >= len(self._brackets[state.bracket]):
            return None
        return self._step_of(self._brackets[state.bracket][state.rung + (not state.due)].milestone)

    def _verdict(self, trial: int, state: _Trial) -> Verdict:
        """What holds for a trial that may not pass its rung."""
        rung = self._brackets[state.bracket][state.rung]
        if not self._promotes:
            share = f"1/{number_text(self._factor)}"
            return StopVerdict(
                f"is not among the best {share} of the {counted(len(rung.losses), 'trial')} of {rung.name}"
                f", at {self._value_text(state.loss)}"
            )
        if not state.paused:
            self._set_paused(state, True)
            heapq.heappush(rung.waiting, (state.loss, trial))
        place = f"{ordinal(rung.losses.count_better(state.loss) + 1)} of {len(rung.losses)}"
        return PauseVerdict(f"waits in {rung.name}: {place}, at {self._value_text(state.loss)}")

    def _is_among_best(self, rung: _Rung, loss: float) -> bool:
        """Ray Tune's rule: whether a loss is up to the percentile of the earlier ones, by linear interpolation. An
        infinite loss is not, once there is a finite one."""
        if not len(rung.losses):
            return True
        if math.isinf(loss):
            return math.isinf(rung.losses.at(0))
        position = (len(rung.losses) - 1) / self._factor
        below = int(position)
        cutoff = rung.losses.at(below)
        if position > below and math.isfinite(cutoff):
            cutoff += (rung.losses.at(below + 1) - cutoff) * (position - below)
        return loss <= cutoff

    def _is_promotable(self, rung: _Rung, loss: float) -> bool:
        """Whether a rung has promotions left, and a loss is among its best 1/`reduction_factor`."""
        share = int(len(rung.losses) / self._factor)
        return rung.promoted < share and rung.losses.count_better(loss) < share

    def _record(self, state: _Trial, reached: int, loss: float) -> None:
        if reached > state.rung:
            state.rung, state.loss = reached, loss
            self._brackets[state.bracket][reached].losses.add(loss)

    def _reached(self, rungs: list[_Rung], time: float) -> int:
        """Return the highest rung at or below a time."""
        return max((index for index, rung in enumerate(rungs) if rung.milestone <= time), default=_BEFORE_FIRST)

    def _clear_top(self, rung: _Rung) -> None:
        """Take those off the top of the heap that wait no longer."""
        while rung.waiting:
            state = self._trials.get(rung.waiting[0][1])
            if state is not None and state.paused and self._brackets[state.bracket][state.rung] is rung:
                return
            heapq.heappop(rung.waiting)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return what rungs have seen, and where each living trial is."""
        return {
            "brackets": [
                [[rung.losses.packed(), rung.promoted, rung.stopped] for rung in rungs] for rungs in self._brackets
            ],
            "trials": [
                [trial, state.bracket, state.rung, to_json_word(state.loss), state.due, state.paused]
                for trial, state in sorted(self._trials.items())
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another one's rungs and trials."""
        for rungs, saved_rungs in zip(self._brackets, state["brackets"], strict=True):
            for rung, (losses, promoted, stopped) in zip(rungs, saved_rungs, strict=True):
                rung.losses, rung.promoted, rung.stopped = Ranking.unpack(losses), promoted, stopped
        for trial, bracket, rung_index, loss, due, paused in state["trials"]:
            found = self._trials[trial] = _Trial(bracket, rung_index, from_json_word(loss), due, paused)
            self._paused += paused
            if paused:
                heapq.heappush(self._brackets[bracket][rung_index].waiting, (found.loss, trial))

    def describe(self) -> list[dict[str, Any]]:
        """Return one table of rungs for each bracket."""
        waiting = Counter((state.bracket, state.rung) for state in self._trials.values() if state.paused)
        fate = ("promoted", "waiting") if self._promotes else ("stopped",)
        tables = []
        for number, rungs in enumerate(self._brackets):
            rows = [
                (
                    plain(rung.milestone),
                    len(rung.losses),
                    self._value(rung.losses.at(0)) if len(rung.losses) else None,
                    *((rung.promoted, waiting[number, index]) if self._promotes else (rung.stopped,)),
                )
                for index, rung in enumerate(rungs)
            ]
            title = "Rungs" if len(self._brackets) == 1 else f"Rungs of bracket {number}"
            tables.append(table(title, ("milestone", "trials", "best value", *fate), rows))
        return tables
