"""Experiments of examples/ under virtual time: their own code and configuration, and jobs played in memory."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks import harness
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Raw, Step

EXAMPLES = Path(__file__).parents[2] / "examples"
_STATE = "state.json"


def load_code(example: str) -> Any:
    """The module `train.py` of an example."""
    path = EXAMPLES / example / "train.py"
    spec = importlib.util.spec_from_file_location(f"{example.replace('-', '_')}_example", path)
    if spec is None or spec.loader is None:
        raise harness.BenchmarkError(f"expected the code of the example in {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_config(example: str) -> dict[str, Any]:
    """The configuration of an example."""
    found: dict[str, Any] = YAML(typ="safe").load(EXAMPLES / example / "config.yml")
    return found


def save(form: TrialJobForm, step: int, state: Any) -> Iterator[Step]:
    """Register a checkpoint that holds this state (JSON)."""
    folder = Path(form.directory) / "output" / "checkpoints" / str(step)
    folder.mkdir(parents=True)
    (folder / _STATE).write_text(json.dumps(state))
    record = {"kind": "checkpoint", "path": f"output/checkpoints/{step}", "time": 1.0}
    yield Raw(0.0, json.dumps(record).encode() + b"\n")


def read_saved(form: TrialJobForm, otherwise: Any) -> Any:
    """The state that a job continues from."""
    if form.resume_checkpoint is None:
        return otherwise
    return json.loads((Path(form.resume_checkpoint) / _STATE).read_text())


def read_parameters(form: TrialJobForm) -> dict[str, Any]:
    """What the job is to train with."""
    found: dict[str, Any] = json.loads(form.parameter_file)["parameters"]
    return found
