"""Which values are better: what decides it, what contradicts it, what is said about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.config.errors import ConfigProblem
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.loading import LoadedExperiment, load_experiment_mapping
from proctor.manager.config.objective import ONE_OBJECTIVE, stored_direction

Load = Callable[[str], LoadedExperiment]
Problems = Callable[[str], dict[str, ConfigProblem]]

HEAD = """\
searchSpace:
  x: {_type: uniform, _value: [0, 1]}
trialCommand: python trial.py
trialConcurrency: 1
trainingService: {platform: local}
"""
TPE = "tuner: {name: TPE}\n"
MAXIMIZE = "{optimize_mode: maximize}"
MINIMIZE = "{optimize_mode: minimize}"


def settled(loaded: LoadedExperiment) -> tuple[str, list[str]]:
    """The direction, and the keys of the notices."""
    assert loaded.config.objective.metric == "default"
    return loaded.config.objective.direction, [notice.key for notice in loaded.notices]


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize(
    "rest",
    [
        TPE,
        TPE + "assessor: {name: Medianstop}\n",
        "tuner: {name: Evolution}\nassessor: {name: Curvefitting, classArgs: {epoch_num: 9}}\n",
        "tuner: {name: GridSearch}\n",
    ],
)
def test_the_objective_decides_without_a_notice(load: Load, direction: str, rest: str) -> None:
    text = f"{HEAD}objective: {{metric: default, direction: {direction}}}\n{rest}"
    assert settled(load(text)) == (direction, [])


@pytest.mark.parametrize(
    ("rest", "direction", "noticed"),
    [
        (f"tuner: {{name: TPE, classArgs: {MAXIMIZE}}}\n", "maximize", []),
        (f"tuner: {{name: TPE, classArgs: {MINIMIZE}}}\nassessor: {{name: Medianstop}}\n", "minimize", ["assessor"]),
        (f"tuner: {{name: TPE, classArgs: {MAXIMIZE}}}\nassessor: {{name: Medianstop}}\n", "maximize", []),
        (f"{TPE}assessor: {{name: Medianstop, classArgs: {MAXIMIZE}}}\n", "maximize", ["tuner"]),
        (f"{TPE}assessor: {{name: Medianstop, classArgs: {MINIMIZE}}}\n", "minimize", []),
        (f"tuner: {{name: Random}}\nassessor: {{name: Medianstop, classArgs: {MINIMIZE}}}\n", "minimize", []),
        (f"tuner: {{name: Random, classArgs: {MINIMIZE}}}\n", "minimize", []),
        (f"objective: {{metric: default}}\ntuner: {{name: GP, classArgs: {MINIMIZE}}}\n", "minimize", []),
    ],
)
def test_without_an_objective_optimize_mode_decides_for_both(
    load: Load, rest: str, direction: str, noticed: list[str]
) -> None:
    assert settled(load(HEAD + rest)) == (direction, noticed)


def test_an_algorithm_that_takes_another_direction_than_in_nni_is_named(load: Load) -> None:
    (notice,) = load(f"{HEAD}{TPE}assessor:\n  name: Medianstop\n  classArgs: {MAXIMIZE}\n").notices
    assert (notice.place.line, notice.place.column, notice.key) == (6, 1, "tuner")
    assert notice.message == (
        "TPE will maximize, as assessor.classArgs.optimize_mode (line 9, column 30) says; its default in NNI is "
        "minimize"
    )


@pytest.mark.parametrize(
    ("tuner", "direction", "because"),
    [
        ("tpe", "minimize", ", as by TPE in NNI"),
        ("Evolution", "maximize", ", as by Evolution in NNI"),
        ("GP", "maximize", ", as by GP in NNI"),
        ("Random", "maximize", ""),
        ("GridSearch", "maximize", ""),
    ],
)
def test_where_nothing_says_it_the_direction_taken_is_named(
    load: Load, tuner: str, direction: str, because: str
) -> None:
    loaded = load(f"{HEAD}tuner: {{name: {tuner}}}\nassessor: {{name: Medianstop}}\n")
    assert settled(loaded) == (direction, ["objective.direction"])
    (notice,) = loaded.notices
    assert (notice.place.line, notice.place.column) == (6, 1)
    assert notice.message == (
        f"no direction given; assuming {direction}{because}; to choose, write objective: "
        "{direction: maximize} or objective: {direction: minimize}"
    )


@pytest.mark.parametrize(
    ("text", "key", "expected", "position"),
    [
        (
            f"objective: {{direction: maximize}}\ntuner:\n  name: TPE\n  classArgs: {MINIMIZE}\n",
            "tuner.classArgs.optimize_mode",
            "maximize, as objective.direction (line 6, column 24) says",
            (9, 30),
        ),
        (
            f"objective: {{direction: minimize}}\n{TPE}assessor: {{name: Medianstop, classArgs: {MAXIMIZE}}}\n",
            "assessor.classArgs.optimize_mode",
            "minimize, as objective.direction (line 6, column 24) says",
            (8, 57),
        ),
        (
            f"tuner: {{name: TPE, classArgs: {MINIMIZE}}}\nassessor: {{name: Medianstop, classArgs: {MAXIMIZE}}}\n",
            "assessor.classArgs.optimize_mode",
            "minimize, as tuner.classArgs.optimize_mode (line 6, column 47) says",
            (7, 57),
        ),
        (
            f"objective: {{direction: maximize}}\ntuner: {{className: tuners.Mine, classArgs: {MINIMIZE}}}\n",
            "tuner.classArgs.optimize_mode",
            "maximize, as objective.direction (line 6, column 24) says",
            (7, 60),
        ),
    ],
)
def test_a_contradiction_is_refused_with_both_places(
    problems: Problems, text: str, key: str, expected: str, position: tuple[int, int]
) -> None:
    found = problems(HEAD + text)
    assert list(found) == [key]
    problem = found[key]
    assert (problem.expected, (problem.line, problem.column)) == (expected, position)
    assert problem.message.startswith("an experiment has one direction")


def test_the_arguments_of_a_class_of_the_users_stay_as_they_are_and_say_the_direction(load: Load) -> None:
    loaded = load(f"{HEAD}tuner: {{className: tuners.Mine, classArgs: {MINIMIZE}}}\n")
    assert settled(loaded) == ("minimize", [])
    assert loaded.config.tuner.class_args == {"optimize_mode": "minimize"}


def test_a_class_of_the_users_that_is_not_told_the_direction_is_noticed(load: Load) -> None:
    loaded = load(HEAD + "objective: {direction: minimize}\ntuner: {className: tuners.Mine, classArgs: {rate: 1}}\n")
    assert settled(loaded) == ("minimize", ["tuner"])
    assert loaded.config.tuner.class_args == {"rate": 1}
    assert "the direction, minimize, is not passed to tuners.Mine" in loaded.notices[0].message


@pytest.mark.parametrize("arguments", ["{}", "{optimize_mode: max}", "{optimize_mode: [minimize]}"])
def test_a_class_of_the_users_that_does_not_say_it_in_nnis_words_maximizes(load: Load, arguments: str) -> None:
    loaded = load(f"{HEAD}tuner: {{className: tuners.Mine, classArgs: {arguments}}}\n")
    assert settled(loaded) == ("maximize", ["objective.direction", "tuner"])


@pytest.mark.parametrize(
    ("objective", "key", "expected", "found"),
    [
        ("[{direction: maximize}]", "objective", "a mapping", "a list of 1"),
        ("maximize", "objective", "a mapping", "the text 'maximize'"),
        ("{direction: max}", "objective.direction", "'maximize' or 'minimize'", "the text 'max'"),
        ("{direction: [maximize]}", "objective.direction", "'maximize' or 'minimize'", "a list of 1"),
        ("{goal: maximize}", "objective.goal", "a known key", "goal"),
    ],
)
def test_what_is_no_objective_is_refused_once(
    problems: Problems, objective: str, key: str, expected: str, found: str
) -> None:
    reported = problems(f"{HEAD}{TPE}objective: {objective}\n")
    assert list(reported) == [key]
    assert (reported[key].line, reported[key].expected, reported[key].found) == (7, expected, found)


def test_several_objectives_are_refused_with_what_to_do(problems: Problems) -> None:
    assert problems(f"{HEAD}{TPE}objective: [{{direction: maximize}}]\n")["objective"].message == ONE_OBJECTIVE


def test_another_metric_is_refused_with_what_to_do(problems: Problems) -> None:
    reported = problems(f"{HEAD}{TPE}objective: {{metric: accuracy, direction: maximize}}\n")
    assert list(reported) == ["objective.metric"]
    assert reported["objective.metric"].expected == (
        'default, the key under which trials report what is optimized, as in {"default": accuracy}'
    )


def test_python_values_contradict_without_positions(small_mapping: dict[str, Any], directory: Path) -> None:
    small_mapping["objective"] = {"direction": "maximize"}
    small_mapping["tuner"]["class_args"] = {"optimize_mode": "minimize"}
    with pytest.raises(ValueError, match=r"expected maximize, as objective\.direction says, found the text 'minimize'"):
        load_experiment_mapping(small_mapping, directory)


def test_old_files_of_nni_decide_it_too(load: Load) -> None:
    text = HEAD + "advisor:\n  builtinAdvisorName: TPE\n  classArgs: {optimize_mode: maximize}\n"
    assert load(text).config.objective.direction == "maximize"


def algorithm(name: str | None, **class_args: Any) -> dict[str, Any]:
    custom = {"name": None, "class_name": "mine.Mine", "code_directory": "/code"}
    return {**({"name": name} if name else custom), "class_args": class_args}


@pytest.mark.parametrize(
    ("tuner", "assessor", "direction"),
    [
        (algorithm("TPE"), None, "minimize"),
        (algorithm("tpe"), algorithm("Medianstop", optimize_mode="maximize"), "minimize"),
        (algorithm("TPE", optimize_mode="maximize"), algorithm("Medianstop", optimize_mode="minimize"), "maximize"),
        (algorithm("Evolution"), algorithm("Medianstop", optimize_mode="minimize"), "maximize"),
        (algorithm("Random"), algorithm("Medianstop", optimize_mode="minimize"), "minimize"),
        (algorithm("GridSearch", optimize_mode="minimize"), None, "minimize"),
        (algorithm("Random"), algorithm("Medianstop"), "maximize"),
        (algorithm(None), None, "maximize"),
        (algorithm(None, optimize_mode="minimize"), None, "minimize"),
        (algorithm(None), algorithm("Medianstop", optimize_mode="minimize"), "minimize"),
    ],
)
def test_an_experiment_from_before_has_the_direction_that_its_tuner_used(
    load: Load, tuner: dict[str, Any], assessor: dict[str, Any] | None, direction: str
) -> None:
    canonical = load(HEAD + TPE).config.canonical() | {"tuner": tuner, "assessor": assessor}
    del canonical["objective"]
    assert stored_direction(canonical) == direction
    assert ExperimentConfig.from_canonical(canonical).objective.direction == direction
    assert stored_direction({**canonical, "objective": {"metric": "default", "direction": "maximize"}}) == "maximize"
