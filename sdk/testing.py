"""What a tuner, an assessor or a trial scheduler of your own must do, as tests to inherit.

    class TestMyTuner(TunerContract):
        def make_tuner(self):
            return MyTuner(rate=0.1)

Run it with pytest. `search_space` may be replaced by one that your tuner can search. Where that is none of NNI's kind,
override `holds` as well.
"""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from proctor.sdk.assessor import Assessor, AssessResult
from proctor.sdk.errors import NoMoreTrialError
from proctor.sdk.scheduler import (
    CloneChoice,
    ContinueVerdict,
    NextTrial,
    PauseVerdict,
    ResumeChoice,
    StartChoice,
    StopVerdict,
    TrialReport,
    TrialScheduler,
)
from proctor.sdk.space import parse_search_space
from proctor.sdk.tuner import Tuner


class TunerContract:
    """Tests that hold for every tuner."""

    search_space: ClassVar[Any] = {
        "rate": {"_type": "loguniform", "_value": [1e-4, 1.0]},
        "units": {"_type": "choice", "_value": [16, 32, 64]},
    }
    changed_search_space: ClassVar[Any] = {
        "rate": {"_type": "loguniform", "_value": [1e-2, 1e-1]},
        "units": {"_type": "choice", "_value": [8]},
    }

    def make_tuner(self) -> Tuner:
        """Return a new tuner, as the configuration's `classArgs` would make it."""
        raise NotImplementedError("override make_tuner")

    def holds(self, search_space: Any, parameters: Any) -> bool:
        """Say whether a search space holds what your tuner has proposed; for spaces of NNI's kind."""
        return parse_search_space(search_space).contains(parameters)

    @pytest.fixture
    def tuner(self) -> Tuner:
        tuner = self.make_tuner()
        tuner.update_search_space(self.search_space)
        return tuner

    def test_it_proposes_what_the_search_space_holds(self, tuner: Tuner) -> None:
        for parameters in propose(tuner, range(5)).values():
            assert self.holds(self.search_space, json.loads(json.dumps(parameters)))

    def test_it_goes_on_after_results(self, tuner: Tuner) -> None:
        for parameter_id, parameters in propose(tuner, range(3)).items():
            tuner.receive_trial_result(
                parameter_id, parameters, 0.5 + parameter_id, customized=False, trial_job_id=f"trial{parameter_id}"
            )
            tuner.trial_end(parameter_id, True)
        propose(tuner, range(3, 6))

    def test_it_survives_a_result_that_is_not_a_number(self, tuner: Tuner) -> None:
        values = (math.nan, math.inf, -math.inf)
        for (parameter_id, parameters), value in zip(propose(tuner, range(3)).items(), values, strict=False):
            tuner.receive_trial_result(parameter_id, parameters, value, customized=False, trial_job_id="trial")
            tuner.trial_end(parameter_id, True)
        propose(tuner, range(3, 6))

    def test_it_survives_a_trial_that_fails(self, tuner: Tuner) -> None:
        for parameter_id in propose(tuner, range(3)):
            tuner.trial_end(parameter_id, False)
        propose(tuner, range(3, 6))

    def test_it_takes_results_from_elsewhere(self, tuner: Tuner) -> None:
        other = self.make_tuner()
        other.update_search_space(self.search_space)
        tuner.import_data([{"parameter": parameters, "value": 0.5} for parameters in propose(other, range(3)).values()])
        propose(tuner, range(3))

    def test_it_follows_a_changed_search_space(self, tuner: Tuner) -> None:
        propose(tuner, range(2))
        tuner.update_search_space(self.changed_search_space)
        for parameters in propose(tuner, range(2, 4)).values():
            assert self.holds(self.changed_search_space, json.loads(json.dumps(parameters)))


class AssessorContract:
    """Tests that hold for every assessor."""

    def make_assessor(self) -> Assessor:
        """Return a new assessor, as the configuration's `classArgs` would make it."""
        raise NotImplementedError("override make_assessor")

    @pytest.fixture
    def assessor(self) -> Assessor:
        return self.make_assessor()

    def test_it_judges_every_metric(self, assessor: Assessor) -> None:
        for length in range(1, 6):
            verdict = assessor.assess_trial("trial", [0.1 * step for step in range(length)])
            assert isinstance(verdict, (bool, AssessResult))

    def test_it_survives_metrics_that_are_not_numbers(self, assessor: Assessor) -> None:
        verdict = assessor.assess_trial("trial", [math.nan, math.inf, -math.inf])
        assert isinstance(verdict, (bool, AssessResult))

    def test_it_hears_the_end_of_trials_it_knows_and_of_others(self, assessor: Assessor) -> None:
        assessor.assess_trial("known", [0.5])
        assessor.trial_end("known", True)
        assessor.trial_end("unknown", False)
        assert isinstance(assessor.assess_trial("next", [0.5]), (bool, AssessResult))


class TrialSchedulerContract:
    """Tests that hold for every trial scheduler.

    They run short experiments of a few trials whose values are drawn from a seed: some fail, some are removed, some
    never report, some report what is not a number, and some end, fail or run on before they can pause.
    """

    search_space: ClassVar[Any] = {"rate": {"_type": "loguniform", "_value": [1e-4, 1.0]}}
    steps: ClassVar[int] = 30
    """For how many steps the trials train by themselves."""

    def make_scheduler(self) -> TrialScheduler:
        """Return a new scheduler, as the configuration's `classArgs` would make it."""
        raise NotImplementedError("override make_scheduler")

    def run(self, seed: int, **conditions: Any) -> "PlayedExperiment":
        """Return an experiment that has been played to its end, where it has one."""
        played = PlayedExperiment(self.make_scheduler, self.search_space, self.steps, seed=seed, **conditions)
        played.play()
        return played

    @pytest.mark.parametrize("seed", range(5))
    def test_the_same_calls_lead_to_the_same_decisions(self, seed: int) -> None:
        assert self.run(seed).trace == self.run(seed).trace

    @pytest.mark.parametrize("seed", range(5))
    def test_a_choice_of_what_runs_next_changes_nothing(self, seed: int) -> None:
        assert self.run(seed, asks_twice=True).trace == self.run(seed).trace

    @pytest.mark.parametrize("seed", range(5))
    def test_looking_at_it_changes_nothing(self, seed: int) -> None:
        assert self.run(seed, looks=True).trace == self.run(seed).trace

    @pytest.mark.parametrize("seed", range(5))
    def test_a_scheduler_that_was_restored_decides_the_same(self, seed: int) -> None:
        if self.make_scheduler().state_dict() is None:
            pytest.skip("it has no state of its own: after a restart it gets all calls again")
        assert self.run(seed, restores=True).trace == self.run(seed).trace

    @pytest.mark.parametrize("seed", range(5))
    def test_decisions_are_about_trials_that_can_follow_and_have_reasons(self, seed: int) -> None:
        assert self.run(seed).problems == []

    @pytest.mark.parametrize("seed", range(5))
    def test_it_survives_values_that_are_not_numbers(self, seed: int) -> None:
        assert self.run(seed, values=(math.nan, math.inf, -math.inf)).problems == []

    def test_it_survives_trials_that_only_fail_or_are_removed_or_never_report(self) -> None:
        assert self.run(1, fails=1.0).problems == []
        assert self.run(2, removed=1.0).problems == []
        assert self.run(3, silent=1.0).problems == []


@dataclass
class _PlayedTrial:
    parameters: Any
    step: int = 0
    is_running: bool = False
    is_paused: bool = False
    has_ended: bool = False


class PlayedExperiment:
    """A small experiment, played with a trial scheduler without processes or time.

    `trace` is every call with what it returned, as text, for NaN equals NaN in it; `problems` says what a scheduler
    must not decide, as clauses.
    """

    places, trials = 3, 12
    late = 0.2
    """The share of pauses that come too late."""

    def __init__(
        self,
        make: Callable[[], TrialScheduler],
        search_space: Any,
        steps: int,
        *,
        seed: int,
        values: Sequence[float] = (),
        fails: float = 0.1,
        removed: float = 0.05,
        silent: float = 0.1,
        asks_twice: bool = False,
        looks: bool = False,
        restores: bool = False,
    ) -> None:
        """:param values: what trials report; if empty, numbers that are drawn.
        :param fails: the share of trials that end so; `removed`, `silent` as well.
        :param asks_twice: each choice is asked for twice.
        :param looks: `describe` is called all the time.
        :param restores: the scheduler is replaced all the time by a new one with its state.
        """
        self.trace: list[str] = []
        self.problems: list[str] = []
        self._make, self._search_space, self._steps = make, search_space, steps
        self._random = random.Random(seed)
        self._values, self._ends = values, (fails, removed, silent)
        self._asks_twice, self._looks, self._restores = asks_twice, looks, restores
        self._trials: dict[int, _PlayedTrial] = {}
        self._scheduler = self._new()

    def play(self, most_calls: int = 3000) -> None:
        """Play until every trial has ended, or the scheduler wants nothing more."""
        request = 0
        while len(self.trace) < most_calls:
            while sum(trial.is_running for trial in self._trials.values()) < self.places:
                request += 1
                has_begun = self._start_next(1000 + request)
                self._take_stops()
                if not has_begun:
                    break
            running = [number for number, trial in self._trials.items() if trial.is_running]
            if not running:
                break
            self._advance(self._random.choice(running))
        else:
            self.problems.append(f"its trials have not ended after {most_calls} calls")
        for number, trial in self._trials.items():
            if not trial.has_ended:  # as the manager ends those that nothing can continue
                self._end(number, "on_trial_remove")

    def _new(self) -> TrialScheduler:
        scheduler = self._make()
        scheduler.set_search_space(self._search_space)
        return scheduler

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._restores:
            state = json.loads(json.dumps(self._scheduler.state_dict(), allow_nan=False))
            self._scheduler = self._new()
            self._scheduler.load_state_dict(state)
        if self._looks:
            check_tables(self._scheduler.describe())
        found = getattr(self._scheduler, name)(*arguments)
        if self._asks_twice and name == "choose_trial_to_run":
            found = getattr(self._scheduler, name)(*arguments)
        self.trace.append(repr((name, arguments, found)))
        return found

    def _take_stops(self) -> None:
        """End the paused trials that the scheduler has no further use for."""
        for number, reason in self._call("take_stops"):
            trial = self._trials.get(number)
            if trial is None or not trial.is_paused:
                self.problems.append(f"it ends trial {number}, which is not paused")
                continue
            self._check_reason(reason, f"the end of trial {number}")
            self._end(number, "on_trial_remove")

    def _start_next(self, request: int) -> bool:
        can_start = len(self._trials) < self.trials
        choice: NextTrial | None = self._call("choose_trial_to_run", request, can_start)
        match choice:
            case None:
                return False
            case StartChoice():
                if not can_start:
                    self.problems.append("it starts a trial where it must not")
                    return False
                number = 10 * len(self._trials)  # there may be gaps between the numbers
                trial = self._trials[number] = _PlayedTrial({"rate": self._random.uniform(1e-4, 1.0)}, is_running=True)
                self._call("on_trial_add", number, trial.parameters)
                return True
            case ResumeChoice(number, reason):
                if not self._can_run(number, must_be_paused=True):
                    return False
                self._check_reason(reason, f"the resume of trial {number}")
                self._set_running(number)
                self._call("on_trial_resume", number)
                return True
            case CloneChoice(number, donor, parameters, reason):
                if not self._can_run(number, must_be_paused=False) or not self._can_run(donor, must_be_paused=False):
                    return False
                self._check_reason(reason, f"the clone of trial {number}")
                self._set_running(number)
                self._trials[number].parameters, self._trials[number].step = parameters, self._trials[donor].step
                self._call("on_trial_clone", number, donor, parameters)
                return True
        self.problems.append(f"it chooses {choice!r}, which is no choice")
        return False

    def _can_run(self, number: int, *, must_be_paused: bool) -> bool:
        trial = self._trials.get(number)
        if trial is None or trial.has_ended or trial.step == 0 or (must_be_paused and not trial.is_paused):
            state = "is not there" if trial is None else "has ended" if trial.has_ended else "is not paused"
            self.problems.append(f"it chooses trial {number}, which {state}")
            return False
        return True

    def _set_running(self, number: int) -> None:
        self._trials[number].is_running, self._trials[number].is_paused = True, False

    def _advance(self, number: int) -> None:
        trial = self._trials[number]
        fails, removed, silent = self._ends
        chance = self._random.random()
        if chance < silent and trial.step == 0:
            self._end(number, "on_trial_complete", None)
        elif chance < fails / 5 or fails == 1.0:
            self._end(number, "on_trial_error")
        elif chance > 1.0 - removed / 5 or removed == 1.0:
            self._end(number, "on_trial_remove")
        elif trial.step >= self._steps:
            self._end(number, "on_trial_complete", self._report(trial))
        else:
            trial.step += 1
            self._judge(number, self._call("on_trial_result", number, self._report(trial)))
            self._take_stops()
            if trial.is_paused:
                self._be_late(number)

    def _be_late(self, number: int) -> None:
        """Now and then a trial that is to pause has finished or failed meanwhile, or is found running nevertheless."""
        chance = self._random.random()
        if chance < self.late / 4:
            self._end(number, "on_trial_error")
        elif chance < self.late / 2:
            self._end(number, "on_trial_complete", self._report(self._trials[number]))
        elif chance < self.late:
            self._set_running(number)
            self._call("on_trial_resume", number, False)
            self._take_stops()

    def _report(self, trial: _PlayedTrial) -> TrialReport:
        value = self._random.choice(self._values) if self._values else self._random.random()
        return TrialReport(value, trial.step, 10.0 * trial.step)

    def _judge(self, number: int, verdict: Any) -> None:
        match verdict:
            case ContinueVerdict():
                return
            case PauseVerdict(reason):
                self._trials[number].is_running, self._trials[number].is_paused = False, True
            case StopVerdict(reason, is_full):
                if is_full:
                    self._end(number, "on_trial_complete", self._report(self._trials[number]))
                else:
                    self._end(number, "on_trial_remove")
            case _:
                self.problems.append(f"it judges trial {number} by {verdict!r}, which is no verdict")
                return
        self._check_reason(reason, f"the verdict on trial {number}")

    def _end(self, number: int, how: str, *result: TrialReport | None) -> None:
        trial = self._trials[number]
        trial.is_running, trial.is_paused, trial.has_ended = False, False, True
        self._call(how, number, *result)
        self._take_stops()

    def _check_reason(self, reason: Any, what: str) -> None:
        if not isinstance(reason, str) or not reason:
            self.problems.append(f"{what} has no reason")


def check_tables(tables: Any) -> None:
    """Raise AssertionError where `TrialScheduler.describe` has returned what is no list of tables."""
    assert isinstance(tables, list)
    for table in tables:
        assert isinstance(table["title"], str)
        width = len(table["columns"])
        assert all(len(row) == width for row in table["rows"])
        assert all(0 <= column < width for column in table.get("trial_columns", ()))
        json.dumps(table["rows"])


def propose(tuner: Tuner, parameter_ids: range) -> dict[int, Any]:
    """Return the tuner's proposals by id, as many as it makes."""
    proposed: dict[int, Any] = {}
    for parameter_id in parameter_ids:
        try:
            proposed[parameter_id] = tuner.generate_parameters(parameter_id)
        except NoMoreTrialError:
            break
    return proposed
