"""Parts of a model that no checkpoint would hold: networks in a list, bare parameters, optimizers in a dictionary.

What is only another name for something that is saved is none: `list(network.parameters())`, a layer of a network, a
list of optimizers that are attributes too.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any, Union

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_Part = Union[torch.nn.Parameter, torch.nn.Module, Optimizer, LRScheduler]


def find_unsaved(attributes: "Mapping[str, Any]", saved: "Set[str]") -> "str | None":
    """Return the first attribute with a part that has state and is in none of the attributes that are saved.

    :param attributes: by name, those that are saved included.
    """
    known: set[int] = set()
    for name in saved:
        known.update(_identify(attributes[name]))
    for name, value in attributes.items():
        if name not in saved and any(not _identify(part) <= known for part in _find_parts(value, set())):
            return name
    return None


def _find_parts(value: Any, seen: "set[int]") -> "Iterator[_Part]":
    """The parts that a value is or holds, in lists, tuples and dictionaries however deep."""
    if isinstance(value, (torch.nn.Parameter, torch.nn.Module, Optimizer, LRScheduler)):
        yield value
    elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
        seen.add(id(value))  # a list may hold itself
        for item in value.values() if isinstance(value, dict) else value:
            yield from _find_parts(item, seen)


def _identify(part: Any) -> "set[int]":
    """The objects whose values a part saves; none for a network without state, such as a loss."""
    if isinstance(part, torch.nn.Module):
        return {id(tensor) for tensor in [*part.parameters(), *part.buffers()]}
    return {id(part)}
