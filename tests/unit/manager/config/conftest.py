"""A directory with everything the examples of the key table refer to, and a small valid configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.config.errors import ConfigError, ConfigProblem
from proctor.manager.config.loading import LoadedExperiment, load_experiment, load_experiment_mapping

SMALL = """\
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialCommand: python trial.py
trialConcurrency: 1
objective: {direction: maximize}
tuner: {name: TPE}
trainingService:
  platform: local
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the configuration lies."""
    (tmp_path / "code").mkdir()
    (tmp_path / "id_key").write_text("a key")
    (tmp_path / "space.json").write_text('{\n\t"y": {"_type": "choice", "_value": [1e-4, 2]}\n}\n')
    for folder in (tmp_path, tmp_path / "code"):
        (folder / "tuners.py").write_text("class Mine: ...\n")
        (folder / "assessors.py").write_text("class Mine: ...\n")
        (folder / "schedulers.py").write_text("class Mine: ...\n")
    return tmp_path


@pytest.fixture
def load(directory: Path) -> Callable[[str], LoadedExperiment]:
    """Write a text as experiment.yml and load it."""

    def written(text: str) -> LoadedExperiment:
        file = directory / "experiment.yml"
        file.write_text(text)
        return load_experiment(file)

    return written


@pytest.fixture
def problems(load: Callable[[str], LoadedExperiment]) -> Callable[[str], dict[str, ConfigProblem]]:
    """The problems of a text, by key."""

    def found(text: str) -> dict[str, ConfigProblem]:
        with pytest.raises(ConfigError) as caught:
            load(text)
        return {problem.key: problem for problem in caught.value.problems}

    return found


@pytest.fixture
def refused(directory: Path) -> Callable[[dict[str, Any]], tuple[ConfigProblem, ...]]:
    """The problems of Python values."""

    def found(mapping: dict[str, Any]) -> tuple[ConfigProblem, ...]:
        with pytest.raises(ConfigError) as caught:
            load_experiment_mapping(mapping, directory)
        return caught.value.problems

    return found


@pytest.fixture
def small() -> str:
    """The text of a small configuration without a fault."""
    return SMALL


@pytest.fixture
def small_mapping() -> dict[str, Any]:
    """The same as Python values."""
    return {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 1,
        "objective": {"direction": "maximize"},
        "tuner": {"name": "TPE"},
        "trainingService": {"platform": "local"},
    }
