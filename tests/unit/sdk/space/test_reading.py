import math

import pytest

from proctor.sdk.space import NestedChoice, SearchSpaceError, parse_search_space


def problems_of(space):
    with pytest.raises(SearchSpaceError) as caught:
        parse_search_space(space)
    return {problem.path: problem.message for problem in caught.value.problems}


def choice(*options):
    return {"_type": "choice", "_value": list(options)}


def test_every_problem_is_reported_not_only_the_first():
    problems = problems_of(
        {
            "a": {"_type": "unifrom", "_value": [0, 1]},
            "b": {"_type": "loguniform", "_value": [0, 1]},
            "c": {"_type": "quniform", "_value": [3, 1, 0]},
            "d": {"_type": "uniform", "_value": [1]},
        }
    )
    assert "did you mean 'uniform'?" in problems["a", "_type"]
    assert "above 0" in problems["b", "_value", 0]
    assert "above 0" in problems["c", "_value", 2]
    assert "3 > 1" in problems["c", "_value"]
    assert "2 numbers [low, high], found 1" in problems["d", "_value"]


@pytest.mark.parametrize("space", [{}, [], None, "x"])
def test_a_space_that_is_empty_or_no_mapping_is_refused(space):
    assert list(problems_of(space)) == [()]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"_type": "choice", "_value": []}, ("_value",)),
        ({"_type": "choice", "_value": "abc"}, ("_value",)),
        ({"_type": "choice"}, ()),
        ({"_value": [1]}, ()),
        ({"_type": "choice", "_value": [1], "_vlaue": 1}, ("_vlaue",)),
        (3, ()),
        ({"_type": 3, "_value": [1]}, ("_type",)),
        ({"_type": "uniform", "_value": [0, "1"]}, ("_value", 1)),
        ({"_type": "uniform", "_value": [0, math.inf]}, ("_value", 1)),
        ({"_type": "uniform", "_value": [True, 2]}, ("_value", 0)),
        ({"_type": "randint", "_value": [3, 3]}, ("_value",)),
        ({"_type": "normal", "_value": [0, 0]}, ("_value", 1)),
        ({"_type": "qlognormal", "_value": [0, 1, -1]}, ("_value", 2)),
        (choice({"_name": "x"}, {"_name": "x"}), ("_value", 1, "_name")),
        (
            choice({"_name": "x"}, {"_name": "y", "width": {"_type": "uniform", "_value": [2, 1]}}),
            ("_value", 1, "width", "_value"),
        ),
        (choice({"_name": "x", "inner": choice({"_name": "y"}, 1)}), ("_value", 0, "inner", "_value", 1)),
    ],
)
def test_a_bad_parameter_is_refused_where_it_is_wrong(spec, path):
    assert list(problems_of({"x": spec})) == [("x", *path)]


def test_a_number_in_quotes_is_answered_with_the_number():
    assert "0.0001" in problems_of({"lr": {"_type": "loguniform", "_value": ["1e-4", 1]}})["lr", "_value", 0]


@pytest.mark.parametrize("plain", [{"y": 1}, "x", 3, None, ["_name"]])
def test_a_choice_that_mixes_nested_and_plain_options_is_refused_at_the_plain_ones(plain):
    options = [{"_name": "x", "k": {"_type": "uniform", "_value": [0, 1]}}, plain, {"_name": "y"}]
    problems = problems_of({"a": {"_type": "choice", "_value": options}})
    assert list(problems) == [("a", "_value", 1)]
    assert "_name" in problems["a", "_value", 1]


def test_a_mixed_choice_of_an_experiment_that_has_it_already_is_one_of_plain_values():
    space = parse_search_space({"a": {"_type": "choice", "_value": [{"_name": "x"}, 1]}}, mixed=True)
    assert space.contains({"a": {"_name": "x"}})
    assert space.contains({"a": 1})
    named = parse_search_space({"a": {"_type": "choice", "_value": [{"_name": "x"}, {"_name": "y"}]}}, mixed=True)
    assert named.is_nested


def test_a_choice_is_nested_only_if_every_option_has_a_name():
    plain = parse_search_space({"a": {"_type": "choice", "_value": [{"x": 2}, {"y": 1}]}})
    assert not plain.is_nested
    assert plain.contains({"a": {"y": 1}})
    named = parse_search_space({"a": {"_type": "choice", "_value": [{"_name": "x"}, {"_name": "y"}]}})
    assert isinstance(named.parameters["a"], NestedChoice)


def test_axes_walks_into_nested_choices():
    inner = {"_type": "choice", "_value": [1]}
    space = parse_search_space({"a": {"_type": "choice", "_value": [{"_name": "x", "k": inner}]}})
    assert [path for path, _ in space.axes()] == [("a",), ("a", "_value", 0, "k")]


HUGE = 10**400


@pytest.mark.parametrize(
    ("kind", "value", "word"),
    [
        ("randint", [0, HUGE], "finite"),
        ("uniform", [-HUGE, 0], "finite"),
        ("uniform", [-1.7e308, 1.7e308], "exceeds the range"),
        ("randint", [-1.7e308, 1.7e308], "exceeds the range"),
        ("normal", [0, 1e308], "exceeds the range"),
        ("quniform", [0, 1, 1e-320], "too small"),
        ("quniform", [0, 1e308, 1e-300], "too small"),
        ("qnormal", [1e300, 1, 1e-10], "too small"),
    ],
)
def test_what_floating_point_cannot_hold_is_refused(kind, value, word):
    assert word in "".join(problems_of({"x": {"_type": kind, "_value": value}}).values())
