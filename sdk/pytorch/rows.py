"""Tensors whose rows are the samples, read a batch at a time.

PyTorch takes a `TensorDataset` apart into samples and stacks them again, which costs more than a small model's step.
Indexing the tensors once gives the same batches, to the bit.
"""

from typing import Any

import torch
from torch.utils.data import TensorDataset


class TensorRows:
    """The rows of equally long tensors; only whole batches can be read.

    :param tensors: contiguous, so that their rows stacked are laid out as PyTorch lays batches out.
    """

    def __init__(self, tensors: "tuple[torch.Tensor, ...]") -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> "list[torch.Tensor]":
        return self.__getitems__([index])

    def __getitems__(self, indices: "list[int]") -> "list[torch.Tensor]":
        """Return a batch: of each tensor the rows, as a copy."""
        chosen = torch.tensor(indices)
        return [tensor[chosen] for tensor in self._tensors]


def find_rows(dataset: Any) -> "TensorRows | None":
    """Return the rows of a plain `TensorDataset` of plain tensors; None for every other dataset."""
    if type(dataset) is not TensorDataset or not dataset.tensors:
        return None
    return TensorRows(dataset.tensors) if all(_is_plain(tensor) for tensor in dataset.tensors) else None


def keep_batch(batch: Any) -> Any:
    """Collate what is a batch already; a function with a name, which workers need."""
    return batch


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_contiguous()
