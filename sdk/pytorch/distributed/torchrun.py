"""Processes that torchrun has started: found by their environment, and joined to one group for the life of the process.

A process keeps its group between `fit` and `test`: torchrun's store remembers the addresses of a group, so a second one
would meet the first one's.
"""

import atexit
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from proctor.sdk.pytorch.distributed.collectives import GroupOptions, GroupRanks, join_group
from proctor.sdk.pytorch.errors import ConfigurationError

_BREATH_SECONDS = 0.2
_MARK = "TORCHELASTIC_RUN_ID"
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class TorchrunPlace:
    """Who this process is among those that torchrun has started."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def find_torchrun(environment: "Mapping[str, str] | None" = None) -> "TorchrunPlace | None":
    """Return the place that torchrun has given this process; None if torchrun has not started it.

    :raises ConfigurationError: the environment is only partly that of torchrun.
    """
    environment = os.environ if environment is None else environment
    if _MARK not in environment:
        return None
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    if missing := [name for name in (*names, *_ADDRESS) if not environment.get(name)]:
        raise ConfigurationError(
            f"{_MARK} says that torchrun started this process, and {', '.join(missing)} is not set; hand on the whole "
            f"environment, or unset {_MARK}."
        )
    try:
        return TorchrunPlace(*(int(environment[name]) for name in names))
    except ValueError as problem:
        raise ConfigurationError(f"torchrun sets {', '.join(names)} to integers; found {problem}.") from None


def choose_local_device(place: TorchrunPlace, devices: "tuple[torch.device, ...]") -> torch.device:
    """Return the device of this process: the local rank picks among the machine's GPUs; the CPU is shared.

    :raises ConfigurationError: there are fewer GPUs than processes.
    """
    if devices[0].type == "cpu":
        return devices[0]
    if place.local_world_size > len(devices):
        raise ConfigurationError(
            f"torchrun started {place.local_world_size} processes on this machine and there are {len(devices)} GPUs; "
            f"use --nproc-per-node={len(devices)}, or use_cpu=True."
        )
    return devices[place.local_rank]


def join_torchrun(place: TorchrunPlace, device: torch.device, options: GroupOptions) -> GroupRanks:
    """Return the ranks of all processes; the group is made at the first call and left when the process ends."""
    if not dist.is_initialized():
        join_group(device, options)
        atexit.register(_leave)
    return GroupRanks(place.local_rank)


def _leave() -> None:
    """Destroy the group, which must not be left to the interpreter's end.

    The group's thread releases the tensors of the last collective, for which it needs the interpreter's lock. If a
    replica is what keeps the group then, its end would hold that lock and wait for the thread, for ever.
    """
    if dist.is_initialized():
        time.sleep(_BREATH_SECONDS)
        dist.destroy_process_group()
