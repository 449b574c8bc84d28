"""A disk without room for new trials: they wait, uncharged and with the reason, and continue without help."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.disks import Disk
from fakes.real_manager import RealManager, real_manager

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

TRIAL = """\
import os, sys, time
import proctor

number = int(os.environ["PROCTOR_SEQUENCE_ID"])
proctor.report_intermediate_result(float(number))
while not os.path.exists(os.path.join(sys.argv[1], "gate-%d" % number)):
    time.sleep(0.05)
proctor.report_final_result(float(number))
"""


@pytest.mark.parametrize("place", ["home", "experiment"])
def test_trials_wait_uncharged_while_their_disk_has_no_inodes(disk: Disk, tmp_path: Path, place: str) -> None:
    """The home is on that disk, or only the folder of the experiment is."""
    home = (disk.folder if place == "home" else tmp_path) / "home"
    with real_manager(tmp_path / "work", home=home) as manager:
        folder = {} if place == "home" else {"experimentWorkingDirectory": str(disk.folder)}
        experiment = manager.create(TRIAL, tmp_path, trialConcurrency=2, maxTrialNumber=3, **folder)
        manager.until(lambda: _reports(manager, experiment) == 2, "two trials that report")
        disk.fill_inodes()
        (tmp_path / "gate-0").touch()

        def waiting() -> dict[str, Any] | None:
            rows = manager.trials(experiment)
            return rows[2] if len(rows) == 3 and "takes no new jobs" in rows[2]["reason"] else None

        trial = manager.until(waiting, "a trial that waits for room")
        assert trial["status"] == "WAITING"
        assert "waiting: node local takes no new jobs: its disk has no inodes left" in trial["reason"]
        assert "remove some files" in trial["reason"]
        health = manager.client.health()
        assert health["status"] == "degraded"
        assert "node local takes no new jobs: its disk has no inodes left" in health["reason"]
        assert "no new trials are started: node local" in manager.client.experiment(experiment)["reason"]
        assert "no inodes left" in str(manager.client.node("local")["facts"]["notes"])
        jobs = trial["jobs"]

        if place == "experiment":  # another one continues meanwhile
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "gate-0").touch()
            other = manager.create(TRIAL, tmp_path / "other", maxTrialNumber=1)
            assert manager.until_status(other, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
            assert manager.client.trial(trial["id"])["jobs"] == jobs, "it was tried again before there was room"

        disk.free()
        for number in (1, 2):
            (tmp_path / f"gate-{number}").touch()
        done = manager.until_status(experiment, "DONE")
        assert done["trial_counts"] == {"SUCCEEDED": 3}
        assert manager.client.health() == {"status": "ok", "reason": ""}
        trial = manager.client.trial(trial["id"])
        ends = [job["end_reason"] for job in manager.client.jobs(trial["id"])]
        assert ends == ["NO_ROOM"] * (trial["jobs"] - 1) + ["EXITED_OK"]
        assert trial["jobs"] <= 3


def _reports(manager: RealManager, experiment: str) -> int:
    return sum(trial["intermediate_count"] for trial in manager.trials(experiment))


LOSING = """\
import json, os, sys, threading, time
import proctor

folder, job = sys.argv[1], os.environ["PROCTOR_JOB_ID"]
number, attempt = int(os.environ["PROCTOR_SEQUENCE_ID"]), int(job.rpartition(".")[2])


def note(*entry):
    with open(os.path.join(folder, job), "a") as ledger:
        ledger.write(json.dumps(entry) + "\\n")


def report(kind, value):
    note(kind, value["default"])
    (proctor.report_final_result if kind == "final" else proctor.report_intermediate_result)(value)


for step in range(5):
    report("intermediate", {"default": float(step)})
while not os.path.exists(os.path.join(folder, "full")):
    time.sleep(0.02)
for step in range(5, 40):
    report("intermediate", {"default": float(step), "text": "x" * 600})
result = {"default": float(number), "text": "x" * 100_000 * number}
if (number, attempt) == (1, 1):
    threading.Thread(target=report, args=("final", result), daemon=True).start()
    time.sleep(0.5)  # it does not fit into the reserve: it waits
else:
    report("final", result)
note("end", attempt)
os._exit(0)
"""


def test_an_experiment_accounts_for_every_report_that_its_disk_had_no_room_for(disk: Disk, tmp_path: Path) -> None:
    """Trial 0 has its result all the same; trial 1 has lost it, and runs again once there is room."""
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    with real_manager(tmp_path / "work", home=disk.folder / "home") as manager:
        impatient = "PROCTOR_REPORT_WAIT_SECONDS=0.2"
        experiment = manager.create(LOSING, ledgers, before=impatient, trialConcurrency=2, maxTrialNumber=2)
        manager.until(lambda: _reports(manager, experiment) == 10, "two trials that report")
        disk.fill()
        (ledgers / "full").touch()
        manager.poll_for(lambda: len(_entries(ledgers, "end")) == 2, "trials that end while their disk is full")
        disk.free()
        done = manager.until_status(experiment, "DONE")
        assert done["trial_counts"] == {"SUCCEEDED": 2}
        first, second = manager.trials(experiment)
        assert [(trial["final_value"], trial["jobs"]) for trial in (first, second)] == [(0.0, 1), (1.0, 2)]
        lost, _ = manager.client.jobs(second["id"])
        assert lost["end_reason"] == "RESULT_LOST"
        assert "its final metric among them: its disk was full" in lost["detail"]
        rows = [row for trial in (first, second) for row in manager.client.metrics(trial["id"])]
        stored = [row for row in rows if row["kind"] in ("intermediate", "final")]
        losses = sum(row["value"] for row in rows if row["kind"] == "lost")
        assert len(stored) + losses == len(_entries(ledgers, "intermediate")) + len(_entries(ledgers, "final"))
        assert losses > 0


def _entries(ledgers: Path, kind: str) -> list[Any]:
    lines = [line for path in ledgers.glob("*.*") for line in path.read_text().splitlines()]
    return [value for found, value in map(json.loads, lines) if found == kind]
