"""A home of the previous release, with its live keeper and its running trial, under this release's manager.

How the fixture is recorded: docs/releasing.md.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.previous_release import GO, KEEPER, NODE, REPORTED_BEFORE_GO, START, unpack
from fakes.real_manager import RealManager

from proctor.manager.store.migrations import SchemaName, load_migrations
from proctor.trial_keeper.start import read_facts


@dataclass
class Upgrade:
    """The home, before this release's manager is started on it."""

    manager: RealManager
    facts: dict[str, Any]
    keeper: "subprocess.Popen[bytes]"

    def version(self, database: str) -> int:
        """The version of the schema of a database in the home."""
        with closing(sqlite3.connect(self.manager.home / database)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def upgrade(tmp_path: Path) -> Iterator[Upgrade]:
    """The previous release's keeper runs the trial that it was sent before; there is no manager."""
    manager = RealManager(tmp_path / "home", tmp_path, {})
    facts = unpack(tmp_path, manager.tag)
    (manager.code / START).touch()
    command = [sys.executable, "-I", "-S", "-X", "utf8", str(KEEPER), "serve", "--directory", str(tmp_path / NODE)]
    keeper = subprocess.Popen(command, env=manager.environment, start_new_session=True)
    try:
        yield Upgrade(manager, facts, keeper)
    finally:
        manager.end()
        keeper.wait()


def journal_of(manager: RealManager, experiment_id: str) -> bytes:
    """What its trials have reported, whether or not a manager has it."""
    journals = manager.home.glob(f"experiments/{experiment_id}/trials/*/jobs/1/journal")
    return b"".join(path.read_bytes() for path in journals)


def newest(schema: SchemaName) -> int:
    return len(load_migrations(schema))


def start_manager(upgrade: Upgrade) -> None:
    """Start it on a trial that runs and has reported; returns when these reports are stored."""
    manager, launched = upgrade.manager, upgrade.facts["launched"]
    manager.poll_for(
        lambda: journal_of(manager, launched).count(b"\n") >= REPORTED_BEFORE_GO, "the reports, without a manager"
    )
    manager.start()

    def all_stored() -> bool:
        return len(list(manager.client.metrics(upgrade.facts["trial"]))) == REPORTED_BEFORE_GO

    manager.until(all_stored, "the reports to be stored")
    assert [row["status"] for row in manager.trials(launched)] == ["RUNNING"]


def let_trials_end(upgrade: Upgrade) -> None:
    """Returns when both trials have succeeded, each in its first attempt."""
    manager, launched = upgrade.manager, upgrade.facts["launched"]
    (manager.code / GO).touch()
    manager.until_status(launched, "DONE")
    rows = manager.trials(launched)
    assert [row["status"] for row in rows] == ["SUCCEEDED", "SUCCEEDED"]
    assert rows[0]["id"] == upgrade.facts["trial"]
    assert [len(list(manager.client.jobs(row["id"]))) for row in rows] == [1, 1]


def test_a_live_keeper_of_the_previous_release_serves_the_new_manager_which_migrates_the_databases(
    upgrade: Upgrade,
) -> None:
    manager, finished = upgrade.manager, upgrade.facts["finished"]
    before = upgrade.version("control.db"), upgrade.version(f"experiments/{finished}/metrics.db")
    assert before == (upgrade.facts["control"], upgrade.facts["metrics"])
    start_manager(upgrade)
    let_trials_end(upgrade)

    facts = read_facts(manager.home / "nodes" / "local")
    assert facts is not None
    assert (facts.pid, facts.archive) == (upgrade.keeper.pid, KEEPER.name)
    check_results_are_kept(upgrade)
    assert upgrade.version("control.db") == newest("control") >= before[0]
    assert upgrade.version(f"experiments/{finished}/metrics.db") == newest("metrics") >= before[1]


def test_a_keeper_of_this_release_adopts_the_trials_of_the_previous_one(upgrade: Upgrade) -> None:
    """As on a machine over SSH, where the keeper is replaced as soon as the new manager has logged in."""
    manager = upgrade.manager
    start_manager(upgrade)
    upgrade.keeper.kill()
    upgrade.keeper.wait()

    def has_new_keeper() -> bool:
        facts = read_facts(manager.home / "nodes" / "local")
        return facts is not None and facts.archive == ""

    manager.poll_for(has_new_keeper, "a keeper of this release")
    let_trials_end(upgrade)


def check_results_are_kept(upgrade: Upgrade) -> None:
    """Those of the finished experiment, which can continue."""
    manager, finished = upgrade.manager, upgrade.facts["finished"]
    assert manager.client.experiment(finished)["status"] == "DONE"
    assert {row["id"]: row["final_value"] for row in manager.trials(finished)} == upgrade.facts["values"]
    for row in manager.trials(finished):
        assert [metric["value"] for metric in manager.client.metrics(row["id"])][-1] == row["final_value"]
    manager.command_line("update", "trialnum", finished, "--value", "5")
    manager.until(lambda: len(manager.trials(finished)) == 5 or None, "another trial")
    manager.until_status(finished, "DONE")
