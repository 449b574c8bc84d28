import json
import subprocess
import sys

import pytest

from proctor.manager.dispatcher.algorithms import registry
from proctor.manager.dispatcher.algorithms.registry import (
    check_algorithm,
    create_algorithm,
    describe,
    find_builtin,
    fit_parameters,
)
from proctor.sdk.space import SearchSpaceError, parse_search_space

SPACE = parse_search_space({"x": {"_type": "uniform", "_value": [0, 1]}})
NORMAL = parse_search_space({"x": {"_type": "normal", "_value": [0, 1]}})
NESTED = parse_search_space({"x": {"_type": "choice", "_value": [{"_name": "a"}]}})


def problems(kind="tuner", space=SPACE, **spec):
    return {problem.path: problem.message for problem in check_algorithm(kind, spec, space)}


@pytest.mark.parametrize(
    "name",
    [
        "TPE",
        "tpe",
        "TpeTuner",
        "random",
        "GridSearch",
        "gridsearchtuner",
        "batchtuner",
        "GPTuner",
        "CMA-ES",
        "hyperband",
        "BOHB",
        "BOHBAdvisor",
        "PBTTuner",
    ],
)
def test_names_are_found_in_any_case_with_and_without_suffix(name):
    assert find_builtin("tuner", name) is not None


def test_all_of_nnis_arguments_of_the_offered_algorithms_are_accepted():
    given = {
        "TPE": {
            "optimize_mode": "minimize",
            "seed": 3,
            "tpe_args": {
                "constant_liar_type": "mean", "n_startup_jobs": 5, "n_ei_candidates": 9, "linear_forgetting": 25,
                "prior_weight": 1.0, "gamma": 0.25,
            },
        },
        "Random": {"seed": None, "optimize_mode": "maximize"},
        "GridSearch": {"optimize_mode": "maximize"},
        "Evolution": {"optimize_mode": "maximize", "population_size": 32},
        "GP": {
            "optimize_mode": "maximize", "utility": "ei", "kappa": 5, "xi": 0, "nu": 2.5, "alpha": 1e-6,
            "cold_start_num": 10, "selection_num_warm_up": 1e5, "selection_num_starting_points": 250,
        },
        "Hyperband": {"optimize_mode": "maximize", "R": 60, "eta": 3, "exec_mode": "serial"},
        "BOHB": {
            "optimize_mode": "maximize", "min_budget": 1, "max_budget": 27, "eta": 3, "min_points_in_model": 7,
            "top_n_percent": 15, "num_samples": 64, "random_fraction": 0.33, "bandwidth_factor": 3,
            "min_bandwidth": 0.001, "config_space": "space.pcs",
        },
        "PBT": {
            "optimize_mode": "maximize", "all_checkpoint_dir": "/mnt/all", "population_size": 10, "factor": 0.2,
            "resample_probability": 0.25, "fraction": 0.2,
        },
    }  # fmt: skip
    for name, class_args in given.items():
        assert problems(name=name, class_args=class_args) == {}
        create_algorithm("tuner", name, class_args, 1).update_search_space(SPACE)
    assert problems("assessor", name="Medianstop", class_args={"optimize_mode": "minimize", "start_step": 3}) == {}
    curve = {"epoch_num": 20, "start_step": 6, "threshold": 0.9, "gap": 2, "optimize_mode": "minimize"}
    assert problems("assessor", name="Curvefitting", class_args=curve) == {}


@pytest.mark.parametrize(
    ("name", "class_args", "words"),
    [
        ("PBT", {"perturbation_factors": [0, 0]}, "numbers greater than 0, found [0, 0]"),
        ("PBT", {"perturbation_factors": [-1, 2]}, "numbers greater than 0, found [-1, 2]"),
        ("ASHA", {"time_attr": ""}, "must not be empty, found ''"),
        ("HyperBand", {"reduction_factor": 1e300}, "at most 1,000, found 1e+300"),
        ("HyperBand", {"max_t": 9223372036854775808}, "must be at most 1,000,000,000,000,000, found"),
    ],
)
def test_nonsense_for_a_scheduler_is_refused(name, class_args, words):
    (message,) = problems("trialScheduler", name=name, class_args=class_args).values()
    assert words in message


def test_a_wrong_argument_is_named_with_the_nearest():
    found = problems(name="TPE", class_args={"optimise_mode": "minimize", "tpe_args": {"gama": 1}})
    assert "did you mean 'optimize_mode'?" in found["class_args", "optimise_mode"]
    assert "did you mean 'gamma'?" in found["class_args", "tpe_args", "gama"]


@pytest.mark.parametrize(
    ("class_args", "words"),
    [
        ({"optimize_mode": "max"}, "minimize, maximize"),
        ({"seed": "one"}, "a whole number, found 'one'"),
        ({"seed": True}, "a whole number, found True"),
        ({"tpe_args": 3}, "a mapping, found 3"),
        ({"tpe_args": {"n_ei_candidates": 0}}, "at least 1, found 0"),
    ],
)
def test_a_wrong_value_is_answered_with_what_was_expected(class_args, words):
    assert [words in message for message in problems(name="TPE", class_args=class_args).values()] == [True]


@pytest.mark.parametrize(
    ("name", "class_args", "argument", "words"),
    [
        ("Hyperband", {"eta": 1}, "eta", "at least 2, found 1"),
        ("Hyperband", {"R": 4, "eta": 5}, "eta", "eta must not be greater than R, found 5 and 4"),
        ("Hyperband", {"R": 2}, "R", "eta must not be greater than R, found 3 and 2"),
        ("Hyperband", {"exec_mode": "both"}, "exec_mode", "parallelism, serial"),
        ("BOHB", {"min_budget": 4}, "min_budget", "must not be greater than max_budget, found 4 and 3"),
        ("BOHB", {"max_budget": 0}, "max_budget", "at least 1, found 0"),
        ("PBT", {"population_size": 1}, "population_size", "at least 2, found 1"),
        ("PBT", {"factor": 0.1, "factors": 0.2}, "factors", "another name of factor"),
        ("Hyperband", {"R": 1e18}, "R", "at most 1,000,000, found 1e+18"),
        ("Hyperband", {"seed": 1e30}, "seed", "at most 9,223,372,036,854,775,807, found 1e+30"),
        ("Evolution", {"population_size": 10**9}, "population_size", "at most 100,000, found 1000000000"),
        ("GP", {"kappa": 10**400}, "kappa", f"a number, found 1{'0' * 56}..."),
        ("GP", {"kappa": -1e16}, "kappa", "at least -1,000,000,000,000,000, found"),
        ("BOHB", {"random_fraction": 5}, "random_fraction", "at most 1, found 5"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(name, class_args, argument, words):
    found = problems(name=name, class_args=class_args)
    assert list(found) == [("class_args", argument)]
    assert words in found["class_args", argument]


def test_an_argument_is_accepted_under_its_other_name():
    assert problems(name="PBT", class_args={"factors": 0.3}) == {}
    assert "did you mean 'factors'" in problems(name="PBT", class_args={"factorss": 0.3})["class_args", "factorss"]


def test_what_a_tuner_adds_to_the_parameters_is_no_part_of_the_search_space():
    space = parse_search_space({"TRIAL_BUDGET": {"_type": "uniform", "_value": [0, 1]}})
    assert (
        "Hyperband sets TRIAL_BUDGET itself" in problems(name="Hyperband", space=space)["search_space", "TRIAL_BUDGET"]
    )
    assert problems(name="PBT", space=space) == {}
    given = {"TRIAL_BUDGET": 3, "x": 0.5}
    assert fit_parameters({"name": "BOHB"}, SPACE, given) == given
    assert fit_parameters({"name": "BOHB"}, SPACE, {"x": 0.5}) == {"x": 0.5}
    with pytest.raises(SearchSpaceError, match="TRIAL_BUDGET"):
        fit_parameters({"name": "Random"}, SPACE, given)


def test_a_required_argument_is_missed():
    assert "epoch_num is missing" in problems("assessor", name="Curvefitting")["class_args",]


@pytest.mark.parametrize(
    ("name", "instead"),
    [("Anneal", "TPE"), ("SMAC", "TPE"), ("metistuner", "GP"), ("PPOTuner", "Evolution")],
)
def test_what_nni_has_and_we_do_not_is_refused_with_the_nearest(name, instead):
    assert instead in problems(name=name)["name",]


def test_unknown_and_misplaced_names_are_told_apart():
    assert "did you mean 'Random'?" in problems(name="Randon")["name",]
    assert "'assessor'" in problems(name="Medianstop")["name",]


def test_search_spaces_that_an_algorithm_cannot_search_are_refused_where_they_are_wrong():
    assert list(problems(name="GP", space=NORMAL)) == [("search_space", "x", "_type")]
    assert list(problems(name="CmaEs", space=NESTED)) == [("search_space",)]
    assert list(problems(name="Batch")) == [("search_space",)]
    anything = parse_search_space({"x": {"_type": "choice", "_value": [{"a": 1}, 3, [4], "five"]}})
    assert problems(name="Batch", space=anything) == {}
    for name in ("TPE", "Random", "GridSearch", "Evolution"):
        assert problems(name=name, space=NESTED) == problems(name=name, space=NORMAL) == {}


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    assert "pip install 'proctor[gp]'" in problems(name="GP")["name",]
    assert problems(name="TPE") == {}


def test_a_custom_class_is_looked_for_but_not_run(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('was run')")
    assert problems(class_name="mine.Tuner", code_directory=str(tmp_path)) == {}
    assert "mine2.py" in problems(class_name="mine2.Tuner", code_directory=str(tmp_path))["class_name",]
    assert "module.Class" in problems(class_name="Tuner", code_directory=str(tmp_path))["class_name",]
    missing = str(tmp_path / "nowhere")
    assert "nowhere" in problems(class_name="mine.Tuner", code_directory=missing)["code_directory",]


def test_either_a_name_or_a_class_is_needed():
    assert "neither" in problems()[()]
    assert "both" in problems(name="TPE", class_name="a.B")[()]


def test_the_description_is_plain_data():
    assert {entry["name"] for entry in json.loads(json.dumps(describe()))} >= {"TPE", "Medianstop"}


def test_making_an_algorithm_with_wrong_arguments_says_what_is_wrong():
    with pytest.raises(ValueError, match="optimise_mode"):
        create_algorithm("tuner", "TPE", {"optimise_mode": "x"}, 1)


def test_neither_the_registry_nor_the_host_imports_a_heavy_library():
    code = (
        "import sys, proctor.manager.dispatcher.host.host, proctor.manager.dispatcher.algorithms.tuners.random_search;"
        "sys.exit(' '.join({'numpy', 'scipy', 'optuna', 'torch', 'asyncio', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == ""


@pytest.mark.parametrize(
    ("name", "class_args", "where", "expected"),
    [
        ("ASHA", {"grace_period": 200}, "grace_period", "at most max_t (100), found 200"),
        (
            "ASHA",
            {"max_t": 9, "reduction_factor": 3, "brackets": 4},
            "brackets",
            "expected 1 to 3, the number",
        ),
        ("PBT", {"perturbation_interval": 0}, "perturbation_interval", "expected more than 0, found 0"),
        ("PBT", {"perturbation_factors": []}, "perturbation_factors", "expected at least one number"),
        ("PBT", {"hyperparam_mutations": {}}, "hyperparam_mutations", "is empty"),
    ],
)
def test_what_a_trial_scheduler_refuses_is_found_before_it_runs(name, class_args, where, expected):
    (problem,) = problems("trialScheduler", name=name, class_args=class_args).items()
    assert problem[0] == ("class_args", where)
    assert expected in problem[1]
