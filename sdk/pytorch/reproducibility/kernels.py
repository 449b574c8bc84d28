"""The switches that decide whether a kernel of PyTorch gives the same bits twice: set for a run, put back after it.

PyTorch has two sets of switches for the precision of float32, an older one and (since 2.9) one for each backend and
operation. Where a user has set a newer one, an older one that contradicts it cannot be read; so each is read by itself.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import NotExactError, NotExactWarning

_FULL = "ieee"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_EXACT_WORKSPACES = (":4096:8", ":16:8")


@contextmanager
def kernel_switches(device: torch.device, *, deterministic: bool, benchmark: bool) -> "Iterator[list[str]]":
    """Set the switches and yield what they leave open on this device, one sentence each; put all back at the end.

    `deterministic` turns on deterministic algorithms (an operation that has none raises), cuDNN's too, turns off TF32
    and autotuning, and asks cuBLAS for a fixed workspace.
    """
    before = _read()
    gaps = _find_gaps(deterministic=deterministic, benchmark=benchmark) if device.type == "cuda" else []
    try:
        torch.backends.cudnn.benchmark = benchmark
        if deterministic:
            _make_deterministic()
        yield gaps
    finally:
        _restore(before)


def report_gaps(gaps: "Sequence[str]", *, ranks: Ranks, strict: bool) -> None:
    """Report what is not exact on any rank, each clause once, by a `NotExactWarning` on the main rank (collective).

    :raises NotExactError: `strict` is set and there is something; on all ranks alike.
    """
    found = [gap for part in ranks.gather(list(gaps)) or () for gap in part]
    reported: list[str] = ranks.broadcast(list(dict.fromkeys(found)))
    if reported and strict:
        raise NotExactError(
            "strict_resume forbids a resume that is not exact, and a run that no resume could repeat bit for bit: "
            f"{'; '.join(reported)}. Change that, or run with strict_resume=False."
        )
    if ranks.is_main:
        for gap in reported:
            warnings.warn(NotExactWarning(f"not exact: {gap}"), stacklevel=2)


@contextmanager
def without_benchmark() -> "Iterator[None]":
    """Keep cuDNN from timing kernels, for a validation whose batches are of another shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _find_gaps(*, deterministic: bool, benchmark: bool) -> "list[str]":
    if benchmark:
        return ["kernels are chosen by timing; set enable_deterministic instead of enable_cudnn_benchmark"]
    if not deterministic:
        return ["a GPU's kernels may add up in another order each time; set enable_deterministic"]
    if _is_gpu_used() and os.environ.get(_WORKSPACE) not in _EXACT_WORKSPACES:
        return [f"a GPU was used before {_WORKSPACE} could be set, so cuBLAS may differ; set it before Python starts"]
    return []


def _is_gpu_used() -> bool:
    """Whether this process has ever taken memory of a GPU.

    cuBLAS reads its setting once, when it is first used, and its workspace is such memory. That CUDA is initialized
    proves nothing: choosing a device is enough for that.
    """
    if not torch.cuda.is_initialized():
        return False
    gpus = range(torch.cuda.device_count())
    return any(torch.cuda.memory_stats(gpu).get("allocation.all.allocated", 0) for gpu in gpus)


def _make_deterministic() -> None:
    os.environ.setdefault(_WORKSPACE, _EXACT_WORKSPACES[0])
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    make_precisions_full()


def _read() -> "dict[str, Any]":
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "deterministic": torch.backends.cudnn.deterministic,
        "benchmark": torch.backends.cudnn.benchmark,
        "precisions": read_precisions(),
        "workspace": os.environ.get(_WORKSPACE),
        "gpu_is_used": _is_gpu_used(),
    }


def _restore(before: "dict[str, Any]") -> None:
    torch.use_deterministic_algorithms(before["algorithms"], warn_only=before["warn_only"])
    torch.backends.cudnn.deterministic = before["deterministic"]
    torch.backends.cudnn.benchmark = before["benchmark"]
    restore_precisions(before["precisions"])
    is_read = _is_gpu_used() and not before["gpu_is_used"]  # cuBLAS keeps to what it has read
    if before["workspace"] is None and not is_read:
        os.environ.pop(_WORKSPACE, None)


def read_precisions() -> "dict[str, Any]":
    """Return every switch as it is, by its name; None for an older one that PyTorch refuses to read."""
    older = {
        "float32 matmul precision": _read_switch(torch.get_float32_matmul_precision),
        "cuDNN TF32": _read_switch(_get_cudnn_tf32),
    }
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


def _read_switch(read: "Callable[[], Any]") -> Any:
    try:
        return read()
    except RuntimeError:
        return None
