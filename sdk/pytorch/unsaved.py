"""Parts of a model that no checkpoint would hold: networks in a list, bare parameters, optimizers in a dictionary, and
random generators wherever they are.

What is only another name for something that is saved is none: `list(network.parameters())`, a layer of a network, a
list of optimizers that are attributes too.
"""

import random
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from proctor.sdk.pytorch.seeding import DefaultNumpyRNG, get_default_numpy_rng

_PARTS = (torch.nn.Parameter, torch.nn.Module, Optimizer, LRScheduler)


def find_unsaved(attributes: "Mapping[str, Any]", saved: "Set[str]") -> "str | None":
    """Return the first attribute with a part that has state and is in none of the attributes that are saved.

    :param attributes: by name, those that are saved included.
    """
    known: set[int] = set()
    for name in saved:
        known.update(_identify(attributes[name]))
    for name, value in attributes.items():
        if name not in saved and any(not _identify(part) <= known for part in _find(_PARTS, value, set())):
            return name
    return None


def find_generator(attributes: "Mapping[str, Any]", saved: "Set[str]") -> "str | None":
    """Return the first attribute with a random generator that is neither saved nor one of the trainer's streams.

    :param attributes: by name, those that are saved included.
    """
    kinds, streams = _generator_kinds(), _stream_ids()
    for name, value in attributes.items():
        if name not in saved and any(id(found) not in streams for found in _find(kinds, value, set())):
            return name
    return None


def _generator_kinds() -> "tuple[type, ...]":
    kinds: tuple[type, ...] = (torch.Generator, random.Random, DefaultNumpyRNG)
    if (numpy := sys.modules.get("numpy.random")) is not None:  # nobody has one of its generators before
        kinds += (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return kinds


def _stream_ids() -> "set[int]":
    """The generators whose states every checkpoint has, under whichever name a model knows them."""
    found: list[Any] = [torch.default_generator, random._inst]
    if torch.cuda.is_initialized():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    with suppress(RuntimeError):  # there is no NumPy
        stream = get_default_numpy_rng()
        found += [stream, stream.generator, stream.generator.bit_generator]
    return {id(stream) for stream in found}


def _find(kinds: "tuple[type, ...]", value: Any, seen: "set[int]") -> "Iterator[Any]":
    """What of these kinds a value is or holds, in lists, tuples and dictionaries however deep."""
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
        seen.add(id(value))  # a list may hold itself
        for item in value.values() if isinstance(value, dict) else value:
            yield from _find(kinds, item, seen)


def _identify(part: Any) -> "set[int]":
    """The objects whose values a part saves; none for a network without state, such as a loss."""
    if isinstance(part, torch.nn.Module):
        return {id(tensor) for tensor in [*part.parameters(), *part.buffers()]}
    return {id(part)}
