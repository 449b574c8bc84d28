"""The switches that decide whether a kernel of PyTorch gives the same bits twice: set for a run, put back after it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_EXACT_WORKSPACES = (":4096:8", ":16:8")


@contextmanager
def kernel_switches(*, deterministic: bool, benchmark: bool) -> "Iterator[list[str]]":
    """Set the switches and yield what they cannot guarantee, one sentence each; put everything back at the end.

    `deterministic` turns on deterministic algorithms (an operation that has none raises), cuDNN's too, turns off TF32
    and autotuning, and asks cuBLAS for a fixed workspace.
    """
    before = _read()
    gaps: list[str] = []
    try:
        torch.backends.cudnn.benchmark = benchmark
        if deterministic:
            gaps = _make_deterministic()
        yield gaps
    finally:
        _restore(before)


@contextmanager
def without_benchmark() -> "Iterator[None]":
    """Keep cuDNN from timing kernels, for a validation whose batches are of another shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _make_deterministic() -> "list[str]":
    gaps = []
    if torch.cuda.is_initialized() and os.environ.get(_WORKSPACE) not in _EXACT_WORKSPACES:
        gaps.append(f"CUDA was in use before {_WORKSPACE} could be set: cuBLAS may differ; set it before Python starts")
    os.environ.setdefault(_WORKSPACE, _EXACT_WORKSPACES[0])
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    return gaps


def _read() -> "dict[str, Any]":
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "deterministic": torch.backends.cudnn.deterministic,
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32,
        "precision": torch.get_float32_matmul_precision(),
        "workspace": os.environ.get(_WORKSPACE),
    }


def _restore(before: "dict[str, Any]") -> None:
    torch.use_deterministic_algorithms(before["algorithms"], warn_only=before["warn_only"])
    torch.backends.cudnn.deterministic = before["deterministic"]
    torch.backends.cudnn.benchmark = before["benchmark"]
    torch.backends.cudnn.allow_tf32 = before["tf32"]
    torch.set_float32_matmul_precision(before["precision"])
    if before["workspace"] is None:
        os.environ.pop(_WORKSPACE, None)
