"""What a run's bits depend on besides its checkpoint: versions, devices, sizes, the switches of the kernels.

The fingerprint goes into every checkpoint. A resume under another one may still be right, but it is not bit-exact, and
that is reported, one difference at a time, or refused with `strict_resume`; it is never accepted in silence.

The switches that decide whether a kernel of PyTorch gives the same bits again are set for a run and put back after it.
PyTorch has two sets of them for the precision of float32, an older one and (since 2.9) one for each backend and
operation. Where a user has set a newer one, an older one that contradicts it cannot be read; so each is read by itself.
"""

import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Union

import torch
import torch.distributed as dist

from proctor.sdk.pytorch.distributed.ranks import Ranks, has_group
from proctor.sdk.pytorch.errors import NotExactError, NotExactWarning

Fact = Union[str, int, float, bool, None]
Fingerprint = dict[str, Fact]

FIRST_SAMPLES = "first samples"
"""The one fact that need not be known: earlier versions did not have it, and not every dataset can be read twice."""
_FULL = "ieee"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_EXACT_WORKSPACES = (":4096:8", ":16:8")
_CPU_MODEL_LABELS = ("model name", "Hardware", "CPU part")


def take_fingerprint(
    device: "torch.device | str",
    *,
    world_size: int = 1,
    devices: "Sequence[Mapping[str, Fact]]" = (),
    settings: "Mapping[str, Fact] | None" = None,
    loaders: "Mapping[str, Mapping[str, Fact]] | None" = None,
) -> Fingerprint:
    """Return the facts that bits depend on, as a flat dictionary of plain values.

    :param devices: what `describe_device` returned on each rank, in their order; empty is this process alone.
    :param settings: options of the run that change its numbers, such as the seed and the accumulation steps.
    :param loaders: the facts of each loader, by a name such as "training phase 0".
    """
    own = _join_ranks(devices or [describe_device(device)])
    found: Fingerprint = {**own, **_read_switches(), "world size": world_size}
    if world_size > 1 and has_group():
        found["backend"] = str(dist.get_backend_config())  # what adds up over the ranks, each in an order of its own
    found.update(settings or {})
    for loader, facts in (loaders or {}).items():
        found.update({f"{name} of {loader}": value for name, value in facts.items()})
    return found


def find_differences(saved: "Mapping[str, Fact] | None", now: "Mapping[str, Fact]") -> "list[str]":
    """Return a clause for each fact that is not as it was, in the order of the facts' names."""
    if not saved:
        return ["the checkpoint has no fingerprint of its run"]

    def word(facts: "Mapping[str, Fact]", name: str) -> str:
        return repr(facts[name]) if name in facts else "not there"

    def differs(name: str) -> bool:
        if name.startswith(FIRST_SAMPLES) and None in (saved.get(name), now.get(name)):
            return False
        return name not in saved or name not in now or saved[name] != now[name]

    return [f"{name} was {word(saved, name)}, is {word(now, name)}" for name in sorted({*saved, *now}) if differs(name)]


def gather_devices(ranks: "Ranks", device: "torch.device | str") -> "list[Fingerprint] | None":
    """Return what `describe_device` says on each rank, on the main rank; None elsewhere (collective)."""
    return ranks.gather(describe_device(device))


def compare_on_ranks(
    saved: "Mapping[str, Fact] | None",
    describe: "Callable[[Sequence[Fingerprint]], Fingerprint]",
    *,
    ranks: "Ranks",
    device: "torch.device | str",
    strict: bool,
) -> None:
    """Compare on the main rank, and report each difference, or refuse, on all alike (collective).

    :param describe: takes what `gather_devices` returned and returns the fingerprint as it is now.
    :raises NotExactError: `strict` is set and there is a difference.
    """
    devices = gather_devices(ranks, device)
    report_gaps([] if devices is None else find_differences(saved, describe(devices)), ranks=ranks, strict=strict)


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


def describe_device(device: "torch.device | str") -> Fingerprint:
    """Return what bits depend on in this process's own device and machine, what is installed there included."""
    device = torch.device(device)
    return {
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "NumPy": _numpy_version(),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "device type": device.type,
        "device model": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_model(),
        "CPU instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _join_ranks(devices: "Sequence[Mapping[str, Fact]]") -> Fingerprint:
    """One fact where the ranks are alike, so that another number of them is reported once; else all, in their order."""
    joined: Fingerprint = {}
    for name in devices[0]:
        values = [facts.get(name) for facts in devices]
        joined[name] = values[0] if len(set(values)) == 1 else " / ".join(map(str, values))
    return joined


def _read_switches() -> Fingerprint:
    return {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cuDNN deterministic": torch.backends.cudnn.deterministic,
        "cuDNN benchmark": torch.backends.cudnn.benchmark,
        **read_precisions(),
        "oneDNN": torch.backends.mkldnn.enabled,
        "cuBLAS workspace": os.environ.get(_WORKSPACE),
        "default dtype": str(torch.get_default_dtype()),
    }


@cache
def _numpy_version() -> "str | None":
    """What is installed, whether or not it has been imported by now."""
    try:
        return version("numpy")
    except PackageNotFoundError:
        return None


@cache
def _cpu_model() -> str:
    """The name of the first processor as Linux gives it; elsewhere what Python knows."""
    try:
        with open("/proc/cpuinfo", errors="replace") as lines:  # long on large machines, and the name comes early
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in _CPU_MODEL_LABELS:
                    return value.strip()
    except OSError:
        pass
    return platform.machine()


def name_kind(thing: Any) -> "str | None":
    """A function's or class's own name, an object's class; two closures of one function have the same."""
    if thing is None:
        return None
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


# -- the switches of the kernels --------------------------------------------------------------------------------------


@contextmanager
def kernel_switches(device: torch.device, *, deterministic: bool, benchmark: bool) -> "Iterator[list[str]]":
    """Set the switches and yield what they leave open on this device, one sentence each; put all back at the end.

    `deterministic` turns on deterministic algorithms (an operation that has none raises), cuDNN's too, turns off TF32
    and autotuning, and asks cuBLAS for a fixed workspace.
    """
    before, warn_only = _read_switches(), torch.is_deterministic_algorithms_warn_only_enabled()
    was_used = _is_gpu_used()
    gaps = _find_gaps(deterministic=deterministic, benchmark=benchmark) if device.type == "cuda" else []
    try:
        torch.backends.cudnn.benchmark = benchmark
        if deterministic:
            _make_deterministic()
        yield gaps
    finally:
        is_read = _is_gpu_used() and not was_used  # cuBLAS keeps to what it has read
        _restore(before, warn_only=warn_only, keeps_workspace=is_read)


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


def _restore(before: Fingerprint, *, warn_only: bool, keeps_workspace: bool) -> None:
    torch.use_deterministic_algorithms(before["deterministic algorithms"], warn_only=warn_only)
    torch.backends.cudnn.deterministic = before["cuDNN deterministic"]
    torch.backends.cudnn.benchmark = before["cuDNN benchmark"]
    restore_precisions(before)
    if before["cuBLAS workspace"] is None and not keeps_workspace:
        os.environ.pop(_WORKSPACE, None)


def read_precisions() -> "dict[str, Any]":
    """Return every switch as it is, by its name; None for an older one that PyTorch refuses to read."""
    older = {
        "float32 matmul precision": _read_switch(torch.get_float32_matmul_precision),
        "cuDNN TF32": _read_switch(lambda: torch.backends.cudnn.allow_tf32),
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


def _read_switch(read: "Callable[[], Any]") -> Any:
    try:
        return read()
    except RuntimeError:
        return None
