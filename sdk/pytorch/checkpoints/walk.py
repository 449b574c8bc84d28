"""One walk over what a run is made of, besides the states of its parts.

The roots are the model, the data module, datasets, samplers, collate functions and callbacks without a `state_dict`.
What is followed depends on whose code it is, not on who holds it:

* Objects of the user's classes are followed whole, and so are the classes and the modules that they are of: their plain
  attributes (numbers, texts, tensors, arrays, collections of them), at any depth, and that one of them is removed.
  A sampler is followed in this way if it is torch's, too.
* Of networks such attributes (a dropout rate, the mode), `requires_grad`, and those tensors that no state has: buffers
  that are not persistent, and all of a network that is not saved itself.
* Objects of libraries are looked into for random generators and objects of the user's; to set what they keep for
  themselves could break them. Those that learn, such as estimators and optimizers that are not saved, are watched.

Code is the user's unless it is of the standard library, of PyTorch, or of another distribution that was installed.
"""

import argparse
import queue
import random
import re
import sys
import sysconfig
import types
from collections import UserDict, UserList, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import _lru_cache_wrapper, cache, partial
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from proctor.sdk.pytorch.checkpoints.values import (
    MANY,
    PLAIN,
    SCALARS,
    Marks,
    NotSavable,
    compare_by,
    is_array,
    is_generator,
    set_generator_state,
)
from proctor.sdk.pytorch.reproducibility.seeding import get_default_numpy_rng

PathStep = tuple[str, Any]
"""One step down: ("attribute", name), ("item", key or index), ("buffer", name) or ("requires_grad", name)."""
ValuePath = tuple[PathStep, ...]
"""The way to a value; its first step is ("root", name)."""

MODEL = "model"
_PARTS = (torch.nn.Parameter, torch.nn.Module, Optimizer, LRScheduler)
_FOLLOWED_PARTS = (torch.nn.Module, Optimizer)
_COLLECTIONS = (list, tuple, dict, deque)
_VALUES = (*SCALARS, *_COLLECTIONS, set, frozenset, bytearray, Path, torch.Tensor)
STATEFUL = (torch.nn.Module, Optimizer, LRScheduler)
_MOST_OBJECTS = 100_000
_NETWORK_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}
_WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch.fx", "torch._dynamo")
"""Where networks are defined that wrap others, and whose own attributes are their own business."""
_LIKE_USERS = frozenset({argparse.Namespace, types.SimpleNamespace, UserDict, UserList})
"""Classes whose objects hold nothing but what the user gives them."""
_OF_TORCH = ("torch.utils.data.dataset", "torch.utils.data.sampler")
"""Where torch's own datasets and samplers are, which are followed as the user's are."""
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
"""Where a Python has its packages; others may be anywhere, as `pip install --target` puts them."""
_DRAWS = re.compile(r"(?:^|_)(?:rand|rng|draw|shuffle|choice|sample|noise|normal_?$|uniform|dropout|generator|augment)")


@dataclass(frozen=True)
class Leaf:
    """A value that is compared, saved and set as a whole."""

    holder: Any
    step: PathStep
    value: Any = None
    mark: Any = None  # equal for equal values

    def set(self, value: Any, *, in_place: bool = False) -> None:
        """Put another value in its place, or into the array that is there. Raises whatever the holder does."""
        kind, name = self.step
        if is_generator(self.value):
            set_generator_state(self.value, value)
        elif kind == "requires_grad":
            getattr(self.holder, name).requires_grad_(value)
        elif kind == "buffer" or (in_place and getattr(self.value, "shape", None) == value.shape):
            target = self.value if kind != "buffer" else getattr(self.holder, name)
            with torch.no_grad():
                target[...] = value
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


class Memory:
    """What walks have found out and the next one need not."""

    def __init__(self) -> None:
        self.marks = Marks()
        self.barren: WeakValueDictionary[int, Any] = WeakValueDictionary()  # objects of libraries that hold nothing
        self.spaces: dict[str, tuple[Any, int, list[str]]] = {}  # classes and modules, their sizes, what is followed


class Walk:
    """What one pass has come to.

    :param roots: by a name for people. The model's has the name `MODEL`.
    :param saved: what `find_saved` returned.
    :param memory: None: the classes and modules of the user's are left out.
    :param is_compared: False: it finds generators alone, and makes no marks.
    """

    def __init__(
        self,
        roots: "Mapping[str, Any]",
        saved: "Collection[int]" = (),
        memory: "Memory | None" = None,
        *,
        is_compared: bool = True,
    ) -> None:
        self.roots = dict(roots)
        self.leaves: dict[ValuePath, Leaf] = {}
        self.holders: dict[ValuePath, Any] = {(): None}
        self.held: dict[ValuePath, set[PathStep]] = {}  # what each holder that is followed whole has
        self.parts: list[tuple[ValuePath, Any]] = []  # networks, parameters, optimizers and schedulers
        self.spaces: set[str] = set()  # the names of those roots that are classes and modules
        self.is_cut = False  # there was too much to follow
        self._saved, self._memory, self._is_compared = saved, memory or Memory(), is_compared
        self._seen, self._streams = {*map(id, roots.values())}, _find_streams()
        self._libraries: dict[ValuePath, Any] = {}
        self._spaces = [space for space, *_ in self._memory.spaces.values()]
        self._memory.marks.begin()
        for name, root in roots.items():
            self._follow((("root", name),), None, root, whole=_is_followed(type(root)))
        while self._spaces and memory is not None:
            self._open_space(self._spaces.pop())
        found = (*self.leaves, *self.held) if self._libraries else ()
        fruitful = {place[:end] for place in found for end in range(len(place) + 1)}
        for place, value in self._libraries.items():
            if place not in fruitful:
                with suppress(TypeError):  # there are no weak references to it
                    self._memory.barren[id(value)] = value
        self.is_cut = len(self._seen) >= _MOST_OBJECTS

    def _follow(self, place: ValuePath, holder: Any, value: Any, *, whole: bool) -> None:
        """Follow a value and what it holds; `whole`: not for generators and the user's objects only."""
        todo = [(place, holder, value, whole)]
        while todo and len(self._seen) < _MOST_OBJECTS:
            place, holder, value, whole = todo.pop()
            if type(value) in PLAIN:  # which are the most
                if whole and self._is_compared:
                    self.leaves[place] = Leaf(holder, place[-1], value, compare_by(value, self._memory.marks))
                continue
            is_root = len(place) == 1
            whole = whole or _is_followed(type(value))
            if isinstance(value, (type, types.ModuleType)):
                continue
            if whole and isinstance(value, _PARTS):
                self.parts.append((place, value))
            if self._take(place, holder, value, whole and not is_root):
                continue
            if is_root or id(value) not in self._seen:
                self._seen.add(id(value))
                todo.extend(reversed(self._open(place, value, whole)))

    def _take(self, place: ValuePath, holder: Any, value: Any, whole: bool) -> bool:
        """Take what is compared and saved as a whole, and say whether nothing in it is to be followed."""
        is_tensor = isinstance(value, torch.Tensor)
        if (is_tensor and (not whole or _locate(value) in self._saved)) or id(value) in self._streams:
            return True
        mark = None
        if not self._is_compared and not is_generator(value):
            return is_tensor or is_array(value) or isinstance(value, SCALARS)
        if is_watched(value) and id(value) not in self._saved:
            mark = _look_at(value, self._memory.marks)
        elif isinstance(value, _lru_cache_wrapper):
            mark = tuple(value.cache_info()[1:]) if whole and _draws(value.__wrapped__) else None
        elif is_generator(value) or (whole and not isinstance(value, STATEFUL)):
            try:
                self.leaves[place] = Leaf(holder, place[-1], value, compare_by(value, self._memory.marks))
                return True
            except NotSavable:
                mark = None if _is_looked_into(value) else id(value)
        if mark is not None:
            self.leaves[place] = Leaf(holder, place[-1], value, mark)
        return is_tensor or isinstance(value, SCALARS)

    def _open(self, place: ValuePath, value: Any, whole: bool) -> "list[tuple[ValuePath, Any, Any, bool]]":
        """What an object holds."""
        self.holders[place] = value
        kind = type(value)
        if _is_users(kind):
            self._spaces += [base for base in kind.__mro__ if _is_users(base)]
        elif isinstance(value, types.FunctionType) and _is_users_module(value.__module__):
            self._spaces.append(sys.modules[value.__module__])
        whole = whole and (isinstance(value, torch.nn.Module) or _is_looked_into(value))
        if not whole:
            if self._memory.barren.get(id(value)) is value:
                return []
            self._libraries[place] = value
        held = _list_held(value, is_saved=id(value) in self._saved)
        transient = getattr(value, "transient", ()) if hasattr(kind, "transient") else ()
        left_out = {*_read_names(transient), *getattr(kind, "kept_by_trainer", ())}
        held = [(step, item) for step, item in held if step[1] not in left_out]
        if place == (("root", MODEL),):
            held = [(step, item) for step, item in held if isinstance(item, _FOLLOWED_PARTS) or not has_state(item)]
        if whole:
            self.held[place] = {step for step, _ in held}
        return [((*place, step), value, item, whole) for step, item in held]

    def _open_space(self, space: Any) -> None:
        """Follow what a class or a module of the user's keeps."""
        is_class = isinstance(space, type)
        name = f"the class {space.__module__}.{space.__qualname__}" if is_class else f"the module {space.__name__}"
        name = name.replace("__mp_main__", "__main__")  # as it is called in processes that `fit` starts
        if name in self.roots:
            return
        self.roots[name], place = space, (("root", name),)
        self.spaces.add(name)
        known, size, keys = self._memory.spaces.get(name, (None, 0, []))
        if known is not space or size != len(vars(space)):
            self._spaces += _find_spaces(space)
            transient = _read_names(vars(space).get("transient"))
            keys = [key for key, item in list(vars(space).items()) if key not in transient and _is_kept(key, item)]
            self._memory.spaces[name] = space, len(vars(space)), keys
        self.holders[place] = space
        for key in keys:
            if (item := vars(space).get(key)) is None:
                continue
            self._follow((*place, ("attribute", key)), space, _find_function(item), whole=True)


def find_saved(model: Any) -> "set[int]":
    """What the states of a model's attributes hold: the ids of networks and of all networks in them, of optimizers and
    schedulers, and where tensors are in memory: another tensor there is another name for it, or a view."""
    found, tensors = set(), list[torch.Tensor]()
    for part in vars(model).values():
        found |= {id(part)} if isinstance(part, STATEFUL) else set()
        for module in part.modules() if isinstance(part, torch.nn.Module) else ():
            found.add(id(module))
            passing = module._non_persistent_buffers_set
            tensors += [one for name, one in module._buffers.items() if one is not None and name not in passing]
            tensors += [one for one in module._parameters.values() if one is not None]
    return found.union(map(_locate, tensors))


def find_generators(root: Any) -> "list[Any]":
    """The random generators that an object has of its own."""
    return [leaf.value for leaf in Walk({"": root}, is_compared=False).leaves.values()]


def has_state(part: Any) -> bool:
    """Whether an object is saved by its own `state_dict` and `load_state_dict`."""
    kind: Any = type(part)  # an object may answer to any name
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


# -- what objects hold -------------------------------------------------------------------------------------------------


def _list_held(value: Any, *, is_saved: bool) -> "list[tuple[PathStep, Any]]":
    """What an object holds, in the order of its items or attributes.

    :param is_saved: whether it is a network that is saved itself.
    """
    if isinstance(value, torch.nn.Module):
        return list(_open_network(value, is_saved=is_saved))
    found: list[tuple[Any, Any]] = []
    if isinstance(value, (Optimizer, LRScheduler)):
        if _is_users(type(value)) and type(value).state_dict is Optimizer.state_dict:  # another one knows best
            found = [(name, item) for name, item in vars(value).items() if name not in _find_internals()]
        return [(("attribute", name), item) for name, item in found]
    if isinstance(value, _COLLECTIONS):
        pairs = list(value.items()) if isinstance(value, dict) else enumerate(list(value))  # a thread may change it
        found = [(key, item) for key, item in pairs if type(key) in (str, int)] if len(value) <= MANY else []
    elif isinstance(value, queue.Queue):
        return [(("attribute", "queue"), value.queue)]  # how many are at work is the threads' own business
    elif isinstance(value, types.MethodType):
        return [(("attribute", "__self__"), value.__self__)]
    elif isinstance(value, partial):
        return [(("attribute", name), getattr(value, name)) for name in ("func", "args", "keywords")]
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty
                found.append((name, cell.cell_contents))
        return [(("attribute", name), item) for name, item in found]
    items = [(("item", key), item) for key, item in found]
    return items + [(("attribute", name), item) for name, item in _list_attributes(value)]


def _list_attributes(value: Any) -> "list[tuple[str, Any]]":
    kind: Any = type(value)
    slots = _find_slots(kind)
    return [
        *getattr(value, "__dict__", {}).items(),
        *((name, getattr(value, name)) for name in slots if hasattr(value, name)),
    ]


def _open_network(module: torch.nn.Module, *, is_saved: bool) -> "Iterator[tuple[PathStep, Any]]":
    """What a network holds besides its state: other networks, plain attributes, tensors that are not saved."""
    if not any(kind.__module__.startswith(_WRAPPERS) for kind in type(module).__mro__):
        is_torchs = type(module).__module__.startswith("torch.")
        for name, value in list(vars(module).items()):
            is_made = f"{name}_orig" in module._parameters  # by torch.nn.utils.prune, before each pass
            if name not in _NETWORK_INTERNALS and not is_made and (isinstance(value, SCALARS) or not is_torchs):
                yield ("attribute", name), value
        for name, buffer in module._buffers.items():
            if buffer is not None and not (is_saved and name not in module._non_persistent_buffers_set):
                yield ("buffer", name), buffer
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield ("requires_grad", name), parameter.requires_grad
                yield from () if is_saved else [(("buffer", name), parameter)]
    elif "_comm_hooks" in vars(module):  # of DistributedDataParallel, with their states
        yield ("attribute", "_comm_hooks"), module._comm_hooks
    yield from ((("attribute", name), child) for name, child in module._modules.items() if child is not None)


def _read_names(transient: Any) -> "Collection[str]":
    return transient if isinstance(transient, (tuple, list, set, frozenset)) else ()


def _look_at(value: Any, marks: Marks) -> Any:
    """What tells whether an object of a library has changed: its attributes, as far as they can be compared."""
    found = []
    for name, item in _list_attributes(value):
        with suppress(NotSavable):
            found.append((name, compare_by(item, marks, frozenset({id(value)}))))
    return tuple(found)


def _draws(function: Any) -> bool:
    """Whether a function looks like one that draws random numbers, by the names in its code."""
    code = getattr(function, "__code__", None)
    codes = [code, *(one for one in code.co_consts if isinstance(one, types.CodeType))] if code is not None else []
    return any(_DRAWS.search(name.lower()) for one in codes for name in one.co_names)


@cache
def _find_slots(kind: type) -> "tuple[str, ...]":
    """The attributes of the user's classes, and of those that are watched, that are in no `__dict__`."""
    users = [base for base in kind.__mro__ if "__slots__" in vars(base) and (_learns(kind) or _is_users(base))]
    return tuple(
        name for base in users for name, slot in vars(base).items() if isinstance(slot, types.MemberDescriptorType)
    )


@cache
def _find_internals() -> "frozenset[str]":
    """The attributes that torch gives to every optimizer."""
    return frozenset({*vars(torch.optim.SGD([torch.zeros(1)])), "step", "_step_count", "_opt_called"})


# -- whose code it is --------------------------------------------------------------------------------------------------


def _is_looked_into(value: Any) -> bool:
    """Whether what a value holds is followed whole."""
    return isinstance(value, (*_COLLECTIONS, queue.Queue)) or _is_followed(type(value))


def _find_function(item: Any) -> Any:
    """What a static or a class method calls; everything else as it is."""
    return item.__func__ if isinstance(item, (staticmethod, classmethod)) else item


def _is_kept(name: str, item: Any) -> bool:
    """Whether what a class or a module has under a name is its own, and may change."""
    if name.startswith("__") or isinstance(_find_function(item), _lru_cache_wrapper):
        return not name.startswith("__")
    is_value = isinstance(item, (*_VALUES, *_PARTS)) or is_generator(item) or is_array(item)
    return is_value or _is_followed(type(item)) or is_watched(item)


def _find_spaces(space: Any) -> "list[Any]":
    """The classes and modules of the user's that a class or a module names."""
    found: list[Any] = [sys.modules.get(space.__module__)] if isinstance(space, type) else []
    for item in list(vars(space).values()):
        if isinstance(item, (type, types.FunctionType)):
            found += [item] if isinstance(item, type) and _is_users(item) else []
            found.append(sys.modules.get(item.__module__))
        elif isinstance(item, types.ModuleType):
            found.append(item)
    own = (one for one in found if isinstance(one, type) or (one is not None and _is_users_module(one.__name__)))
    return [one for one in own if not (isinstance(one, type) and issubclass(one, Enum))]


def _is_followed(kind: type) -> bool:
    return kind in _LIKE_USERS or kind.__module__ in _OF_TORCH or issubclass(kind, Sampler) or _is_users(kind)


def is_watched(value: Any) -> bool:
    """Whether an object is of a library's class, learns, and is no part that is saved."""
    kind: Any = type(value)
    return _learns(kind)


@cache
def _learns(kind: type) -> bool:
    is_estimator = hasattr(kind, "partial_fit") or (hasattr(kind, "fit") and hasattr(kind, "get_params"))
    is_state = kind.__module__.startswith("torch.distributed.algorithms")  # of a communication hook
    return issubclass(kind, (Optimizer, LRScheduler)) or ((is_estimator or is_state) and not _is_users(kind))


def _is_users(kind: type) -> bool:
    """Whether a class is of the user's own code, not of the standard library or an installed package."""
    return _is_users_module(kind.__module__)


@cache
def _is_users_module(name: str) -> bool:
    if name in ("__main__", "__mp_main__"):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or name.startswith("proctor.") or str(Path(file).resolve()).startswith(_LIBRARIES):
        return False
    package, *below = name.split(".")
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


def _locate(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, or not made yet
        return id(tensor)
