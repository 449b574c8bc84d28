"""What holds for every search space."""

import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proctor.sdk.space import parse_search_space

numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
positives = st.floats(1e-3, 1e6).map(lambda x: round(x, 3))
steps = st.floats(0.01, 1e3).map(lambda x: round(x, 2)).filter(lambda q: q > 0)


def spec(kind, *value):
    return st.tuples(*value).map(lambda drawn: {"_type": kind, "_value": list(drawn)})


def ordered(pair):
    return pair.map(sorted)


def ranged(kind, bound, *rest):
    return st.tuples(ordered(st.tuples(bound, bound)), *rest).map(
        lambda drawn: {"_type": kind, "_value": [*drawn[0], *drawn[1:]]}
    )


plain = st.one_of(
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.none()), min_size=1, max_size=4).map(
        lambda options: {"_type": "choice", "_value": options}
    ),
    st.tuples(st.integers(-50, 50), st.integers(1, 50)).map(
        lambda drawn: {"_type": "randint", "_value": [drawn[0], drawn[0] + drawn[1]]}
    ),
    ranged("uniform", numbers),
    ranged("quniform", numbers, steps),
    ranged("loguniform", positives),
    ranged("qloguniform", positives, steps),
    spec("normal", numbers, positives),
    spec("qnormal", numbers, positives, steps),
    spec("lognormal", st.floats(-5, 5), st.floats(0.01, 5)),
    spec("qlognormal", st.floats(-5, 5), st.floats(0.01, 5), steps),
)
names = st.text("abcd", min_size=1, max_size=3)


def nest(children):
    branch = st.dictionaries(names, children, max_size=2)
    return st.lists(branch, min_size=1, max_size=3).map(
        lambda branches: {
            "_type": "choice",
            "_value": [{"_name": f"branch{index}", **branch} for index, branch in enumerate(branches)],
        }
    )


spaces = st.dictionaries(names, st.recursive(plain, nest, max_leaves=6), min_size=1, max_size=4)
units = st.floats(0, 1, exclude_max=True)


@pytest.mark.slow
@given(spaces, st.integers())
def test_every_sample_belongs_to_its_space_and_fits_it_as_another_language_writes_it(mapping, seed):
    space = parse_search_space(mapping)
    assert parse_search_space(json.loads(json.dumps(space.to_json()))) == space
    sample = space.sample(random.Random(seed))
    assert sample == space.sample(random.Random(seed))
    assert space.contains(sample)
    assert space.fit(sample) == sample
    assert space.contains(space.fit(without_points(sample)))


def without_points(value):
    """As JavaScript writes it: 3 for 3.0."""
    if isinstance(value, dict):
        return {key: without_points(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


@given(plain, units)
def test_a_value_goes_to_a_quantile_that_gives_it_back(mapping, u):
    parameter = parse_search_space({"x": mapping}).parameters["x"]
    value = parameter.from_unit(u)
    assert parameter.contains(value)
    again = parameter.from_unit(parameter.to_unit(value))
    if isinstance(value, float):
        scale = max(1.0, abs(value), *(abs(number) for number in mapping["_value"]))
        assert abs(again - value) <= 1e-5 * scale or u < 1e-9 or u > 1 - 1e-9
    else:
        assert again == value


@given(plain, units, units)
def test_a_numeric_axis_is_an_inverse_distribution_function_and_never_falls(mapping, u, v):
    parameter = parse_search_space({"x": mapping}).parameters["x"]
    if mapping["_type"] != "choice":
        assert parameter.from_unit(min(u, v)) <= parameter.from_unit(max(u, v))


@pytest.mark.slow
@given(spaces, st.integers())
@example({"a": {"_type": "uniform", "_value": [-0.0, 0.0]}}, 0)
def test_a_finite_space_counts_its_members_once_each_and_draws_one_of_them(mapping, seed):
    space = parse_search_space(mapping)
    if space.size is not None and space.size <= 500:
        members = [space.value_at(index) for index in range(space.size)]
        assert all(space.contains(member) for member in members)
        keys = {space.key(member) for member in members}
        assert len(keys) == space.size
        assert space.key(space.sample(random.Random(seed))) in keys
