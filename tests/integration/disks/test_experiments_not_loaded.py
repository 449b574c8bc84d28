"""No experiment begins while its disk is full; a manager that starts while it is full leaves trials alone."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, TRIAL_SCRIPT, House, house
from chaos.processes import Kind, find
from fakes.disks import Disk

from proctor.sdk.client.errors import NotFound, ProblemError

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

NOT_LOADED = "not loaded: "


def config(built: House, folder: Path, *options: object, steps: int = 6, seconds: float = 0.6) -> Mapping[str, Any]:
    command = built.trial_command(steps=steps, seconds=(seconds, seconds))
    return {
        "searchSpace": {"x": {"_type": "choice", "_value": [0.4, 0.6]}},
        "trialCommand": " ".join(map(str, (command, *options))),
        "trialCodeDirectory": str(TRIAL_SCRIPT.parent),
        "experimentWorkingDirectory": str(folder),
        "trialConcurrency": 2,
        "maxTrialNumber": 2,
        "seed": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
    }


def wait_for_reports(built: House, number: int) -> None:
    """Until each of two trials has reported so many values."""

    def reported() -> bool | None:
        rows = built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))
        return True if len(rows) == 2 and all(row["intermediate_count"] >= number for row in rows) else None

    built.wait_for(reported, f"two trials with {number} values each")


def processes(built: House) -> list[int]:
    """The trials' processes, by pid."""
    return sorted(found.pid for found in find(Kind.TRIAL, built.home, built.tag))


def wait_until_not_loaded(built: House) -> dict[str, Any]:
    def shown() -> dict[str, Any] | None:
        row = built.ask(lambda client: client.experiment(EXPERIMENT_ID))
        return row if NOT_LOADED in row["reason"] else None

    return built.wait_for(shown, "the experiment to be not loaded")


def command_line(built: House, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROCTOR_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "proctor.manager.cli.main", *words],
        env={**environment, "PROCTOR_HOME": str(built.home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def check_a_create_is_refused(built: House, wanted: Mapping[str, Any], work: Path) -> None:
    """On a full disk, and that it leaves nothing."""
    with pytest.raises(ProblemError, match="cannot write the experiment's folder") as refused:
        built.ask_once(
            lambda client: client.create_experiment(wanted, directory=TRIAL_SCRIPT.parent, experiment_id=EXPERIMENT_ID)
        )
    assert refused.value.status_code == 503
    assert list(work.iterdir()) == []
    with pytest.raises(NotFound):
        built.ask_once(lambda client: client.experiment(EXPERIMENT_ID))


def test_no_experiment_begins_on_a_full_disk_and_one_that_finds_it_full_goes_on_and_loses_nothing(
    disk: Disk, tmp_path: Path
) -> None:
    work, gate = disk.folder / "work", tmp_path / "gate"
    work.mkdir()
    with house(tmp_path) as built:
        wanted = config(built, work, "--gate", gate, 2)
        disk.fill()
        check_a_create_is_refused(built, wanted, work)
        disk.free()
        built.create(wanted)
        wait_for_reports(built, 2)
        before = processes(built)
        built.end_manager()
        disk.fill()

        row = wait_until_not_loaded(built)
        assert row["status"] == "NO_MORE_TRIAL"
        assert "; free some space; its trials keep running; " in row["reason"]
        health = built.ask(lambda client: client.health())
        assert health["status"] == "degraded"
        assert f"experiment {EXPERIMENT_ID} is {NOT_LOADED}" in health["reason"]
        assert NOT_LOADED in command_line(built, "experiment", "list")
        assert processes(built) == before

        disk.free()
        gate.touch()
        built.finish()
    assert len(before) == 2
    audit.check(audit.Ending.read(built.home, built.ledgers), trials=2)
