"""The ranks of a run with several processes, over a process group of PyTorch; the device follows the tensor."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from proctor.sdk.pytorch.devices import choose_backend
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
        self.any(False)  # nobody has the sum before everybody is here; dist.barrier would ask for a GPU

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

    :param where: store, rank and world_size, or nothing, if the environment tells them.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = None if options.timeout_seconds is None else timedelta(seconds=options.timeout_seconds)
    dist.init_process_group(choose_backend(device, options.backend), timeout=timeout, **where)
