"""The bytes of a checkpoint: made without holding up training for the disk, read without running what they hold."""

import io
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch
from torch.serialization import default_restore_location, get_safe_globals, safe_globals

from proctor.sdk.pytorch.errors import UnreadableCheckpointError

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})  # a subclass is a class like any other
_MAPPINGS = frozenset({dict, OrderedDict, Counter})
_SEQUENCES = frozenset({list, tuple, set})


def serialize(content: "dict[str, Any]", safe_types: "Sequence[type]" = ()) -> memoryview:
    """Return the bytes of a checkpoint; the tensors may change as soon as this has returned.

    :param safe_types: classes of the user that `load` will accept.
    :raises TypeError: something in it could not be read again safely; the text says where.
    """
    check_content(content, "checkpoint", safe_types=frozenset(safe_types))
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def load(
    path: Path,
    device: "torch.device | str" = "cpu",
    safe_types: "Sequence[type]" = (),
    *,
    file: "BinaryIO | None" = None,
) -> "dict[str, Any]":
    """Return a checkpoint's content with its GPU tensors on `device` and its CPU tensors on the CPU.

    :param file: has its bytes, where they are not at `path`, which names it in errors.
    :raises UnreadableCheckpointError: it is damaged, holds what only running code could read, or is no checkpoint.
    :raises OSError: the file cannot be read.
    """
    try:
        with safe_globals(list(safe_types)):
            content = torch.load(file or path, map_location=_relocate(device), weights_only=True)
    except UnpicklingError as problem:
        raise UnreadableCheckpointError(
            f"{path} holds objects that cannot be loaded without running code, or is damaged: {_find_reason(problem)}. "
            "Only plain values and tensors are loaded; name your own classes in types_for_safe_load if you trust it."
        ) from problem
    except (OSError, MemoryError):
        raise
    except Exception as problem:  # bytes that are no pickle make the loader fail in any way
        raise UnreadableCheckpointError(f"{path} is damaged or no checkpoint: {_find_reason(problem)}.") from problem
    if not isinstance(content, dict):
        raise UnreadableCheckpointError(
            f"{path} is no checkpoint: it holds a {type(content).__name__}, not a dictionary."
        )
    return content


def _relocate(device: "torch.device | str") -> "Callable[[torch.UntypedStorage, str], torch.UntypedStorage]":
    target = str(device)

    def place(storage: "torch.UntypedStorage", location: str) -> "torch.UntypedStorage":
        """CPU tensors stay: a stream's state and an optimizer's step counter belong there."""
        return storage if location == "cpu" else default_restore_location(storage, target)

    return place


def _find_reason(problem: BaseException) -> str:
    """The sentence with what torch has found; the others advise to run the code, or are meant for torch's authors."""
    text = str(problem)
    lines = (text.partition("WeightsUnpickler error:")[2] or text).split("\n")
    first = next((line.strip() for line in lines if line.strip()), type(problem).__name__)
    return first.partition(". ")[0].rstrip(".")


def check_content(value: Any, place: str, *, safe_types: "frozenset[type]") -> None:
    """Refuse what could not be read again: at the next start it would be too late.

    :param place: where the value is, for the text.
    :raises TypeError: it is, or holds, something else than tensors, plain values and `safe_types`.
    """
    kind = type(value)
    if kind in _PLAIN or kind in safe_types:
        return
    if kind in _TENSORS:
        for name, item in vars(value).items():  # a tensor's attributes are saved with it
            check_content(item, f"{place}.{name}", safe_types=safe_types)
    elif kind in _MAPPINGS:
        for key, item in value.items():
            check_content(key, f"the keys of {place}", safe_types=safe_types)
            check_content(item, f"{place}[{key!r}]", safe_types=safe_types)
    elif kind in _SEQUENCES:
        _check_all(value, place, safe_types)
    elif not (isinstance(value, torch.Tensor) and kind in get_safe_globals()):  # torch's own and those added there
        raise TypeError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be loaded again without running code. "
            "Save plain values and tensors (a NumPy number as .item(), an array as torch.from_numpy, a tensor of your "
            "own class by .as_subclass(torch.Tensor)), or name the class in types_for_safe_load."
        )


def _check_all(values: "Iterable[Any]", place: str, safe_types: "frozenset[type]") -> None:
    for index, item in enumerate(values):
        if type(item) is not int:  # a stream's state has hundreds of them
            check_content(item, f"{place}[{index}]", safe_types=safe_types)
