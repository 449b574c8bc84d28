"""What code changes while it trains and no part with a `state_dict` holds: followed from the start, saved, restored.

Followed are, from the model down:

* plain attributes (numbers, texts, tensors, arrays, collections of them), those of objects of the user's classes too;
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from hashlib import blake2b
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

_Followed = tuple[Any, PathStep, Any, ValuePath, bool]
"""The holder of a value, the step from it to the value, the value, the way there, whether all is followed."""

MODEL = "model"
_SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_SEQUENCES: "dict[str, Any]" = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_MAPPINGS: "dict[str, Any]" = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_FACTORIES: "dict[str, Any]" = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_COMPARED_ITEMS = 10_000
"""Of longer collections only the length and both ends are compared."""
_COMPARED_BYTES = 1 << 20
_LARGEST_BYTES = 64 << 20
"""Larger values are not saved, but reported."""
_MOST_OBJECTS = 100_000
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}
_WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch.fx", "torch._dynamo")
"""Where networks are defined that wrap others, and whose own attributes are their own business."""
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})


class NotSavable(Exception):
    """A value has no form that a checkpoint could hold; the text says what it is."""


@dataclass(frozen=True)
class _Leaf:
    """A value that is compared, saved and set as a whole."""

    holder: Any
    step: PathStep
    value: Any

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
        self._changed: set[ValuePath] = set()

    def mark(self) -> None:
        """Remember how everything is: training is about to begin."""
        walk = self._walk()
        self._before = {place: compare_by(leaf.value) for place, leaf in walk.found.items()}
        self._holders = walk.holders

    def take(self) -> "list[Any]":
        """What has changed since `mark`, as pairs of place and value that a checkpoint may hold."""
        found, memo = [], dict[int, Any]()
        for place, leaf in self._find_changed().items():
            if place[:-1] not in self._holders:
                continue
            with suppress(NotSavable):
                found.append([[list(step) for step in place], encode(leaf.value, memo)])
        return found

    def restore(self, saved: "Sequence[Any]") -> "list[str]":
        """Take over what `take` returned, and return clauses about what could not be."""
        leaves, memo, gaps = self._walk().found, dict[int, Any](), []
        for steps, encoded in saved:
            place = tuple((str(kind), key) for kind, key in steps)
            self._changed.add(place)
            try:
                leaf = leaves.get(place) or self._find_holder(place)
                leaf.set(decode(encoded, memo, self._model.device))
            except Exception as problem:  # objects of the user may refuse in any way
                why = str(problem) or type(problem).__name__
                gaps.append(f"{self._show(place)} could not be given back its value: {why}")
        return gaps

    def find_gaps(self) -> "list[str]":
        """A clause for everything that a resumed run would not have as it is now."""
        gaps = []
        for place, leaf in self._find_changed().items():
            owner = place[:-1]
            if owner not in self._holders and isinstance(leaf.holder, torch.nn.Module):
                continue  # the model has checked its networks itself
            if owner not in self._holders:
                gaps.append(
                    f"{self._show(owner)} was made after training had begun, so a resumed run has none to give its "
                    "values back to; make it in setup or on_training_start, or save it in a state_dict of the model"
                )
                continue
            try:
                encode(leaf.value, {})
            except NotSavable as problem:
                gaps.append(
                    f"{self._show(place)} has changed since training began and is {problem}, which no checkpoint "
                    "holds; save what matters of it in a state_dict of the model, or name it in transient if nothing "
                    "depends on it"
                )
        for place, leaf in self._walk().found.items():
            if isinstance(leaf.value, (_BaseDataLoaderIter, Iterator)):
                gaps.append(
                    f"{self._show(place)} is an iterator, whose position no checkpoint holds; give the data to the "
                    "DataModule, or make the iterator anew for each pass"
                )
        return list(dict.fromkeys(gaps))

    def _walk(self) -> "_Walk":
        walk = _Walk(self._model)
        start: ValuePath = (("root", MODEL),)
        walk.holders |= {start, ()}
        for name, value in vars(self._model).items():
            if name not in self._left_out and (isinstance(value, torch.nn.Module) or not has_state(value)):
                walk.follow(self._model, ("attribute", name), value, start)
        for name, value in self.data.items():
            walk.follow(None, ("root", name), value, (), whole=False)
        return walk

    def _find_changed(self) -> "dict[ValuePath, _Leaf]":
        leaves = self._walk().found
        for place, leaf in leaves.items():
            if place not in self._before or self._before[place] != compare_by(leaf.value):
                self._changed.add(place)
        return {place: leaf for place, leaf in leaves.items() if place in self._changed}

    def _find_holder(self, place: ValuePath) -> _Leaf:
        """Where a value goes that this start has not made yet. Raises LookupError, AttributeError, TypeError."""
        if place[0] != ("root", MODEL) or len(place) == 1:
            raise LookupError("it is not there any more")
        holder = self._model
        for kind, key in place[1:-1]:
            holder = holder[key] if kind == "item" else getattr(holder, key)
        return _Leaf(holder, place[-1], None)

    def _show(self, place: ValuePath) -> str:
        first = place[0][1]
        steps = (f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in place[1:])
        return (type(self._model).__name__ if first == MODEL else str(first)) + "".join(steps)


def find_generators(root: Any) -> bool:
    """Whether an object holds a random generator of its own."""
    walk = _Walk(None)
    walk.follow(None, ("root", ""), root, (), whole=False)
    return bool(walk.found)


class _Walk:
    """One pass over what is followed; `found` has what it came to.

    :param model: whose saved tensors, and views of them, are left out.
    """

    def __init__(self, model: Any) -> None:
        self.found: dict[ValuePath, _Leaf] = {}
        self.holders: set[ValuePath] = set()
        self._saved = frozenset[int]() if model is None else _find_saved_storages(model)
        self._streams = stream_ids()
        self._seen: set[int] = set()

    def follow(self, holder: Any, step: PathStep, value: Any, above: ValuePath, *, whole: bool = True) -> None:
        """Follow one value and what it holds; `whole`: not for generators only."""
        todo = [(holder, step, value, above, whole)]
        while todo and len(self._seen) < _MOST_OBJECTS:
            holder, step, value, above, whole = todo.pop()
            place = (*above, step)
            if is_generator(value):
                if id(value) not in self._streams:
                    self._add(_Leaf(holder, step, value), above)
            elif isinstance(value, torch.nn.Module) and whole:
                todo.extend(self._open_module(value, place))
            elif isinstance(value, (*_SCALARS, torch.Tensor)) or (whole and _is_plain(value, set())):
                if whole and not (isinstance(value, torch.Tensor) and _storage_of(value) in self._saved):
                    self._add(_Leaf(holder, step, value), above)
            elif isinstance(value, (Optimizer, LRScheduler, type, types.ModuleType)):
                continue  # saved as a part of the model, or refused; or no object at all
            else:
                is_users = _is_users(type(value))  # type: ignore[arg-type]
                if whole and not is_users and not isinstance(value, (list, tuple, dict)):
                    self._add(_Leaf(holder, step, value), above)
                todo.extend(self._open(value, place, whole and (is_users or isinstance(value, (list, tuple, dict)))))

    def _open(self, value: Any, place: ValuePath, whole: bool) -> "Iterator[_Followed]":
        """What an object holds, in the order of its attributes or items."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        self.holders.add(place)
        held: list[tuple[PathStep, Any]] = []
        if isinstance(value, dict) and len(value) <= _COMPARED_ITEMS:
            held = [(("item", key), item) for key, item in value.items() if type(key) in (str, int)]
        elif isinstance(value, (list, tuple)) and len(value) <= _COMPARED_ITEMS:
            held = [(("item", index), item) for index, item in enumerate(value)]
        elif isinstance(value, types.MethodType):
            held = [(("attribute", "__self__"), value.__self__)]
        elif isinstance(value, partial):
            held = [(("attribute", name), getattr(value, name)) for name in ("func", "args", "keywords")]
        elif isinstance(value, types.FunctionType):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with suppress(ValueError):  # it is empty
                    held.append((("attribute", name), cell.cell_contents))
        if hasattr(value, "__dict__"):
            held += [(("attribute", name), item) for name, item in list(vars(value).items())]
        for step, item in reversed(held):
            yield value, step, item, place, whole

    def _open_module(self, module: torch.nn.Module, place: ValuePath) -> "Iterator[_Followed]":
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        self.holders.add(place)
        defined_in = type(module).__module__
        for name, child in reversed(module._modules.items()):
            yield module, ("attribute", name), child, place, True
        if any(kind.__module__.startswith(_WRAPPERS) for kind in type(module).__mro__):
            return
        for name, value in list(vars(module).items()):
            if name in _MODULE_INTERNALS or (defined_in.startswith("torch.") and not isinstance(value, _SCALARS)):
                continue
            yield module, ("attribute", name), value, place, True
        for name in sorted(module._non_persistent_buffers_set):
            if (buffer := module._buffers.get(name)) is not None:
                self._add(_Leaf(module, ("buffer", name), buffer), place)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                self._add(_Leaf(module, ("requires_grad", name), parameter.requires_grad), place)

    def _add(self, leaf: _Leaf, above: ValuePath) -> None:
        self.found.setdefault((*above, leaf.step), leaf)


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _TensorVersion:
    """A tensor as it was: the same object, and not written to since."""

    tensor: "weakref.ref[torch.Tensor]"
    version: int

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _TensorVersion)
            and self.version == other.version
            and self.tensor() is other.tensor() is not None
        )


def compare_by(value: Any) -> Any:
    """Something that is equal for equal values, and cheap to make."""
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, value.hex()  # NaN is equal to itself
    if isinstance(value, (*_SCALARS, Path, Enum)):
        return kind, str(value) if isinstance(value, (Path, Enum)) else value
    if isinstance(value, torch.Tensor):
        if value.is_inference():
            return kind, blake2b(value.cpu().contiguous().view(torch.uint8).numpy()).digest()
        return _TensorVersion(weakref.ref(value), value._version)
    if is_generator(value):
        return kind, compare_by(get_generator_state(value))
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        flat = numpy.asarray(value).reshape(-1)
        step = max(1, flat.nbytes // _COMPARED_BYTES)
        return kind, numpy.shape(value), blake2b(numpy.ascontiguousarray(flat[::step]).tobytes()).digest()
    if isinstance(value, Mapping) and _is_plain(value, set()):
        return kind, len(value), _compare_all(list(value.items()))
    if isinstance(value, (list, tuple, deque)) and _is_plain(value, set()):
        return kind, len(value), _compare_all(value)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(value)
    return kind, id(value)


def _compare_all(values: "Sequence[Any]") -> "tuple[Any, ...]":
    if len(values) > _COMPARED_ITEMS:
        values = [*values[:100], *values[-100:]] if not isinstance(values, deque) else [values[0], values[-1]]
    return tuple(compare_by(value) for value in values)


# -- saving ------------------------------------------------------------------------------------------------------------


def encode(value: Any, memo: "dict[int, Any]") -> Any:
    """A value in plain values and tensors. What is shared stays shared: `memo` is that of one checkpoint.

    :raises NotSavable: there is no such form.
    """
    if isinstance(value, _SCALARS) and type(value) in _SCALARS:
        return value
    if id(value) not in memo:
        memo[id(value)] = _encode(value, memo), value  # the value is kept, lest another one get its id
    return memo[id(value)][0]


def _encode(value: Any, memo: "dict[int, Any]") -> "dict[str, Any]":
    kind = type(value)
    if kind in _TENSORS:
        _check_size(value.nbytes)
        return {"kind": "tensor", "value": value.detach().cpu(), "on_device": value.device.type != "cpu"}
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        if value.dtype.hasobject:
            raise NotSavable("an array of objects")
        _check_size(value.nbytes)
        form = {"dtype": value.dtype.str, "shape": list(value.shape), "is_scalar": isinstance(value, numpy.generic)}
        return {"kind": "array", "value": numpy.ascontiguousarray(value).tobytes(), **form}
    if is_generator(value):
        return {"kind": "generator", "value": encode(get_generator_state(value), memo)}
    if isinstance(value, Path):
        return {"kind": "path", "value": str(value)}
    if kind is deque:
        return {"kind": "deque", "value": [encode(item, memo) for item in value], "maxlen": value.maxlen}
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        return {"kind": kind.__name__, "value": [encode(item, memo) for item in value]}
    factory = getattr(value.default_factory, "__name__", None) if kind is defaultdict else ""
    if kind in _MAPPINGS.values() or (kind is defaultdict and _FACTORIES.get(factory or "") is value.default_factory):
        pairs = [[encode(key, memo), encode(item, memo)] for key, item in value.items()]
        return {"kind": kind.__name__, "value": pairs, "factory": factory}
    article = "an" if kind.__qualname__[:1].upper() in "AEIOU" else "a"
    raise NotSavable(f"{article} {kind.__qualname__}")


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
    if kind == "deque":
        return deque((decode(item, memo, device) for item in content), value["maxlen"])
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, memo, device) for item in content)
    pairs = [(decode(key, memo, device), decode(item, memo, device)) for key, item in content]
    return defaultdict(_FACTORIES[value["factory"]], pairs) if kind == "defaultdict" else _MAPPINGS[kind](dict(pairs))


def _check_size(size: int) -> None:
    if size > _LARGEST_BYTES:
        raise NotSavable(f"a tensor or array of {size >> 20} MiB")


# -- telling apart -----------------------------------------------------------------------------------------------------


def has_state(part: Any) -> bool:
    """Whether an object is saved by its own `state_dict` and `load_state_dict`."""
    if isinstance(part, type) or not hasattr(part, "state_dict"):
        return False
    return callable(part.state_dict) and callable(getattr(part, "load_state_dict", None))


def is_generator(value: Any) -> bool:
    """Whether a value is a random generator whose state can be saved."""
    kinds: tuple[type, ...] = (torch.Generator, random.Random, DefaultNumpyRNG)
    if (numpy := sys.modules.get("numpy.random")) is not None:  # none of its generators exists before
        kinds += (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def get_generator_state(generator: Any) -> Any:
    """The state of a random generator, of plain values, tensors and arrays."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def set_generator_state(generator: Any, state: Any) -> None:
    """Let a generator go on from a state. Raises ValueError, TypeError: it is that of another kind."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state


def stream_ids() -> "set[int]":
    """The generators whose states every checkpoint has, under whichever name they are known."""
    found: list[Any] = [torch.default_generator, random._inst]
    if torch.cuda.is_initialized():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    with suppress(RuntimeError):  # there is no NumPy
        stream = get_default_numpy_rng()
        found += [stream, stream.generator, stream.generator.bit_generator]
    return {id(stream) for stream in found}


def _is_plain(value: Any, above: "set[int]") -> bool:
    """Whether `encode` can save a value, as far as its first items tell."""
    if isinstance(value, (*_SCALARS, Path)) or type(value) in _TENSORS:
        return True
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return not value.dtype.hasobject
    if not isinstance(value, (list, tuple, set, frozenset, deque, dict)) or id(value) in above:
        return False
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    within = above | {id(value)}
    return all(_is_plain(item, within) for _, item in zip(range(_COMPARED_ITEMS), items, strict=False))


@cache
def _is_users(kind: type) -> bool:
    """Whether a class is of the user's own code, not of the standard library or an installed package."""
    if kind.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_ours = kind.__module__.startswith("proctor.")
    return file is not None and not is_ours and not str(Path(file).resolve()).startswith(_LIBRARIES)


def _find_saved_storages(model: Any) -> "frozenset[int]":
    """The memory of what the networks of a model save: a tensor that lies there is another name for it, or a view."""
    found: set[int] = set()
    for part in vars(model).values():
        for module in part.modules() if isinstance(part, torch.nn.Module) else ():
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    found.add(_storage_of(buffer))
            found.update(_storage_of(parameter) for parameter in module._parameters.values() if parameter is not None)
    return frozenset(found)


def _storage_of(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):  # sparse, or not made yet
        return id(tensor)
