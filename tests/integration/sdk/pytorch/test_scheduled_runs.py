"""The trainer, Lightning and transformers under trial schedulers, with no line about them in the trial's code. All of
them under all schedulers: `tests/chaos/test_frameworks_under_schedulers.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.scheduled_training import LAST, SCRIPTS, check, scheduled_training

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    with scheduled_training(tmp_path) as run:
        yield run


def test_the_trainer_is_stopped_by_asha(run: Any) -> None:
    trained = run("trainer", "ASHA, stopping")
    check(trained)
    statuses = [row["status"] for row in trained.trials]
    assert set(statuses) == {"SUCCEEDED", "EARLY_STOPPED"}
    best = max(trained.trials, key=lambda row: row["final_value"] or 0)
    assert best["final_value"] == pytest.approx(LAST * best["parameters"]["rate"], rel=1e-4)


@pytest.mark.parametrize(
    ("framework", "scheduler"),
    [
        ("trainer", "ASHA, promotion"),
        ("trainer", "HyperBand"),
        *(pytest.param(name, "ASHA, promotion", marks=pytest.mark.thorough) for name in ("lightning", "transformers")),
    ],
)
def test_a_paused_run_continues_from_its_checkpoint(run: Any, framework: str, scheduler: str) -> None:
    assert check(run(framework, scheduler)) == {"resume"}


@pytest.mark.thorough
@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_clone_takes_over_the_weights_and_trains_with_its_own_rate(run: Any, framework: str) -> None:
    trained = run(framework, "PBT, synchronous")
    assert check(trained) == {"resume", "clone"}
    assert {row["status"] for row in trained.trials} == {"SUCCEEDED"}
