"""Configuration objects with NNI's names: in camelCase, as JSON, from a file, and checked."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.config.loading import load_experiment_mapping
from proctor.sdk.client import (
    AlgorithmConfig,
    CustomAlgorithmConfig,
    ExperimentConfig,
    LocalConfig,
    ObjectiveConfig,
    RemoteConfig,
    RemoteMachineConfig,
)

FILE = """\
experimentName: digits
searchSpaceFile: space.json
trialCodeDirectory: code
trial_concurrency: 2
maxTrialNumber: null
objective: {direction: minimize}
tuner: {className: mine.Tuner, codeDirectory: code, classArgs: {someRate: 1}}
assessor: {name: Medianstop, classArgs: {start_step: 3}}
trainingService:
  platform: remote
  trialCommand: python t.py
  machineList: [{host: gpu-1, sshKeyFile: ~/key, gpuIndices: [0, 1]}]
"""


@pytest.fixture
def config() -> ExperimentConfig:
    return ExperimentConfig(
        "local",
        search_space={"lr": {"_type": "uniform", "_value": [0, 1]}},
        trial_command="true",
        trial_concurrency=1,
        objective={"direction": "maximize"},
        tuner=AlgorithmConfig("Random"),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "space.json").write_text("{}")
    (tmp_path / "e.yml").write_text(FILE)
    return tmp_path


def test_fields_are_named_in_camel_case_too(config: ExperimentConfig) -> None:
    anyhow: Any = config
    anyhow.trialCommand = "python t.py"
    anyhow.trainingService.useActiveGpu = True
    anyhow.tuner.classArgs["seed"] = 3
    assert (config.trial_command, anyhow.trialConcurrency) == ("python t.py", 1)
    assert (config.training_service.use_active_gpu, config.tuner.class_args) == (True, {"seed": 3})  # type: ignore[union-attr]
    assert copy.deepcopy(config) == config


def test_constructors_take_camel_case_too() -> None:
    build: Any = ExperimentConfig
    made = build(trialCommand="x", maxTrialNumber=3, trainingService=LocalConfig())
    assert (made.trial_command, made.max_trial_number) == ("x", 3)


@pytest.mark.parametrize("name", ["trialComand", "trial_comand"])
def test_an_unknown_name_is_an_error_that_names_the_nearest(config: ExperimentConfig, name: str) -> None:
    sentence = f"ExperimentConfig has no '{name}'; did you mean 'trial_command'?"
    with pytest.raises(AttributeError, match=sentence):
        setattr(config, name, "x")
    with pytest.raises(AttributeError, match=sentence):
        getattr(config, name)
    with pytest.raises(TypeError, match=sentence):
        ExperimentConfig(**{name: "x"})  # type: ignore[arg-type]


def test_json_has_every_field_in_camel_case_with_absolute_paths(
    config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config.search_space_file = "space.json"
    config.tuner = CustomAlgorithmConfig("mine.Tuner", ".", {"some_rate": 1})
    found = config.json()
    assert found == json.loads(json.dumps(found))
    assert found["trialConcurrency"] == 1
    assert found["maxExperimentDuration"] is None
    assert found["assessor"] is None
    assert (found["searchSpaceFile"], found["trialCodeDirectory"]) == (str(tmp_path / "space.json"), str(tmp_path))
    assert found["tuner"]["codeDirectory"] == str(tmp_path)
    assert found["tuner"]["classArgs"] == {"some_rate": 1}  # the user's own mapping
    assert found["trainingService"]["platform"] == "local"


def test_json_means_the_same_as_the_configuration(config: ExperimentConfig, tmp_path: Path) -> None:
    config.trial_code_directory = tmp_path
    read = [load_experiment_mapping(mapping, tmp_path).config for mapping in (config.json(), config.to_mapping())]
    assert read[0] == read[1]


@pytest.mark.parametrize("objective", [ObjectiveConfig("minimize"), {"direction": "minimize"}])
def test_an_objective_is_sent_where_it_is_set(objective: "ObjectiveConfig | dict[str, str]") -> None:
    assert ExperimentConfig("local", objective=objective).to_mapping()["objective"] == {"direction": "minimize"}


def test_a_file_is_loaded_with_its_own_paths(folder: Path) -> None:
    machine = RemoteMachineConfig("gpu-1", ssh_key_file=str(Path("~/key").expanduser()), gpu_indices=[0, 1])
    config = ExperimentConfig.load(folder / "e.yml")
    assert config == ExperimentConfig(
        RemoteConfig(machine_list=[machine]),
        experiment_name="digits",
        search_space_file=str(folder / "space.json"),
        trial_command="python t.py",
        trial_code_directory=str(folder / "code"),
        trial_concurrency=2,
        objective=ObjectiveConfig("minimize"),
        tuner=CustomAlgorithmConfig("mine.Tuner", str(folder / "code"), {"someRate": 1}),
        assessor=AlgorithmConfig("Medianstop", {"start_step": 3}),
    )


def test_code_is_in_the_folder_of_the_file_unless_another_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.yml").write_text("tuner: {className: mine.Tuner}\n")
    config = ExperimentConfig.load(tmp_path / "e.yml")
    assert (config.trial_code_directory, config.tuner.code_directory) == (str(tmp_path), str(tmp_path))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("authorName: me", "no 'authorName'.*proctor config convert"),
        ("trialComand: x", "did you mean 'trial_command'"),
        ("[1, 2]", "expected a mapping of keys"),
        ("trainingService: {platform: remote, machineList: [{port: 3}]}", "e.yml: .*host"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "e.yml").write_text(text)
    with pytest.raises(ValueError, match=words):
        ExperimentConfig.load(tmp_path / "e.yml")


@pytest.mark.slow
def test_validate_accepts_what_the_manager_would_take(config: ExperimentConfig) -> None:
    config.validate()


@pytest.mark.slow
def test_validate_names_every_problem(config: ExperimentConfig) -> None:
    config.trial_concurrency = 0
    config.use_annotation = True
    with pytest.raises(ValueError, match="trialConcurrency: expected") as caught:
        config.validate()
    problems = str(caught.value).splitlines()
    assert len(problems) == 2
    assert any(
        "useAnnotation" in line and "call get_next_parameter() and write a searchSpace" in line for line in problems
    )


def test_a_trial_scheduler_stands_beside_the_tuner_in_any_spelling() -> None:
    config = ExperimentConfig("local", trialScheduler=AlgorithmConfig("ASHA", {"max_t": 9}))
    config.trialScheduler.class_args["grace_period"] = 1
    scheduler = {"name": "ASHA", "class_args": {"max_t": 9, "grace_period": 1}}
    assert config.to_mapping()["trial_scheduler"] == scheduler
    assert config.json()["trialScheduler"]["name"] == "ASHA"
    assert "trial_scheduler" not in ExperimentConfig("local").to_mapping()
