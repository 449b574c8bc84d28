"""Trials of every framework are stopped, paused, resumed and cloned by every trial scheduler. Some of these pairs are
tried by `tests/integration/sdk/pytorch/test_scheduled_runs.py`."""

from pathlib import Path

import pytest
from fakes.scheduled_training import SCHEDULERS, SCRIPTS, check, train_scheduled

pytestmark = pytest.mark.chaos
HAPPENS: dict[str, set[str]] = {
    "ASHA, stopping": set(),
    "ASHA, promotion": {"resume"},
    "HyperBand": {"resume"},
    "BOHB": {"resume"},
    "MedianStopping": set(),
    "PBT, synchronous": {"resume", "clone"},
}
"""What a scheduler does in any case; the others' decisions depend on which trial is faster."""


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_job_continues_where_its_checkpoint_was_saved(framework: str, scheduler: str, tmp_path: Path) -> None:
    (trained,) = train_scheduled(tmp_path, (framework, scheduler)).values()
    happened = check(trained)
    assert happened == HAPPENS.get(scheduler, happened)
    assert {row["status"] for row in trained.trials} <= {"SUCCEEDED", "EARLY_STOPPED"}
    assert any(row["final_value"] is not None for row in trained.trials)
