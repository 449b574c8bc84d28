"""What a model of several processes may call. Without a process group each is harmless or says so.

The first three are collective: all ranks call them at the same point, or none. Results are on the tensor's own device.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from proctor.sdk.pytorch.groups import GroupRanks
from proctor.sdk.pytorch.ranks import Ranks


class _Process:
    """Who this process is, once a launcher has told it."""

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
