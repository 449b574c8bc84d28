"""Databases in temporary files, and rows to put into them."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.connections import open_writer
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import experiments
from proctor.training_services.base import TrialJobStatus


@pytest.fixture
def control(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A control database."""
    connection = open_writer(str(tmp_path / "control.db"), "control")
    yield connection
    connection.close()


@pytest.fixture
def metrics_database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A metrics database."""
    connection = open_writer(str(tmp_path / "metrics.db"), "metrics")
    yield connection
    connection.close()


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


@pytest.fixture
def experiment(control: sqlite3.Connection, make_experiment: Callable[..., ExperimentRow]) -> ExperimentRow:
    """A running experiment that is in the control database."""
    row = make_experiment()
    experiments.insert(control, row)
    return row
