"""Values that code changes while it trains: what tells whether one has changed, and its form in a checkpoint."""

import random
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from operator import attrgetter, is_
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from proctor.sdk.pytorch.reproducibility.seeding import DefaultNumpyRNG

SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
MANY = 1_000
"""In longer collections no object is followed, and what is in arrays and collections is compared by samples."""
_SHORT, _SAMPLES = 64, 16
_VERSION = attrgetter("_version")
_COLLECTIONS: "dict[str, Any]" = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque, bytearray)}
_MAPPINGS: "dict[str, Any]" = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)}
_FACTORIES: "dict[str, Any]" = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}
_COMPARED_BYTES = 1 << 20
"""Of larger arrays, and of those that share this in a collection, samples are compared; of tensors sooner: there the
version tells of all that is not done past it."""
_LARGEST_BYTES = 64 << 20
"""Larger values are not saved, but reported."""


class NotSavable(Exception):
    """A value has no form that a checkpoint could hold; the text says what it is."""


def check_size(value: Any) -> None:
    """:raises NotSavable: a value of a dataset is so large that it is a cache rather than a state."""
    if (size := _count_bytes(value)) > _LARGEST_BYTES:
        raise NotSavable(f"a value of {size >> 20} MiB")


def _count_bytes(value: Any) -> int:
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if not isinstance(value, (list, tuple, set, deque, dict)):
        return int(getattr(value, "nbytes", 8))
    return sum(map(_count_bytes, value.values() if isinstance(value, dict) else value)) + 8 * len(value)


# -- what tells whether a value has changed ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ObjectMark:
    """A tensor or an array as it was: the same object, and not written to since, not even past its version."""

    find: "weakref.ref[Any]"
    content: Any

    def is_of(self, value: Any) -> bool:
        """Whether it is the mark of this very object."""
        return self.find() is value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectMark) or self.content != other.content:
            return False
        found = self.find()
        return found is not None and other.is_of(found)


class _LongMark:
    """A long collection as it was: the same objects in the same order.

    Of the objects the versions of tensors and the lengths of collections are compared, and the content of samples.
    """

    def __init__(self, items: "list[Any]", held: "list[Any]") -> None:
        self.items = items.copy()
        self._tensors = [item for item in held if isinstance(item, torch.Tensor)]
        self._sized = [item for item in held if isinstance(item, (list, dict, deque, set))]
        others = [item for item in held if type(item) not in PLAIN]
        self._samples = others[:: -(-len(others) // _SAMPLES) or 1]
        self._rest = self._look()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _LongMark) and self._has(other.items) and self._rest == other._rest)

    def is_still(self, items: "list[Any]") -> bool:
        """Whether a collection of these items is as it was."""
        return self._has(items) and self._look() == self._rest

    def _has(self, items: "list[Any]") -> bool:
        is_same = len(items) == len(self.items)
        return is_same and (all(map(is_, self.items, items)) if self._samples else self.items == items)

    def _look(self) -> Any:
        most = _COMPARED_BYTES // _SAMPLES
        samples = []
        for one in self._samples:
            with suppress(NotSavable):
                samples.append(compare_by(one, Marks(), most=most))
        return [*map(_VERSION, self._tensors)], [*map(len, self._sized)], samples


class Marks:
    """The marks of long collections by their ids, of this look and of the one before, which need not be made anew."""

    def __init__(self) -> None:
        self.last: dict[int, _LongMark] = {}
        self.now: dict[int, _LongMark] = {}

    def begin(self) -> None:
        """Begin another look."""
        self.last, self.now = self.now, {}


def compare_by(value: Any, marks: Marks, above: "frozenset[int]" = frozenset(), *, most: int = _COMPARED_BYTES) -> Any:
    """Something that is equal for equal values, and cheap to make.

    :param marks: those of long collections.
    :param above: the ids of the collections that hold it.
    :param most: so many bytes of an array are compared.
    :raises NotSavable: it is, or holds, an object that is not compared by its value.
    """
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, value.hex()  # NaN is equal to itself
    if type(value) in PLAIN or isinstance(value, (*SCALARS, Path, Enum)):
        return kind, value
    if isinstance(value, torch.Tensor):
        version = None if value.is_inference() else value._version
        return ObjectMark(weakref.ref(value), (version, _sum_up(value, most // 16)))
    if is_generator(value) and not above:
        return object()  # always saved: another start may seed it differently
    if is_array(value):
        content = kind, value.shape, _sum_up(value, most)
        return ObjectMark(weakref.ref(value), content) if kind == "ndarray" else content
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(value)
    if isinstance(value, bytearray):
        return kind, bytes(value)
    if not isinstance(value, (list, tuple, deque, dict)) or id(value) in above:
        raise _refuse(value)
    if len(value) > _SHORT and (mark := _mark_long(value, marks)) is not None:
        return kind, mark
    above |= {id(value)}
    most = min(most, 8 * _COMPARED_BYTES // max(1, len(value)))
    items = list(value.items()) if isinstance(value, dict) else list(value)  # a thread may change it meanwhile
    return kind, len(items), tuple([compare_by(item, marks, above, most=most) for item in items])


def _mark_long(value: Any, marks: Marks) -> "_LongMark | None":
    """The mark of a collection, if its items need not, or are too many to, be compared one by one."""
    body = value if type(value) is list else list(value.values() if isinstance(value, dict) else value)
    items = [*value, *body] if isinstance(value, dict) else body  # a list is copied only to keep it
    mark = marks.last.get(id(value))
    if mark is None or not mark.is_still(items):
        held = list(chain.from_iterable(body)) if {*map(type, body)} == {tuple} else body
        kinds = {*map(type, held)} - PLAIN
        if len(value) <= MANY and not kinds <= _TENSORS:
            return None
        mark = _LongMark(items, held if kinds else [])
    marks.now[id(value)] = mark
    return mark


def _sum_up(value: Any, most: int) -> "int | None":
    """A sum over the bytes of a tensor or an array, or over samples; None if they cannot be read."""
    if isinstance(value, torch.Tensor) and type(value) not in _TENSORS:
        return None  # a subclass decides itself what its operations are
    if value.nbytes > most and is_array(value) and not value.flags.writeable:
        return None  # such as a file that is mapped, which would be read
    try:
        flat = value.detach() if isinstance(value, torch.Tensor) else value
        if value.nbytes > most:
            flat = flat.view(-1) if isinstance(value, torch.Tensor) else flat.flat
            flat = flat[:: max(1, len(flat) // max(16, most >> 6))]
        if isinstance(flat, torch.Tensor):
            flat = flat.cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return crc32(flat.tobytes())
    except (RuntimeError, TypeError):  # it is sparse, or not made yet
        return None


# -- the form in a checkpoint ------------------------------------------------------------------------------------------


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
        form = {"on_device": value.device.type != "cpu", "requires_grad": value.requires_grad}
        return {"kind": "tensor", "value": value.detach().cpu(), **form}
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
        pairs = [[encode(key, memo), encode(item, memo)] for key, item in list(value.items())]
        return {"kind": kind.__name__, "value": pairs, "factory": factory}
    if isinstance(value, tuple) and _find_class(name := f"{kind.__module__}:{kind.__qualname__}") is kind:
        return {"kind": "named", "value": [encode(item, memo) for item in value], "class": name}
    if kind in _COLLECTIONS.values():
        extra = {"maxlen": value.maxlen} if kind is deque else {}
        return {"kind": kind.__name__, "value": [encode(item, memo) for item in list(value)], **extra}
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
        tensor = content.to(device) if value["on_device"] else content.clone()
        return tensor.requires_grad_(value.get("requires_grad", False))
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
    if kind == "named":
        named: Any = tuple.__new__(_find_class(value["class"]), items)  # raises TypeError if there is no such class
        return named
    return deque(items, value["maxlen"]) if kind == "deque" else _COLLECTIONS[kind](items)


def _find_class(name: str) -> Any:
    """The class of a named tuple, or of another subclass of tuple, in a module that has been imported, or None."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for step in path.split("."):
        found = getattr(found, step, None)
    return found if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields") else None


def _refuse(value: Any) -> NotSavable:
    name = type(value).__qualname__
    if name == "_lru_cache_wrapper":
        return NotSavable("a cache (lru_cache) of a function that draws random numbers")
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
