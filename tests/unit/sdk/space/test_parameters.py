import math
import random
import statistics

import pytest

from proctor.sdk.space import parse_search_space


def axis(kind, *value):
    return parse_search_space({"x": {"_type": kind, "_value": list(value)}}).parameters["x"]


def values_of(parameter):
    return [parameter.value_at(index) for index in range(parameter.size)]


def test_quniform_reaches_ends_that_are_no_multiples():
    assert values_of(axis("quniform", 2, 10, 5)) == [2.0, 5.0, 10.0]
    assert axis("quniform", 2, 10, 5).from_unit(0.0) == 2.0


def test_quniform_skips_an_end_that_rounds_into_the_range():
    assert values_of(axis("quniform", 4, 10, 5)) == [5.0, 10.0]
    assert not axis("quniform", 4, 10, 5).contains(4)


def test_a_step_wider_than_the_range_leaves_one_value():
    assert values_of(axis("quniform", 1, 2, 10)) == [1.0]


def test_rounding_is_half_to_even_and_gives_floats():
    value = axis("quniform", 0, 5, 1).from_unit(0.5)
    assert value == 2.0
    assert isinstance(value, float)


def test_qloguniform_lists_its_steps():
    assert values_of(axis("qloguniform", 1, 4, 1)) == [1.0, 2.0, 3.0, 4.0]


def test_randint_leaves_out_its_high_end_and_rounds_odd_bounds_up():
    assert values_of(axis("randint", 1, 4)) == [1, 2, 3]
    assert values_of(axis("randint", 0.5, 2.5)) == [1, 2]
    assert axis("randint", 1, 4).from_unit(0.999999999) == 3


def test_loguniform_is_uniform_in_the_logarithm():
    assert axis("loguniform", 1e-4, 1).from_unit(0.5) == pytest.approx(1e-2)


def test_normal_goes_through_the_inverse_distribution_function():
    assert axis("normal", 3, 2).from_unit(0.975) == pytest.approx(3 + 2 * 1.959963985)
    assert axis("lognormal", 0, 1).from_unit(0.5) == pytest.approx(1.0)


def test_qnormal_is_rounded_but_not_clipped():
    assert axis("qnormal", 0, 1, 0.5).from_unit(0.999) == 3.0
    assert axis("qlognormal", 0, 1, 5).from_unit(0.5) == 0.0


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


def test_a_choice_written_twice_is_twice_as_likely_but_one_value():
    parameter = axis("choice", 1, 1, 2)
    assert parameter.size == 2
    assert [parameter.from_unit(u) for u in (0.1, 0.5, 0.9)] == [1, 1, 2]
    assert values_of(parameter) == [1, 2]


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
