"""What a run's bits depend on besides its checkpoint: versions, devices, sizes, switches.

The fingerprint goes into every checkpoint. A resume under another one may still be right, but it is not bit-exact, and
that is reported, one difference at a time, or refused with `strict_resume`; it is never accepted in silence.
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Union

import torch
import torch.distributed as dist

from proctor.sdk.pytorch.distributed.ranks import Ranks, has_group
from proctor.sdk.pytorch.reproducibility.kernels import read_precisions, report_gaps

Fact = Union[str, int, float, bool, None]
Fingerprint = dict[str, Fact]

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
    found: Fingerprint = {**own, **_switches(), "world size": world_size}
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

    return [
        f"{name} was {word(saved, name)}, is {word(now, name)}"
        for name in sorted(set(saved) | set(now))
        if name not in saved or name not in now or saved[name] != now[name]
    ]


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


def _switches() -> Fingerprint:
    return {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cuDNN deterministic": torch.backends.cudnn.deterministic,
        "cuDNN benchmark": torch.backends.cudnn.benchmark,
        **read_precisions(),
        "oneDNN": torch.backends.mkldnn.enabled,
        "cuBLAS workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
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
