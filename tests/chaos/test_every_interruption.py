"""An experiment whose trials are paused, resumed and cloned is the same after a kill at any commit and at any
dispatcher input. Some of these moments are tried by `tests/unit/manager/engine/loop/test_scheduled_trials.py`."""

from pathlib import Path

import pytest
from fakes.scheduled_experiment import ScheduledRun

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("tuner", ["Random", "TPE"])
def test_a_kill_at_any_commit_of_either_database_changes_nothing(
    tuner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ScheduledRun(monkeypatch, tmp_path)
    undisturbed = run(tuner)
    for moment in range(1, undisturbed.commits):
        assert run(tuner, manager_killed_at=moment).found == undisturbed.found, f"killed at commit {moment}"


@pytest.mark.parametrize("tuner", ["Random", "TPE"])
def test_a_kill_of_the_dispatcher_at_any_input_changes_nothing(
    tuner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ScheduledRun(monkeypatch, tmp_path)
    undisturbed = run(tuner)
    for moment in range(1, undisturbed.inputs):
        assert run(tuner, dispatcher_killed_at=moment).found == undisturbed.found, f"killed at input {moment}"
