"""Placement: which node and which GPUs a waiting trial job gets. Pure: values in, a decision out.

The rules, in their order:

1. A GPU has room for a job when fewer trials hold it than the job's own `max_trials_per_gpu` and than that of each
   trial on it; a GPU held by a trial that wants it for itself is never shared. Shares are numbered from 0; the lowest
   free one is taken.
2. A GPU on which processes of others run has no room, unless the job says `use_active_gpu`. Our own trials are not
   others, whatever experiment they belong to.
3. A job gets `gpu_number` different GPUs of one node: the least loaded first, then by index.
4. Among nodes with enough room the least loaded gets the job (shares held per GPU where GPUs are asked for, else jobs);
   among equals the one that is named first.
5. What no node could ever give, even with nobody else on it, is impossible. As long as a node that has not yet said
   what it has might, the job waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proctor.training_services.base import NodePlacement
from proctor.training_services.capacity import GpuCapacity, GpuSlot, NodeCapacity, PlacementRequest

__all__ = ["Decision", "Impossible", "Placed", "PlacementRequest", "Waiting", "place"]


@dataclass(frozen=True)
class Placed:
    """The job can run there now."""

    placement: NodePlacement


@dataclass(frozen=True)
class Waiting:
    """The job can run later; `reason` says what it waits for."""

    reason: str


@dataclass(frozen=True)
class Impossible:
    """The job can never run on these nodes; `reason` says why."""

    reason: str


Decision = Placed | Waiting | Impossible


def place(request: PlacementRequest, nodes: Sequence[NodeCapacity]) -> Decision:
    """Decide where a job with this request goes. `nodes` are those its experiment may use, in order of preference."""
    if not nodes:
        return Impossible("the experiment has no node to run trials on")
    obstacles = [_obstacle(request, node) for node in nodes]
    if all(obstacles):
        return Impossible("; ".join(obstacle for obstacle in obstacles if obstacle))
    candidates = [node for node, obstacle in zip(nodes, obstacles, strict=True) if not obstacle]
    able = [node for node in candidates if node.ready and _has_room(request, node)]
    if able:
        return Placed(_placement(request, min(able, key=lambda node: _load(request, node))))
    return Waiting("; ".join(_shortage(request, node) for node in candidates))


def _obstacle(request: PlacementRequest, node: NodeCapacity) -> str:
    """Why this node could never run the job, or ""."""
    if not request.gpu_number or node.gpus is None:
        return ""
    number = len(node.gpus)
    missing = sorted(set(request.gpu_indices or ()) - {gpu.index for gpu in node.gpus})
    if missing:
        return f"gpuIndices names {_gpu_list(missing)}, node {node.node_id} has {_what_it_has(node)}"
    allowed = len(_allowed(request, node.gpus))
    if allowed >= request.gpu_number:
        return ""
    restricted = f", of which gpuIndices allows {allowed}" if allowed < number else ""
    return f"needs {_gpus(request.gpu_number)}, node {node.node_id} has {_what_it_has(node)}{restricted}"


def _what_it_has(node: NodeCapacity) -> str:
    number = len(node.gpus or ())
    note = f" ({node.driver_note})" if node.driver_note and not number else ""
    return f"{_gpus(number)}{note}" if number else f"no GPU{note}"


def _has_room(request: PlacementRequest, node: NodeCapacity) -> bool:
    return not request.gpu_number or len(_free(request, node)) >= request.gpu_number


def _placement(request: PlacementRequest, node: NodeCapacity) -> NodePlacement:
    if request.gpu_number is None:
        return NodePlacement(node.node_id)
    chosen = sorted(_free(request, node), key=lambda gpu: (len(gpu.holdings), gpu.index))[: request.gpu_number]
    by_index = sorted(chosen, key=lambda gpu: gpu.index)
    return NodePlacement(node.node_id, tuple(GpuSlot(gpu.uuid, _free_slot(gpu)) for gpu in by_index))


def _free(request: PlacementRequest, node: NodeCapacity) -> list[GpuCapacity]:
    return [gpu for gpu in _allowed(request, node.gpus or ()) if not _taken(request, gpu)]


def _allowed(request: PlacementRequest, gpus: Sequence[GpuCapacity]) -> list[GpuCapacity]:
    return [gpu for gpu in gpus if request.gpu_indices is None or gpu.index in request.gpu_indices]


def _taken(request: PlacementRequest, gpu: GpuCapacity) -> str:
    """Why the GPU has no room for the job, or ""."""
    limits = [request.max_trials_per_gpu, *(holding.policy.max_trials_per_gpu for holding in gpu.holdings)]
    if gpu.holdings and len(gpu.holdings) >= min(limits):
        return f"GPU {gpu.index} held by {' and '.join(holding.holder for holding in gpu.holdings)}"
    if gpu.foreign and not request.use_active_gpu:
        processes = ", ".join(str(process.pid) for process in gpu.foreign)
        noun = "process" if len(gpu.foreign) == 1 else "processes"
        return f"GPU {gpu.index} busy with {noun} {processes} of others, useActiveGpu is false"
    return ""


def _free_slot(gpu: GpuCapacity) -> int:
    taken = {holding.slot for holding in gpu.holdings}
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)


def _load(request: PlacementRequest, node: NodeCapacity) -> float:
    if request.gpu_number and node.gpus:
        return sum(len(gpu.holdings) for gpu in node.gpus) / len(node.gpus)
    return node.jobs


def _shortage(request: PlacementRequest, node: NodeCapacity) -> str:
    if not node.ready:
        return node.reason or f"node {node.node_id} is not ready"
    free = len(_free(request, node))
    taken = [reason for gpu in _allowed(request, node.gpus or ()) if (reason := _taken(request, gpu))]
    return f"needs {_gpus(request.gpu_number or 0)}, node {node.node_id} has {free} free ({'; '.join(taken)})"


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"


def _gpu_list(indices: Sequence[int]) -> str:
    return ("GPU " if len(indices) == 1 else "GPUs ") + ", ".join(str(index) for index in indices)
