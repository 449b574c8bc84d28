"""Placement: which node and which GPUs a waiting trial job gets. Pure: values in, a decision out.

Every candidate is a node with the rules (`GpuRules`) that the experiment has for it. The rules of placement, in their
order:

1. A GPU has room for a job when fewer trials hold it than the node's `max_trials_per_gpu` and than each trial on it
   allows; a GPU held by a trial that wants it for itself is never shared. What another manager's trial holds on the
   machine counts like what ours hold. Shares are numbered from 0; the lowest free one is taken.
2. A GPU that other processes use has no room, unless the node's rules say `use_active_gpu`. Our own trials are
   not others, whatever experiment they belong to.
3. A job gets `gpu_number` different GPUs of one node, of those that its `gpu_indices` allow. SPREAD takes the least
   loaded ones first, PACK the most loaded ones that still have room; then by index.
4. Among nodes with enough room SPREAD takes the least loaded one, PACK the most loaded one (shares held per GPU that
   may be used); among equals the one that is named first. Jobs without GPUs fit anywhere, so they are always spread
   (by the number of our jobs): packing them would pile all of them on one node.
5. A node that is being connected for the first time is *arriving*, for some seconds at most. SPREAD gives a job to a
   ready node only if no arriving one is less loaded than the least loaded ready one with room; otherwise the job waits.
   So the first job starts on the first machine that is there, and the others do not all follow it. An arriving node
   that has not reported GPUs counts as empty if none of our jobs is on it; if one is, it is not waited for. With PACK
   nothing waits for a node that is arriving.
6. What no node could ever give, even with nothing else on it, is impossible. As long as a node that has not yet said
   what it has might, the job waits; so it does for a node that is away, or that is drained or quarantined. A node that
   could never run the experiment's jobs while another one could is left out; `exclusions` says why.
7. Trials that wait for GPUs have an order (`GpuDemand.order`): the higher priority of their experiment first; of one
   priority the experiment that has used less in the last hour, but a trial that has waited for
   `OVERDUE_AFTER_SECONDS` before all others; then the one that has waited longest. For those that go before a trial
   GPUs are held (`hold_gpus`), which have no room for it:
   * at once for one of a higher priority, and for one that could start on them now and whose experiment has used less;
   * else when it has waited for `HOLD_AFTER_SECONDS`; until then a trial may take what is free although another one
     that needs more waits.
   They are on the ready node that lacks least, and stay there: as many GPUs as the trial needs, free ones first, then
   those with the fewest trials. A held GPU only gets emptier, so the trial's turn comes when the jobs on that node have
   ended. Nothing is held where that may never be: on a GPU that other processes use.
8. For a trial of a higher priority preemptible jobs are stopped (`preempted_jobs`), where it can start when they and
   those that are being stopped already are gone: on the node where the fewest have to be; there those of the lowest
   priority first, then those that free more of the GPUs it needs, then those that hold fewer others, then those that
   lose the least work. None is stopped that turns out not to be needed: those that come last in this order are spared
   first.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from proctor.training_services.base import NodePlacement
from proctor.training_services.capacity import (
    UNRANKED,
    Candidate,
    GpuCapacity,
    GpuDemand,
    GpuRules,
    GpuSlot,
    NodeCapacity,
    PlacementRequest,
    Standing,
    Strategy,
)

__all__ = [
    "HOLD_AFTER_SECONDS",
    "Impossible",
    "Placed",
    "PlacementDecision",
    "PlacementRequest",
    "Waiting",
    "exclusions",
    "hold_gpus",
    "obstacle",
    "place",
    "preempted_jobs",
]

HOLD_AFTER_SECONDS = 60.0
"""How long a trial waits for GPUs before some are held for it."""
OVERDUE_AFTER_SECONDS = 3600.0
"""How long a trial waits before it goes before all others of its priority, whatever its experiment has used."""


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


PlacementDecision = Placed | Waiting | Impossible


def place(request: PlacementRequest, candidates: Sequence[Candidate]) -> PlacementDecision:
    """Decide where a job with this request goes. `candidates` are the nodes that its experiment may use, in order of
    preference."""
    if not candidates:
        return Impossible("the experiment has no node to run trials on")
    obstacles = [obstacle(request, candidate) for candidate in candidates]
    if all(obstacles):
        return Impossible("; ".join(obstacles))
    possible = [candidate for candidate, obstacle in zip(candidates, obstacles, strict=True) if not obstacle]
    able = [candidate for candidate in possible if candidate.node.ready and _has_room(request, candidate)]
    if not able:
        return Waiting("; ".join(_shortage(request, candidate) for candidate in possible))
    best = min(able, key=lambda candidate: _rank(request, candidate))
    if better := _better_arrival(request, possible, best):
        return Waiting(f"node {better} is being connected")
    return Placed(_placement(request, best))


def exclusions(request: PlacementRequest, candidates: Sequence[Candidate]) -> dict[str, str]:
    """The nodes that have reported their GPUs and could never run such a job, each with a clause that says why; none
    unless there is another one that could."""
    known = [candidate for candidate in candidates if candidate.node.gpus is not None]
    found = {candidate.node.node_id: obstacle(request, candidate) for candidate in known}
    return {node_id: obstacle for node_id, obstacle in found.items() if obstacle} if not all(found.values()) else {}


def hold_gpus(
    demands: Sequence[GpuDemand], nodes: Mapping[str, NodeCapacity], now: float, asking: Standing = UNRANKED
) -> dict[str, dict[str, GpuDemand]]:
    """Which GPUs are held for which of the trials that wait (rule 7), by node id and GPU UUID.

    :param demands: those that go before the trial that asks.
    :param nodes: by id, all those that the demands have rules for.
    :param now: Unix time.
    :param asking: of the experiment whose trial asks.
    """
    held: dict[str, dict[str, GpuDemand]] = {}
    for demand, option in _hold_options(demands, nodes, now, asking):
        held.setdefault(option.node_id, {}).update(dict.fromkeys(option.uuids, demand))
    return held


def preempted_jobs(
    demands: Sequence[GpuDemand], nodes: Mapping[str, NodeCapacity], now: float, asking: Standing
) -> dict[str, GpuDemand]:
    """Which jobs are to be stopped for which of the trials that wait (rule 8), by job id. None that is being stopped.

    :param demands: those of a higher priority than that of the experiment whose jobs may be stopped.
    :param asking: that of this experiment.
    """
    options = _hold_options(demands, nodes, now, asking)
    return {job_id: demand for demand, option in options for job_id in option.stops}


@dataclass(frozen=True)
class _HoldOption:
    """GPUs of one node that could be held for a trial, and the jobs to stop for it. The lowest cost is the best."""

    node_id: str
    uuids: tuple[str, ...]
    stops: tuple[str, ...]
    cost: tuple[int, int, int, int]
    """How many of the GPUs get no room for it by any stop, how many jobs are to be stopped, how many GPUs have no room
    yet, and how many trials are on them."""


def _hold_options(
    demands: Sequence[GpuDemand], nodes: Mapping[str, NodeCapacity], now: float, asking: Standing
) -> Iterator[tuple[GpuDemand, _HoldOption]]:
    """For each of these trials that gets a hold, in their order, what is held."""
    held: dict[str, set[str]] = {}
    for demand in sorted(demands, key=lambda demand: demand.order):
        choices = (_hold_option(demand, nodes[node_id], held.get(node_id, set())) for node_id in demand.rules)
        able = [choice for choice in choices if choice is not None]
        if demand.standing.priority <= asking.priority and now - demand.since < HOLD_AFTER_SECONDS:
            is_its_turn = demand.standing.used < asking.used
            able = [choice for choice in able if is_its_turn and not choice.cost[2]]
        # Elsewhere others have begun meanwhile: by moving to and fro a trial could wait forever.
        best = min(
            able,
            key=lambda choice: (choice.cost[0] > 0, choice.node_id != demand.node_id, choice.cost),
            default=None,
        )
        if best is not None:
            held.setdefault(best.node_id, set()).update(best.uuids)
            yield demand, best


def _hold_option(demand: GpuDemand, node: NodeCapacity, held: Collection[str]) -> _HoldOption | None:
    """The GPUs of this node that would be held for a trial; None where it cannot run, or too few are left to hold."""
    candidate = Candidate(node, demand.rules[node.node_id])
    if not node.ready or obstacle(PlacementRequest(demand.gpu_number), candidate):
        return None
    active = candidate.rules.use_active_gpu
    usable = [gpu for gpu in _allowed(candidate) if gpu.uuid not in held and (active or not gpu.foreign)]
    if len(usable) < demand.gpu_number:
        return None
    gone = {holding.job_id for gpu in usable for holding in gpu.holdings if holding.leaving}
    stops = _stops(demand, candidate.rules, usable, gone)

    def lack(gpu: GpuCapacity) -> int:
        if _has_room_without(candidate.rules, gpu, ()):
            return 0
        return 1 if _has_room_without(candidate.rules, gpu, {*gone, *stops}) else 2

    chosen = sorted(usable, key=lambda gpu: (lack(gpu), len(gpu.holdings), gpu.index))[: demand.gpu_number]
    lacks = [lack(gpu) for gpu in chosen]
    cost = (lacks.count(2), len(stops), len(lacks) - lacks.count(0), sum(len(gpu.holdings) for gpu in chosen))
    return _HoldOption(node.node_id, tuple(gpu.uuid for gpu in chosen), stops, cost)


def _stops(demand: GpuDemand, rules: GpuRules, usable: Sequence[GpuCapacity], gone: Collection[str]) -> tuple[str, ...]:
    """The jobs to stop so that the trial gets its GPUs among `usable` (rule 8); none where that is not enough.

    :param gone: the jobs that are being stopped already.
    """
    found = {holding.job_id: holding.preemptible for gpu in usable for holding in gpu.holdings}
    terms = {
        job_id: preemptible
        for job_id, preemptible in found.items()
        if preemptible is not None and preemptible.priority < demand.standing.priority and job_id not in gone
    }

    def missing(stopped: Collection[str]) -> int:
        """How many GPUs the trial still lacks."""
        return demand.gpu_number - sum(_has_room_without(rules, gpu, {*gone, *stopped}) for gpu in usable)

    if missing(()) <= 0 or missing(terms) > 0:
        return ()
    clearable = [gpu for gpu in usable if _has_room_without(rules, gpu, {*gone, *terms})]
    stops: list[str] = []
    while (lacking := missing(stops)) > 0:
        shares: dict[str, float] = {}  # how much of the GPUs without room each job stands in the way of
        for gpu in clearable:
            if not _has_room_without(rules, gpu, {*gone, *stops}):
                there = [holding.job_id for holding in gpu.holdings if holding.job_id in terms.keys() - set(stops)]
                shares |= {job_id: shares.get(job_id, 0.0) + 1 / len(there) for job_id in there}
        sizes = Counter(holding.job_id for gpu in usable for holding in gpu.holdings)

        def rank(
            job_id: str, shares: Mapping[str, float] = shares, lacking: int = lacking, sizes: Counter[str] = sizes
        ) -> tuple[float, ...]:
            return terms[job_id].priority, -min(shares[job_id], lacking), sizes[job_id], -terms[job_id].saved_at

        stops.append(min(shares, key=lambda job_id: (rank(job_id), job_id)))
    for job_id in stops[::-1]:  # what would be stopped last is spared first
        if missing([other for other in stops if other != job_id]) <= 0:
            stops.remove(job_id)
    return tuple(stops)


def _has_room_without(rules: GpuRules, gpu: GpuCapacity, gone: Collection[str]) -> bool:
    """Whether there is room for one more trial once these jobs are gone."""
    left = [holding for holding in gpu.holdings if holding.job_id not in gone]
    return not left or len(left) < min([rules.max_trials_per_gpu, *(each.policy.max_trials_per_gpu for each in left)])


def _better_arrival(request: PlacementRequest, candidates: Sequence[Candidate], best: Candidate) -> str:
    """The first arriving node that a job had better wait for than go to this one (rule 5), or ""."""
    if request.strategy is Strategy.PACK:
        return ""
    limit = _rank(request, best)
    arriving = (candidate for candidate in candidates if candidate.node.arriving and not candidate.node.ready)
    return next((found.node.node_id for found in arriving if _expected_load(request, found) < limit), "")


def _expected_load(request: PlacementRequest, candidate: Candidate) -> float:
    """The load that an arriving node will have, as far as it is known."""
    node = candidate.node
    if request.gpu_number and node.gpus is None:
        return math.inf if node.jobs else 0.0
    return _rank(request, candidate) if _has_room(request, candidate) else math.inf


def obstacle(request: PlacementRequest, candidate: Candidate) -> str:
    """Why this node could never run the job, or ""."""
    node, rules = candidate.node, candidate.rules
    if not request.gpu_number or node.gpus is None:
        return ""
    number = len(node.gpus)
    missing = sorted(set(rules.gpu_indices or ()) - {gpu.index for gpu in node.gpus})
    if missing:
        return f"gpuIndices names {_gpu_list(missing)}, node {node.node_id} has {_what_it_has(node)}"
    allowed = len(_allowed(candidate))
    if allowed >= request.gpu_number:
        return ""
    restricted = f", of which gpuIndices allows {allowed}" if allowed < number else ""
    return f"needs {_gpus(request.gpu_number)}, node {node.node_id} has {_what_it_has(node)}{restricted}"


def _what_it_has(node: NodeCapacity) -> str:
    number = len(node.gpus or ())
    note = f" ({node.driver_note})" if node.driver_note and not number else ""
    return f"{_gpus(number)}{note}" if number else f"no GPU{note}"


def _has_room(request: PlacementRequest, candidate: Candidate) -> bool:
    return not request.gpu_number or len(_free(candidate)) >= request.gpu_number


def _placement(request: PlacementRequest, candidate: Candidate) -> NodePlacement:
    node_id = candidate.node.node_id
    if request.gpu_number is None:
        return NodePlacement(node_id)
    sign = -1 if request.strategy is Strategy.PACK else 1
    chosen = sorted(_free(candidate), key=lambda gpu: (sign * len(gpu.holdings), gpu.index))[: request.gpu_number]
    by_index = sorted(chosen, key=lambda gpu: gpu.index)
    return NodePlacement(node_id, tuple(GpuSlot(gpu.uuid, _free_slot(gpu)) for gpu in by_index))


def _free(candidate: Candidate) -> list[GpuCapacity]:
    return [gpu for gpu in _allowed(candidate) if not _taken(candidate, gpu)]


def _allowed(candidate: Candidate) -> list[GpuCapacity]:
    indices = candidate.rules.gpu_indices
    return [gpu for gpu in candidate.node.gpus or () if indices is None or gpu.index in indices]


def _taken(candidate: Candidate, gpu: GpuCapacity) -> str:
    """Why the GPU has no room for another job, or ""."""
    rules: GpuRules = candidate.rules
    limits = [rules.max_trials_per_gpu, *(holding.policy.max_trials_per_gpu for holding in gpu.holdings)]
    if gpu.holdings and len(gpu.holdings) >= min(limits):
        return f"GPU {gpu.index} held by {' and '.join(holding.holder for holding in gpu.holdings)}"
    if gpu.foreign and not rules.use_active_gpu:
        pids = ", ".join(str(process.pid) for process in gpu.foreign)
        user = f"another process (pid {pids})" if len(gpu.foreign) == 1 else f"other processes (pids {pids})"
        return f"GPU {gpu.index} in use by {user}, useActiveGpu is false"
    if gpu.uuid in candidate.held:
        return f"GPU {gpu.index} {candidate.held[gpu.uuid]}"
    return ""


def _free_slot(gpu: GpuCapacity) -> int:
    taken = {holding.slot for holding in gpu.holdings}
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)


def _rank(request: PlacementRequest, candidate: Candidate) -> float:
    """The node with the lowest rank gets the job."""
    if not request.gpu_number:
        return candidate.node.jobs
    gpus = _allowed(candidate)
    load = sum(len(gpu.holdings) for gpu in gpus) / len(gpus)
    return -load if request.strategy is Strategy.PACK else load


def _shortage(request: PlacementRequest, candidate: Candidate) -> str:
    node = candidate.node
    if not node.ready:
        return node.reason or f"node {node.node_id} is not ready"
    free = len(_free(candidate))
    taken = [reason for gpu in _allowed(candidate) if (reason := _taken(candidate, gpu))]
    return f"needs {_gpus(request.gpu_number or 0)}, node {node.node_id} has {free} free ({'; '.join(taken)})"


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"


def _gpu_list(indices: Sequence[int]) -> str:
    return ("GPU " if len(indices) == 1 else "GPUs ") + ", ".join(str(index) for index in indices)
