"""The ranks of a run, its processes that train together: what one may do with the others, and a network on all of them.

Every method that is marked *collective* must be called by all ranks at the same point of the run, or none; a rank that
stays away leaves the others waiting until the process group's timeout. The device follows the tensor.

One network on several ranks is PyTorch's data parallel, made exact for runs that are resumed. After its first backward
pass `DistributedDataParallel` puts the gradients into other buckets, in the order in which they came. A resumed run
would therefore add up its first gradients in another order than the uninterrupted run at the same step, and with three
ranks or more another order gives other bits. So every incarnation of a run does that move before its first step, in two
throw-away backward passes. They go through a stand-in which only adds up the parameters: the network itself is not
called, so nothing is drawn from the random streams, no buffer changes, and no hook runs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from proctor.sdk.channel import longest_wait
from proctor.sdk.pytorch.errors import ConfigurationError

GPU_BACKEND = "cpu:gloo,cuda:nccl"  # each tensor takes the way of its own device
_NCCL_SECONDS, _GLOO_SECONDS = 600.0, 1800.0  # how long a collective may take, by PyTorch's defaults
_PASSES = 2  # the first fills the old buckets, the second begins by making the new ones


class Ranks:
    """The contract; this class itself is the single process, which needs no communication."""

    rank = 0  # this process among all, 0 is the one that writes
    local_rank = 0  # this process among those of this machine
    world_size = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes checkpoints, logs and reports."""
        return self.rank == 0

    def gather(self, value: Any) -> "list[Any] | None":
        """Return all ranks' picklable values, in their order, on the main rank, None elsewhere (collective)."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """Return the main rank's picklable value (collective)."""
        return value

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank (collective)."""
        return flag

    def barrier(self) -> None:
        """Return when all ranks are here (collective)."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add a tensor over all ranks, in place, and return it; on the tensor's own device (collective)."""
        return tensor

    def broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give a tensor, which is alike on all ranks, the main rank's values, in place, and return it (collective)."""
        return tensor

    def gather_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the equally shaped tensors of all ranks, stacked; on the tensor's own device (collective)."""
        return tensor.unsqueeze(0)


class GroupRanks(Ranks):
    """All processes of the default process group. Flags and objects travel over the CPU."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = dist.get_world_size()
        self._device = "cpu" if "cpu:" in dist.get_backend_config() else "cuda"

    def gather(self, value: Any) -> "list[Any] | None":
        values = [None] * self.world_size if self.is_main else None
        dist.gather_object(value, values)
        return values

    def broadcast(self, value: Any) -> Any:
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def any(self, flag: bool) -> bool:
        count = torch.tensor([int(flag)], dtype=torch.int32, device=self._device)
        dist.all_reduce(count)
        return int(count.item()) > 0

    def barrier(self) -> None:
        self.any(False)  # no rank has the sum before all are here; dist.barrier would need a GPU

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.detach().contiguous()
        dist.all_reduce(part)
        return _copy_back(part, tensor)

    def broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.detach().contiguous()
        if part.device.type == "cpu":
            part = part.to(self._device)
        dist.broadcast(part, src=0)
        return _copy_back(part, tensor)

    def gather_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.detach().contiguous()
        parts = [torch.empty_like(part) for _ in range(self.world_size)]
        dist.all_gather(parts, part)
        return torch.stack(parts)


def _copy_back(part: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if part.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(part)
    return tensor


@dataclass(frozen=True)
class GroupOptions:
    """How the ranks talk."""

    backend: "str | None" = None  # None chooses by the device
    timeout_seconds: "float | None" = None  # of a collective; None: see `choose_timeout`


def join_group(device: torch.device, options: GroupOptions, **where: Any) -> GroupRanks:
    """Enter the default process group, which waits for all ranks, and return them.

    :param where: store, rank and world_size, or nothing, if the environment has them.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = choose_backend(device, options.backend)
    seconds = options.timeout_seconds
    if seconds is None:
        seconds = choose_timeout(backend, longest_wait(os.environ))
    dist.init_process_group(backend, timeout=None if seconds is None else timedelta(seconds=seconds), **where)
    return GroupRanks()


def choose_timeout(backend: str, longest_wait: float) -> "float | None":
    """Return for how many seconds the ranks wait for each other; None leaves it to PyTorch. While the rank that reports
    waits for a verdict of its trial scheduler, the others wait for that rank.

    :param longest_wait: how long it may wait.
    """
    if not longest_wait:
        return None
    return longest_wait + (_NCCL_SECONDS if "nccl" in backend else _GLOO_SECONDS)


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


def has_group() -> bool:
    """Whether this process has joined the default process group."""
    return bool(dist.is_available() and dist.is_initialized())


def get_ranks() -> Ranks:
    """The ranks of the process group that this process has joined, or a single process."""
    return GroupRanks() if has_group() else Ranks()


def gather_into_tensor(tensor: torch.Tensor, size: "Sequence[int] | None" = None) -> torch.Tensor:
    """Return the tensors of all ranks in one, joined at the first dimension (collective).

    :param size: the shape of the result, if another one is wanted.
    :raises ConfigurationError: there is no process group.
    """
    parts = _require_group("gather_into_tensor").gather_tensor(tensor)
    joined = parts.flatten(0, 1) if tensor.dim() else parts
    return joined if size is None else joined.reshape(tuple(size))


def all_reduce_tensors(tensors: "torch.Tensor | Sequence[torch.Tensor]") -> torch.Tensor:
    """Return the sum over all ranks (collective): of a tensor, in place; of several alike, as a new stacked one.

    :raises ConfigurationError: there is no process group.
    """
    whole = tensors if isinstance(tensors, torch.Tensor) else torch.stack(list(tensors)).detach()
    return _require_group("all_reduce_tensors").sum(whole)


def barrier() -> None:
    """Return when all ranks are here (collective); at once without a process group."""
    get_ranks().barrier()


def global_print(*values: Any, **options: Any) -> None:
    """Print on the main rank only."""
    if get_ranks().rank == 0:
        print(*values, **options)


def local_print(*values: Any, **options: Any) -> None:
    """Print on one rank of each machine."""
    if get_ranks().local_rank == 0:
        print(*values, **options)


def _require_group(name: str) -> Ranks:
    if not has_group():
        raise ConfigurationError(
            f"{name} needs several processes, but there is no process group; call it if model.ranks.world_size > 1, or "
            "use model.ranks, which works with one process, too."
        )
    return get_ranks()


class Replica(DistributedDataParallel):
    """A network on one rank; its state has the names of the network alone, for any number of ranks."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The network's own state."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Give the network its state."""
        return self.module.load_state_dict(*args, **kwargs)


def wrap_for_ranks(network: torch.nn.Module, ranks: Ranks, *, find_unused_parameters: bool = False) -> torch.nn.Module:
    """Return the network, on several ranks in a `Replica` which averages the gradients (collective).

    Call it in `Model.setup`, with the network on its device, before hooks of the parameters are registered. All ranks
    then have the main rank's parameters and buffers. The network itself is `unwrap(replica)`.

    :param find_unused_parameters: for networks whose passes do not use every parameter; costs a search each step.
    """
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if ranks.world_size == 1 or not parameters:
        return network
    device = parameters[0].device
    replica = Replica(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=find_unused_parameters,
    )
    if not find_unused_parameters:  # with it the buckets stay as they are
        _settle_buckets(replica, parameters)
    return replica


def unwrap(network: torch.nn.Module) -> torch.nn.Module:
    """Return the network that `wrap_for_ranks` was given."""
    inner: torch.nn.Module = network.module if isinstance(network, DistributedDataParallel) else network
    return inner


class _AllParameters(torch.nn.Module):
    """A network whose backward pass reaches every parameter, the last one first, with gradients of zero."""

    def __init__(self, parameters: "Sequence[torch.nn.Parameter]") -> None:
        super().__init__()
        self._others = list(parameters)  # in a list, so that they are not this module's own

    def forward(self, total: torch.Tensor) -> torch.Tensor:
        """Add nothing of every parameter to the total."""
        for parameter in self._others:
            nothing = parameter.sum() * 0
            total = total + (nothing.real if nothing.is_complex() else nothing).float()
        return total


def _settle_buckets(replica: Replica, parameters: "Sequence[torch.nn.Parameter]") -> None:
    network = replica.module
    replica.module = _AllParameters(parameters)
    try:
        with torch.enable_grad():
            for _ in range(_PASSES):
                replica.require_forward_param_sync = False  # the stand-in has no buffers to spread
                replica(torch.zeros((), device=parameters[0].device)).backward()
    finally:
        replica.module = network
        replica.require_forward_param_sync = True
    for parameter in parameters:
        parameter.grad = None
