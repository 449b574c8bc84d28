"""No experiment begins while its disk is full; a manager that starts while it is full or away leaves trials alone."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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


class Mount:
    """Detached and attached while processes have files in it open: these stay usable, as those of a trial do."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target

    def attach(self) -> None:
        subprocess.run(["mount", "--bind", self._source, self._target], check=True, capture_output=True)

    def detach(self) -> None:
        subprocess.run(["umount", "--lazy", self._target], check=True, capture_output=True)


@contextmanager
def bound(source: Path, target: Path) -> Iterator[Mount]:
    """A folder that is mounted a second time at `target`."""
    source.mkdir()
    target.mkdir()
    mount = Mount(source, target)
    mount.attach()
    try:
        yield mount
    finally:
        with suppress(subprocess.CalledProcessError):
            mount.detach()


def stop_while_away(mount: Mount, tmp_path: Path) -> tuple[audit.Ending, str, str]:
    """Kill one trial, stop the experiment, resume it when its disk is back; how it ended, and the two jobs."""
    work = tmp_path / "work"
    with house(tmp_path) as built:
        built.create(config(built, work, "--gate", tmp_path / "gate", 2))
        wait_for_reports(built, 2)
        first, second = sorted(found.job_id for found in find(Kind.TRIAL, built.home, built.tag))
        built.kill_manager()
        mount.detach()

        row = wait_until_not_loaded(built)
        assert "metrics.db cannot be opened: No such file or directory" in row["reason"]
        built.ask(lambda client: client.kill_trial(first.rpartition(".")[0]))
        built.wait_for(lambda: True if len(processes(built)) == 1 else None, "the end of the killed trial")
        built.ask(lambda client: client.stop_experiment(EXPERIMENT_ID))
        built.wait_for(lambda: True if built.status() == "STOPPED" else None, "the experiment to be STOPPED")
        assert processes(built) == []
        kept = "it has been stopped; the keeper of node local has its last reports"
        for trial in built.ask(lambda client: list(client.trials(EXPERIMENT_ID))):
            assert (trial["status"], trial["reason"][: len(kept)]) == ("RUNNING", kept)
        built.kill_manager()  # the next one must not forget either what the keeper still has

        (tmp_path / "gate").touch()
        assert built.status() == "STOPPED"
        assert sorted(path.stem for path in (built.home / "nodes/local/jobs").glob("*.json")) == [first, second]
        with pytest.raises(ProblemError, match="cannot be resumed and stays STOPPED"):
            built.ask_once(lambda client: client.resume_experiment(EXPERIMENT_ID))
        mount.attach()
        built.ask(lambda client: client.resume_experiment(EXPERIMENT_ID))
        built.wait_until_done()
        built.shut_down()
    return audit.Ending.read(built.home, built.ledgers), first, second


def test_trials_of_an_experiment_whose_disk_is_away_can_be_stopped_and_run_when_it_is_back(
    disk: Disk, tmp_path: Path
) -> None:
    with bound(disk.folder / "work", tmp_path / "work") as mount:
        ending, first, second = stop_while_away(mount, tmp_path)
        audit.check_list(ending, 2)
        audit.check_processes(ending)
        audit.check_values(ending)
        audit.check_nothing_left(ending)
        ends = {job["id"]: job["end_reason"] for job in ending.jobs.values()}
        again = f"{second.rpartition('.')[0]}.2"
        assert ends == {first: "USER_CANCELED", second: "EXPERIMENT_STOPPED", again: "EXITED_OK"}
