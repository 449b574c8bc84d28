"""`stop X; resume X`, as users of nnictl type it: the second waits for the first."""

import subprocess
from pathlib import Path

import pytest
from fakes.real_manager import real_manager

pytestmark = pytest.mark.slow

SAVES_UNTIL_IT_MAY_END = """
import os, sys, time
import proctor

proctor.get_next_parameter()
while not proctor.should_stop():
    proctor.report_intermediate_result(0)
    time.sleep(0.02)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


def test_resume_waits_for_the_end_of_a_stop(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with real_manager(tmp_path) as manager:
        experiment = manager.create(SAVES_UNTIL_IT_MAY_END, end, saveSeconds=60)
        manager.until(
            lambda: any(trial["intermediate_count"] for trial in manager.trials(experiment)), "a report of the trial"
        )
        manager.command_line("stop", experiment)
        resume = manager.spawn("resume", experiment, stderr=subprocess.PIPE)
        assert resume.stderr is not None
        with resume:
            assert "is still being stopped (waits for trial 0 to save" in resume.stderr.readline()
            end.touch()
            assert "resumed" in resume.stderr.read()
        assert resume.returncode == 0
        manager.until_status(experiment, "RUNNING")
