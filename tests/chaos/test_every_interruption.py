"""An experiment whose trials are paused, resumed and cloned is the same after a kill at any commit and at any
dispatcher input. Some of these moments are tried by `tests/unit/manager/engine/loop/test_scheduled_trials.py`."""

from pathlib import Path

import pytest
from fakes.scheduled_experiment import SCHEDULERS, ScheduledRun, save_often

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("tuner", ["Random", "TPE"])
@pytest.mark.parametrize("saves", [False, True], ids=["replayed", "saved"])
@pytest.mark.parametrize(
    ("killed_at", "counted"), [("manager_killed_at", "commits"), ("dispatcher_killed_at", "inputs")]
)
def test_a_kill_at_any_commit_of_either_database_or_any_input_changes_nothing(
    scheduler: str,
    tuner: str,
    saves: bool,
    killed_at: str,
    counted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """:param saves: dispatchers save their state after every few inputs, so that successors replay only a few."""
    if saves:
        save_often(monkeypatch)
    run = ScheduledRun(monkeypatch, tmp_path)
    undisturbed = run(tuner, scheduler)
    for moment in range(1, getattr(undisturbed, counted)):
        outcome = run(tuner, scheduler, **{killed_at: moment})
        assert outcome.found == undisturbed.found, f"{killed_at} {moment}"
