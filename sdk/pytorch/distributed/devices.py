"""Which devices a run works on: one process each."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.options import Settings

GPU_BACKEND = "cpu:gloo,cuda:nccl"  # each tensor takes the way of its own device


def find_gpus() -> "list[int]":
    """The ids of the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` leaves them; CUDA is not started."""
    return list(range(torch.cuda.device_count()))


def choose_devices(settings: Settings, available: "Sequence[int] | None" = None) -> "tuple[torch.device, ...]":
    """Return the device of each process of this machine.

    `use_cpu`, or a machine without GPUs, gives the CPU `processes` times; otherwise the GPUs named by `gpus`, or all.

    :param available: the ids of the GPUs that are there; None asks the machine.
    :raises ConfigurationError: a GPU is asked for that is not there, or options contradict each other.
    """
    found = find_gpus() if available is None and not settings.use_cpu else list(available or ())
    if settings.gpus is not None and not settings.use_cpu:
        _check_gpus(settings.gpus, found)
        found = list(settings.gpus)
    if settings.use_cpu or not found:
        return (torch.device("cpu"),) * settings.processes
    if settings.processes > 1:
        raise ConfigurationError(
            f"processes={settings.processes} is for the CPU, and there are GPUs, which get one process each; set "
            "use_cpu=True, or name the GPUs in gpus."
        )
    return tuple(torch.device("cuda", number) for number in found)


def choose_backend(device: torch.device, backend: "str | None") -> str:
    """Return the backend of the process group: gloo for the CPU; for GPUs NCCL, with gloo beside it for CPU tensors.

    :raises ConfigurationError: NCCL is asked for on the CPU.
    """
    if device.type == "cpu":
        if backend == "nccl":
            raise ConfigurationError("backend='nccl' works between GPUs only; on the CPU leave it out or say 'gloo'.")
        return backend or "gloo"
    if backend in (None, "nccl"):
        return GPU_BACKEND if dist.is_nccl_available() else "gloo"
    return str(backend)


def choose_threads(processes: int) -> int:
    """Return how many threads each process computes with: a fair share, or what `OMP_NUM_THREADS` says."""
    threads = int(torch.get_num_threads())
    return threads if "OMP_NUM_THREADS" in os.environ else max(1, threads // processes)


@contextmanager
def on_device(device: torch.device) -> "Iterator[None]":
    """Make a GPU the current one for a while: its stream of random numbers is the one that is saved."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def _check_gpus(wanted: "Sequence[int]", found: "Sequence[int]") -> None:
    if not wanted:
        raise ConfigurationError("gpus is empty; leave it out to use all GPUs, or set use_cpu=True.")
    if not found:
        raise ConfigurationError(
            f"gpus={list(wanted)} were asked for and this process sees no GPU (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r}, CUDA of torch: {torch.version.cuda}); set use_cpu=True, or "
            "repair the driver or the build of torch."
        )
    if unknown := [number for number in wanted if number not in found]:
        raise ConfigurationError(f"there is no GPU {', '.join(map(str, unknown))}; there are {list(found)}.")
    if len(set(wanted)) != len(wanted):
        raise ConfigurationError(f"each GPU gets one process, and gpus={list(wanted)} names one twice.")
