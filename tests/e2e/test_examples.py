"""Every example as a user runs it: `proctor create --config … --foreground`, all of them in one home."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from proctor.sdk.client import Client
from proctor.trial_keeper.start import stop_keeper

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_SECONDS = 120

REMEMBER_INTERPRETER = """\
import os, sys
if folder := os.environ.get("PROCTOR_OUTPUT_DIR"):
    with open(os.path.join(folder, "interpreter"), "w") as file:
        file.write(sys.prefix)
"""


@dataclass
class CommandLine:
    """The command line, with a home of its own."""

    home: Path
    path: str

    @property
    def environment(self) -> dict[str, str]:
        """What a user's shell has, less what could lead to another manager, or to our packages."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROCTOR_", "PYTHON", "VIRTUAL_ENV"))}
        return {**kept, "PATH": self.path, "PROCTOR_HOME": str(self.home), "PROCTOR_PORT": "0"}

    def attempt(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run it, whatever its exit code."""
        command = [sys.executable, "-m", "proctor.manager.cli.main", *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )

    def create(self, config: Path, first_on_path: "Path | None" = None) -> tuple[str, str]:
        """Run an experiment to its end; returns its id and what was said of the outcome.

        :param first_on_path: an environment whose programs come first on the PATH.
        """
        path = self.path if first_on_path is None else os.pathsep.join([str(first_on_path / "bin"), self.path])
        done = replace(self, path=path).attempt("create", "--config", config, "--foreground")
        assert done.returncode == 0, f"it ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        identifier, _, outcome = done.stdout.partition("\n")
        return identifier, outcome

    def trials(self, experiment: str) -> list[dict[str, Any]]:
        """The trials as the REST API has them, the first one first."""
        with Client(home=self.home) as client:
            return list(client.trials(experiment, sort="sequence_id"))


@pytest.fixture(scope="module")
def proctor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The command line. Afterwards the manager, its keeper and its experiments are gone."""
    home = tmp_path_factory.mktemp("examples") / "home"
    command_line = CommandLine(home, os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    try:
        yield command_line
    finally:
        command_line.attempt("stop", "--all")
        command_line.attempt("manager", "stop")
        for directory in (home / "nodes").glob("*"):
            stop_keeper(directory)


def copy(example: str, tmp_path: Path, **changes: Any) -> Path:
    """A copy of an example, its configuration changed where it would take too long; returns the configuration."""
    folder = tmp_path / example
    shutil.copytree(EXAMPLES / example, folder, ignore=shutil.ignore_patterns("__pycache__", "fits.txt"))
    config = folder / "config.yml"
    if changes:
        _edit(config, changes)
    return config


def _edit(config: Path, changes: Mapping[str, Any]) -> None:
    yaml = YAML()
    document = yaml.load(config)
    assert set(changes) <= set(document), f"{config} has none of {set(changes) - set(document)}"
    document.update(changes)
    yaml.dump(document, config)


def make_environment(environment: Path) -> Path:
    """A bare virtual environment whose Python says in every trial's output folder that it was there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "remember_interpreter.py").write_text(REMEMBER_INTERPRETER)
    (packages / "remember_interpreter.pth").write_text("import remember_interpreter\n")
    return environment


def test_digits_finds_a_best_trial_and_keeps_its_weights(proctor: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    experiment, outcome = proctor.create(copy("digits", tmp_path, maxTrialNumber=2))
    trials = proctor.trials(experiment)
    assert [trial["status"] for trial in trials if trial["status"] not in ("SUCCEEDED", "EARLY_STOPPED")] == []
    assert len(trials) == 2
    ended = [trial for trial in trials if trial["status"] == "SUCCEEDED"]
    best = max(ended, key=lambda trial: trial["final_value"])
    assert f"({best['id']})" in outcome
    assert 0.0 < best["final_value"] <= 1.0
    assert best["intermediate_count"] == 12
    assert (Path(best["directory"]) / "jobs" / "1" / "output" / "model.pt").stat().st_size > 0
    assert "http://127.0.0.1:" in outcome


@pytest.mark.thorough
def test_population_based_training_reaches_what_no_fixed_schedule_does(proctor: CommandLine, tmp_path: Path) -> None:
    config = copy("pbt-toy", tmp_path)
    experiment, _ = proctor.create(config)
    trials = proctor.trials(experiment)
    assert [trial["status"] for trial in trials] == ["SUCCEEDED", "SUCCEEDED"]
    assert max(trial["final_value"] for trial in trials) > 1.1
    assert max(trial["jobs"] for trial in trials) > 1
    yaml = YAML()
    fixed = yaml.load(config)
    del fixed["trialScheduler"]
    yaml.dump(fixed, config)
    experiment, _ = proctor.create(config)
    trials = proctor.trials(experiment)
    assert sorted(trial["parameters"]["h"] for trial in trials) == [[0, 1], [1, 0]]
    assert [trial["final_value"] for trial in trials] == pytest.approx([0.39, 0.39], abs=0.01)


@pytest.mark.thorough
def test_a_trial_of_the_trainer_that_is_killed_ends_with_the_weights_of_one_that_is_not(
    proctor: CommandLine, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    experiment, _ = proctor.create(copy("reproducible", tmp_path, maxTrialNumber=2))
    whole, killed = sorted(proctor.trials(experiment), key=lambda trial: trial["parameters"]["crash_at"])
    assert (whole["parameters"]["crash_at"], killed["parameters"]["crash_at"]) == (0, 55)
    assert (whole["status"], killed["status"]) == ("SUCCEEDED", "SUCCEEDED")
    assert (whole["jobs"], killed["jobs"]) == (1, 2)
    assert whole["final_data"]["weights"] == killed["final_data"]["weights"]
    assert [trial["intermediate_count"] for trial in (whole, killed)] == [4, 4]  # 50 came twice


def test_the_nni_example_runs_unchanged_in_its_own_environment(proctor: CommandLine, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv")
    config = copy("nni-unchanged", tmp_path)
    for name in ("config.yml", "search_space.json", "code/train.py", "data/points.csv"):
        assert (config.parent / name).read_bytes() == (EXAMPLES / "nni-unchanged" / name).read_bytes()
    experiment, _ = proctor.create(config, first_on_path=environment)
    trials = proctor.trials(experiment)
    assert len(trials) == 12
    assert {trial["status"] for trial in trials} <= {"SUCCEEDED", "EARLY_STOPPED"}
    for trial in trials:
        assert (Path(trial["directory"]) / "jobs" / "1" / "output" / "interpreter").read_text() == str(environment)
    lines = (config.parent / "code" / "fits.txt").read_text().splitlines()
    written = {int(line.split()[0]): float(line.split()[1]) for line in lines}
    reported = {t["sequence_id"]: t["final_value"] for t in trials if t["status"] == "SUCCEEDED"}
    assert reported
    assert reported == {number: written[number] for number in reported}


def test_the_custom_tuner_proposes_and_learns(proctor: CommandLine, tmp_path: Path) -> None:
    experiment, outcome = proctor.create(copy("custom_tuner", tmp_path, maxTrialNumber=8))
    trials = proctor.trials(experiment)
    assert [trial["status"] for trial in trials] == ["SUCCEEDED"] * 8
    for trial in trials:
        x, y = trial["parameters"]["x"], trial["parameters"]["y"]
        assert trial["final_value"] == pytest.approx(-((x - 1.0) ** 2) - (y + 2.0) ** 2)
    first_draws = random.Random(1)  # the seed of the example's classArgs: no other tuner begins like this
    assert trials[0]["parameters"] == {"x": first_draws.uniform(-5, 5), "y": first_draws.uniform(-5, 5)}
    best = max(trials, key=lambda trial: trial["final_value"])
    assert f"({best['id']})" in outcome
