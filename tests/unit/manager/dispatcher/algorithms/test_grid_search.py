from itertools import islice

import pytest

from proctor.manager.dispatcher.algorithms.base import SpaceExhausted
from proctor.manager.dispatcher.algorithms.tuners.batch import BatchTuner
from proctor.manager.dispatcher.algorithms.tuners.grid_search import GridSearchTuner
from proctor.sdk.space import parse_search_space


def axis(kind, *value):
    return {"_type": kind, "_value": list(value)}


def walk(tuner):
    parameter_id = 0
    while True:
        try:
            yield tuner.suggest(parameter_id).parameters
        except SpaceExhausted:
            return
        parameter_id += 1


def grid(space, count=10_000):
    tuner = GridSearchTuner()
    tuner.update_search_space(parse_search_space(space))
    return [tuple(parameters.values()) for parameters in islice(walk(tuner), count)]


def test_the_example_of_nnis_documentation_comes_level_by_level():
    found = grid({"x": axis("choice", 5, 7), "y": axis("normal", 0, 1), "z": axis("quniform", 2, 3, 1)}, 12)
    assert set(found[:2]) == {(5, 0.0, 2.0), (7, 0.0, 2.0)}
    quarter = pytest.approx(0.6745, abs=1e-4)
    assert len(set(found)) == 12
    assert {z for _, _, z in found[2:]} == {2.0, 3.0}
    assert all(y == 0.0 or abs(y) == quarter for _, y, _ in found)


def test_a_continuous_axis_is_halved_again_and_again():
    assert [x for (x,) in grid({"x": axis("uniform", 0, 8)}, 7)] == [4, 2, 6, 1, 3, 5, 7]


def test_a_finite_space_is_walked_once_and_ends():
    found = grid({"a": axis("randint", 0, 3), "b": axis("quniform", 0, 10, 2.5), "c": axis("choice", "x", "y")})
    assert len(found) == len(set(found)) == 3 * 5 * 2


def test_branches_are_walked_one_after_the_other():
    conv = {"_name": "conv", "k": axis("choice", 1, 2), "s": axis("randint", 0, 2)}
    found = grid({"layer": axis("choice", {"_name": "none"}, conv), "z": axis("choice", 0, 1)})
    assert len(found) == (1 + 4) * 2


def test_a_stepped_normal_axis_ends_where_nothing_new_comes():
    found = [x for (x,) in grid({"x": axis("qnormal", 0, 1, 1)})]
    assert found[0] == 0.0
    assert sorted(found) == [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_huge_randint_is_refined_instead_of_listed():
    assert [x for (x,) in grid({"x": axis("randint", 0, 10**12)}, 3)] == [5 * 10**11, 25 * 10**10, 75 * 10**10]


def test_what_is_known_is_left_out_also_in_a_new_space():
    tuner = GridSearchTuner()
    tuner.update_search_space(parse_search_space({"x": axis("choice", 1, 2, 3)}))
    assert tuner.suggest(0).parameters == {"x": 1}
    tuner.import_data({"x": 2}, 0.5)
    tuner.update_search_space(parse_search_space({"x": axis("choice", 1, 2, 3, 4)}))
    assert [parameters["x"] for parameters in walk(tuner)] == [3, 4]


def test_a_batch_is_taken_in_order_and_continues_when_it_grows():
    tuner = BatchTuner()
    tuner.update_search_space(parse_search_space({"sets": axis("choice", {"x": 1}, {"x": 1}, {"x": 2})}))
    assert [parameters["x"] for parameters in walk(tuner)] == [1, 1, 2]
    tuner.update_search_space(parse_search_space({"sets": axis("choice", {"x": 1}, {"x": 1}, {"x": 2}, {"x": 3})}))
    assert [parameters["x"] for parameters in walk(tuner)] == [3]


def test_an_imported_result_takes_the_place_of_a_batch_entry():
    tuner = BatchTuner()
    tuner.update_search_space(parse_search_space({"sets": axis("choice", {"x": 1}, {"x": 2})}))
    tuner.import_data({"x": 1}, 0.5)
    assert [parameters["x"] for parameters in walk(tuner)] == [2]


def test_an_axis_with_a_handful_of_floating_point_numbers_ends():
    assert sorted(grid({"x": axis("uniform", 1.0, 1.0000000000000002)})) == [(1.0,), (1.0000000000000002,)]
