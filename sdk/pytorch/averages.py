"""Means of losses that cost nothing until they are read.

Sums stay on the device: adding to them waits for nothing and asks nothing of other ranks. Reading adds up over the
ranks and waits for the device once, for all names together.
"""

from collections.abc import Mapping
from typing import Any

import torch

from proctor.sdk.pytorch.distributed.ranks import Ranks


class Averages:
    """Weighted means by name, of what this rank has added since the last reading."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._weights: dict[str, float] = {}

    def add(self, values: "Mapping[str, Any]", weight: float = 1.0) -> None:
        """Add numbers or tensors of one element, each `weight` times (such as the samples of the batch)."""
        for name, value in values.items():
            tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(float(value))
            share = tensor.double().reshape(()) * weight
            before = self._sums.get(name)
            self._sums[name] = share if before is None else before.to(share.device) + share
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def read(self, ranks: Ranks, device: "torch.device | str" = "cpu") -> "dict[str, float]":
        """Return the means over all ranks, which have all added to the same names, and begin anew (collective).

        :param device: where the ranks exchange them.
        """
        if not self._sums:
            return {}
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name].to(device) for name in names])
        weights = torch.tensor([self._weights[name] for name in names], dtype=sums.dtype, device=device)
        total_sums, total_weights = ranks.sum(torch.stack([sums, weights])).tolist()
        self._sums, self._weights = {}, {}
        return {name: total_sums[place] / total_weights[place] for place, name in enumerate(names)}

    def state_dict(self) -> "dict[str, Any]":
        """What this rank has added; it is this rank's alone."""
        return {"sums": {name: tensor.cpu() for name, tensor in self._sums.items()}, "weights": dict(self._weights)}

    def load_state_dict(self, state: "Mapping[str, Any]") -> None:
        """Take over what `state_dict` returned."""
        self._sums, self._weights = dict(state["sums"]), dict(state["weights"])
