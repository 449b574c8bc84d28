import random
from unittest.mock import ANY

import pytest

from proctor.manager.dispatcher.algorithms.schedulers.mutations import Mutations, read_mutations
from proctor.manager.dispatcher.algorithms.schedulers.pbt import PbtScheduler
from proctor.sdk.scheduler import CONTINUE, CloneChoice, PauseVerdict, ResumeChoice, TrialReport
from proctor.sdk.space import SearchSpaceError, parse_search_space

SPACE = parse_search_space(
    {
        "lr": {"_type": "loguniform", "_value": [0.01, 1.0]},
        "layers": {"_type": "randint", "_value": [1, 9]},
        "width": {"_type": "quniform", "_value": [8, 64, 8]},
        "noise": {"_type": "normal", "_value": [0, 1]},
        "activation": {"_type": "choice", "_value": ["relu", "tanh", "gelu", "elu"]},
        "optimizer": {
            "_type": "choice",
            "_value": [
                {"_name": "sgd", "momentum": {"_type": "uniform", "_value": [0.0, 0.9]}},
                {"_name": "adam"},
            ],
        },
    }
)
PARAMETERS = {
    "lr": 0.1, "layers": 5, "width": 32.0, "noise": 1.5, "activation": "tanh",
    "optimizer": {"_name": "sgd", "momentum": 0.5}, "other": [1],
}  # fmt: skip


def explored(parameters=PARAMETERS, axes=None, resample=0.0, factors=(1.2,), seed=0, space=SPACE):
    mutations = Mutations(space.parameters if axes is None else read_mutations(axes), space, resample, factors)
    return mutations.explore(parameters, random.Random(seed))


def test_numbers_are_multiplied_and_options_move_to_a_neighbor():
    found = explored()
    assert found["lr"] == pytest.approx(0.12)
    assert found["layers"] == 6
    assert found["width"] == 40.0
    assert found["noise"] == pytest.approx(1.8)
    assert found["activation"] in ("relu", "gelu")
    assert found["optimizer"] == {"_name": "sgd", "momentum": pytest.approx(0.6)}
    assert found["other"] == [1]


def test_whatever_comes_out_is_in_the_search_space():
    edge = {**PARAMETERS, "lr": 1.0, "layers": 8, "width": 64.0, "activation": "elu"}
    found = explored(edge, factors=(100.0,))
    assert (found["lr"], found["layers"], found["width"]) == (1.0, 8, 64.0)
    assert found["optimizer"] == {"_name": "sgd", "momentum": 0.9}
    assert explored(edge, factors=(0.0001,))["lr"] == 0.01
    assert explored({"lr": 0.5}, axes={"lr": [0.5, 7.0]}, seed=1)["lr"] in (0.5, 1.0)
    assert explored({"activation": "elu"}, axes={"activation": ["elu", "sine"]}, seed=1)["activation"] == "elu"


def test_a_parameter_is_resampled_with_some_probability_or_if_its_value_is_not_on_the_axis():
    drawn = {explored(resample=1.0, seed=seed)["layers"] for seed in range(40)}
    assert drawn == set(range(1, 9))
    assert explored({"lr": 77.0})["lr"] != 1.0
    assert SPACE.parameters["lr"].contains(explored({"lr": 77.0})["lr"])


STEPPED = {
    "layers": {"_type": "randint", "_value": [1, 9]},
    "width": {"_type": "quniform", "_value": [8, 64, 8]},
    "ends": {"_type": "quniform", "_value": [2, 10, 5]},
    "rate": {"_type": "qloguniform", "_value": [0.1, 0.9, 0.1]},
    "shift": {"_type": "qnormal", "_value": [0, 2, 1]},
    "sign": {"_type": "randint", "_value": [-3, 4]},
}


def neighbors(name, value, *, factors=(1.2, 0.8), steps=True, axes=None):
    space = parse_search_space({name: STEPPED[name]})
    written = space.parameters if axes is None else read_mutations({name: axes})
    mutations = Mutations(written, space, 0.0, factors, steps)
    return {mutations.explore({name: value}, random.Random(seed))[name] for seed in range(20)}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("layers", 1, {1, 2}),  # it cannot be less
        ("layers", 2, {1, 3}),
        ("layers", 8, {6, 8}),
        ("width", 8.0, {8.0, 16.0}),
        ("width", 16.0, {8.0, 24.0}),
        ("width", 48.0, {40.0, 56.0}),
        ("ends", 2.0, {2.0, 5.0}),
        ("ends", 5.0, {2.0, 10.0}),
        ("rate", 0.2, {0.1, 0.3}),
        ("shift", 1.0, {0.0, 2.0}),
        ("shift", 0.0, {-1.0, 1.0}),
        ("sign", 0, {-1, 1}),
        ("sign", -1, {-2, 0}),
    ],
)
def test_a_number_that_a_factor_would_leave_as_it_is_moves_one_step(name, value, expected):
    found = neighbors(name, value)
    assert sorted(found) == pytest.approx(sorted(expected))
    axis = parse_search_space({name: STEPPED[name]}).parameters[name]
    assert all(axis.contains(each) for each in found)


def test_every_inner_value_of_a_stepped_axis_can_be_left_either_way():
    for name in ("layers", "width", "ends"):
        axis = parse_search_space({name: STEPPED[name]}).parameters[name]
        values = [axis.value_at(place) for place in range(axis.size)]
        for value in values[1:-1]:
            found = neighbors(name, value)
            assert min(found) < value < max(found), (name, value)
    assert neighbors("layers", 2, steps=False) == {2}, "the first rules"


def test_a_continuous_axis_of_mutations_moves_by_the_steps_of_the_search_space():
    assert neighbors("width", 8.0, axes={"_type": "uniform", "_value": [8, 64]}) == {8.0, 16.0}
    assert neighbors("width", 16.0, axes={"_type": "quniform", "_value": [16, 64, 16]}) == {16.0, 32.0}


def test_a_factor_of_one_leaves_a_number_as_it_is():
    assert neighbors("layers", 2, factors=(1.0,)) == {2}


def test_mutations_are_lists_axes_and_mappings_of_these():
    axes = {"lr": {"_type": "uniform", "_value": [0.0, 0.5]}, "optimizer": {"momentum": [0.1, 0.5, 1.9]}}
    found = explored(axes=axes, factors=(9.0,))
    assert found["lr"] == 0.5
    assert found["optimizer"]["momentum"] in (0.1, 0.9)
    assert found["layers"] == 5
    with pytest.raises(SearchSpaceError):
        read_mutations({"lr": {"_type": "uniform", "_value": [1]}})


def population(**arguments):
    scheduler = PbtScheduler(time_attr="training_iteration", perturbation_interval=1, population_size=4, **arguments)
    scheduler.set_search_space(SPACE.to_json())
    for trial in range(4):
        scheduler.on_trial_add(trial, PARAMETERS)
    for trial, value in enumerate([0.9, 0.5, 0.4, 0.1]):
        scheduler.on_trial_result(trial, TrialReport(value, 1))
    return scheduler


def test_a_clone_is_the_same_however_often_it_is_asked_for_and_another_the_next_time():
    scheduler = population(seed=3)
    first = scheduler.choose_trial_to_run(1, False)
    assert isinstance(first, CloneChoice)
    assert scheduler.choose_trial_to_run(2, True) == first == population(seed=3).choose_trial_to_run(9, False)
    assert SPACE.contains({name: value for name, value in first.parameters.items() if name != "other"})
    scheduler.on_trial_clone(first.trial, first.donor, first.parameters)
    scheduler.on_trial_result(first.trial, TrialReport(0.0, 2))
    second = scheduler.choose_trial_to_run(3, False)
    assert isinstance(second, CloneChoice)
    assert second.parameters != first.parameters


def test_its_table_shows_the_population_best_first():
    scheduler = population(quantile_fraction=0.5)
    clone = scheduler.choose_trial_to_run(1, False)
    scheduler.on_trial_clone(clone.trial, clone.donor, clone.parameters)
    (table,) = scheduler.describe()
    assert table["columns"] == ["trial", "value", "trained to", "generation", "clone of", "state"]
    assert table["rows"][0] == [0, 0.9, 1, 0, None, "running"]
    assert sorted(row[0] for row in table["rows"]) == [0, 1, 2, 3]


def test_its_table_keeps_the_trials_that_have_ended_with_their_last_values():
    scheduler = population(quantile_fraction=0.5)
    clone = scheduler.choose_trial_to_run(1, False)
    scheduler.on_trial_clone(clone.trial, clone.donor, clone.parameters)
    scheduler.on_trial_complete(clone.trial, TrialReport(0.95, 7))
    others = [trial for trial in range(4) if trial != clone.trial]
    for trial in others:
        scheduler.on_trial_error(trial)
    (table,) = scheduler.describe()
    assert table["rows"][0] == [clone.trial, 0.95, 7, 1, clone.donor, "ended"]
    assert sorted(row[0] for row in table["rows"][1:]) == others
    successor = PbtScheduler(population_size=4)
    successor.load_state_dict(scheduler.state_dict())
    assert successor.describe() == [table]


def test_a_trial_makes_no_room_once_no_more_trials_can_join():
    scheduler = PbtScheduler(time_attr="training_iteration", perturbation_interval=1, population_size=10)
    scheduler.on_trial_add(0, {"lr": 0.1})
    assert isinstance(scheduler.on_trial_result(0, TrialReport(0.5, 1)), PauseVerdict)
    assert scheduler.choose_trial_to_run(1, False) == ResumeChoice(0, ANY)
    scheduler.on_trial_resume(0)
    assert scheduler.on_trial_result(0, TrialReport(0.5, 2)) is CONTINUE
    scheduler.on_trial_add(1, {"lr": 0.2})  # the user has allowed more trials
    assert isinstance(scheduler.on_trial_result(0, TrialReport(0.5, 3)), PauseVerdict)


@pytest.mark.parametrize(
    "arguments",
    [{"perturbation_interval": 0}, {"quantile_fraction": 0.6}, {"perturbation_factors": ()}],
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}: expected"):
        PbtScheduler(**arguments)
