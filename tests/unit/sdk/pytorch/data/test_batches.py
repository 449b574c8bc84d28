"""Batches of every form move to the device."""

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pack_sequence

from proctor.sdk.pytorch.data.loaders import move_to

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Sample:
    image: Any
    name: str


def test_T14_tensors_in_every_form_of_batch_move() -> None:
    def make(tensor: Any) -> "dict[str, Any]":
        pair = Pair(tensor, {"b": tensor})
        return {"a": [tensor, (tensor, 1)], "pair": pair, "sample": Sample(tensor, "x"), "n": None}

    tensor = torch.zeros(2)
    moved = move_to(make(tensor), "meta")
    assert repr(moved) == repr(make(torch.zeros(2, device="meta")))
    assert not tensor.is_meta


def test_what_moves_itself_is_asked_to() -> None:
    class Tokens(UserDict[str, Any]):
        """Like a `transformers.BatchEncoding`."""

        def to(self, device: Any) -> "Tokens":
            return Tokens({name: value.to(device) for name, value in self.items()})

    class InPlace(Tokens):
        """Moves itself and returns nothing."""

        def to(self, device: Any) -> None:  # type: ignore[override]
            self.data = Tokens(self).to(device).data

    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move_to({"packed": packed, "tokens": Tokens(ids=torch.ones(2)), "own": InPlace(ids=torch.ones(2))}, "meta")
    assert moved["packed"].data.is_meta
    assert not moved["packed"].batch_sizes.is_meta  # which PyTorch wants on the CPU
    assert moved["tokens"]["ids"].is_meta
    assert moved["own"]["ids"].is_meta
