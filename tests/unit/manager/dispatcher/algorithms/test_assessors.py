import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.assessors.curvefitting import CurvefittingAssessor
from proctor.manager.dispatcher.algorithms.assessors.curves import FAMILIES, fit, predict
from proctor.manager.dispatcher.algorithms.assessors.medianstop import MedianstopAssessor
from proctor.manager.dispatcher.algorithms.base import ExactMean


def report(assessor, trial, values, start=0):
    """Judgments one by one."""
    return [assessor.assess(trial, index, value) for index, value in enumerate(values, start)]


def finish(assessor, trial, values, succeeded=True):
    report(assessor, trial, values)
    assessor.trial_end(trial, succeeded)


@pytest.mark.parametrize(("mode", "sign"), [("maximize", 1), ("minimize", -1)])
def test_a_trial_that_is_worse_than_the_median_of_finished_means_is_stopped(mode, sign):
    assessor = MedianstopAssessor(optimize_mode=mode)
    for trial, value in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        finish(assessor, trial, [sign * value, sign * value])
    assert report(assessor, "bad", [sign * 1.5, sign * 1.5]) == [False, False]
    assert report(assessor, "good", [sign * 2.5, 0.0 if sign == 1 else 2.5]) == [True, True]


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1.1])
def test_a_trial_that_is_as_good_as_all_that_have_finished_is_never_stopped(value):
    for mode in ("maximize", "minimize"):
        assessor = MedianstopAssessor(optimize_mode=mode)
        finish(assessor, "a", [value] * 60)
        assert all(report(assessor, "b", [value] * 60)), mode


def test_the_first_rules_stop_it_by_a_rounding_error():
    judged = []
    for mode in ("maximize", "minimize"):
        assessor = MedianstopAssessor(optimize_mode=mode, rules=1)
        finish(assessor, "a", [0.1] * 60)
        judged += report(assessor, "b", [0.1] * 60)
    assert not all(judged)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_a_mean_is_exact(numbers):
    mean = ExactMean()
    for number in numbers:
        mean.add(number)
    assert mean.value() == statistics.mean(numbers)


def test_nothing_is_judged_before_the_start_step_nor_beyond_what_has_finished():
    assessor = MedianstopAssessor(start_step=2)
    finish(assessor, "a", [5.0, 5.0])
    assert report(assessor, "b", [0.0, 0.0, 0.0]) == [True, False, True]


def test_trials_that_did_not_succeed_set_no_standard():
    assessor = MedianstopAssessor()
    finish(assessor, "a", [5.0], succeeded=False)
    assert report(assessor, "b", [0.0]) == [True]


def test_not_a_number_is_worse_than_any_number_and_keeps_no_one_from_recovering():
    assessor = MedianstopAssessor()
    finish(assessor, "a", [1.0, 1.0])
    assert report(assessor, "bad", [math.nan, 2.0]) == [False, True]
    assert report(assessor, "worse", [-math.inf]) == [False]
    assert report(assessor, "odd", [math.inf]) == [False]


def test_a_restarted_trial_is_judged_from_where_it_resumed():
    assessor = MedianstopAssessor()
    finish(assessor, "a", [1.0, 1.0, 1.0])
    report(assessor, "b", [0.5, 9.0])
    assessor.trial_restarted("b", 1)
    assert report(assessor, "b", [0.6, 2.0], start=1) == [False, True]


metrics = st.one_of(st.floats(-5, 5).map(lambda x: round(x, 1)), st.just(math.nan))


@given(st.lists(st.lists(metrics, min_size=1, max_size=5), max_size=6), st.lists(metrics, min_size=1, max_size=5))
def test_medianstop_follows_nnis_rule(finished, running):
    assessor = MedianstopAssessor()
    for index, values in enumerate(finished):
        finish(assessor, str(index), values)
    for step, verdict in enumerate(report(assessor, "running", running), 1):
        means = sorted(mean(values[:step]) for values in finished if len(values) >= step)
        median = means[(len(means) - 1) // 2] if means else -math.inf
        assert verdict == (max(worst(value) for value in running[:step]) >= median)


def worst(value):
    return -math.inf if math.isnan(value) else value


def mean(values):
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else -math.inf


SHAPES = {
    "rising": lambda t: 0.9 - 0.8 * math.exp(-t / 6),
    "power": lambda t: 0.95 - 0.6 * t**-0.5,
    "flat": lambda t: 0.3,
    "large": lambda t: 1000 * (5 - 4 / t),
    "negative": lambda t: -2.3 * math.exp(-t / 5) - 0.1,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_end_of_a_smooth_curve_is_predicted(shape):
    curve = SHAPES[shape]
    history = [curve(step) for step in range(1, 9)]
    assert predict(history, 20) == pytest.approx(curve(20), rel=0.05)


def test_there_are_nnis_twelve_families_and_each_fits_something():
    assert len({family.name for family in FAMILIES}) == 12
    histories = [[shape(step) for step in range(1, 13)] for shape in SHAPES.values()]
    for family in FAMILIES:
        assert any(fit(family, history, 20) for history in histories), family.name


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10))
def test_any_history_is_survived(history):
    predicted = predict(history, 20)
    assert predicted is None or math.isfinite(predicted)


def test_a_trial_that_will_not_come_near_the_best_is_stopped():
    assessor = CurvefittingAssessor(epoch_num=20)
    finish(assessor, "best", [0.9 - 0.8 * math.exp(-t / 6) for t in range(1, 21)])
    bad = [0.4 - 0.35 * math.exp(-t / 4) for t in range(1, 11)]
    verdicts = report(assessor, "bad", bad)
    assert verdicts[:5] == [True] * 5
    assert verdicts[9] is False
    good = [0.92 - 0.8 * math.exp(-t / 6) for t in range(1, 11)]
    assert report(assessor, "good", good)[9] is True


def test_losses_are_judged_the_other_way_round():
    assessor = CurvefittingAssessor(epoch_num=20, optimize_mode="minimize")
    finish(assessor, "best", [2.0 * math.exp(-t / 4) + 0.1 for t in range(1, 21)])
    assert report(assessor, "bad", [2.0 * math.exp(-t / 4) + 0.9 for t in range(1, 11)])[9] is False
    assert report(assessor, "good", [2.0 * math.exp(-t / 4) + 0.05 for t in range(1, 11)])[9] is True


def test_a_gap_skips_judgments():
    assessor = CurvefittingAssessor(epoch_num=20, start_step=3, gap=3)
    finish(assessor, "best", [0.9] * 20)
    verdicts = report(assessor, "bad", [0.1] * 9)
    assert verdicts == [True, True, False, True, True, False, True, True, False]


def test_a_curve_of_nothing_but_nan_is_stopped_and_one_nan_is_survived():
    assessor = CurvefittingAssessor(epoch_num=20, start_step=2)
    finish(assessor, "best", [0.9] * 20)
    assert report(assessor, "nothing", [math.nan, math.nan]) == [True, False]
    good = [math.nan, *(0.95 - 0.1 / t for t in range(1, 8))]
    assert report(assessor, "good", good)[7] is True


def test_before_anything_has_finished_nothing_is_stopped():
    assessor = CurvefittingAssessor(epoch_num=20, start_step=1)
    assert report(assessor, "first", [0.0] * 10) == [True] * 10
    assessor.trial_end("first", False)
    assessor.trial_end("unknown", True)
    assert report(assessor, "second", [0.0] * 10) == [True] * 10
