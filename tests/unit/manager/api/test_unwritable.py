"""Requests for changes while the control database cannot be written: they are answered, and say what holds."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from fakes.served_manager import TOKEN, ServedManager

from proctor.manager.api.groups import API_PREFIX, GROUPS, without_database
from proctor.manager.cli.main import cli
from proctor.manager.security import SAFE_METHODS
from proctor.manager.store import connections

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedManager]:
    """A manager with an experiment that runs. Its database waits a moment only for one that has it locked."""
    monkeypatch.setattr(connections, "BUSY_TIMEOUT_MILLISECONDS", 50)
    with ServedManager(tmp_path / "home") as manager:
        manager.create()
        yield manager


@pytest.fixture
def client(served: ServedManager) -> Iterator[httpx.Client]:
    """A client with full access."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=f"{served.url}{API_PREFIX}", headers=headers, timeout=60.0) as made:
        yield made


@pytest.fixture
def lock(served: ServedManager) -> Iterator[sqlite3.Connection]:
    """Another program that has the database of the manager locked until it rolls back."""
    with closing(sqlite3.connect(served.home / "control.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


CHANGES = [
    (method, group.prefix.removeprefix(API_PREFIX) + path)
    for group in GROUPS
    for path, methods in group.paths.items()
    for method in methods
    if method not in SAFE_METHODS
]


def test_every_change_is_refused_while_the_database_cannot_be_written(
    served: ServedManager, client: httpx.Client, lock: sqlite3.Connection
) -> None:
    assert client.patch("/experiments/e", json={"max_trial_number": 20}).status_code == 503
    refused = [(method, path) for method, path in CHANGES if not without_database(API_PREFIX + path)]
    assert len(refused) > 20
    for method, path in refused:
        answer = client.request(method, path, json={})
        assert answer.status_code == 503, (method, path)
        detail = answer.json()["detail"]
        assert "database is locked" in detail, (method, path)
        assert detail.endswith("Nothing was changed: repeat the request then."), (method, path)
    assert client.get("/experiments/e").json()["max_trial_number"] == 10
    assert client.get("/health").json()["status"] == "degraded"
    assert client.post("/tokens", json={"name": "another"}).status_code == 201


def test_a_change_that_finds_the_database_locked_says_that_it_is_not_done_yet_and_is_done_later(
    served: ServedManager, client: httpx.Client, lock: sqlite3.Connection
) -> None:
    answer = client.patch("/experiments/e", json={"max_trial_number": 20})
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["instance"] == f"{API_PREFIX}/experiments/e"
    assert answer.json()["detail"].endswith(
        "What was asked for is not done yet, and is done as soon as that is possible: look before you ask again."
    )
    lock.execute("ROLLBACK")
    served.until(lambda: client.get("/experiments/e").json()["max_trial_number"] == 20)
    served.until(lambda: client.get("/health").json()["status"] == "ok")
    assert client.patch("/experiments/e", json={"max_trial_number": 30}).json()["max_trial_number"] == 30


def test_the_manager_can_be_stopped_while_its_database_cannot_be_written(
    client: httpx.Client, lock: sqlite3.Connection
) -> None:
    assert client.patch("/experiments/e", json={"max_trial_number": 20}).status_code == 503
    assert client.post("/shutdown").status_code == 202


def test_the_command_line_says_it_too(served: ServedManager, lock: sqlite3.Connection) -> None:
    for end in ("look before you ask again.", "Nothing was changed: repeat the request then."):
        result = CliRunner().invoke(cli, ["--home", str(served.home), "pause", "e"])
        assert result.exit_code != 0
        assert "database is locked" in result.stderr
        assert end in result.stderr
