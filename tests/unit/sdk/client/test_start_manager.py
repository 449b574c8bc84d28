"""The SDK starts a manager by the command line, and passes on what that says of a start that takes long."""

import sys
from pathlib import Path

import pytest

from proctor.sdk.client import experiment
from proctor.sdk.client.errors import ManagerNotStarted

PROGRESS = "Waiting for the manager (pid 7, 4 s): opening and checking the control database. Its log: manager.log"


def test_what_is_said_of_a_long_start_is_shown_and_only_the_fault_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = [PROGRESS, "Error: the manager could not be started: the disk is gone"]
    program = f"import sys; [print(line, file=sys.stderr) for line in {said}]; sys.exit('start' in sys.argv)"
    monkeypatch.setattr(experiment, "COMMAND_LINE", (sys.executable, "-c", program))
    with pytest.raises(ManagerNotStarted, match=r"^the manager could not be started: the disk is gone$"):
        experiment.start_manager(tmp_path)
    assert capfd.readouterr().err == f"{PROGRESS}\n"
