"""How long a job has run of whose end nothing was written down."""

import os
import time
from pathlib import Path

import pytest

from proctor.sdk.protocol import boot_time
from proctor.trial_keeper.jobs.cleanup import is_running, unknown_exit
from proctor.trial_keeper.jobs.records import JobRecord, ProcessIdentity, ProcessRecord
from proctor.trial_keeper.linux.identity import boot_id, start_time
from proctor.trial_keeper.protocol import Launch


@pytest.mark.parametrize(
    ("boot", "lives", "expected"),
    [("now", True, 60.0), ("now", False, 0.0), ("before", True, 0.0)],
    ids=["it runs still", "it ended while no keeper ran", "the machine was restarted"],
)
def test_the_time_until_an_end_was_noticed_does_not_count(
    tmp_path: Path, boot: str, lives: bool, expected: float
) -> None:
    boot = boot_id() if boot == "now" else "the boot before"
    trial = ProcessIdentity(os.getpid(), (start_time(os.getpid()) or 0) - (not lives))
    process = ProcessRecord(trial, trial, boot, time.time() - 60.0, 0.0, started_boot=boot_time() - 60.0)
    record = JobRecord(Launch("T.1", "token", "E", "T", 3, str(tmp_path), "true", "/code", "{}", None), boot)
    end = unknown_exit(record, process, now=time.time(), was_running=is_running(process))
    assert end.run_seconds == pytest.approx(expected, abs=30.0)
    assert end.verdict_seconds == 0.0
