"""The example that was written for NNI, run as its keeper would run one trial of it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

EXAMPLE = Path(__file__).parents[3] / "examples" / "nni-unchanged"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project"))


def test_its_script_runs_in_place_with_its_own_paths(job: Any, project: Path) -> None:
    config = YAML(typ="safe").load(project / "config.yml")
    parameters = {"degree": 3, "learning_rate": 0.1, "momentum": 0.5, "batch_size": 12.0}
    (job.folder / "parameter.json").write_text(json.dumps({"parameters": parameters}))
    command = config["trialCommand"].replace("python3", job.interpreter)
    folder = project / config["trialCodeDirectory"]
    done = subprocess.run(command, shell=True, cwd=folder, env=job.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors = job.values()
    assert len(errors) == 20
    assert errors[-1] < errors[0]
    assert job.values("final") == [errors[-1]]
    assert (folder / "fits.txt").read_text().startswith("7 ")


def test_parameters_that_make_it_diverge_are_reported_as_such(job: Any, project: Path) -> None:
    parameters = {"degree": 5, "learning_rate": 0.5, "momentum": 0.95, "batch_size": 4.0}
    (job.folder / "parameter.json").write_text(json.dumps({"parameters": parameters}))
    command = [job.interpreter, "train.py", "--epochs", "300"]
    done = subprocess.run(command, cwd=project / "code", env=job.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert job.values("final") == ["NaN"]
