"""What code changes while it trains and no part with a `state_dict` holds: followed from the start, saved, restored.

Followed are, from the model down:

* plain attributes (numbers, texts, tensors, arrays, collections of them), those of objects of the user's classes too;
* that such an attribute, or an item of a collection of such objects, was removed;
* of networks: such attributes (a dropout rate, the mode), buffers that are not persistent, and `requires_grad`;
* random generators wherever they are;
* what else a run is made of: datasets, samplers (torch's, too), collate functions, the data module and callbacks
  without a `state_dict`. Here an object of the user's class is followed even where an object of a library holds it (a
  `Subset`).

A value is saved once it differs from what it was when training began: what never changes is configuration, and a
resumed run has that of its own start. What has changed and cannot be saved is reported.

Objects of libraries are looked into for generators only: to set what they keep for themselves could break them. Of an
optimizer of the user's class what its own code keeps is followed; `state_dict` has what torch's keeps.
"""

import io
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from proctor.sdk.pytorch.checkpoints.values import (
    COMPARED_ITEMS,
    SCALARS,
    NotSavable,
    check_size,
    compare_by,
    decode,
    encode,
    is_generator,
    set_generator_state,
)
from proctor.sdk.pytorch.reproducibility.seeding import get_default_numpy_rng

PathStep = tuple[str, Any]
"""One step down: ("attribute", name), ("item", key or index), ("buffer", name) or ("requires_grad", name)."""
ValuePath = tuple[PathStep, ...]
"""The way to a value; its first step is ("root", name)."""

MODEL = "model"
EPOCH, RUN = "epoch", "run"
_PARTS = (torch.nn.Parameter, torch.nn.Module, Optimizer, LRScheduler)
_LOOKED_INTO = (list, tuple, dict, deque)
_OPENED_ITEMS = 1_000
"""Objects in longer collections of a dataset are not followed."""
_REMOVED = {"kind": "removed", "value": None}
_MOST_OBJECTS = 100_000
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}
_WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch.fx", "torch._dynamo")
"""Where networks are defined that wrap others, and whose own attributes are their own business."""
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
"""Where a Python has its packages; others may be anywhere, as `pip install --target` puts them."""


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
        self.others: dict[str, Any] = {}
        """What else the run is made of, by a name for people; each may have a `transient` as models have."""
        self.copied: dict[str, str] = {}
        """Those of `others` of which copies are read with: made for each `EPOCH`, or once for the `RUN`."""
        self._epoch: dict[ValuePath, Any] = {}  # how what is copied for each epoch was at the beginning of this one
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

    def mark_epoch(self) -> None:
        """Remember what is copied now, for an epoch is about to be read."""
        if EPOCH in self.copied.values():
            self._epoch = {place: leaf.mark for place, leaf in self._walk().found.items()}

    def take(self, *, inside_epoch: bool = False) -> "list[Any]":
        """What has changed since `mark`, as pairs of place and value that a checkpoint may hold."""
        found, gaps, memo, walk = [], list[str](), dict[int, Any](), self._walk()
        for place, leaf in self._find_changed(walk.found):
            copied = None if is_generator(leaf.value) else self.copied.get(place[0][1])
            if copied == RUN:
                gaps.append(
                    f"{self._show(place)} has changed since training began, and persistent workers read with a copy "
                    "made before; set persistent_workers to False"
                )
                continue
            if copied == EPOCH and inside_epoch and self._epoch.get(place) != leaf.mark:
                gaps.append(
                    f"{self._show(place)} has changed in the middle of an epoch, which is read as it was at its "
                    "beginning, but by a resumed run as it is now; change it between epochs"
                )
            if place[:-1] not in self._holders:
                gaps += self._find_late(place, walk)
                continue
            try:
                if not _is_of_model(place):
                    check_size(leaf.value)
                found.append([[list(step) for step in place], encode(leaf.value, memo)])
            except NotSavable as problem:
                if not _is_of_model(place) and self._before.get(place) in (None, _mark(None)):
                    continue  # made when it was first needed, as a handle to a file is
                gaps.append(
                    f"{self._show(place)} has changed since training began and is {problem}, which no checkpoint "
                    "holds; save what matters of it in a state_dict of the model, or name it in transient if "
                    "nothing depends on it"
                )
        found += [[[list(step) for step in place], _REMOVED] for place in self._find_removed(walk)]
        for place, leaf in walk.found.items():
            if isinstance(leaf.value, (_BaseDataLoaderIter, Iterator)) and not isinstance(leaf.value, io.IOBase):
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
        walk = _Walk(_find_saved_memory(self._model), roots=(self._model, *self.others.values()))
        start: ValuePath = (("root", MODEL),)
        walk.holders |= {start: self._model, (): None}
        for name, value in vars(self._model).items():
            is_followed = isinstance(value, (torch.nn.Module, Optimizer)) or not has_state(value)
            if name not in self._left_out and is_followed:
                walk.follow(self._model, ("attribute", name), value, start)
        walk.is_of_model = False
        for name, value in self.others.items():
            start = (("root", name),)
            kind: Any = type(value)
            walk.holders[start] = value
            for step, item in _open(value):
                if step[1] not in _find_left_out(kind):
                    walk.follow(value, step, item, start, whole=_is_users(kind) or isinstance(value, Sampler))
            if is_generator(value):
                walk.follow(None, start[0], value)
        return walk

    def _find_changed(self, leaves: "dict[ValuePath, _Leaf]") -> "list[tuple[ValuePath, _Leaf]]":
        self._changed |= {
            place for place, leaf in leaves.items() if place not in self._before or self._before[place] != leaf.mark
        }
        return [(place, leaf) for place, leaf in leaves.items() if place in self._changed]

    def _find_holder(self, place: ValuePath) -> _Leaf:
        """Where a value goes that this start has not made yet. Raises LookupError, AttributeError, TypeError."""
        roots = {MODEL: self._model, **self.others}
        if place[0][1] not in roots or len(place) == 1:
            raise LookupError("it is no longer there")
        holder = roots[place[0][1]]
        for kind, key in place[1:-1]:
            holder = holder[key] if kind == "item" else getattr(holder, key)
        kind, key = place[-1]
        now = getattr(holder, key, None) if kind == "attribute" else None
        return _Leaf(holder, place[-1], now if is_generator(now) else None)

    def _show(self, place: ValuePath) -> str:
        first = place[0][1]
        steps = (f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in place[1:])
        return (type(self._model).__name__ if first == MODEL else str(first)) + "".join(steps)


def _is_of_model(place: ValuePath) -> bool:
    return place[0] == ("root", MODEL)


@cache
def _find_left_out(kind: type) -> "frozenset[str]":
    """The attributes of data and callbacks that are not followed: the user's transient ones, and the trainer's own."""
    return frozenset((*getattr(kind, "transient", ()), *getattr(kind, "kept_by_trainer", ())))


def find_generators(root: Any) -> "list[Any]":
    """The random generators that an object has of its own."""
    walk = _Walk()
    walk.follow(None, ("root", ""), root, whole=False)
    return [leaf.value for leaf in walk.found.values()]


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
    :param roots: objects that are followed by themselves, whoever else holds them.
    """

    is_of_model = True  # not of data and callbacks

    def __init__(self, saved: "frozenset[int]" = frozenset(), roots: "Sequence[Any]" = ()) -> None:
        self.found: dict[ValuePath, _Leaf] = {}
        self.holders: dict[ValuePath, Any] = {}
        self._saved = saved
        self._seen = {*_find_streams(), *map(id, roots)}

    def follow(self, holder: Any, step: PathStep, value: Any, above: ValuePath = (), *, whole: bool = True) -> None:
        """Follow one value and what it holds; `whole`: not for generators only."""
        todo = [(holder, step, value, above, whole)]
        while todo and len(self._seen) < _MOST_OBJECTS:
            holder, step, value, above, whole = todo.pop()
            place = (*above, step)
            if isinstance(value, Optimizer):
                todo.extend((value, below, item, place, whole) for below, item in open_optimizer(value))
                self.holders[place] = value
            if isinstance(value, (Optimizer, LRScheduler, type, types.ModuleType)):
                continue  # saved as a part of the model, or refused; or no object at all
            kind: Any = type(value)
            whole = whole or (not self.is_of_model and _is_users(kind))
            is_network = whole and isinstance(value, torch.nn.Module)
            if is_generator(value) or (whole and not is_network):
                mark = _mark(value, shared=not self.is_of_model)
                whole = mark is None and _is_looked_into(value)
                if not whole and not self._is_saved(value):
                    self.found[place] = _Leaf(holder, step, value, mark or id(value))
                if mark is not None:
                    continue
            if id(value) not in self._seen and not isinstance(value, (*SCALARS, torch.Tensor)):
                self._seen.add(id(value))
                self.holders[place] = value
                held = list(_open_network(value) if is_network else _open(value))
                if not self.is_of_model:
                    is_long = isinstance(value, _LOOKED_INTO) and len(value) > _OPENED_ITEMS
                    left_out = _find_left_out(kind)
                    held = [] if is_long else [one for one in held if one[0][1] not in left_out]
                todo.extend((value, below, item, place, whole) for below, item in reversed(held))

    def _is_saved(self, value: Any) -> bool:
        is_part = isinstance(value, torch.Tensor) and _locate(value) in self._saved
        return is_part or (is_generator(value) and id(value) in self._seen)


def _mark(value: Any, *, shared: bool = False) -> Any:
    try:
        return compare_by(value, shared=shared)
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


@cache
def _find_internals() -> "frozenset[str]":
    """The attributes that torch gives to every optimizer."""
    return frozenset({*vars(torch.optim.SGD([torch.zeros(1)])), "step", "_step_count", "_opt_called"})


def open_optimizer(optimizer: Any) -> "Iterator[tuple[PathStep, Any]]":
    """What an optimizer of the user's class keeps that no `state_dict` has; one with a method of its own knows best."""
    kind: Any = type(optimizer)
    if isinstance(optimizer, Optimizer) and _is_users(kind) and kind.state_dict is Optimizer.state_dict:
        found = vars(optimizer).items()
        yield from ((("attribute", name), item) for name, item in found if name not in _find_internals())


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
    if file is None or kind.__module__.startswith("proctor.") or str(Path(file).resolve()).startswith(_LIBRARIES):
        return False
    package, *below = kind.__module__.split(".")
    path = Path(file).absolute()
    folders = path.parents[len(below) + (path.stem == "__init__") :]
    return not folders or package not in _find_installed(folders[0])


@cache
def _find_installed(folder: Path) -> "frozenset[str]":
    """The packages that were installed into a folder; the user's code may lie beside them."""
    found: set[str] = set()
    for path in folder.glob("*.dist-info"):
        files = Distribution.at(path).files or ()
        found.update(file.parts[0].removesuffix(".py") for file in files)
    return frozenset(found)


def _find_streams() -> "set[int]":
    """The generators whose states every checkpoint has, under whichever name they are known."""
    found: list[Any] = [torch.default_generator, random._inst]
    if torch.cuda.is_initialized():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    with suppress(RuntimeError):  # there is no NumPy
        stream = get_default_numpy_rng()
        found += [stream, stream.generator, stream.generator.bit_generator]
        found.append(sys.modules["numpy"].random.mtrand._rand)
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
