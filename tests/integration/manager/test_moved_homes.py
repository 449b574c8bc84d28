"""A home that was renamed while no manager ran; and a copy, whose manager leaves the original alone."""

import shutil
from pathlib import Path

import pytest
from fakes.real_manager import RealManager, real_manager

from proctor.sdk.files import is_locked
from proctor.trial_keeper.settings import JOBS_FOLDER

pytestmark = pytest.mark.slow

WAITS = """
import os, sys, time
import proctor

proctor.get_next_parameter()
proctor.report_intermediate_result(0)
print("sequence", proctor.get_sequence_id())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
proctor.report_final_result(1)
"""


def create_waiting(manager: RealManager, end: Path) -> str:
    """A running experiment whose first trial has reported, and runs until the file `end` is there."""
    experiment = manager.create(WAITS, end, maxTrialNumber=2)
    manager.until(lambda: any(trial["intermediate_count"] for trial in manager.trials(experiment)), "a report")
    return experiment


def trials_have_ended(home: Path) -> bool:
    return not any(map(is_locked, (home / "nodes" / "local" / JOBS_FOLDER).glob("*.process")))


def test_an_experiment_goes_on_in_a_home_that_was_renamed(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with real_manager(tmp_path) as manager:
        experiment = create_waiting(manager, end)
        manager.kill()
        before, manager.home = manager.home, tmp_path / "moved"
        before.rename(manager.home)
        refused = manager.attempt("manager", "start")
        assert f"was moved from {before} while a trial of it runs, with the old paths" in refused.stderr
        manager.home.rename(before)
        end.touch()
        manager.poll_for(lambda: trials_have_ended(before), "the end of the trial under its keeper")
        before.rename(manager.home)
        manager.start()
        manager.until_status(experiment, "DONE")
        assert [(row["status"], row["final_value"], row["jobs"]) for row in manager.trials(experiment)] == [
            ("SUCCEEDED", 1.0, 1),
            ("SUCCEEDED", 1.0, 1),
        ]
        assert manager.command_line("trial", "log", "0", "--stdout") == "sequence 0\n"
        assert not before.exists()


def test_the_manager_of_a_copy_leaves_the_trials_of_the_original_alone(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with real_manager(tmp_path) as manager:
        experiment = create_waiting(manager, end)
        original, manager.home = manager.home, tmp_path / "copy"
        shutil.copytree(original, manager.home, ignore=shutil.ignore_patterns("*.sock"))
        refused = manager.attempt("manager", "start")
        assert f"is a copy of {original}" in refused.stderr
        unclear = manager.attempt("manager", "start", "--moved")
        assert "not confirmed: there is no terminal to ask on; use -y" in unclear.stderr
        refused = manager.attempt("manager", "start", "--moved", "-y")
        assert f"{original} is still there" in refused.stderr
        manager.command_line("manager", "start", "--copy", "--port", "0")
        assert "STOPPED" in manager.command_line("experiment", "show", experiment)
        manager.command_line("experiment", "delete", experiment, "-y")
        manager.command_line("manager", "stop")
        assert [row["status"] for row in manager.trials(experiment)] == ["RUNNING"], "of the original"
        end.touch()
        manager.until_status(experiment, "DONE")
