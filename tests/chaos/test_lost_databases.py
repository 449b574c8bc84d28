"""A home whose control database was lost, damaged or cut off: the manager refuses to serve, and trials keep running."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Kind, find

pytestmark = pytest.mark.slow


def config(built: House, gate: Path) -> Mapping[str, Any]:
    command = built.trial_command(steps=6, seconds=(0.6, 0.6))
    return {
        "searchSpace": {"x": {"_type": "choice", "_value": [0.4, 0.6]}},
        "trialCommand": f"{command} --gate {gate} 2",
        "trialConcurrency": 2,
        "maxTrialNumber": 2,
        "seed": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
    }


def run_two_trials(built: House, gate: Path) -> list[int]:
    """Until both have reported twice and wait at the gate; their pids."""
    built.create(config(built, gate))

    def reported() -> bool | None:
        rows = built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))
        return True if len(rows) == 2 and all(row["intermediate_count"] == 2 for row in rows) else None

    built.wait_for(reported, "two trials with 2 values each")
    return trials(built)


def trials(built: House) -> list[int]:
    return sorted(found.pid for found in find(Kind.TRIAL, built.home, built.tag))


def delete(database: Path) -> None:
    for path in database.parent.glob("control.db*"):
        path.unlink()


def cut_log(database: Path) -> None:
    log = database.parent / "control.db-wal"
    os.truncate(log, log.stat().st_size * 2 // 3)


LOSSES: Mapping[Callable[[Path], None], str] = {
    delete: "is missing or empty, but the home had one",
    cut_log: "has lost its newest",
}
"""tests/unit/manager/process/test_control_database.py has them all."""


@pytest.mark.thorough
def test_no_loss_of_the_control_database_ends_a_trial_and_all_goes_on_when_it_is_restored(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    with house(tmp_path) as built:
        running = run_two_trials(built, tmp_path / "gate")
        built.kill_manager()
        for path in built.home.glob("control.db*"):
            shutil.copy(path, copies)
        for lose, sentence in LOSSES.items():
            lose(built.home / "control.db")
            printed = built.refusal()
            assert sentence in printed, f"{lose.__name__}: {printed}"
            assert "Nothing was changed, and the trials keep running." in printed
            assert trials(built) == running
            for path in copies.iterdir():
                shutil.copy(path, built.home)
        (tmp_path / "gate").touch()
        built.finish()
    audit.check(audit.Ending.read(built.home, built.ledgers), trials=2)


@pytest.mark.thorough
def test_a_person_can_begin_with_an_empty_database_and_then_trials_of_the_lost_one_are_stopped(tmp_path: Path) -> None:
    with house(tmp_path) as built:
        running = run_two_trials(built, tmp_path / "gate")
        built.kill_manager()
        delete(built.home / "control.db")
        refused = subprocess.run(
            [sys.executable, "-P", "-m", "proctor.manager.cli.main", "manager", "start"],
            env={**os.environ, "PROCTOR_HOME": str(built.home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode == 6
        assert "`proctor manager start --accept-database`" in refused.stderr
        assert trials(built) == running

        built.options = ["--accept-database"]
        assert built.ask(lambda client: list(client.experiments())) == []
        built.wait_for(lambda: True if trials(built) == [] else None, "the end of unknown trials")
        folder = built.home / "experiments" / EXPERIMENT_ID
        assert (folder / "metrics.db").exists(), "what the lost database knew is left where it is"
        built.shut_down()
