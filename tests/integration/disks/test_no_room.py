"""A disk without room for new trials: they wait, uncharged and with the reason, and continue without help."""

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
