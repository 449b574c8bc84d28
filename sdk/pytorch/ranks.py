"""The processes of a run as one of them sees them: who it is, and the few things that all do together.

Every method that is marked *collective* must be called by all ranks at the same point of the run, or none; a rank that
stays away leaves the others waiting until the process group's timeout.
"""

from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch


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

    def sum(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Add a tensor over all ranks, in place, and return it; on the tensor's own device (collective)."""
        return tensor

    def broadcast_tensor(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Give a tensor, which is alike on all ranks, the main rank's values, in place, and return it (collective)."""
        return tensor

    def gather_tensor(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the equally shaped tensors of all ranks, stacked; on the tensor's own device (collective)."""
        return tensor.unsqueeze(0)
