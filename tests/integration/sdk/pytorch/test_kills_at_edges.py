"""Kills at the places where a trainer that counts wrongly would show it."""

from pathlib import Path

import pytest
from fakes.incarnations import Incarnations
from fakes.trained_models import Recipe
from fakes.trained_runs import check_equal, check_samples

PREFETCHING = {"workers": 2, "persistent": True}
EDGES = {
    "inside a validation": (Recipe(unit="iteration"), ("validation", 1)),
    "inside the second validation of an epoch's end": (Recipe(workers=2), ("validation", 2)),
    "while workers have fetched ahead": (Recipe(unit="iteration", **PREFETCHING), ("batch", 8)),  # type: ignore[arg-type]
    "at the first batch of an epoch": (Recipe(unit="iteration"), ("batch", 7)),
    "at the last batch of an epoch": (Recipe(unit="iteration"), ("step", 6)),
    "at the epoch's end": (Recipe(unit="iteration", accumulation=3), ("epoch end", 0)),
    "inside a window": (Recipe(unit="iteration", accumulation=4), ("backward", 10)),
    "at a window's end": (Recipe(unit="iteration", accumulation=4), ("step", 12)),
    "inside a window that spans two epochs": (Recipe(unit="iteration", accumulation=4), ("batch", 7)),
    "at the short window of an epoch's end": (Recipe(unit="epoch", accumulation=4), ("step", 12)),
    "where the data's phase changes": (Recipe(unit="iteration", phases=2), ("batch", 8)),
}


PLAIN = ("inside a window", "inside the second validation of an epoch's end", "where the data's phase changes")


@pytest.mark.parametrize(
    "edge", [edge if edge in PLAIN else pytest.param(edge, marks=pytest.mark.thorough) for edge in EDGES]
)
def test_R4_a_run_killed_at_an_edge_ends_as_if_it_had_not_been(
    incarnations: Incarnations, edge: str, tmp_path: Path
) -> None:
    recipe, kill = EDGES[edge]
    reference = incarnations.run(recipe, tmp_path / "uninterrupted")
    assert incarnations.run(recipe, tmp_path / "killed", kill=kill, background_writes=False)["killed"]
    last = incarnations.run(recipe, tmp_path / "killed")
    check_equal(last, reference)
    check_samples(tmp_path / "uninterrupted", tmp_path / "killed")


@pytest.mark.parametrize("unit", ["epoch", "iteration"])
def test_R4_a_run_killed_after_its_completion_has_nothing_left_to_do(
    incarnations: Incarnations, unit: str, tmp_path: Path
) -> None:
    recipe = Recipe(unit=unit)
    reference = incarnations.run(recipe, tmp_path / "uninterrupted")
    killed = incarnations.run(recipe, tmp_path / "killed", kill=("training end", 1), background_writes=False)
    assert killed["killed"]
    for _ in range(2):
        last = incarnations.run(recipe, tmp_path / "killed")
        check_equal(last, reference)
        assert last["batches"] == 0
