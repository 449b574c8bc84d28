"""A run that dies while it saves continues from the checkpoint before and ends with the same bits (row R3)."""

from pathlib import Path
from typing import Any

import pytest
from fakes.incarnations import Incarnations
from fakes.kill_matrix import FAIL_POINTS
from fakes.trained_models import Recipe
from fakes.trained_runs import check_equal

from proctor.sdk.files import UNFINISHED_PREFIX
from proctor.sdk.pytorch.checkpoints.pointer import read_pointer

RECIPE = Recipe(unit="iteration", accumulation=3)
SAVES = 3  # at the steps 2, 4 and 6, which is the end


@pytest.fixture(scope="module")
def uninterrupted(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What the run comes to when it is left alone."""
    return incarnations.run(RECIPE, tmp_path_factory.mktemp("uninterrupted"))


def steps(root: Path) -> "list[int]":
    return [entry.iteration for entry in read_pointer(root / "run") or []]


@pytest.mark.parametrize("save", range(1, SAVES + 1))
@pytest.mark.parametrize("place", FAIL_POINTS)
def test_R3_a_run_killed_inside_a_save_continues_from_a_whole_checkpoint(
    incarnations: Incarnations, uninterrupted: "dict[str, Any]", tmp_path: Path, place: str, save: int
) -> None:
    assert incarnations.run(RECIPE, tmp_path, kill=(place, save))["killed"]
    stored = save if place == "trainer.pointer.after" else save - 1  # the pointer decides
    assert steps(tmp_path) == [2 * number for number in range(stored, 0, -1)]
    check_equal(incarnations.run(RECIPE, tmp_path), uninterrupted)
    assert steps(tmp_path) == [6, 4, 2]
    assert not list((tmp_path / "run").glob(f"{UNFINISHED_PREFIX}*"))


def test_R3_a_run_that_is_killed_at_every_save_in_turn_ends_alike(
    incarnations: Incarnations, uninterrupted: "dict[str, Any]", tmp_path: Path
) -> None:
    for place in (*FAIL_POINTS, *FAIL_POINTS):
        incarnations.run(RECIPE, tmp_path, kill=(place, 1))
    check_equal(incarnations.run(RECIPE, tmp_path), uninterrupted)
