"""The disk that holds the home is full for a while: nothing new begins, every view says why, and nothing is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.disks import Disk
from fakes.real_manager import real_manager

from proctor.sdk.protocol import RESERVE_FILE

pytestmark = pytest.mark.slow

TRIAL = """\
import json, os, sys, threading, time
import proctor

folder = sys.argv[1]
number = int(os.environ["PROCTOR_SEQUENCE_ID"])
ours = os.path.join(folder, os.environ["PROCTOR_TRIAL_ID"])
ledger = open(ours, "a")


def beat():
    with open(ours + ".beats", "a") as beats:
        while True:
            beats.write(".")
            beats.flush()
            time.sleep(0.05)


def report(kind, value):
    if kind == "final":
        proctor.report_final_result(value)
    else:
        proctor.report_intermediate_result(value)
    ledger.write(json.dumps([kind, value]) + "\\n")
    ledger.flush()


threading.Thread(target=beat, daemon=True).start()
proctor.get_next_parameter()
step = 0
gate = "gate-%d" % number
while step < 5 or not os.path.exists(os.path.join(folder, gate)):
    report("intermediate", {"default": float(step), "text": "x" * 50})  # many fit into what a journal has left
    step += 1
    time.sleep(0.05)
report("final", float(number))
"""

PATIENT = "PROCTOR_REPORT_WAIT_SECONDS=600"
SHOWN = "no new trials are started: "


def entries(ledgers: Path, trial: dict[str, Any]) -> list[list[Any]]:
    """What the trial says it has reported."""
    return [json.loads(line) for line in (ledgers / str(trial["id"])).read_text().splitlines()]


def beats(ledgers: Path, trial: dict[str, Any]) -> int:
    """How often the trial's process has shown that it lives."""
    return (ledgers / f"{trial['id']}.beats").stat().st_size


def test_a_full_disk_stops_nothing_that_runs_and_loses_nothing(disk: Disk, tmp_path: Path) -> None:
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    with real_manager(tmp_path / "work", home=disk.folder / "home") as manager:
        experiment = manager.create(TRIAL, ledgers, before=PATIENT, trialConcurrency=2, maxTrialNumber=4)

        def both_report() -> list[dict[str, Any]] | None:
            found = [trial for trial in manager.trials(experiment) if trial["intermediate_count"] >= 3]
            return found if len(found) == 2 else None

        first, second = manager.until(both_report, "two trials that report")
        (ledgers / "gate-0").touch()
        [reserve] = (manager.home / "experiments" / experiment).glob(f"trials/0-*/jobs/1/{RESERVE_FILE}")
        disk.fill()
        manager.poll_for(
            lambda: disk.fill() or not reserve.exists(), "the end of the first trial, which frees its room"
        )
        disk.fill()
        trouble = manager.until(
            lambda: manager.client.health()["reason"] if manager.client.health()["status"] == "degraded" else None,
            "the manager to see that its disk is full",
        )
        assert "SQLITE_FULL" in trouble or "SQLITE_IOERR" in trouble

        def is_held_back() -> dict[str, Any] | None:
            shown = manager.client.experiment(experiment)
            return shown if shown["reason"].startswith(SHOWN) else None

        shown = manager.until(is_held_back, "the experiment to start no new trials")
        assert shown["status"] == "RUNNING"
        # The room that the first trial has freed may have sufficed to begin the third, but not to run it.
        begun = [trial["id"] for trial in manager.trials(experiment)]
        assert begun[:2] == [first["id"], second["id"]]
        assert "free some space" in shown["reason"] or "check the disk" in shown["reason"]
        manager.poll_for(  # what a trial has freed meanwhile may have sufficed for a moment
            lambda: disk.fill() or SHOWN in manager.command_line("experiment", "list"), "the reason in the list"
        )
        before = beats(ledgers, second)
        manager.poll_for(lambda: beats(ledgers, second) > before + 5, "the second trial, which keeps running")
        assert [trial["id"] for trial in manager.trials(experiment)] == begun

        disk.free()
        for number in range(1, 4):
            (ledgers / f"gate-{number}").touch()
        done = manager.until_status(experiment, "DONE")
        assert done["trial_counts"] == {"SUCCEEDED": 4}
        assert SHOWN not in done["reason"]
        assert manager.client.health() == {"status": "ok", "reason": ""}
        trials = manager.trials(experiment)
        assert [trial["final_value"] for trial in trials] == [0.0, 1.0, 2.0, 3.0]
        assert all(trial["jobs"] == 1 for trial in trials if trial["id"] not in begun[2:])
        for trial in trials:
            stored = [[row["kind"], row["data"]] for row in manager.client.metrics(trial["id"])]
            # A record that the full disk has cut off stays as a torn line, and is written again whole.
            assert [row for row in stored if row[0] != "unreadable"] == entries(ledgers, trial)
