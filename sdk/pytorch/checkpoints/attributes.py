"""What code changes while it trains and no part with a `state_dict` holds: followed from the start, saved, restored.

Followed are, from the model down:

* plain attributes (numbers, texts, tensors, arrays, collections of them), those of objects of the user's classes too;
* that such an attribute, or an item of a collection of such objects, was removed;
* of networks: such attributes (a dropout rate, the mode), buffers that are not persistent, and `requires_grad`;
* random generators wherever they are, also those of datasets and collate functions that this process reads with.

A value is saved once it differs from what it was when training began: what never changes is configuration, and a
resumed run has that of its own start. What has changed and cannot be saved is reported.

Objects of libraries are looked into for generators only: to set what they keep for themselves could break them.
"""

import random
import sys
import sysconfig
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from proctor.sdk.pytorch.reproducibility.seeding import DefaultNumpyRNG, get_default_numpy_rng

PathStep = tuple[str, Any]
"""One step down: ("attribute", name), ("item", key or index), ("buffer", name) or ("requires_grad", name)."""
ValuePath = tuple[PathStep, ...]
"""The way to a value; its first step is ("root", name)."""

MODEL = "model"
_PARTS = (torch.nn.Parameter, torch.nn.Module, Optimizer, LRScheduler)
_LOOKED_INTO = (list, tuple, dict, deque)
SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
COMPARED_ITEMS = 10_000
"""Of longer collections only the length and both ends are compared."""
_COLLECTIONS: "dict[str, Any]" = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}
_MAPPINGS: "dict[str, Any]" = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)}
_FACTORIES: "dict[str, Any]" = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}
_COMPARED_BYTES = 1 << 20
_LARGEST_BYTES = 64 << 20
"""Larger values are not saved, but reported."""
_REMOVED = {"kind": "removed", "value": None}
_MOST_OBJECTS = 100_000
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}
_WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch.fx", "torch._dynamo")
"""Where networks are defined that wrap others, and whose own attributes are their own business."""
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class _Leaf:
    """A value that is compared, saved and set as a whole."""

    holder: Any
    step: PathStep
    value: Any = None
    mark: Any = None  # equal for equal values

    def set(self, value: Any) -> None:
        """Put another value in its place. Raises whatever the holder does."""
        kind, name = self.step
        if is_generator(self.value):
            set_generator_state(self.value, value)
        elif kind == "requires_grad":
            getattr(self.holder, name).requires_grad_(value)
        elif kind == "buffer":
            with torch.no_grad():
                getattr(self.holder, name).copy_(value)
        elif kind == "item":
            self.holder[name] = value
        else:
            setattr(self.holder, name, value)

    def remove(self) -> None:
        """Leave its place empty. Raises LookupError, AttributeError, TypeError."""
        kind, name = self.step
        if kind == "item":
            del self.holder[name]
        else:
            delattr(self.holder, name)


class TrackedAttributes:
    """What a run follows besides the parts of its model, in one process.

    :param model: followed whole, except for the attributes `left_out`.
    """

    def __init__(self, model: Any, *, left_out: "Sequence[str]" = ()) -> None:
        self._model = model
        self._left_out = frozenset(left_out)
        self.data: dict[str, Any] = {}
        """What samples are read with in this process, by a name for people; followed for generators only."""
        self._before: dict[ValuePath, Any] = {}
        self._holders: set[ValuePath] = set()
        self._gaps: list[str] = []
        self._told: set[str] = set()
        self._changed: set[ValuePath] = set()

    def mark(self) -> None:
        """Remember how everything is: training is about to begin."""
        walk = self._walk()
        self._before = {place: leaf.mark for place, leaf in walk.found.items()}
        self._holders = set(walk.holders)

    def take(self) -> "list[Any]":
        """What has changed since `mark`, as pairs of place and value that a checkpoint may hold."""
        found, gaps, memo, walk = [], list[str](), dict[int, Any](), self._walk()
        for place, leaf in self._find_changed(walk.found):
            if place[:-1] not in self._holders:
                gaps += self._find_late(place, walk)
                continue
            try:
                found.append([[list(step) for step in place], encode(leaf.value, memo)])
            except NotSavable as problem:
                gaps.append(
                    f"{self._show(place)} has changed since training began and is {problem}, which no checkpoint "
                    "holds; save what matters of it in a state_dict of the model, or name it in transient if "
                    "nothing depends on it"
                )
        found += [[[list(step) for step in place], _REMOVED] for place in self._find_removed(walk)]
        for place, leaf in walk.found.items():
            if isinstance(leaf.value, (_BaseDataLoaderIter, Iterator)):
                gaps.append(
                    f"{self._show(place)} is an iterator, whose position no checkpoint holds; give the data to the "
                    "DataModule, or make a new iterator for each pass"
                )
        self._gaps = gaps
        return found

    def find_gaps(self) -> "list[str]":
        """A clause for everything that `take` could not save as it was, and that was in no such list before."""
        gaps = [gap for gap in dict.fromkeys(self._gaps) if gap not in self._told]
        self._told.update(gaps)
        return gaps

    def restore(self, saved: "Sequence[Any]") -> "list[str]":
        """Take over what `take` returned, and return clauses about what could not be."""
        leaves, memo, gaps, removed = self._walk().found, dict[int, Any](), list[str](), list[ValuePath]()
        for steps, encoded in saved:
            place = tuple((str(kind), key) for kind, key in steps)
            if encoded == _REMOVED:
                removed.append(place)
                continue
            self._changed.add(place)
            try:
                leaf = leaves.get(place) or self._find_holder(place)
                leaf.set(decode(encoded, memo, self._model.device))
            except Exception as problem:  # objects of the user may refuse in any way
                why = str(problem) or type(problem).__name__
                gaps.append(f"{self._show(place)} could not be given back its value: {why}")
        for place in reversed(removed) if self._holders else ():  # before `mark` a hook may still need it
            with suppress(LookupError, AttributeError, TypeError):
                self._find_holder(place).remove()
        return gaps

    def _find_removed(self, walk: "_Walk") -> "list[ValuePath]":
        """Where something was when training began and nothing is now; the items of a list in their order."""
        before, now = self._before.keys() | self._holders, walk.found.keys() | walk.holders.keys()
        gone = [place for place in before - now if place[-1][0] in ("attribute", "item") and place[:-1] in walk.holders]
        gone = [place for place in gone if not _has(walk.holders[place[:-1]], place[-1])]
        return sorted(gone, key=lambda place: place[-1][1] if isinstance(place[-1][1], int) else 0)

    def _find_late(self, place: ValuePath, walk: "_Walk") -> "list[str]":
        """A clause about a value in what was made since `mark`; none in a network, which the model has checked."""
        late = next(place[:end] for end in range(1, len(place)) if place[:end] not in self._holders)
        if isinstance(walk.holders[late], torch.nn.Module):
            return []
        return [
            f"{self._show(late)} was made after training had begun, so a resumed run has none to give its values back "
            "to; make it in setup or on_training_start, or save it in a state_dict of the model"
        ]

    def _walk(self) -> "_Walk":
        walk = _Walk(_find_saved_memory(self._model))
        start: ValuePath = (("root", MODEL),)
        walk.holders |= {start: self._model, (): None}
        for name, value in vars(self._model).items():
            if name not in self._left_out and (isinstance(value, torch.nn.Module) or not has_state(value)):
                walk.follow(self._model, ("attribute", name), value, start)
        for name, value in self.data.items():
            walk.follow(None, ("root", name), value, whole=False)
        return walk

    def _find_changed(self, leaves: "dict[ValuePath, _Leaf]") -> "list[tuple[ValuePath, _Leaf]]":
        self._changed |= {
            place for place, leaf in leaves.items() if place not in self._before or self._before[place] != leaf.mark
        }
        return [(place, leaf) for place, leaf in leaves.items() if place in self._changed]

    def _find_holder(self, place: ValuePath) -> _Leaf:
        """Where a value goes that this start has not made yet. Raises LookupError, AttributeError, TypeError."""
        if place[0] != ("root", MODEL) or len(place) == 1:
            raise LookupError("it is no longer there")
        holder = self._model
        for kind, key in place[1:-1]:
            holder = holder[key] if kind == "item" else getattr(holder, key)
        return _Leaf(holder, place[-1])

    def _show(self, place: ValuePath) -> str:
        first = place[0][1]
        steps = (f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in place[1:])
        return (type(self._model).__name__ if first == MODEL else str(first)) + "".join(steps)


def find_generators(root: Any) -> bool:
    """Whether an object holds a random generator of its own."""
    walk = _Walk()
    walk.follow(None, ("root", ""), root, whole=False)
    return bool(walk.found)


def has_state(part: Any) -> bool:
    """Whether an object is saved by its own `state_dict` and `load_state_dict`."""
    if isinstance(part, type) or not hasattr(part, "state_dict"):
        return False
    return callable(part.state_dict) and callable(getattr(part, "load_state_dict", None))


def find_parts(root: Any, seen: "set[int]") -> "Iterator[Any]":
    """The networks, parameters, optimizers and schedulers that a value is, or holds in collections and users' objects.

    :param seen: the ids of objects that are not looked into; those that were are added.
    """
    todo = [root]
    while todo and len(seen) < _MOST_OBJECTS:
        value = todo.pop()
        if isinstance(value, _PARTS):
            yield value
        elif not isinstance(value, (*SCALARS, type)) and id(value) not in seen and _is_looked_into(value):
            seen.add(id(value))  # a list may hold itself
            if isinstance(value, _LOOKED_INTO):
                todo.extend(value.values() if isinstance(value, dict) else value)
            todo.extend(item for _, item in _open_attributes(value))


class _Walk:
    """One pass over what is followed; `found` has what it came to, `holders` where objects are that hold something.

    :param saved: the memory of tensors that are saved elsewhere: these, and views of them, are left out.
    """

    def __init__(self, saved: "frozenset[int]" = frozenset()) -> None:
        self.found: dict[ValuePath, _Leaf] = {}
        self.holders: dict[ValuePath, Any] = {}
        self._saved = saved
        self._seen = _find_streams()

    def follow(self, holder: Any, step: PathStep, value: Any, above: ValuePath = (), *, whole: bool = True) -> None:
        """Follow one value and what it holds; `whole`: not for generators only."""
        todo = [(holder, step, value, above, whole)]
        while todo and len(self._seen) < _MOST_OBJECTS:
            holder, step, value, above, whole = todo.pop()
            place = (*above, step)
            if isinstance(value, (Optimizer, LRScheduler, type, types.ModuleType)):
                continue  # saved as a part of the model, or refused; or no object at all
            is_network = whole and isinstance(value, torch.nn.Module)
            if is_generator(value) or (whole and not is_network):
                mark = _mark(value)
                whole = mark is None and _is_looked_into(value)
                if not whole and not self._is_saved(value):
                    self.found[place] = _Leaf(holder, step, value, mark or id(value))
                if mark is not None:
                    continue
            if id(value) not in self._seen and not isinstance(value, (*SCALARS, torch.Tensor)):
                self._seen.add(id(value))
                self.holders[place] = value
                held = list(_open_network(value) if is_network else _open(value))
                todo.extend((value, below, item, place, whole) for below, item in reversed(held))

    def _is_saved(self, value: Any) -> bool:
        is_part = isinstance(value, torch.Tensor) and _locate(value) in self._saved
        return is_part or (is_generator(value) and id(value) in self._seen)


def _mark(value: Any) -> Any:
    try:
        return compare_by(value)
    except NotSavable:
        return None


def _open(value: Any) -> "Iterator[tuple[PathStep, Any]]":
    """What an object holds, in the order of its items or attributes."""
    if isinstance(value, _LOOKED_INTO) and len(value) <= COMPARED_ITEMS:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((("item", key), item) for key, item in items if type(key) in (str, int))
    elif isinstance(value, types.MethodType):
        yield ("attribute", "__self__"), value.__self__
    elif isinstance(value, partial):
        yield from ((("attribute", name), getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty
                yield ("attribute", name), cell.cell_contents
    yield from ((("attribute", name), item) for name, item in _open_attributes(value))


def _open_attributes(value: Any) -> "list[tuple[str, Any]]":
    found = list(getattr(value, "__dict__", {}).items())
    slots = _find_slots(type(value))  # type: ignore[arg-type]
    return found + [(name, getattr(value, name)) for name in slots if hasattr(value, name)]


@cache
def _find_slots(kind: type) -> "tuple[str, ...]":
    """The attributes of the user's classes that are in no `__dict__`."""
    users = [base for base in kind.__mro__ if "__slots__" in vars(base) and _is_users(base)]
    return tuple(
        name for base in users for name, slot in vars(base).items() if isinstance(slot, types.MemberDescriptorType)
    )


def _open_network(module: torch.nn.Module) -> "Iterator[tuple[PathStep, Any]]":
    """What a network holds besides its state: other networks, plain attributes, buffers that are not persistent."""
    if not any(kind.__module__.startswith(_WRAPPERS) for kind in type(module).__mro__):
        is_torchs = type(module).__module__.startswith("torch.")
        for name, value in list(vars(module).items()):
            if name not in _MODULE_INTERNALS and (isinstance(value, SCALARS) or not is_torchs):
                yield ("attribute", name), value
        for name in sorted(module._non_persistent_buffers_set):
            if (buffer := module._buffers.get(name)) is not None:
                yield ("buffer", name), buffer
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield ("requires_grad", name), parameter.requires_grad
    yield from ((("attribute", name), child) for name, child in module._modules.items() if child is not None)


def _has(holder: Any, step: PathStep) -> bool:
    """Whether a place that a walk has once come to is still there."""
    kind, name = step
    if kind == "item":
        return name in holder if isinstance(holder, dict) else not isinstance(name, int) or name < len(holder)
    if isinstance(holder, torch.nn.Module):
        return any(name in held for held in (vars(holder), holder._modules, holder._buffers, holder._parameters))
    is_callable = isinstance(holder, (types.FunctionType, types.MethodType, partial))  # it cannot lose anything
    return is_callable or any(name == found for found, _ in _open_attributes(holder))


def _is_looked_into(value: Any) -> bool:
    """Whether what a value holds is followed whole."""
    return isinstance(value, _LOOKED_INTO) or _is_users(type(value))  # type: ignore[arg-type]


@cache
def _is_users(kind: type) -> bool:
    """Whether a class is of the user's own code, not of the standard library or an installed package."""
    if kind.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_ours = kind.__module__.startswith("proctor.")
    return file is not None and not is_ours and not str(Path(file).resolve()).startswith(_LIBRARIES)


def _find_streams() -> "set[int]":
    """The generators whose states every checkpoint has, under whichever name they are known."""
    found: list[Any] = [torch.default_generator, random._inst]
    if torch.cuda.is_initialized():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    with suppress(RuntimeError):  # there is no NumPy
        stream = get_default_numpy_rng()
        found += [stream, stream.generator, stream.generator.bit_generator]
    return {id(stream) for stream in found}


def _find_saved_memory(model: Any) -> "frozenset[int]":
    """The memory of what the networks of a model save: a tensor that is there is another name for it, or a view."""
    found: list[torch.Tensor] = []
    for part in vars(model).values():
        for module in part.modules() if isinstance(part, torch.nn.Module) else ():
            passing = module._non_persistent_buffers_set
            found += (buffer for name, buffer in module._buffers.items() if buffer is not None and name not in passing)
            found += (parameter for parameter in module._parameters.values() if parameter is not None)
    return frozenset(map(_locate, found))


def _locate(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):  # sparse, or not made yet
        return id(tensor)


# -- values: what tells whether one has changed, and its form in a checkpoint ------------------------------------------


class NotSavable(Exception):
    """A value has no form that a checkpoint could hold; the text says what it is."""


@dataclass(frozen=True, eq=False)
class _TensorVersion:
    """A tensor as it was: the same object, and not written to since."""

    tensor: "weakref.ref[torch.Tensor]"
    version: int

    def __eq__(self, other: object) -> bool:
        is_same = isinstance(other, _TensorVersion) and self.version == other.version
        return is_same and self.tensor() is other.tensor() is not None  # type: ignore[attr-defined]


def compare_by(value: Any, above: "frozenset[int]" = frozenset()) -> Any:
    """Something that is equal for equal values, and cheap to make.

    :param above: the ids of the collections that hold it.
    :raises NotSavable: it is, or holds, an object that is not compared by its value.
    """
    kind = type(value).__name__
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
    if _is_array(value):
        flat = value.reshape(-1)
        flat = flat[:: max(1, flat.nbytes // _COMPARED_BYTES)]
        return kind, value.shape, blake2b(flat.tobytes()).digest()
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(value)
    if not isinstance(value, (list, tuple, deque, dict)) or id(value) in above:
        raise _refuse(value)
    items: Iterable[Any] = value.items() if isinstance(value, dict) else value
    if len(value) > COMPARED_ITEMS:
        items = [*islice(items, 100), *islice(reversed(items), 100)]  # type: ignore[call-overload]
    above |= {id(value)}
    return kind, len(value), tuple([compare_by(item, above) for item in items])


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
    if (kind in (torch.Tensor, torch.nn.Parameter) or _is_array(value)) and value.nbytes > _LARGEST_BYTES:
        raise NotSavable(f"a tensor or array of {value.nbytes >> 20} MiB")
    if kind in (torch.Tensor, torch.nn.Parameter):
        return {"kind": "tensor", "value": value.detach().cpu(), "on_device": value.device.type != "cpu"}
    if _is_array(value):
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


def _is_array(value: Any) -> bool:
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
