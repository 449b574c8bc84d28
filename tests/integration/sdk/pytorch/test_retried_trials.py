"""A retried trial continues from the checkpoint of the attempt before, wherever it runs, without a line of code."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes.incarnations import Incarnations
from fakes.trained_models import Recipe
from fakes.trial_incarnations import FOLDS, run_job

from proctor.sdk.checkpoints.saving import find_newest_checkpoint, list_checkpoints
from proctor.sdk.pytorch.checkpoints.pointer import read_pointer

RECIPE = Recipe(unit="iteration", validation=False)
EQUAL = ("weights", "optimizer", "history")


@pytest.fixture(scope="module")
def uninterrupted(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What the trial comes to at its first attempt."""
    return run_job(incarnations, RECIPE, tmp_path_factory.mktemp("uninterrupted"))["run"]  # type: ignore[no-any-return]


def test_a_retry_elsewhere_continues_and_ends_with_the_same_bits(
    incarnations: Incarnations, uninterrupted: "dict[str, Any]", tmp_path: Path
) -> None:
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    assert run_job(incarnations, RECIPE, first, kill=("batch", 8))["killed"]
    carried = tmp_path / "carried"  # to another machine, where nothing else of the first attempt is
    Path(find_newest_checkpoint(str(first)) or "").rename(carried)
    shutil.rmtree(first)
    assert run_job(incarnations, RECIPE, second, resume=str(carried), kill=("batch", 14))["killed"]
    found = run_job(incarnations, RECIPE, third, resume=find_newest_checkpoint(str(second)))["run"]
    assert found["resumed"]
    assert found["batches"] < uninterrupted["batches"]
    assert {part: found[part] for part in EQUAL} == {part: uninterrupted[part] for part in EQUAL}


@pytest.mark.parametrize("has_root", [False, True])
def test_a_retry_on_the_same_machine_continues_from_what_was_saved_last(
    incarnations: Incarnations, uninterrupted: "dict[str, Any]", tmp_path: Path, has_root: bool
) -> None:
    options: dict[str, Any] = {"chkpt_root": str(tmp_path / "root")} if has_root else {}
    first, second = tmp_path / "first", tmp_path / "second"
    assert run_job(incarnations, RECIPE, first, kill=("batch", 16), background_writes=False, **options)["killed"]
    handed = find_newest_checkpoint(str(first)) or ""
    assert read_pointer(Path(handed))[0].iteration < 14  # seconds behind
    folder = tmp_path / "root" / "t" / "run" if has_root else first / "output" / "trainer" / "run"
    newest = read_pointer(folder)[0].iteration
    found = run_job(incarnations, RECIPE, second, resume=handed, **options)["run"]
    assert found["batches"] == uninterrupted["batches"] - newest
    assert {part: found[part] for part in EQUAL} == {part: uninterrupted[part] for part in EQUAL}


def test_a_checkpoint_that_a_trial_is_told_to_continue_from_wins_over_its_own(
    incarnations: Incarnations, uninterrupted: "dict[str, Any]", tmp_path: Path
) -> None:
    root = str(tmp_path / "root")
    for batch in (14, 17):  # each start registers once
        assert run_job(incarnations, RECIPE, tmp_path / "one", kill=("batch", batch))["killed"]
    assert run_job(incarnations, RECIPE, tmp_path / "other", kill=("batch", 14), chkpt_root=root)["killed"]
    clone = list_checkpoints(str(tmp_path / "one"))[0]
    entries = read_pointer(Path(clone))
    found = run_job(incarnations, RECIPE, tmp_path / "again", resume=clone, chkpt_root=root)["run"]
    assert found["batches"] == uninterrupted["batches"] - entries[0].iteration
    assert entries[0].iteration == 2
    assert {part: found[part] for part in EQUAL} == {part: uninterrupted[part] for part in EQUAL}


@pytest.fixture(scope="module")
def folds(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What three runs in one trial come to at its first attempt."""
    return run_job(incarnations, RECIPE, tmp_path_factory.mktemp("folds"), names=FOLDS)


def test_several_runs_in_one_trial_each_have_their_own_weights(folds: "dict[str, Any]") -> None:
    assert len({folds[name]["weights"] for name in FOLDS}) == 3
    assert [(folds[name]["resumed"], folds[name]["batches"]) for name in FOLDS] == [(False, 18)] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("fold", FOLDS)
def test_a_retry_elsewhere_gives_every_run_of_the_trial_back(
    incarnations: Incarnations, folds: "dict[str, Any]", tmp_path: Path, fold: str
) -> None:
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    assert run_job(incarnations, RECIPE, first, names=FOLDS, killed=fold, kill=("batch", 8))["killed"]
    carried = tmp_path / "carried"
    Path(find_newest_checkpoint(str(first)) or "").rename(carried)
    shutil.rmtree(first)
    last = {"killed": "fold2", "kill": ("batch", 14)}
    assert run_job(incarnations, RECIPE, second, names=FOLDS, resume=str(carried), **last)["killed"]
    found = run_job(incarnations, RECIPE, third, names=FOLDS, resume=find_newest_checkpoint(str(second)))
    assert {name: found[name]["weights"] for name in FOLDS} == {name: folds[name]["weights"] for name in FOLDS}
    assert [found[name]["batches"] for name in FOLDS[:2]] == [0, 0]
    assert found["fold2"]["resumed"]
