"""The conformance suite of trial schedulers, applied to good ones here and to bad ones below."""

import importlib
import random
from functools import partial
from typing import Any

import pytest

from proctor.sdk.scheduler import (
    CONTINUE,
    START,
    CloneChoice,
    NextTrial,
    PauseVerdict,
    ResumeChoice,
    StopVerdict,
    TrialReport,
    TrialScheduler,
    Verdict,
)
from proctor.sdk.testing import PlayedExperiment, TrialSchedulerContract, check_tables

SCHEDULERS = "proctor.manager.dispatcher.algorithms.schedulers"
STEPS = "training_iteration"
BUILT_IN: "dict[str, tuple[str, dict[str, Any]]]" = {
    "ASHA": ("asha:AshaScheduler", {"max_t": 27, "reduction_factor": 3, "seed": 7}),
    "ASHA with promotions": (
        "asha:AshaScheduler",
        {"type": "promotion", "max_t": 27, "reduction_factor": 3, "seed": 7},
    ),
    "HyperBand": ("hyperband:HyperBandScheduler", {"max_t": 9, "seed": 7}),
    "BOHB": ("hyperband:BohbScheduler", {"max_t": 9, "seed": 7}),
    "median stopping": (
        "median_stopping:MedianStoppingScheduler",
        {"time_attr": STEPS, "grace_period": 2, "hard_stop": False},
    ),
    "PBT": ("pbt:PbtScheduler", {"time_attr": STEPS, "perturbation_interval": 3, "population_size": 6, "seed": 7}),
    "synchronous PBT": (
        "pbt:PbtScheduler",
        {"time_attr": STEPS, "perturbation_interval": 4, "synch": True, "population_size": 6},
    ),
}


class Halving(TrialScheduler):
    """Pauses every trial at step 3, and lets the better one of two continue; the other one is ended. Has a state."""

    def __init__(self) -> None:
        self.waiting: dict[int, float] = {}
        self.winners: list[int] = []
        self.losers: list[int] = []

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        if result.step != 3:
            return CONTINUE
        self.waiting[trial] = result.value if result.value == result.value else float("-inf")
        if len(self.waiting) == 2:
            ranked = sorted(self.waiting, key=lambda each: (self.waiting[each], each))
            self.losers.append(ranked[0])
            self.winners.append(ranked[1])
            self.waiting = {}
        return PauseVerdict("waits for another one at step 3")

    def on_trial_remove(self, trial: int) -> None:
        self.waiting.pop(trial, None)
        self.winners = [each for each in self.winners if each != trial]
        self.losers = [each for each in self.losers if each != trial]

    on_trial_error = on_trial_remove

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        self.on_trial_remove(trial)

    def on_trial_resume(self, trial: int, chosen: bool = True) -> None:
        self.on_trial_remove(trial)

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        if self.winners:
            return ResumeChoice(self.winners[0], "is the better of two at step 3")
        return START if can_start else None

    def take_stops(self) -> list[tuple[int, str]]:
        losers, self.losers = self.losers, []
        return [(trial, "is the worse of two at step 3") for trial in losers]

    def state_dict(self) -> dict[str, Any]:
        waiting = [[trial, str(value)] for trial, value in self.waiting.items()]
        return {"waiting": waiting, "winners": self.winners, "losers": self.losers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = {trial: float(value) for trial, value in state["waiting"]}
        self.winners, self.losers = list(state["winners"]), list(state["losers"])

    def describe(self) -> list[dict[str, Any]]:
        rows = [[trial, str(value)] for trial, value in self.waiting.items()]
        return [{"title": "Waiting at step 3", "columns": ["trial", "value"], "rows": rows, "trial_columns": [0]}]


def make_built_in(name: str) -> TrialScheduler:
    location, arguments = BUILT_IN[name]
    module, kind = location.split(":")
    found: TrialScheduler = getattr(importlib.import_module(f"{SCHEDULERS}.{module}"), kind)(**arguments)
    return found


class TestGoodOnes(TrialSchedulerContract):
    @pytest.fixture(
        autouse=True,
        params=[TrialScheduler, Halving, *(partial(make_built_in, name) for name in BUILT_IN)],
        ids=["the base class", "one of one's own", *BUILT_IN],
    )
    def choose(self, request: pytest.FixtureRequest) -> None:
        self.make_scheduler = request.param  # type: ignore[method-assign]


# ---- bad ones -----------------------------------------------------------------------------------------------------


def contract(scheduler: type[TrialScheduler]) -> TrialSchedulerContract:
    found = TrialSchedulerContract()
    found.make_scheduler = scheduler  # type: ignore[method-assign]
    return found


class OfChance(TrialScheduler):
    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        return StopVerdict("has no luck") if random.random() < 0.2 else CONTINUE


class Counting(Halving):
    """A choice changes something, and so does looking at it."""

    asked = looked = 0

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        self.asked += 1
        return super().choose_trial_to_run(request, can_start) if self.asked % 4 else None

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        return StopVerdict("was looked at") if self.looked > 9 else super().on_trial_result(trial, result)

    def describe(self) -> list[dict[str, Any]]:
        self.looked += 1
        return []


class Forgetful(Halving):
    def state_dict(self) -> dict[str, Any]:
        return {"waiting": [], "winners": self.winners, "losers": self.losers}


def test_a_scheduler_that_is_no_pure_object_fails() -> None:
    with pytest.raises(AssertionError):
        contract(OfChance).test_the_same_calls_lead_to_the_same_decisions(0)
    with pytest.raises(AssertionError):
        contract(Counting).test_a_choice_of_what_runs_next_changes_nothing(0)
    with pytest.raises(AssertionError):
        contract(Counting).test_looking_at_it_changes_nothing(0)
    with pytest.raises(AssertionError):
        contract(Forgetful).test_a_scheduler_that_was_restored_decides_the_same(0)


class Wrong(TrialScheduler):
    choice: NextTrial | None = START
    verdict: Verdict = CONTINUE

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        return self.verdict

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        return START if can_start else self.choice


@pytest.mark.parametrize(
    ("choice", "verdict", "problem"),
    [
        (START, CONTINUE, "it starts a trial where it must not"),
        (ResumeChoice(0, "so"), CONTINUE, "it chooses trial 0, which "),
        (CloneChoice(7, 0, {}, "so"), CONTINUE, "it chooses trial 7, which is not there"),
        (3, CONTINUE, "it chooses 3, which is no choice"),
        (None, PauseVerdict(""), "the verdict on trial 0 has no reason"),
        (None, "stop", "by 'stop', which is no verdict"),
    ],
)
def test_decisions_that_cannot_be_carried_out_are_named(choice: Any, verdict: Any, problem: str) -> None:
    scheduler = type("Scheduler", (Wrong,), {"choice": choice, "verdict": verdict})
    found = contract(scheduler).run(0).problems
    assert any(problem in each for each in found), found


class StopsATrialThatIsNotPaused(TrialScheduler):
    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        return PauseVerdict("takes a rest") if result.step == 2 else CONTINUE

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        return START if can_start else None

    def take_stops(self) -> list[tuple[int, str]]:
        return [(0, "was never paused")]


def test_a_trial_that_runs_is_not_ended_by_take_stops() -> None:
    assert "it ends trial 0, which is not paused" in contract(StopsATrialThatIsNotPaused).run(0).problems


def test_an_experiment_that_never_ends_is_a_problem() -> None:
    played = PlayedExperiment(TrialScheduler, {}, 10_000, seed=0, fails=0.0, removed=0.0, silent=0.0)
    played.play(most_calls=500)
    assert played.problems == ["its trials have not ended after 500 calls"]


@pytest.mark.parametrize(
    "tables",
    [
        None,
        [{"title": "t", "columns": ["a"], "rows": [[1, 2]]}],
        [{"title": "t", "columns": ["a"], "rows": [[1]], "trial_columns": [1]}],
    ],
)
def test_tables_that_cannot_be_shown_fail(tables: Any) -> None:
    with pytest.raises(AssertionError):
        check_tables(tables)


class TooTrusting(Halving):
    """It does not expect that a trial finishes before it can pause."""

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        """Nothing."""


def test_a_scheduler_that_chooses_a_trial_which_has_finished_before_its_pause_is_found() -> None:
    problems = []
    for seed in range(20):
        played = PlayedExperiment(TooTrusting, {}, 6, seed=seed)
        played.play()
        problems += played.problems
    assert any("has ended" in problem or "is not paused" in problem for problem in problems)
