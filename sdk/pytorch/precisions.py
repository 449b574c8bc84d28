"""How exactly float32 is multiplied: read, made full for a while, and put back.

PyTorch has two sets of switches for that, an older one and (since 2.9) one for each backend and operation. Where a user
has set a newer one, an older one that contradicts it refuses to be read; so each is asked by itself.
"""

from collections.abc import Callable
from typing import Any

import torch

_FULL = "ieee"


def read_precisions() -> "dict[str, Any]":
    """Return every switch as it is, by its name; None for an older one that PyTorch refuses to read."""
    older = {"float32 matmul precision": _ask(torch.get_float32_matmul_precision), "cuDNN TF32": _ask(_get_cudnn_tf32)}
    return {**older, **{name: owner.fp32_precision for name, owner in _find_owners().items()}}


def make_precisions_full() -> None:
    """Compute with all bits of float32, and leave both sets of switches in agreement."""
    for owner in _find_owners().values():
        owner.fp32_precision = _FULL
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def restore_precisions(before: "dict[str, Any]") -> None:
    """Put back what `read_precisions` returned."""
    if before["float32 matmul precision"] is not None:
        torch.set_float32_matmul_precision(before["float32 matmul precision"])
    if before["cuDNN TF32"] is not None:
        torch.backends.cudnn.allow_tf32 = before["cuDNN TF32"]
    for name, owner in _find_owners().items():
        owner.fp32_precision = before[name]


def _find_owners() -> "dict[str, Any]":
    """What has a newer switch, the general ones first: setting one also sets those below it."""
    backends = torch.backends
    found: dict[str, Any] = {"fp32 precision": backends, "fp32 precision of cuda.matmul": backends.cuda.matmul}
    for backend, operations in (("cudnn", ("conv", "rnn")), ("mkldnn", ("matmul", "conv", "rnn"))):
        owner = getattr(backends, backend)
        found[f"fp32 precision of {backend}"] = owner
        found.update({f"fp32 precision of {backend}.{name}": getattr(owner, name, None) for name in operations})
    return {name: owner for name, owner in found.items() if hasattr(owner, "fp32_precision")}


def _get_cudnn_tf32() -> bool:
    return bool(torch.backends.cudnn.allow_tf32)


def _ask(read: "Callable[[], Any]") -> Any:
    try:
        return read()
    except RuntimeError:
        return None
