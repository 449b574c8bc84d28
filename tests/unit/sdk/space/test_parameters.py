import math
import random
import statistics

import pytest

from proctor.sdk.space import parse_search_space


def axis(kind, *value):
    return parse_search_space({"x": {"_type": kind, "_value": list(value)}}).parameters["x"]


@pytest.mark.parametrize(
    ("kind", "value", "values"),
    [
        pytest.param("quniform", [2, 10, 5], [2.0, 5.0, 10.0], id="quniform reaches ends that are no multiples"),
        pytest.param("quniform", [4, 10, 5], [5.0, 10.0], id="quniform skips an end that rounds into the range"),
        pytest.param("quniform", [1, 2, 10], [1.0], id="a step wider than the range leaves one value"),
        pytest.param("qloguniform", [1, 4, 1], [1.0, 2.0, 3.0, 4.0], id="qloguniform lists its steps"),
        pytest.param("randint", [1, 4], [1, 2, 3], id="randint leaves out its high end"),
        pytest.param("randint", [0.5, 2.5], [1, 2], id="randint rounds odd bounds up"),
        pytest.param("choice", [1, 1, 2], [1, 2], id="a choice written twice is one value"),
    ],
)
def test_a_finite_parameter_lists_its_values(kind, value, values):
    parameter = axis(kind, *value)
    found = [parameter.value_at(index) for index in range(parameter.size)]
    assert (found, repr(found)) == (values, repr(values))
    assert all(parameter.contains(each) for each in found)


def test_an_end_that_is_rounded_into_the_range_is_outside():
    assert not axis("quniform", 4, 10, 5).contains(4)


@pytest.mark.parametrize(
    ("kind", "value", "unit", "expected"),
    [
        pytest.param("quniform", [2, 10, 5], 0.0, 2.0, id="the low end of quniform"),
        pytest.param("quniform", [0, 5, 1], 0.5, 2.0, id="rounding is half to even"),
        pytest.param("randint", [1, 4], 0.999999999, 3, id="the high end of randint"),
        pytest.param("loguniform", [1e-4, 1], 0.5, 1e-2, id="loguniform is uniform in the logarithm"),
        pytest.param("normal", [3, 2], 0.975, 3 + 2 * 1.959963985, id="normal goes through the inverse distribution"),
        pytest.param("lognormal", [0, 1], 0.5, 1.0, id="so does lognormal"),
        pytest.param("qnormal", [0, 1, 0.5], 0.999, 3.0, id="qnormal is rounded and not clipped"),
        pytest.param("qlognormal", [0, 1, 5], 0.5, 0.0, id="so is qlognormal"),
        pytest.param("choice", [1, 1, 2], 0.5, 1, id="a choice written twice is twice as likely"),
        pytest.param("choice", [1, 1, 2], 0.9, 2, id="the rest of a choice"),
    ],
)
def test_a_number_from_0_to_1_stands_for_a_value(kind, value, unit, expected):
    found = axis(kind, *value).from_unit(unit)
    assert found == pytest.approx(expected)
    assert type(found) is type(expected)


def test_a_lognormal_that_overflows_stays_finite():
    assert math.isfinite(axis("lognormal", 1000, 1).from_unit(0.5))


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_samples_have_the_asked_mean_and_deviation(kind):
    rng, parameter = random.Random(1), axis(kind, 1, 0.5)
    draws = [parameter.sample(rng) for _ in range(4000)]
    if kind == "lognormal":
        draws = [math.log(draw) for draw in draws]
    assert statistics.mean(draws) == pytest.approx(1, abs=0.05)
    assert statistics.stdev(draws) == pytest.approx(0.5, abs=0.05)


def test_options_may_be_lists_and_mappings():
    parameter = axis("choice", [1, 2], {"k": 1, "m": 2})
    assert parameter.contains({"m": 2, "k": 1})
    assert parameter.index_of({"m": 2, "k": 1}) == 1


def test_counting_past_the_end_names_both_numbers():
    with pytest.raises(IndexError, match="3 distinct values, number 3"):
        axis("randint", 1, 4).value_at(3)
    with pytest.raises(IndexError):
        axis("normal", 0, 1).value_at(0)


def test_a_foreign_value_has_no_quantile():
    for parameter in (axis("choice", 1), axis("uniform", 0, 1), axis("normal", 0, 1), axis("randint", 0, 2)):
        with pytest.raises(ValueError, match="'no'"):
            parameter.to_unit("no")


def test_a_lognormal_axis_keeps_its_promise_where_the_exponential_ends():
    wide = axis("lognormal", 0, 1e5)
    assert wide.contains(wide.from_unit(0.0))
    assert wide.contains(wide.from_unit(1.0))
