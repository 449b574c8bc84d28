"""Batches as trees of tensors: dictionaries, lists, tuples (named ones too), dataclasses."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


def move_to(batch: Any, device: Any) -> Any:
    """Return the batch with every tensor on the device; whatever is no tensor stays as it is."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: move_to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_to(value, device) for value in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{field.name: move_to(getattr(batch, field.name), device) for field in fields(batch)})
    return batch
