"""Population based training: who continues from whom, and within which values."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.base import SpaceExhausted
from proctor.manager.dispatcher.algorithms.registry import create_algorithm
from proctor.manager.dispatcher.algorithms.tuners.pbt import perturbed
from proctor.sdk.space import parse_search_space


def axis(kind, *value):
    return {"_type": kind, "_value": list(value)}


SPACE = {
    "choice": axis("choice", "a", "b", 3, {"deep": 1}),
    "randint": axis("randint", -3, 9),
    "uniform": axis("uniform", -1, 1),
    "quniform": axis("quniform", 2, 10, 5),
    "loguniform": axis("loguniform", 1e-5, 1),
    "qloguniform": axis("qloguniform", 1, 100, 7),
    "normal": axis("normal", 0, 2),
    "qnormal": axis("qnormal", 5, 2, 0.3),
    "lognormal": axis("lognormal", 0, 2),
    "qlognormal": axis("qlognormal", 0, 2, 0.5),
}
PARSED = parse_search_space(SPACE)


def make(seed=7, **class_args):
    algorithm = create_algorithm("tuner", "PBT", class_args, seed)
    algorithm.update_search_space(PARSED)
    return algorithm


def generation(algorithm, first, size):
    """The suggestions of one generation, by parameter id, and that there is no further one yet."""
    found = {parameter_id: algorithm.suggest(parameter_id) for parameter_id in range(first, first + size)}
    with pytest.raises(SpaceExhausted):
        algorithm.suggest(first + size)
    return found


def finish(algorithm, suggestions, value):
    for parameter_id, suggestion in suggestions.items():
        result = value(parameter_id)
        if result is not None:
            algorithm.receive_result(parameter_id, suggestion.parameters, result)
        algorithm.trial_end(parameter_id, result is not None)


def hyperparameters(suggestion):
    return {name: suggestion.parameters[name] for name in SPACE}


def test_the_worst_continue_from_the_best_and_the_others_from_themselves():
    algorithm = make(population_size=5, fraction=0.4, all_checkpoint_dir="/data")
    first = generation(algorithm, 0, 5)
    finish(algorithm, first, lambda each: float(each))  # 3 and 4 are the best
    second = generation(algorithm, 5, 5)
    assert [second[each].parent for each in (7, 8, 9)] == [2, 3, 4]
    assert {second[each].parent for each in (5, 6)} <= {3, 4}
    for each in (7, 8, 9):
        assert hyperparameters(second[each]) == hyperparameters(first[each - 5])
    for each in (5, 6):
        assert hyperparameters(second[each]) != hyperparameters(first[second[each].parent])


def test_minimizing_the_least_is_the_best():
    algorithm = make(population_size=2, optimize_mode="minimize")
    finish(algorithm, generation(algorithm, 0, 2), lambda each: float(each))
    assert [suggestion.parent for suggestion in generation(algorithm, 2, 2).values()] == [0, 0]


def test_a_trial_loads_what_its_parent_has_saved():
    algorithm = make(population_size=3, all_checkpoint_dir="/data")
    last = {}
    for number in range(4):
        now = generation(algorithm, 3 * number, 3)
        for member, suggestion in enumerate(now.values()):
            folders = suggestion.parameters
            assert folders["save_checkpoint_dir"] == f"/data/{member}/{number}"
            if number == 0:
                assert folders["load_checkpoint_dir"] == folders["save_checkpoint_dir"]
            else:
                assert folders["load_checkpoint_dir"] == last[suggestion.parent].parameters["save_checkpoint_dir"]
        finish(algorithm, now, lambda each: math.sin(each))
        last = now


def test_without_a_folder_it_is_a_relative_one_of_the_seed():
    assert make(seed=12).suggest(0).parameters["save_checkpoint_dir"] == "checkpoint/12/0/0"


def test_members_without_a_value_are_replaced_too():
    algorithm = make(population_size=5)
    finish(algorithm, generation(algorithm, 0, 5), {0: None, 1: math.nan, 2: 0.5, 3: 2.0, 4: 1.0}.get)
    assert [suggestion.parent for suggestion in generation(algorithm, 5, 5).values()] == [3, 3, 2, 3, 4]


def test_a_population_without_any_value_starts_over():
    algorithm = make(population_size=3)
    finish(algorithm, generation(algorithm, 0, 3), lambda each: None)
    second = generation(algorithm, 3, 3)
    assert [suggestion.parent for suggestion in second.values()] == [None] * 3
    assert all(
        each.parameters["load_checkpoint_dir"] == each.parameters["save_checkpoint_dir"] for each in second.values()
    )


def test_both_of_nnis_spellings_of_factor_are_the_same():
    def played(**class_args):
        algorithm = make(population_size=2, **class_args)
        finish(algorithm, generation(algorithm, 0, 2), float)
        return generation(algorithm, 2, 2)

    assert played(factors=0.7) == played(factor=0.7) != played()


def test_a_users_trial_is_part_of_no_generation():
    algorithm = make(population_size=2)
    first = generation(algorithm, 0, 2)
    algorithm.accept_customized(50, hyperparameters(first[0]))
    algorithm.receive_result(50, hyperparameters(first[0]), 1e9)
    algorithm.trial_end(50, True)
    finish(algorithm, first, float)
    assert {suggestion.parent for suggestion in generation(algorithm, 2, 2).values()} == {1}


def test_members_keep_what_belongs_to_a_new_search_space():
    algorithm = make(population_size=2, fraction=0)
    first = generation(algorithm, 0, 2)
    finish(algorithm, first, float)
    algorithm.update_search_space(parse_search_space({"uniform": SPACE["uniform"], "randint": axis("randint", 50, 60)}))
    for parameter_id, suggestion in generation(algorithm, 2, 2).items():
        assert suggestion.parent == parameter_id - 2
        assert suggestion.parameters["uniform"] == first[parameter_id - 2].parameters["uniform"]
        assert suggestion.parameters["randint"] in range(50, 60)


def test_a_step_is_nnis():
    axes = PARSED.parameters
    assert [perturbed(axes["choice"], "b", 0.2, sign) for sign in (-1, 1)] == ["a", 3]
    assert [perturbed(axes["randint"], 8, 0.2, sign) for sign in (-1, 1)] == [7, 8]
    assert perturbed(axes["uniform"], 0.5, 0.2, 1) == pytest.approx(0.9)
    assert perturbed(axes["uniform"], 0.9, 0.2, 1) == 1.0
    assert [perturbed(axes["quniform"], 5.0, 0.2, sign) for sign in (-1, 1)] == [2.0, 10.0]
    assert perturbed(axes["loguniform"], 1e-3, 0.2, 1) == pytest.approx(1e-2)
    assert perturbed(axes["normal"], 1.0, 0.2, -1) == pytest.approx(0.6)
    assert perturbed(axes["lognormal"], 1.0, 0.2, 1) == pytest.approx(math.exp(0.4))
    assert perturbed(axes["qlognormal"], 0.0, 0.2, -1) == 0.0


@given(
    st.sampled_from(sorted(SPACE)), st.floats(0, 1), st.floats(0, 1), st.lists(st.sampled_from([-1, 1]), max_size=20)
)
def test_no_number_of_steps_leaves_an_axis(name, unit, factor, signs):
    chosen = PARSED.parameters[name]
    value = chosen.from_unit(unit)
    for sign in signs:
        value = perturbed(chosen, value, factor, sign)
        assert chosen.contains(value)


results = st.one_of(st.none(), st.floats(-10, 10), st.just(math.nan))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.floats(0, 1), st.lists(results, min_size=24, max_size=24), st.integers(0, 99))
def test_every_generation_ends_and_stays_within_the_space(size, fraction, values, seed):
    algorithm = make(seed=seed, population_size=size, fraction=fraction)
    for number in range(4):
        now = generation(algorithm, number * size, size)
        assert all(PARSED.contains(hyperparameters(suggestion)) for suggestion in now.values())
        assert all(each.parent is None or (number - 1) * size <= each.parent < number * size for each in now.values())
        finish(algorithm, now, lambda each: values[each])
