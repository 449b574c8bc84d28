"""Tensors that are split over the ranks: whole in a checkpoint, and split again by the run that continues from it.

`fully_shard` (FSDP2) and tensor parallel make DTensors, of which each rank holds its own shard. A checkpoint is one
file, which the main rank writes. So at a save all ranks put their shards together, one tensor at a time, and whoever
loads the file takes its shards out of the whole tensors: on as many ranks as before, on more, or on one, where the
network may be an ordinary one.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

import torch
from torch.optim import Optimizer

from proctor.sdk.pytorch.distributed.ranks import Ranks

_MODULE = "torch.distributed.tensor"


def is_split(value: Any) -> bool:
    """Whether a value is a tensor of which each rank holds a shard."""
    module = sys.modules.get(_MODULE)  # before it is imported there is none
    return module is not None and isinstance(value, module.DTensor)


def has_split(state: Any) -> bool:
    """Whether there is a split tensor in a state of dictionaries, lists and tuples."""
    if isinstance(state, dict):
        return any(map(has_split, state.values()))
    return any(map(has_split, state)) if type(state) in (list, tuple) else is_split(state)


def join_split(state: Any, ranks: Ranks) -> Any:
    """Return a state with its split tensors whole, in the memory of the CPU (collective).

    On other ranks than the main one they are None: no rank but that needs the memory. The state itself stays as it is.
    """

    def join(tensor: Any) -> Any:
        whole = tensor.detach().full_tensor()
        return whole.cpu() if ranks.is_main else None

    return _replace(state, join)


def leave_out_split(state: Any) -> Any:
    """Return a state with an empty tensor for each split one, to judge what else is in it."""
    return _replace(state, lambda tensor: torch.empty(0, dtype=tensor.dtype))


def make_whole(value: Any) -> Any:
    """Return a tensor whole, on every rank (collective); any other value is returned as it is."""
    return value.full_tensor() if is_split(value) else value


def split_as(saved: Any, like: Any) -> Any:
    """Return a saved state with each whole tensor split as the one in its place in `like` (collective)."""
    if is_split(like) and isinstance(saved, torch.Tensor) and not is_split(saved) and saved.shape == like.shape:
        return sys.modules[_MODULE].distribute_tensor(saved.detach(), like.device_mesh, like.placements)
    if isinstance(saved, dict) and isinstance(like, Mapping):
        return _change(saved, ((key, split_as(item, like[key])) for key, item in saved.items() if key in like))
    if type(saved) in (list, tuple) and type(like) is type(saved) and len(saved) == len(like):
        return type(saved)(map(split_as, saved, like))
    return saved


def holds_split(part: Any) -> bool:
    """Whether a part of a model is a network or an optimizer with split tensors."""
    if isinstance(part, torch.nn.Module):
        return any(map(is_split, (*part.parameters(), *part.buffers())))
    return isinstance(part, Optimizer) and any(map(is_split, _list_parameters(part)))


@contextmanager
def splitting(parts: "Iterable[Any]") -> "Iterator[None]":
    """Have networks and optimizers with split tensors take whole ones from a state, however it is given to them."""
    with ExitStack() as stack:
        for part in filter(holds_split, parts):
            hook: Any = _split_network if isinstance(part, torch.nn.Module) else _split_optimizer
            stack.callback(part.register_load_state_dict_pre_hook(hook).remove)
        yield


def _split_network(network: torch.nn.Module, state: "dict[str, Any]", prefix: str, *_: Any) -> None:
    for name, like in network.state_dict().items():
        if prefix + name in state:
            state[prefix + name] = split_as(state[prefix + name], like)


def _split_optimizer(optimizer: Optimizer, state: "dict[str, Any]") -> "dict[str, Any]":
    """Split what an optimizer keeps of a parameter as the parameter is; it makes that at its first step only."""
    keys = [key for group in state["param_groups"] for key in group["params"]]
    found = dict(state["state"])
    for key, parameter in zip(keys, _list_parameters(optimizer), strict=False):  # what does not fit, torch reports
        if key in found and is_split(parameter):
            found[key] = {name: split_as(value, parameter) for name, value in found[key].items()}
    return {**state, "state": found}


def _list_parameters(optimizer: Optimizer) -> "list[Any]":
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _replace(state: Any, change: "Callable[[Any], Any]") -> Any:
    """Return a state with its split tensors changed; where there is none, it is the same object."""
    if not has_split(state):
        return state
    if isinstance(state, dict):
        return _change(state, ((key, _replace(item, change)) for key, item in state.items()))
    return change(state) if is_split(state) else type(state)([_replace(item, change) for item in state])


def _change(state: "dict[Any, Any]", items: "Iterable[tuple[Any, Any]]") -> "dict[Any, Any]":
    """Return a copy with other items, and what else it has: a network's state has attributes."""
    changed = copy(state)
    for key, item in items:
        changed[key] = item
    return changed
