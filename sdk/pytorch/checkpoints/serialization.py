"""The content of a checkpoint: copied while training waits, written beside it, read without running what it holds."""

import io
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch
from torch.serialization import (
    default_restore_location,
    get_safe_globals,
    location_tag,
    register_package,
    safe_globals,
)

from proctor.sdk.files import write_all
from proctor.sdk.pytorch.distributed.shards import is_split
from proctor.sdk.pytorch.errors import ConfigurationError, UnreadableCheckpointError

FORMAT = 1
"""It changes only when the content's form does: a newer version's checkpoint of the same number can be read."""
COMMAND = "python -m proctor.sdk.pytorch.migrate"
Content = dict[str, Any]
STEPS: "dict[int, Callable[[Content], Content]]" = {}
"""What turns a content of format n into one of format n + 1, by n."""
_PARTS = ("training_state", "model", "rng")
_BLOCK_BYTES = 1 << 20
_WRAPPED_WORDS = ("DTensor", "_rebuild_wrapper_subclass")
_WRAPPED = (
    "holds a tensor that wraps others, which cannot be loaded. If an earlier version saved it of a network that was "
    "split over the ranks (FSDP2), the other ranks' shards are lost: start over with resume=False, as checkpoints hold "
    "such tensors whole now. Otherwise save plain tensors in its place."
)
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})  # a subclass is a class like any other
_MAPPINGS = frozenset({dict, OrderedDict, Counter})
_SEQUENCES = frozenset({list, tuple, set})

# A copy in the memory of the CPU is saved with the device of its original. The priority must be no other package's:
# torch sorts by it, and then by functions, which have no order.
register_package(-1, lambda storage: getattr(storage, "copied_from", None), lambda storage, location: None)


def copy_content(content: "dict[str, Any]", safe_types: "Sequence[type]" = ()) -> "dict[str, Any]":
    """Return a copy in the memory of the CPU, which `write_content` may write while the tensors change.

    :param safe_types: classes of the user that `load` will accept.
    :raises ConfigurationError: something in it could not be read again safely; the text says where.
    """
    tensors: list[torch.Tensor] = []
    check_content(content, "checkpoint", safe_types=frozenset(safe_types), tensors=tensors)
    storages: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, Any] = {id(tensor): _copy_tensor(tensor, storages) for tensor in tensors}
    return deepcopy(content, copies)


def _copy_tensor(tensor: torch.Tensor, storages: "dict[int, torch.UntypedStorage]") -> torch.Tensor:
    """Copy a tensor; those that share their memory do so afterwards."""
    is_strange = tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_meta
    if type(tensor) not in _TENSORS or tensor.layout is not torch.strided or is_strange:
        copied = tensor.detach().clone()
    else:
        own = tensor.untyped_storage()
        if own._cdata not in storages:
            storage = storages[own._cdata] = torch.UntypedStorage(own.nbytes())
            storage.copy_(own)
            if own.device.type != "cpu":
                storage.copied_from = location_tag(own)
        copied = torch.empty(0, dtype=tensor.dtype)
        copied.set_(storages[own._cdata], tensor.storage_offset(), tensor.size(), tensor.stride())
    if type(tensor) is torch.nn.Parameter:
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    copied.requires_grad_(tensor.requires_grad)
    vars(copied).update({name: deepcopy(item) for name, item in vars(tensor).items() if name not in vars(copied)})
    return copied


class _HashedFile(io.RawIOBase):
    """Writes to a descriptor, if there is one, and hashes. A problem is kept for the end: torch would hide it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.digest = sha256()
        self.size = 0
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.problem is None and self._descriptor >= 0:
            try:
                write_all(self._descriptor, data)
            except OSError as problem:
                self.problem = problem
        self.digest.update(data)
        self.size += len(data)
        return len(data)


def write_content(content: "dict[str, Any]", descriptor: int = -1) -> "tuple[str, int]":
    """Write a checkpoint, and return the hash and the number of its bytes.

    :param descriptor: of an open file; without, nothing is written.
    :raises OSError: the disk refuses.
    """
    file = _HashedFile(descriptor)
    with io.BufferedWriter(file, _BLOCK_BYTES) as buffered:  # closed in any case, lest it write to a later file
        torch.save(content, buffered)
    if file.problem is not None:
        raise file.problem
    return file.digest.hexdigest(), file.size


def load(
    path: Path,
    device: "torch.device | str" = "cpu",
    safe_types: "Sequence[type]" = (),
    *,
    file: "BinaryIO | None" = None,
) -> "dict[str, Any]":
    """Return a checkpoint's content with its GPU tensors on `device` and its CPU tensors on the CPU.

    :param device: "meta" takes the data of no tensor into memory.
    :param file: has its bytes, where they are not at `path`, which names it in errors.
    :raises UnreadableCheckpointError: it is damaged, holds what only running code could read, or is no checkpoint.
    :raises OSError: the file cannot be read.
    """
    try:
        with safe_globals(list(safe_types)):
            content = torch.load(file or path, map_location=_relocate(device), weights_only=True)
    except UnpicklingError as problem:
        _refuse_wrapped(path, problem)
        raise UnreadableCheckpointError(
            f"{path} holds objects that cannot be loaded without running code, or is damaged: {_find_reason(problem)}. "
            "Only plain values and tensors are loaded; name your own classes in types_for_safe_load if you trust it."
        ) from problem
    except (OSError, MemoryError):
        raise
    except Exception as problem:  # bytes that are no pickle make the loader fail in any way
        _refuse_wrapped(path, problem)
        raise UnreadableCheckpointError(f"{path} is damaged or no checkpoint: {_find_reason(problem)}.") from problem
    if not isinstance(content, dict):
        raise UnreadableCheckpointError(
            f"{path} is not a checkpoint: it contains a {type(content).__name__}, not a dictionary."
        )
    return content


def _refuse_wrapped(path: Path, problem: Exception) -> None:
    if any(word in str(problem) for word in _WRAPPED_WORDS):
        raise UnreadableCheckpointError(f"{path} {_WRAPPED}") from problem


def load_upgraded(path: Path, device: "torch.device | str", safe_types: "Sequence[type]" = ()) -> "dict[str, Any]":
    """Return what `load` does, in the present format. Raises UnreadableCheckpointError, OSError."""
    return upgrade(load(path, device, safe_types), str(path))


def upgrade(content: Content, name: str) -> Content:
    """Return the content of a checkpoint in the present format; the argument is left as it is.

    :param name: the checkpoint, for the errors.
    :raises UnreadableCheckpointError: it is of a newer format, of another trainer, or incomplete.
    """
    number = content.get("format")
    if not isinstance(number, int):
        raise UnreadableCheckpointError(
            f"{name} was not written by this trainer (it has no format number). Checkpoints of Helios are continued "
            f"after `{COMMAND} SOURCE TARGET`."
        )
    if number > FORMAT:
        raise UnreadableCheckpointError(
            f"{name} was written by proctor {content.get('version', 'of an unknown version')} in format {number}; this "
            f"version reads up to format {FORMAT}. Upgrade proctor."
        )
    while number < FORMAT:
        if number not in STEPS:
            raise UnreadableCheckpointError(f"{name} has format {number}, which no version of proctor has written.")
        content = {**STEPS[number](content), "format": number + 1}
        number += 1
    if missing := [part for part in _PARTS if part not in content]:
        raise UnreadableCheckpointError(f"{name} is incomplete: it has no {', '.join(missing)}.")
    return content


def outline(value: Any, place: str = "checkpoint") -> "dict[str, str]":
    """Return what a state consists of: by place, the classes, and of tensors the shapes and types of numbers."""
    kind = type(value)
    found = {place: f"{kind.__module__}.{kind.__qualname__}"}
    if isinstance(value, torch.Tensor):
        found[place] += f" {tuple(value.shape)} {value.dtype} {value.layout}"
    elif isinstance(value, dict):
        for key, item in value.items():
            found.update(outline(item, f"{place}[{key!r}]"))
    elif isinstance(value, (list, tuple)) and kind not in _PLAIN:
        found[place] += f" of {len(value)}"
        for index, item in enumerate(value):
            if type(item) is not int:  # of which a list may hold millions
                found.update(outline(item, f"{place}[{index}]"))
    return found


def hash_outline(value: Any) -> str:
    """Return a hash that is equal for states that consist of the same."""
    return sha256(repr(outline(value)).encode()).hexdigest()


def prove(path: Path, content: Content, safe_types: "Sequence[type]" = ()) -> None:
    """Read a checkpoint back that was just written, and compare what it consists of; its tensors take no memory.

    :param content: what was written.
    :raises UnreadableCheckpointError: no run could continue from it; the text says why.
    """
    found, expected = outline(load(path, "meta", safe_types)), outline(content)
    for place in sorted(found.keys() | expected.keys()):
        if found.get(place) != expected.get(place):
            was, is_now = (part.get(place, "nothing") for part in (expected, found))
            raise UnreadableCheckpointError(
                f"{path} was written and does not hold what was saved: {place} was {was}, and is {is_now} when it is "
                "read. Save plain values and tensors in its place."
            )


def _relocate(device: "torch.device | str") -> "Callable[[torch.UntypedStorage, str], torch.UntypedStorage]":
    target = str(device)

    def place(storage: "torch.UntypedStorage", location: str) -> "torch.UntypedStorage":
        """CPU tensors stay: a stream's state and an optimizer's step counter belong there."""
        return storage if location == "cpu" and target != "meta" else default_restore_location(storage, target)

    return place


def _find_reason(problem: BaseException) -> str:
    """The sentence with what torch has found; the others advise to run the code, or are meant for torch's authors."""
    text = str(problem)
    lines = (text.partition("WeightsUnpickler error:")[2] or text).split("\n")
    first = next((line.strip() for line in lines if line.strip()), type(problem).__name__)
    return first.partition(". ")[0].rstrip(".")


def check_content(
    value: Any, place: str, *, safe_types: "frozenset[type]", tensors: "list[torch.Tensor] | None" = None
) -> None:
    """Refuse what could not be read again: at the next start it would be too late.

    :param place: where the value is, for the text.
    :param tensors: takes the tensors.
    :raises ConfigurationError: it is, or holds, something else than tensors, plain values and `safe_types`.
    """
    kind = type(value)
    if tensors is not None and isinstance(value, torch.Tensor):
        tensors.append(value)
    if kind in _PLAIN or kind in safe_types:
        return
    inner: list[tuple[Any, str]] = []
    if kind in _TENSORS:
        inner = [(item, f"{place}.{name}") for name, item in vars(value).items()]  # they are saved with it
    elif kind in _MAPPINGS:
        for key, item in value.items():
            inner += [(key, f"the keys of {place}"), (item, f"{place}[{key!r}]")]
    elif kind in _SEQUENCES:  # a stream's state has hundreds of integers
        inner = [(item, f"{place}[{index}]") for index, item in enumerate(value) if type(item) is not int]
    elif is_split(value) or not (isinstance(value, torch.Tensor) and kind in get_safe_globals()):  # torch's, and added
        raise ConfigurationError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be loaded again without running code. "
            "Save plain values and tensors (a NumPy number as .item(), an array as torch.from_numpy, a tensor of your "
            "own class by .as_subclass(torch.Tensor)), or name the class in types_for_safe_load."
        )
    for item, where in inner:
        check_content(item, where, safe_types=safe_types, tensors=tensors)
