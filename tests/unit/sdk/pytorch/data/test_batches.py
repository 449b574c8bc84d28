"""Batches of every form move to the device."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch

from proctor.sdk.pytorch.data.loaders import move_to

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Sample:
    """A batch as a dataclass."""

    image: Any
    name: str


def test_T14_tensors_in_every_form_of_batch_move() -> None:
    tensor = torch.zeros(2)
    batch = {"a": [tensor, (tensor, 1)], "pair": Pair(tensor, {"b": tensor}), "sample": Sample(tensor, "x"), "n": None}
    moved = move_to(batch, "meta")
    assert moved["a"][0].is_meta
    assert moved["a"][1][0].is_meta
    assert moved["a"][1][1] == 1
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].left.is_meta
    assert moved["pair"].right["b"].is_meta
    assert moved["sample"].image.is_meta
    assert moved["sample"].name == "x"
    assert moved["n"] is None
    assert not tensor.is_meta
