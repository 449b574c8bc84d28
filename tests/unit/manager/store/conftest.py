"""Databases in temporary files."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proctor.manager.store.connections import open_writer
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import experiments


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


@pytest.fixture
def experiment(control: sqlite3.Connection, make_experiment: Callable[..., ExperimentRow]) -> ExperimentRow:
    """A running experiment that is in the control database."""
    row = make_experiment()
    experiments.insert(control, row)
    return row
