"""The ranks of a run with several processes, over a process group of PyTorch, and what a model may call of them.

The device follows the tensor. Without a process group each function is harmless or raises an error that says so.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from proctor.sdk.pytorch.distributed.devices import choose_backend
from proctor.sdk.pytorch.ranks import Ranks


class GroupRanks(Ranks):
    """All processes of the default process group. Flags and objects travel over the CPU."""

    def __init__(self, local_rank: int) -> None:
        self.rank = dist.get_rank()
        self.local_rank = local_rank
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
        if part.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(part)
        return tensor

    def broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.detach().contiguous()
        if part.device.type == "cpu":
            part = part.to(self._device)
        dist.broadcast(part, src=0)
        if part.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(part)
        return tensor

    def gather_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.detach().contiguous()
        parts = [torch.empty_like(part) for _ in range(self.world_size)]
        dist.all_gather(parts, part)
        return torch.stack(parts)


@dataclass(frozen=True)
class GroupOptions:
    """How the ranks talk."""

    backend: "str | None" = None  # None chooses by the device
    timeout_seconds: "float | None" = None  # of a collective; None leaves it to PyTorch


def join_group(device: torch.device, options: GroupOptions, **where: Any) -> None:
    """Enter the default process group, which waits for all ranks.

    :param where: store, rank and world_size, or nothing, if the environment has them.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = None if options.timeout_seconds is None else timedelta(seconds=options.timeout_seconds)
    dist.init_process_group(choose_backend(device, options.backend), timeout=timeout, **where)


class _Process:
    """Who this process is, once a launcher has set it."""

    ranks: "Ranks | None" = None


def adopt_ranks(ranks: "Ranks | None") -> None:
    """Remember who this process is; the launchers call it."""
    _Process.ranks = ranks


def get_ranks() -> Ranks:
    """The ranks of the run that this process belongs to, of a process group that is there, or a single process."""
    if _Process.ranks is not None:
        return _Process.ranks
    if dist.is_available() and dist.is_initialized():
        return GroupRanks(int(os.environ.get("LOCAL_RANK", "0")))
    return Ranks()


def gather_into_tensor(tensor: torch.Tensor, size: "Sequence[int] | None" = None) -> torch.Tensor:
    """Return the tensors of all ranks in one, joined at the first dimension (collective).

    :param size: the shape of the result, if another one is wanted.
    :raises RuntimeError: there is no process group.
    """
    parts = _require_group("gather_into_tensor").gather_tensor(tensor)
    joined = parts.flatten(0, 1) if tensor.dim() else parts
    return joined if size is None else joined.reshape(tuple(size))


def all_reduce_tensors(tensors: "torch.Tensor | Sequence[torch.Tensor]") -> torch.Tensor:
    """Return the sum over all ranks (collective): of a tensor, in place; of several alike, as a new stacked one.

    :raises RuntimeError: there is no process group.
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
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"{name} needs several processes, and there is no process group; call it if model.ranks.world_size > 1, or "
            "use model.ranks, which works with one process, too."
        )
    return get_ranks()
