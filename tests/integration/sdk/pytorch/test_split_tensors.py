"""Tensors that are split over the ranks (FSDP2): whole in checkpoints, and split again by as many ranks or others."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.incarnations import Incarnations
from fakes.trained_models import hash_state

TRAINING = "fakes.split_training"
STEPS = 10


def train(incarnations: Incarnations, root: Path, processes: int = 2, steps: int = STEPS, **how: Any) -> Any:
    return incarnations.call(TRAINING, "train_split", root=str(root), processes=processes, total_steps=steps, **how)


def read(found: "dict[str, str]") -> "list[Any]":
    """What the newest checkpoint holds of the model, the average and the validations that it judged."""
    content = torch.load(found["checkpoint"], weights_only=True)
    return [hash_state([content["model"], content["plugins"]]), content["metrics"]]


@pytest.mark.parametrize("saves", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["parts", "own state"])
def test_a_split_run_that_is_killed_at_random_ends_with_the_same_weights(
    incarnations: Incarnations, saves: bool, tmp_path: Path
) -> None:
    whole = train(incarnations, tmp_path / "whole", saves=saves)
    assert len(set(whole["ended"])) == 1
    chance = random.Random(f"split {saves}")
    for first in (3, 6):
        kill = (chance.randrange(2), chance.randint(first, first + 3))
        assert "was ended by SIGKILL" in train(incarnations, tmp_path / "killed", kill=kill, saves=saves)["error"]
    last = train(incarnations, tmp_path / "killed", saves=saves)
    assert last["begun"] != whole["begun"]  # it has continued
    assert last["ended"] == whole["ended"]
    assert read(last) == read(whole)


def test_a_split_run_continues_on_one_rank_and_on_three_with_the_weights_that_were_saved(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    before = train(incarnations, tmp_path, 2, 2)
    content = torch.load(before["checkpoint"], weights_only=True)
    shapes = {name: tuple(weight.shape) for name, weight in content["model"]["network"].items()}
    assert shapes == {"0.weight": (7, 5), "0.bias": (7,), "2.weight": (3, 7), "2.bias": (3,)}
    assert content["plugins"]["ema"]["average"]["0.weight"].shape == (7, 5)
    for processes, steps in ((1, 4), (3, 6)):
        now = train(incarnations, tmp_path, processes, steps)
        assert set(now["begun"]) == set(before["ended"])
        assert len(now["begun"]) == processes
        before = now


REFUSED = {
    "zero": r"Redundant\.optimizer is or holds a ZeroRedundancyOptimizer, .*fully_shard",
    "older": r"Older\.network is or holds a FullyShardedDataParallel, .*fully_shard",
    "apart": r"the weights of Apart\.network on rank 1 are not those of the main rank",
    "handmade": r"Handmade\.optimizer has another structure on rank 1 than on the main rank",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_split_in_a_form_that_no_checkpoint_holds_is_refused(
    incarnations: Incarnations, kind: str, tmp_path: Path
) -> None:
    error, text = incarnations.call(TRAINING, "refuse", root=str(tmp_path), kind=kind)
    assert error == ("NotExactError" if kind == "apart" else "ConfigurationError")
    assert re.search(REFUSED[kind], text)
    assert not list(tmp_path.glob("run/*.pth"))
