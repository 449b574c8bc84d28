import pytest

from proctor.manager.dispatcher.algorithms.schedulers.median_stopping import MedianStoppingScheduler
from proctor.sdk.scheduler import CONTINUE, StopVerdict, TrialReport

STEPS = "training_iteration"


def verdicts(curves, *, rules=2, time_attr=STEPS, **arguments):
    """What each trial gets at each of its steps, in turns; they all report at every step."""
    scheduler = MedianStoppingScheduler(
        time_attr=time_attr, min_samples_required=2, optimize_mode="minimize", rules=rules, **arguments
    )
    found = []
    for step in range(1, len(curves[0]) + 1):
        for trial, curve in enumerate(curves):
            found.append(scheduler.on_trial_result(trial, TrialReport(curve[step - 1], step, seconds=float(step))))
    return found


@pytest.mark.parametrize("time_attr", [STEPS, "time_total_s"])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1.1])
def test_equal_trials_are_never_stopped(value, time_attr):
    curves = [[value] * 60] * 4
    arguments = {"grace_period": 3, "time_attr": time_attr}
    assert set(verdicts(curves, **arguments)) == {CONTINUE}


def test_the_first_rules_stop_equal_trials_by_a_rounding_error():
    assert any(isinstance(found, StopVerdict) for found in verdicts([[0.1] * 60] * 4, rules=1, grace_period=3))


def test_a_large_value_before_the_grace_period_does_not_count():
    curves = [[1e17, *[0.5] * 9], [1e17, *[0.5] * 9], [1e17, *[0.4] * 9]]
    found = verdicts(curves, grace_period=2)
    assert set(found) == {CONTINUE}
    assert set(verdicts(curves, rules=1, grace_period=2)) != {CONTINUE}


def test_sums_beyond_the_largest_float_have_a_mean_all_the_same():
    found = verdicts([[1.5e308] * 5, [1.5e308] * 5, [1.5e308] * 5, [1.6e308] * 5], grace_period=1)
    assert [number for number, verdict in enumerate(found[:4]) if isinstance(verdict, StopVerdict)] == [3]


def test_a_trial_that_goes_back_is_compared_with_what_is_repeated():
    scheduler = MedianStoppingScheduler(time_attr=STEPS, grace_period=1, min_samples_required=1)
    for step, value in ((1, 1.0), (2, 1.0), (3, 9.0), (2, 5.0)):
        scheduler.on_trial_result(0, TrialReport(value, step))
    scheduler.on_trial_result(1, TrialReport(2.9, 1))
    verdict = scheduler.on_trial_result(1, TrialReport(2.9, 2))
    assert verdict == StopVerdict("has a best of 2.9 by 2, worse than 3, the median of 1 other trial")
    assert scheduler.on_trial_result(2, TrialReport(0.0, 3)) == CONTINUE  # no trial has come as far
