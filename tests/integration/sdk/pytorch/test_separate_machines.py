"""Ranks on several machines without a file system in common: only the main one needs the checkpoints (row R7)."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fakes.incarnations import Incarnations
from fakes.trained_models import Recipe

pytestmark = pytest.mark.thorough
RECIPE = Recipe(unit="iteration", amp=True)
EQUAL = ("rank", "weights", "optimizer", "streams", "state", "metrics")
AT_ONCE = {"background_writes": False}  # a checkpoint is there when the next batch is


def train(
    incarnations: Incarnations, root: Path, order: "tuple[str, ...]" = ("first", "second"), **how: Any
) -> "list[dict[str, Any]]":
    machines = [root / name for name in order]
    for machine in machines:
        machine.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = incarnations.call(
        "fakes.separate_machines",
        "train_apart",
        recipe=asdict(RECIPE),
        machines=[str(path) for path in machines],
        **how,
    )
    return found


@pytest.mark.parametrize("victims", [("batch", "step of rank 1"), ("step of rank 1", "batch")])
def test_R7_ranks_on_machines_that_share_no_file_are_killed_and_end_with_the_same_bits(
    incarnations: Incarnations, victims: "tuple[str, str]", tmp_path: Path
) -> None:
    expected = train(incarnations, tmp_path / "alone")
    root = tmp_path / "killed"
    for place in victims:
        died = train(incarnations, root, kill_passage=(place, 4), options=AT_ONCE)
        assert {} in died, died
    found = train(incarnations, root)
    for mine, theirs in zip(found, expected, strict=True):
        assert {part: mine.get(part) for part in EQUAL} == {part: theirs[part] for part in EQUAL}, mine
    first, second = found
    assert second["resumed from"] == first["resumed from"] is not None
    assert second["checkpoint"] == first["checkpoint"]
    assert os.listdir(root / "second") == []
    assert sorted(os.listdir(root / "first")) == ["checkpoints", "logs"]


def test_R7_a_run_whose_main_rank_is_on_another_machine_than_before_does_not_begin_anew_in_silence(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    assert {} in train(incarnations, tmp_path, kill_passage=("batch", 9), options=AT_ONCE)
    moved = train(incarnations, tmp_path, ("second", "first"))
    for rank in moved:
        assert rank["error"].startswith("UnreadableCheckpointError: the main rank")
        assert f"{tmp_path / 'first' / 'checkpoints' / 'run'} on " in rank["error"]
    anew = train(incarnations, tmp_path, ("second", "first"), options={"resume": False})
    assert [rank["resumed from"] for rank in anew] == [None, None]
