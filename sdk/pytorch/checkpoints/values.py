"""Values that code changes while it trains: what tells whether one has changed, and its form in a checkpoint."""

import random
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from proctor.sdk.pytorch.reproducibility.seeding import DefaultNumpyRNG

SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_QUICK = frozenset({int, str, bool, type(None), bytes})
COMPARED_ITEMS = 10_000
"""Of longer collections only the length and both ends are compared."""
_COLLECTIONS: "dict[str, Any]" = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}
_MAPPINGS: "dict[str, Any]" = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)}
_FACTORIES: "dict[str, Any]" = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}
_COMPARED_BYTES = 1 << 20
_LARGEST_BYTES = 64 << 20
"""Larger values are not saved, but reported."""


class NotSavable(Exception):
    """A value has no form that a checkpoint could hold; the text says what it is."""


def check_size(value: Any) -> None:
    """:raises NotSavable: a value of a dataset is so large that it is a cache rather than a state."""
    if (size := _count_bytes(value)) > _LARGEST_BYTES:
        raise NotSavable(f"a value of {size >> 20} MiB")


def _count_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor) or is_array(value):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_count_bytes, value.values())) + 8 * len(value)
    return sum(map(_count_bytes, value)) + 8 * len(value) if isinstance(value, (list, tuple, set, deque)) else 8


@dataclass(frozen=True, eq=False)
class _TensorVersion:
    """A tensor as it was: the same object, and not written to since."""

    tensor: "weakref.ref[torch.Tensor]"
    version: int

    def __eq__(self, other: object) -> bool:
        is_same = isinstance(other, _TensorVersion) and self.version == other.version
        return is_same and self.tensor() is other.tensor() is not None  # type: ignore[attr-defined]


def compare_by(
    value: Any, above: "frozenset[int]" = frozenset(), *, most: int = _COMPARED_BYTES, shared: bool = False
) -> Any:
    """Something that is equal for equal values, and cheap to make.

    :param above: the ids of the collections that hold it.
    :param most: so many bytes of an array are compared.
    :param shared: whether the arrays of a collection share them, as those of a dataset do, which may be thousands.
    :raises NotSavable: it is, or holds, an object that is not compared by its value.
    """
    kind = type(value).__name__
    if type(value) in _QUICK:  # of which a dataset may have thousands
        return kind, value
    if isinstance(value, float):
        return kind, value.hex()  # NaN is equal to itself
    if isinstance(value, (*SCALARS, Path, Enum)):
        return kind, value
    if isinstance(value, torch.Tensor):
        if value.is_inference():
            return kind, blake2b(value.cpu().contiguous().view(torch.uint8).numpy()).digest()
        return _TensorVersion(weakref.ref(value), value._version)
    if is_generator(value) and not above:
        return object()  # always saved: another start may seed it differently
    if is_array(value):
        flat = value.reshape(-1)
        flat = flat[:: max(1, flat.nbytes // most)]
        return kind, value.shape, blake2b(flat.tobytes()).digest()
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(value)
    if not isinstance(value, (list, tuple, deque, dict)) or id(value) in above:
        raise _refuse(value)
    items: Iterable[Any] = value.items() if isinstance(value, dict) else value
    if len(value) > COMPARED_ITEMS:
        items = [*islice(items, 100), *islice(reversed(items), 100)]  # type: ignore[call-overload]
    above |= {id(value)}
    most = max(64, most // max(1, len(value))) if shared else most
    return kind, len(value), tuple([compare_by(item, above, most=most, shared=shared) for item in items])


def encode(value: Any, memo: "dict[int, Any]") -> Any:
    """A value in plain values and tensors. What is shared stays shared: `memo` is that of one checkpoint.

    :raises NotSavable: there is no such form.
    """
    if type(value) in SCALARS:
        return value
    if id(value) not in memo:
        memo[id(value)] = _encode(value, memo), value  # the value is kept, lest another one get its id
    return memo[id(value)][0]


def _encode(value: Any, memo: "dict[int, Any]") -> "dict[str, Any]":
    kind = type(value)
    if (kind in (torch.Tensor, torch.nn.Parameter) or is_array(value)) and value.nbytes > _LARGEST_BYTES:
        raise NotSavable(f"a tensor or array of {value.nbytes >> 20} MiB")
    if kind in (torch.Tensor, torch.nn.Parameter):
        return {"kind": "tensor", "value": value.detach().cpu(), "on_device": value.device.type != "cpu"}
    if is_array(value):
        form = {
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "is_scalar": isinstance(value, sys.modules["numpy"].generic),
        }
        return {"kind": "array", "value": value.tobytes(), **form}
    if is_generator(value):
        return {"kind": "generator", "value": encode(get_generator_state(value), memo)}
    if isinstance(value, Path):
        return {"kind": "path", "value": str(value)}
    factory = getattr(value.default_factory, "__name__", None) if kind is defaultdict else ""
    if kind in _MAPPINGS.values() and (not factory or _FACTORIES.get(factory) is value.default_factory):
        pairs = [[encode(key, memo), encode(item, memo)] for key, item in value.items()]
        return {"kind": kind.__name__, "value": pairs, "factory": factory}
    if kind in _COLLECTIONS.values():
        extra = {"maxlen": value.maxlen} if kind is deque else {}
        return {"kind": kind.__name__, "value": [encode(item, memo) for item in value], **extra}
    raise _refuse(value)


def decode(value: Any, memo: "dict[int, Any]", device: Any) -> Any:
    """What `encode` was given, its tensors on the device if they were on one. Raises ValueError, KeyError."""
    if not isinstance(value, dict):
        return value
    if id(value) not in memo:
        memo[id(value)] = _decode(value, memo, device), value
    return memo[id(value)][0]


def _decode(value: "dict[str, Any]", memo: "dict[int, Any]", device: Any) -> Any:
    kind, content = value["kind"], value["value"]
    if kind == "tensor":
        return content.to(device) if value["on_device"] else content.clone()
    if kind == "array":
        import numpy

        array = numpy.frombuffer(content, dtype=value["dtype"]).reshape(value["shape"])
        return array[()] if value["is_scalar"] else array.copy()
    if kind == "generator":
        return decode(content, memo, device)
    if kind == "path":
        return Path(content)
    if kind in _MAPPINGS:
        pairs = {decode(key, memo, device): decode(item, memo, device) for key, item in content}
        return defaultdict(_FACTORIES[value["factory"]], pairs) if kind == "defaultdict" else _MAPPINGS[kind](pairs)
    items = [decode(item, memo, device) for item in content]
    return deque(items, value["maxlen"]) if kind == "deque" else _COLLECTIONS[kind](items)


def _refuse(value: Any) -> NotSavable:
    name = type(value).__qualname__
    return NotSavable(f"{'an' if name[:1].upper() in 'AEIOU' else 'a'} {name}")


def is_array(value: Any) -> bool:
    """Whether it is an array or a number of NumPy whose bytes say all."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject


# -- random generators -------------------------------------------------------------------------------------------------


def is_generator(value: Any) -> bool:
    """Whether a value is a random generator whose state can be saved."""
    kinds: tuple[type, ...] = (torch.Generator, random.Random, DefaultNumpyRNG)
    if (numpy := sys.modules.get("numpy.random")) is not None:  # none of its generators exists before
        kinds += (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def get_generator_state(generator: Any) -> Any:
    """The state of a random generator, of plain values, tensors and arrays."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state() if isinstance(generator, torch.Generator) else generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def set_generator_state(generator: Any, state: Any) -> None:
    """Let a generator continue from a state. Raises ValueError, TypeError: it is that of another kind."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state
