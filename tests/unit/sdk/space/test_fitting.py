"""Parameters that people give: brought into the form of the search space, or refused with every reason."""

import pytest

from proctor.sdk.space import SearchSpaceError, parse_search_space

SPACE = parse_search_space(
    {
        "lr": {"_type": "loguniform", "_value": [0.001, 1]},
        "units": {"_type": "randint", "_value": [1, 10]},
        "drop": {"_type": "quniform", "_value": [0, 1, 0.25]},
        "noise": {"_type": "normal", "_value": [0, 1]},
        "scale": {"_type": "qlognormal", "_value": [0, 1, 2]},
        "act": {"_type": "choice", "_value": ["relu", 1.0, [2.0, {"a": 3}], True, None]},
        "layer": {
            "_type": "choice",
            "_value": [{"_name": "none"}, {"_name": "conv", "width": {"_type": "uniform", "_value": [1, 2]}}],
        },
    }
)
INSIDE = {
    "lr": 0.5, "units": 3, "drop": 0.25, "noise": -7.5, "scale": 4.0, "act": "relu",
    "layer": {"_name": "conv", "width": 1.5},
}  # fmt: skip


def problems_of(**changes):
    given = {name: value for name, value in {**INSIDE, **changes}.items() if value != "left out"}
    with pytest.raises(SearchSpaceError) as caught:
        SPACE.fit(given)
    return {".".join(map(str, problem.path)): problem.message for problem in caught.value.problems}


def test_what_is_inside_stays_as_it_is():
    assert SPACE.fit(INSIDE) == INSIDE


@pytest.mark.parametrize(
    ("given", "fitted"),
    [(1, 1.0), ([2, {"a": 3.0}], [2.0, {"a": 3}]), (True, True), (None, None), ("relu", "relu")],
)
def test_an_option_is_recognized_however_its_numbers_are_written(given, fitted):
    found = SPACE.fit({**INSIDE, "act": given})["act"]
    assert (found, repr(found)) == (fitted, repr(fitted))


def test_a_whole_number_may_be_written_as_a_float():
    assert repr(SPACE.fit({**INSIDE, "units": 3.0})["units"]) == "3"


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"lr": 3}, {"lr": "expected a number from 0.001 to 1, found 3"}),
        ({"lr": "NaN"}, {"lr": 'expected a number from 0.001 to 1, found "NaN"'}),
        ({"lr": True}, {"lr": "expected a number from 0.001 to 1, found true"}),
        ({"units": 10}, {"units": "expected a whole number from 1 to 9, found 10"}),
        ({"units": 2.5}, {"units": "expected a whole number from 1 to 9, found 2.5"}),
        ({"drop": 0.3}, {"drop": "expected a number from 0 to 1, a multiple of 0.25, found 0.3"}),
        ({"noise": None}, {"noise": "expected a finite number, found null"}),
        ({"scale": -2}, {"scale": "expected a finite number of at least 0, a multiple of 2, found -2"}),
        ({"act": "tanh"}, {"act": 'expected one of "relu", 1.0, [2.0, {"a": 3}], true, null, found "tanh"'}),
        ({"act": 0}, {"act": 'expected one of "relu", 1.0, [2.0, {"a": 3}], true, null, found 0'}),
        ({"lr": "left out"}, {"lr": "expected a number from 0.001 to 1, found nothing"}),
        ({"layer": "conv"}, {"layer": 'expected a mapping with _name, one of "none", "conv", found "conv"'}),
        ({"layer": {"_name": "x"}}, {"layer": 'expected a mapping with _name, one of "none", "conv", found {"_name"'}),
        ({"layer": {"_name": "conv", "width": 3}}, {"layer.width": "expected a number from 1 to 2, found 3"}),
        ({"layer": {"_name": "conv"}}, {"layer.width": "expected a number from 1 to 2, found nothing"}),
        ({"layer": {"_name": "none", "width": 1}}, {"layer.width": "unknown parameter, found 1; the search space has"}),
        ({"lr": 3, "rate": 1, "units": 0}, {"lr": "expected", "units": "expected", "rate": "unknown parameter"}),
    ],
)
def test_what_is_outside_is_refused_with_what_was_expected(changes, problems):
    found = problems_of(**changes)
    assert list(found) == list(problems)
    assert all(found[path].startswith(start) for path, start in problems.items()), found


@pytest.mark.parametrize("given", [None, [1], "lr=1", 3])
def test_what_is_no_mapping_is_refused(given):
    with pytest.raises(SearchSpaceError, match="expected a mapping of parameter names, found"):
        SPACE.fit(given)


def test_an_error_lists_some_of_many_options():
    space = parse_search_space({"n": {"_type": "choice", "_value": list(range(100))}})
    with pytest.raises(SearchSpaceError, match=r"one of 0, 1, 2, 3, 4, 5, 6, 7 and 92 more, found 100"):
        space.fit({"n": 100})
