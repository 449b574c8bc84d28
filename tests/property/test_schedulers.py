"""What holds for every built-in trial scheduler, whatever the trials do."""

import json
import math
import random
import statistics
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.schedulers.asha import AshaScheduler, Ranking
from proctor.manager.dispatcher.algorithms.schedulers.hyperband import BohbScheduler, HyperBandScheduler
from proctor.manager.dispatcher.algorithms.schedulers.median_stopping import MedianStoppingScheduler
from proctor.manager.dispatcher.algorithms.schedulers.pbt import PbtScheduler, _Population
from proctor.sdk.scheduler import START, ContinueVerdict, ResumeChoice, StopVerdict, TrialReport
from proctor.sdk.space import parse_search_space
from proctor.sdk.testing import PlayedExperiment, check_tables

STEPS = "training_iteration"
SCHEDULERS = {
    "asha stopping": lambda: AshaScheduler(max_t=27, reduction_factor=3, seed=7),
    "asha stopping, 3 brackets": lambda: AshaScheduler(max_t=20, reduction_factor=2, brackets=3, seed=7),
    "asha stopping, to the end": lambda: AshaScheduler(max_t=9, reduction_factor=3, stop_last_trials=False),
    "asha promotion": lambda: AshaScheduler(type="promotion", max_t=27, reduction_factor=3, seed=7),
    "asha promotion, 2 brackets": lambda: AshaScheduler(type="promotion", max_t=20, reduction_factor=2, brackets=2),
    "asha promotion, to the end": lambda: AshaScheduler(
        type="promotion", max_t=9, reduction_factor=3, stop_last_trials=False
    ),
    "hyperband": lambda: HyperBandScheduler(max_t=9, seed=7),
    "hyperband, halving": lambda: HyperBandScheduler(max_t=16, reduction_factor=2, optimize_mode="minimize"),
    "hyperband, to the end": lambda: HyperBandScheduler(max_t=9, stop_last_trials=False),
    "bohb": lambda: BohbScheduler(max_t=9, seed=7),
    "median stopping": lambda: MedianStoppingScheduler(time_attr=STEPS, grace_period=2),
    "median stopping, pausing": lambda: MedianStoppingScheduler(grace_period=3.0, hard_stop=False),
    "pbt": lambda: PbtScheduler(time_attr=STEPS, perturbation_interval=3, population_size=6, seed=7),
    "pbt by seconds": lambda: PbtScheduler(
        perturbation_interval=4.0, burn_in_period=9.0, quantile_fraction=0.5, population_size=4
    ),
    "pbt, synchronous": lambda: PbtScheduler(
        time_attr=STEPS, perturbation_interval=4, synch=True, population_size=6, seed=7
    ),
    "pbt, synchronous, large": lambda: PbtScheduler(
        time_attr=STEPS, perturbation_interval=4, synch=True, population_size=99, optimize_mode="minimize"
    ),
}
ENDS = {"asha promotion": 27, "asha promotion, 2 brackets": 20, "asha stopping": 27, "asha stopping, 3 brackets": 20,
        "hyperband": 9, "hyperband, halving": 16, "bohb": 9}  # fmt: skip
shares = st.sampled_from([0.0, 0.2, 0.7])
conditions = st.builds(
    SimpleNamespace,
    workers=st.integers(1, 6),
    trials=st.integers(0, 40),
    length=st.sampled_from([1, 12, 30]),
    stride=st.sampled_from([1, 1, 2, 5]),  # steps from one report to the next
    overrun=st.sampled_from([0, 0, 1, 3]),  # reports that a trial still makes after a verdict
    failing=shares,
    silent=shares,
    without_number=shares,
    late=shares,
    added_by_user=st.integers(0, 3),
    digits=st.sampled_from([6, 1, 0]),  # of values; few of them make ties
)
SPACE = {
    "rate": {"_type": "loguniform", "_value": [1e-4, 1.0]},
    "layers": {"_type": "randint", "_value": [1, 9]},
    "width": {"_type": "quniform", "_value": [8, 64, 8]},
    "activation": {"_type": "choice", "_value": ["relu", "tanh", "gelu"]},
}


class DrawnExperiment(PlayedExperiment):
    """Under these conditions. Its scheduler is replaced now and then by a new one with its state."""

    def __init__(self, name, conditions, *, seed, replaced=0.0, asks_twice=False, make=None):
        ends = {"fails": conditions.failing, "silent": conditions.silent}
        super().__init__(make or SCHEDULERS[name], SPACE, conditions.length, seed=seed, asks_twice=asks_twice, **ends)
        self.places, self.trials, self.late = conditions.workers, conditions.trials, conditions.late
        self.left_paused = []
        self._conditions, self._to_add = conditions, conditions.added_by_user
        self._replaced, self._replacements = replaced, random.Random(seed)
        self._leaving, self._stopped = {}, set()

    def _call(self, name, *arguments):
        self._restores = self._replacements.random() < self._replaced
        if name == "on_trial_add":
            dice, kinds = self._random, SPACE["activation"]["_value"]
            arguments[1].update(
                layers=dice.randint(1, 8), width=8.0 * dice.randint(1, 8), activation=dice.choice(kinds)
            )
        milestone = self._scheduler.next_milestone(arguments[0]) if name == "on_trial_result" else None
        found = super()._call(name, *arguments)
        if name == "take_stops":
            self._leaving |= {number: (StopVerdict(why), 0) for number, why in found if number in self._leaving}
            found = [(number, why) for number, why in found if number not in self._leaving]
            self._stopped |= {number for number, _ in found}
        elif milestone is not None and arguments[1].step >= milestone and isinstance(found, ContinueVerdict):
            self._check_milestone(arguments[0], milestone)
        return found

    def _check_milestone(self, number, passed):
        if (self._scheduler.next_milestone(number) or math.inf) <= passed:
            self.problems.append(f"trial {number} passed {passed} without a verdict")

    def _advance(self, number):
        trial = self._trials[number]
        if self._to_add and self._random.random() < 0.05:
            self._to_add, self.trials = self._to_add - 1, self.trials + 1
            added = 10 * len(self._trials)
            self._trials[added] = type(trial)({"rate": self._random.uniform(1e-4, 1.0)}, is_running=True)
            self._call("on_trial_add", added, self._trials[added].parameters)
        trial.step += max(0, min(self._conditions.stride, self._steps - trial.step) - 1)
        super()._advance(number)

    def _report(self, trial):
        value = trial.parameters["rate"] * (1 - math.exp(-trial.step / 5))
        if trial.parameters["rate"] < self._conditions.without_number:
            value = math.nan
        return TrialReport(round(value, self._conditions.digits), trial.step, 1.5 * trial.step)

    def _judge(self, number, verdict):
        before, left = self._leaving.pop(number, (verdict, self._conditions.overrun))
        verdict = before if isinstance(verdict, ContinueVerdict) else verdict
        if left and not isinstance(verdict, ContinueVerdict):
            self._leaving[number] = (verdict, left - 1)
        else:
            super()._judge(number, verdict)

    def _can_run(self, number, *, must_be_paused):
        return super()._can_run(number, must_be_paused=must_be_paused and number not in self._leaving)

    def _set_running(self, number):
        self._leaving.pop(number, None)
        super()._set_running(number)

    def _end(self, number, how, *result):
        if self._trials[number].is_paused and how == "on_trial_remove" and number not in self._stopped:
            self.left_paused.append(number)
        super()._end(number, how, *result)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=20, deadline=None)
@given(conditions, st.integers(0, 10_000))
def test_every_trial_ends_within_its_budget_and_as_if_no_state_had_been_restored(name, conditions, seed):
    played = DrawnExperiment(name, conditions, seed=seed)
    played.play(20_000)
    trials = played._trials.values()
    assert played.problems == []
    assert len(trials) >= (conditions.trials if "pbt" not in name else min(conditions.trials, 4))
    if "promotion" not in name:
        assert played.left_paused == [], "waits for what never comes"
    if name in ENDS:
        most = ENDS[name] + (conditions.overrun + 1) * conditions.stride - 1
        assert all(trial.step <= most for trial in trials)
    tables = played._scheduler.describe()
    check_tables(tables)
    if name == "asha promotion":
        (table,) = tables
        assert all(promoted <= trials // 3 for _, trials, _, promoted, _ in table["rows"])
    if "pbt" in name:
        space = parse_search_space(SPACE)
        assert all(space.contains(trial.parameters) for trial in trials)
    other = DrawnExperiment(name, conditions, seed=seed, replaced=0.1, asks_twice=True)
    other.play(20_000)
    assert other.trace == played.trace
    assert json.dumps(other._scheduler.state_dict()) == json.dumps(played._scheduler.state_dict())


# ---- what is kept in order, against plain formulas over all trials


class PlainMedianStopping(MedianStoppingScheduler):
    def _means_of_others(self, trial, time):
        others = [each for other, each in self._histories.items() if other != trial and each.times[-1] >= time]
        means = [self._mean(each, time) for each in others]
        return sorted(filter(math.isfinite, means))

    def _mean(self, history, end):
        losses = [
            loss for time, loss in zip(history.times, history.losses, strict=True) if self._grace_period <= time <= end
        ]
        if self._rules > 1:
            return statistics.mean(losses) if losses else math.inf
        before = sum_in_order(
            loss for time, loss in zip(history.times, history.losses, strict=True) if time < self._grace_period
        )
        upto = sum_in_order(loss for time, loss in zip(history.times, history.losses, strict=True) if time <= end)
        if math.isinf(before):
            return sum(losses) / len(losses) if losses else math.inf
        return (upto - before) / len(losses) if losses else math.inf


def sum_in_order(numbers):
    total = 0.0
    for number in numbers:
        total = number + total
    return total


class PlainHyperBand(HyperBandScheduler):
    def choose_trial_to_run(self, request, can_start):
        def best_ready(bracket):
            return min(((m.place, trial) for trial, m in bracket.members.items() if m.is_ready), default=None)

        brackets = list(self._brackets.values())
        for each in brackets:
            assert each.arrived == sum(member.arrived for member in each.members.values())
        ready = [(each, best_ready(each)) for each in brackets if best_ready(each)]
        if not ready and can_start:
            return START
        if not ready:
            closed = [self._closed(each) for each in brackets if not each.is_full]
            ready = [(each, best_ready(each)) for each in closed if best_ready(each)]
        found = super().choose_trial_to_run(request, can_start)
        if not ready:
            assert found is None
            return None
        _, (_, trial) = min(
            ready, key=lambda each: (self._band(each[0].number), each[0].used / each[0].work, each[0].number)
        )
        assert found.trial == trial
        return ResumeChoice(trial, found.reason)


class PlainPopulation(_Population):
    def _in_order(self):
        return sorted((state.loss, trial) for trial, state in self.all.items() if state.loss is not None)

    def _quantiles(self, quantile):
        ranked = [trial for _, trial in self._in_order()]
        count = min(math.ceil(len(ranked) * quantile), len(ranked) // 2)
        best = [trial for trial in ranked[:count] if math.isfinite(self[trial].loss)]
        return (ranked[-count:] if count else []), best

    @property
    def missing(self):
        return sum(not state.waits for state in self.all.values())

    def rank(self, trial):
        return [each for _, each in self._in_order()].index(trial)

    def first_ready(self):
        ready = [(state.time, trial) for trial, state in self.all.items() if state.is_ready]
        return min(ready)[1] if ready else None

    def exploits(self, trial, quantile):
        return trial in self.worst(quantile) and bool(self.donors(trial, quantile))

    def worst(self, quantile):
        return self._quantiles(quantile)[0]

    def donors(self, trial, quantile):
        loss = math.inf if self[trial].loss is None else self[trial].loss
        return sorted(each for each in self._quantiles(quantile)[1] if self[each].loss < loss)


class PlainPbt(PbtScheduler):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self._trials = PlainPopulation()


COMPARED = {
    "median stopping": (MedianStoppingScheduler, PlainMedianStopping, {"time_attr": STEPS, "grace_period": 2}),
    "median stopping, first rules": (
        MedianStoppingScheduler,
        PlainMedianStopping,
        {"time_attr": STEPS, "grace_period": 3, "min_samples_required": 2, "rules": 1},
    ),
    "median stopping by seconds, pausing": (
        MedianStoppingScheduler,
        PlainMedianStopping,
        {"grace_period": 3.0, "hard_stop": False},
    ),
    "hyperband": (HyperBandScheduler, PlainHyperBand, {"max_t": 12, "reduction_factor": 2}),
    "hyperband, to the end": (HyperBandScheduler, PlainHyperBand, {"max_t": 9, "stop_last_trials": False}),
    "pbt": (PbtScheduler, PlainPbt, {"time_attr": STEPS, "perturbation_interval": 3, "population_size": 8}),
    "pbt, synchronous": (
        PbtScheduler,
        PlainPbt,
        {"time_attr": STEPS, "perturbation_interval": 4, "synch": True, "population_size": 6, "quantile_fraction": 0.5},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
@settings(max_examples=20, deadline=None)
@given(conditions, st.integers(0, 10_000))
def test_a_scheduler_decides_as_plain_formulas_over_all_trials(name, conditions, seed):
    scheduler, plain, arguments = COMPARED[name]
    played, other = (
        DrawnExperiment(name, conditions, seed=seed, make=lambda kind=kind: kind(**arguments))
        for kind in (scheduler, plain)
    )
    played.play(20_000)
    other.play(20_000)
    assert played.trace == other.trace


@given(st.lists(st.floats(-5, 5).map(lambda x: round(x, 1)) | st.just(math.inf), min_size=1, max_size=80))
def test_a_ranking_is_a_sorted_list(losses):
    ranking = Ranking(losses[::2], block=5)
    for loss in losses[1::2]:
        ranking.add(loss)
    for each in (ranking, Ranking.unpack(ranking.packed())):
        assert [each.at(index) for index in range(len(losses))] == sorted(losses)
        assert len(each) == len(losses)
    assert [ranking.count_better(loss) for loss in losses] == [sum(x < loss for x in losses) for loss in losses]
