"""The conformance suites, applied to good algorithms here and to bad ones below."""

import importlib.util
import math
import random
from pathlib import Path

import pytest

import proctor.sdk.compat
from proctor.sdk.assessor import Assessor
from proctor.sdk.space import parse_search_space
from proctor.sdk.testing import AssessorContract, TunerContract
from proctor.sdk.tuner import Tuner

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_tuner" / "hill_climber.py"


class DrawingTuner(Tuner):
    def update_search_space(self, search_space):
        self.space = parse_search_space(search_space)

    def generate_parameters(self, parameter_id, **kwargs):
        return self.space.sample(random.Random(parameter_id))

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        pass


class HalfwayAssessor(Assessor):
    def assess_trial(self, trial_job_id, trial_history):
        return math.isnan(trial_history[-1]) or trial_history[-1] >= 0.5


class TestDrawingTuner(TunerContract):
    def make_tuner(self):
        return DrawingTuner()


class TestExampleTuner(TunerContract):
    search_space = {"x": {"_type": "uniform", "_value": [-5, 5]}}  # noqa: RUF012 - as a user would write it
    changed_search_space = {"x": {"_type": "uniform", "_value": [0, 1]}}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def nni_in_place(self, monkeypatch):
        monkeypatch.syspath_prepend(str(proctor.sdk.compat.__path__[0]))

    def make_tuner(self):
        spec = importlib.util.spec_from_file_location("hill_climber", EXAMPLE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.HillClimber(step=0.2, seed=3)


class TestHalfwayAssessor(AssessorContract):
    def make_assessor(self):
        return HalfwayAssessor()


def ready(tuner):
    tuner.update_search_space(TunerContract.search_space)
    return tuner


def test_a_tuner_that_leaves_its_space_is_caught():
    class Stubborn(DrawingTuner):
        def update_search_space(self, search_space):
            self.space = getattr(self, "space", parse_search_space(search_space))

    with pytest.raises(AssertionError):
        TunerContract().test_it_follows_a_changed_search_space(ready(Stubborn()))


def test_a_tuner_that_trips_over_nan_is_caught():
    class Strict(DrawingTuner):
        def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
            int(value)

    with pytest.raises((ValueError, OverflowError)):
        TunerContract().test_it_survives_a_result_that_is_not_a_number(ready(Strict()))


def test_an_assessor_that_returns_a_number_is_caught():
    class Number(Assessor):
        def assess_trial(self, trial_job_id, trial_history):
            return 0.5

    with pytest.raises(AssertionError):
        AssessorContract().test_it_judges_every_metric(Number())


def test_methods_that_were_not_overridden_say_so():
    with pytest.raises(NotImplementedError, match="generate_parameters is missing"):
        Tuner().generate_parameters(0)
    with pytest.raises(NotImplementedError, match="assess_trial is missing"):
        Assessor().assess_trial("t", [])


class ListTuner(Tuner):
    def update_search_space(self, search_space):
        self.values = search_space

    def generate_parameters(self, parameter_id, **kwargs):
        return [self.values[parameter_id % len(self.values)]]

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        pass


class TestListTuner(TunerContract):
    search_space = [1, 2, 3]  # noqa: RUF012 - as a user would write it
    changed_search_space = [4]  # noqa: RUF012

    def make_tuner(self):
        return ListTuner()

    def holds(self, search_space, parameters):
        return set(parameters) <= set(search_space)
