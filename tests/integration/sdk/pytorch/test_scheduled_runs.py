"""The trainer, Lightning and transformers under trial schedulers, with no line about them in the trial's code. All of
them under all schedulers: `tests/chaos/test_frameworks_under_schedulers.py`."""

from pathlib import Path

import pytest
from fakes.scheduled_training import LAST, check, train_scheduled

pytestmark = pytest.mark.slow
HAPPENS = {"ASHA, promotion": {"resume"}, "HyperBand": {"resume"}, "PBT, synchronous": {"resume", "clone"}}


def test_the_trainer_is_stopped_by_asha_and_continued_and_cloned_by_pbt(tmp_path: Path) -> None:
    stopping, cloning = ("trainer", "ASHA, stopping"), ("trainer", "PBT, synchronous")
    trained = train_scheduled(tmp_path, stopping, cloning)
    check(trained[stopping])
    assert {row["status"] for row in trained[stopping].trials} == {"SUCCEEDED", "EARLY_STOPPED"}
    best = max(trained[stopping].trials, key=lambda row: row["final_value"] or 0)
    assert best["final_value"] == pytest.approx(LAST * best["parameters"]["rate"], rel=1e-4)
    assert check(trained[cloning]) == HAPPENS[cloning[1]]
    assert {row["status"] for row in trained[cloning].trials} == {"SUCCEEDED"}


@pytest.mark.thorough
def test_paused_runs_and_clones_of_every_framework_continue_from_their_checkpoints(tmp_path: Path) -> None:
    schedulers = ("ASHA, promotion", "PBT, synchronous")
    frameworks = [(name, scheduler) for name in ("lightning", "transformers") for scheduler in schedulers]
    trained = train_scheduled(tmp_path, ("trainer", "ASHA, promotion"), ("trainer", "HyperBand"), *frameworks)
    for (framework, scheduler), experiment in trained.items():
        assert check(experiment) == HAPPENS[scheduler], (framework, scheduler)
        if "clone" in HAPPENS[scheduler]:
            assert {row["status"] for row in experiment.trials} == {"SUCCEEDED"}
