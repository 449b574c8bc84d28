"""What tests of many modules of the manager begin with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.training_services.base import TrialJobStatus


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with its folders, and nothing in them but the lock."""
    found = Home(tmp_path / "home")
    found.prepare()
    found.lock_file.touch()
    return found


@pytest.fixture(scope="session")
def make_experiment() -> Callable[..., ExperimentRow]:
    """Experiment rows in which only what a test is about need be named."""

    def make(experiment_id: str = "Ab3dE5f7", **columns: Any) -> ExperimentRow:
        fixed = {
            "name": "digits",
            "status": ExperimentStatus.RUNNING,
            "config": {"trialCommand": "python trial.py"},
            "search_space": {"lr": {"_type": "loguniform", "_value": [1e-5, 0.1]}},
            "directory": f"/home/experiments/{experiment_id}",
            "seed": 7,
            "created_at": 1000.0,
            "trial_concurrency": 2,
        }
        return ExperimentRow(**{"id": experiment_id, **fixed, **columns})

    return make


@pytest.fixture(scope="session")
def make_trial() -> Callable[..., TrialRow]:
    """Trial rows; the id follows from the sequence id."""

    def make(sequence_id: int, **columns: Any) -> TrialRow:
        fixed = {
            "experiment_id": "Ab3dE5f7",
            "status": TrialStatus.WAITING,
            "parameter_id": sequence_id,
            "parameters": {"lr": 0.01},
            "created_at": 1000.0 + sequence_id,
        }
        return TrialRow(**{"id": f"trial{sequence_id:04d}", "sequence_id": sequence_id, **fixed, **columns})

    return make


@pytest.fixture(scope="session")
def make_job() -> Callable[..., TrialJobRow]:
    """Trial job rows of a trial."""

    def make(trial: TrialRow, number: int = 1, **columns: Any) -> TrialJobRow:
        fixed = {
            "trial_id": trial.id,
            "experiment_id": trial.experiment_id,
            "number": number,
            "token": f"token{number}",
            "status": TrialJobStatus.CREATED,
            "parameter_id": trial.parameter_id,
            "parameters": trial.parameters,
        }
        return TrialJobRow(**{"id": f"{trial.id}.{number}", **fixed, **columns})

    return make
