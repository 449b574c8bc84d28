"""One network on several ranks: PyTorch's data parallel, made exact for runs that are resumed.

After its first backward pass `DistributedDataParallel` puts the gradients into other buckets, in the order in which
they came. A resumed run would therefore add up its first gradients in another order than the uninterrupted run at the
same step, and with three ranks or more another order gives other bits. So every incarnation of a run does that move
before its first step, in two throw-away backward passes. They go through a stand-in which only adds up the parameters:
the network itself is not called, so nothing is drawn from the random streams, no buffer changes, and no hook runs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from proctor.sdk.pytorch.ranks import Ranks

_PASSES = 2  # the first fills the old buckets, the second begins by making the new ones


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
