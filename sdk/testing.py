"""What a tuner or an assessor of your own must do, as tests to inherit.

    class TestMyTuner(TunerContract):
        def make_tuner(self):
            return MyTuner(rate=0.1)

Run it with pytest. `search_space` may be replaced by one that your tuner can search. Where that is none of NNI's kind,
override `holds` as well.
"""

import json
import math
from typing import Any, ClassVar

import pytest

from proctor.sdk.assessor import Assessor, AssessResult
from proctor.sdk.errors import NoMoreTrialError
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


def propose(tuner: Tuner, parameter_ids: range) -> dict[int, Any]:
    """Return the tuner's proposals by id, as many as it makes."""
    proposed: dict[int, Any] = {}
    for parameter_id in parameter_ids:
        try:
            proposed[parameter_id] = tuner.generate_parameters(parameter_id)
        except NoMoreTrialError:
            break
    return proposed
