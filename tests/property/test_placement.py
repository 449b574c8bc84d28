"""Properties of placement together with the pool's reservations and the leases that others hold on the machines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from proctor.manager.placement import (
    HOLD_AFTER_SECONDS,
    Impossible,
    Placed,
    PlacementDecision,
    PlacementRequest,
    Waiting,
    hold_gpus,
    place,
)
from proctor.training_services.capacity import Candidate, GpuCapacity, GpuDemand, GpuRules, Strategy
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import Device, DeviceProcess, Lease


def device(node_id: str, index: int, processes: Sequence[DeviceProcess] = (), leases: Sequence[Lease] = ()) -> Device:
    return Device(index, f"GPU-{node_id}-{index}", "Fake", 80_000, 0, 0, list(processes), list(leases))


def lease(slot: int, limit: int) -> Lease:
    """A share that another manager's trial holds."""
    return Lease(slot, "user bob, manager /bob, experiment B, trial 7", "B.1", 4242, "2026-01-01T00:00:00Z", limit)


Leases = Mapping[tuple[int, int], Sequence[Lease]]  # by number of the node and index of the GPU


def make_pool(sizes: Sequence[int], leases: Leases | None = None) -> NodePool:
    pool = NodePool()
    for number, size in enumerate(sizes):
        node_id = f"node-{number}"
        pool.add(node_id, "remote")
        connect(pool, node_id, [device(node_id, i, (), (leases or {}).get((number, i), ())) for i in range(size)])
    return pool


def connect(pool: NodePool, node_id: str, devices: Sequence[Device]) -> None:
    pool.connect(node_id, devices, driver_note="", hostname=node_id, version="0", seen_at=0.0)


@dataclass(frozen=True)
class Ask:
    """A job's request, with the rules that its experiment has for the nodes, by their number."""

    request: PlacementRequest
    rules: tuple[GpuRules, ...]

    def rules_for(self, node_id: str) -> GpuRules:
        return self.rules[int(node_id.rpartition("-")[2]) % len(self.rules)]

    def candidates(self, pool: NodePool) -> list[Candidate]:
        nodes = pool.capacity([node.id for node in pool.nodes()])
        return [Candidate(node, self.rules_for(node.node_id)) for node in nodes]

    def place(self, pool: NodePool) -> PlacementDecision:
        return place(self.request, self.candidates(pool))


often = settings(max_examples=2 * settings().max_examples)
sizes = st.lists(st.integers(0, 4), min_size=1, max_size=3)
all_rules = st.builds(
    GpuRules,
    max_trials_per_gpu=st.integers(1, 3),
    use_active_gpu=st.booleans(),
    gpu_indices=st.one_of(st.none(), st.sets(st.integers(0, 5), min_size=1).map(lambda found: tuple(sorted(found)))),
)
requests = st.builds(
    PlacementRequest, gpu_number=st.one_of(st.none(), st.integers(0, 5)), strategy=st.sampled_from(Strategy)
)
asks = st.builds(Ask, requests, st.lists(all_rules, min_size=1, max_size=3).map(tuple))
actions = st.lists(st.one_of(asks, st.integers(0, 30)), max_size=40)  # an ask, or "release the n-th held job"
one_gpu = st.tuples(st.sets(st.integers(0, 2), max_size=3), st.integers(1, 3)).map(
    lambda drawn: [lease(slot, drawn[1]) for slot in sorted(drawn[0])]
)
foreign_leases = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), one_gpu, max_size=6)


def play(pool: NodePool, steps: Sequence[Ask | int]) -> dict[str, Ask]:
    """Place and release; returns the asks of the jobs that hold a place at the end."""
    held: dict[str, Ask] = {}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            if held:
                job_id = list(held)[step % len(held)]
                pool.release(job_id)
                del held[job_id]
            continue
        decision = step.place(pool)
        if isinstance(decision, Placed):
            policy = step.rules_for(decision.placement.node_id).policy
            pool.reserve(f"job-{number}", "token", f"trial {number}", decision.placement, policy)
            held[f"job-{number}"] = step
        check(pool, held)
    return held


def check(pool: NodePool, held: dict[str, Ask]) -> None:
    for node in pool.capacity([node.id for node in pool.nodes()]):
        for gpu in node.gpus or ():
            check_gpu(node.node_id, gpu, held)
    for job_id, ask in held.items():
        reservation = pool.reservation(job_id)
        assert reservation is not None
        if ask.request.gpu_number is None:
            assert reservation.gpus is None
        else:
            assert reservation.gpus is not None
            assert len({share.uuid for share in reservation.gpus}) == ask.request.gpu_number


def check_gpu(node_id: str, gpu: GpuCapacity, held: dict[str, Ask]) -> None:
    slots = [holding.slot for holding in gpu.holdings]
    assert len(slots) == len(set(slots))
    ours = [holding for holding in gpu.holdings if holding.job_id in held]
    for holding in ours:
        rules = held[holding.job_id].rules_for(node_id)
        assert len(slots) <= rules.max_trials_per_gpu
        assert rules.gpu_indices is None or gpu.index in rules.gpu_indices
    if ours:  # what others allow is their business until we join them
        assert all(len(slots) <= holding.policy.max_trials_per_gpu for holding in gpu.holdings)


@pytest.mark.slow
@often
@given(sizes, foreign_leases, actions)
def test_no_gpu_is_ever_over_committed_and_what_is_released_can_be_had_again(
    node_sizes: list[int], leases: Leases, steps: list[Ask | int]
) -> None:
    pool = make_pool(node_sizes, leases)
    ids = [node.id for node in pool.nodes()]
    fresh = pool.capacity(ids)
    for job_id in play(pool, steps):
        pool.release(job_id)
    assert pool.capacity(ids) == fresh


@pytest.mark.slow
@often
@given(sizes, st.integers(1, 4), st.sampled_from(Strategy))
def test_every_gpu_is_used_before_a_job_has_to_wait(node_sizes: list[int], wanted: int, strategy: Strategy) -> None:
    largest = max(node_sizes)
    decision = Ask(PlacementRequest(largest, strategy), (GpuRules(),)).place(make_pool(node_sizes))
    assert isinstance(decision, Placed)
    assert len(decision.placement.gpus or ()) == largest
    held = play(make_pool(node_sizes), [Ask(PlacementRequest(wanted, strategy), (GpuRules(),))] * 20)
    assert len(held) == sum(size // wanted for size in node_sizes)


@pytest.mark.slow
@often
@given(sizes, foreign_leases, actions, asks, st.text(min_size=1, max_size=5))
def test_a_busy_cluster_places_what_has_room_and_says_what_waits_and_what_is_impossible(
    node_sizes: list[int], leases: Leases, steps: list[Ask | int], ask: Ask, reason: str
) -> None:
    pool = make_pool(node_sizes, leases)
    play(pool, steps)
    decision = ask.place(pool)
    assert ask.place(pool) == decision, "the same capacity gives the same place"
    empty = ask.place(make_pool(node_sizes))
    assert not isinstance(empty, Waiting)
    assert isinstance(empty, Impossible) == isinstance(decision, Impossible)
    if not isinstance(decision, Placed):
        assert decision.reason
    if isinstance(decision, Waiting):
        assert_full(pool, ask)
    for each in (ask, SMALL_ASK):
        if each.request.gpu_number:
            assert_spread_or_packed(pool, each)
    for node in pool.nodes():
        pool.hold(node.id, reason)
    assert isinstance(ask.place(pool), Impossible if isinstance(decision, Impossible) else Waiting)
    for node in pool.nodes():
        pool.unhold(node.id)
    assert ask.place(pool) == decision


SMALL_ASK = Ask(PlacementRequest(1), (GpuRules(max_trials_per_gpu=3, use_active_gpu=True),))
"""What most nodes have room for."""


def assert_full(pool: NodePool, ask: Ask) -> None:
    """Every node that could run it is too full."""
    for candidate in ask.candidates(pool):
        rules, gpus = candidate.rules, candidate.node.gpus or ()
        if set(rules.gpu_indices or ()) - {gpu.index for gpu in gpus}:
            continue  # an index that the node does not have: it could never run the job
        roomy = [
            gpu
            for gpu in gpus
            if (rules.gpu_indices is None or gpu.index in rules.gpu_indices)
            and (
                not gpu.holdings
                or len(gpu.holdings)
                < min(rules.max_trials_per_gpu, *(held.policy.max_trials_per_gpu for held in gpu.holdings))
            )
        ]
        assert len(roomy) < (ask.request.gpu_number or 0)


def assert_spread_or_packed(pool: NodePool, ask: Ask) -> None:
    """Spreading takes the emptiest node, and packing the fullest."""
    places = {}
    for strategy in Strategy:
        decision = replace(ask, request=replace(ask.request, strategy=strategy)).place(pool)
        if isinstance(decision, Placed):
            chosen = next(c for c in ask.candidates(pool) if c.node.node_id == decision.placement.node_id)
            indices = chosen.rules.gpu_indices
            gpus = [gpu for gpu in chosen.node.gpus or () if indices is None or gpu.index in indices]
            places[strategy] = sum(len(gpu.holdings) for gpu in gpus) / len(gpus)
    assert len(places) in {0, 2}
    if places:
        assert places[Strategy.SPREAD] <= places[Strategy.PACK]


@pytest.mark.slow
@often
@given(st.integers(1, 4), st.sets(st.integers(0, 3)), st.booleans(), st.integers(1, 4))
def test_gpus_of_others_are_left_alone_unless_active_ones_are_asked_for(
    size: int, busy: set[int], use_active_gpu: bool, wanted: int
) -> None:
    pool = make_pool([size])
    stranger = [DeviceProcess(pid=4242, memory_mb=100)]
    connect(pool, "node-0", [device("node-0", i, stranger if i in busy else []) for i in range(size)])
    decision = Ask(PlacementRequest(gpu_number=wanted), (GpuRules(use_active_gpu=use_active_gpu),)).place(pool)
    free = size if use_active_gpu else size - len(busy & set(range(size)))
    if wanted > size:
        assert isinstance(decision, Impossible)
    elif wanted > free:
        assert isinstance(decision, Waiting)
        assert "4242" in decision.reason
    else:
        assert isinstance(decision, Placed)


@pytest.mark.slow
@often
@given(st.integers(1, 6), st.integers(0, 30), st.sampled_from([None, 0, 1]), st.data())
def test_jobs_that_are_spread_do_not_all_follow_the_first_machine(
    count: int, jobs: int, gpu_number: int | None, data: st.DataObject
) -> None:
    """Machines arrive in any order, some of them never; waiting jobs are looked at again after each."""
    pool = NodePool()
    names = [f"node-{number}" for number in range(count)]
    for name in names:
        pool.add(name, "remote", arriving=True)
    ask = Ask(PlacementRequest(gpu_number), (GpuRules(max_trials_per_gpu=30),))
    placed: dict[str, str] = {}
    fails = data.draw(st.sets(st.sampled_from(names), max_size=count - 1))
    for name in data.draw(st.permutations(names)):
        assert_fair(placed, count, jobs)
        if name in fails:
            data.draw(st.sampled_from([fail, end_arrival]))(pool, name)
        else:
            connect(pool, name, [device(name, index) for index in range(data.draw(st.integers(1, 4)))])
        place_all(pool, ask, jobs, placed)
    assert len(placed) == jobs
    if not fails and gpu_number != 1:
        assert_fair(placed, count, jobs)


def fail(pool: NodePool, node_id: str) -> None:
    pool.set_status(node_id, NodeStatus.FAILED, "it does not answer")


def end_arrival(pool: NodePool, node_id: str) -> None:
    pool.end_arrival(node_id)


def place_all(pool: NodePool, ask: Ask, jobs: int, placed: dict[str, str]) -> None:
    """Place what waits, in its order; `placed` says where each job is."""
    for number in range(jobs):
        decision = None if f"job-{number}" in placed else ask.place(pool)
        if isinstance(decision, Placed):
            node_id = decision.placement.node_id
            pool.reserve(f"job-{number}", "t", "trial", decision.placement, ask.rules_for(node_id).policy)
            placed[f"job-{number}"] = node_id


def assert_fair(placed: Mapping[str, str], count: int, jobs: int) -> None:
    most = max(Counter(placed.values()).values(), default=0)
    assert most <= -(-jobs // count) + 1, placed


NOW = 1_000_000.0
LONG_AGO = NOW - HOLD_AFTER_SECONDS


def demand_of(pool: NodePool, ask: Ask, name: str, since: float) -> GpuDemand:
    rules = {node.id: ask.rules_for(node.id) for node in pool.nodes()}
    return GpuDemand(name, ask.request.gpu_number or 1, since, rules)


def hold(pool: NodePool, demands: Sequence[GpuDemand]) -> dict[str, dict[str, GpuDemand]]:
    return hold_gpus(demands, {node.node_id: node for node in pool.capacity([n.id for n in pool.nodes()])}, NOW)


def place_beside(pool: NodePool, ask: Ask, demands: Sequence[GpuDemand]) -> PlacementDecision:
    """Place a newcomer, which has waited less than those that wait."""
    held = hold(pool, demands)
    return place(
        ask.request,
        [replace(each, held=dict.fromkeys(held.get(each.node.node_id, {}), "held")) for each in ask.candidates(pool)],
    )


gpu_requests = st.builds(PlacementRequest, gpu_number=st.integers(1, 4), strategy=st.sampled_from(Strategy))
gpu_asks = st.builds(Ask, gpu_requests, st.lists(all_rules, min_size=1, max_size=3).map(tuple))


@pytest.mark.thorough
@often
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(gpu_asks, max_size=12),
    st.lists(gpu_asks, min_size=1, max_size=4),
    st.builds(GpuRules, max_trials_per_gpu=st.integers(1, 3)),
    st.data(),
)
def test_a_trial_that_has_waited_long_is_placed_when_the_jobs_of_then_have_ended(
    node_sizes: list[int], busy: list[Ask], newcomers: list[Ask], rules: GpuRules, data: st.DataObject
) -> None:
    """However many newcomers there are, and even if they are always asked first."""
    pool = make_pool(node_sizes)
    one_gpu = Ask(PlacementRequest(1), (GpuRules(),))
    running = list(play(pool, [*busy, *[one_gpu] * sum(node_sizes)]))
    wanted = data.draw(st.integers(1, max(node_sizes)))
    large = Ask(PlacementRequest(wanted, data.draw(st.sampled_from(Strategy))), (rules,))
    assume(isinstance(large.place(pool), Waiting))
    demand = demand_of(pool, large, "large", LONG_AGO)
    arrived: list[str] = []
    for ended in data.draw(st.permutations(running)):
        pool.release(ended)
        if arrived and data.draw(st.booleans()):
            pool.release(arrived.pop(0))
        for number, ask in enumerate(newcomers):
            demand = replace(demand, node_id=next(iter(hold(pool, [demand])), None))
            decision = place_beside(pool, ask, [demand])
            if isinstance(decision, Placed):
                arrived.append(f"newcomer {number} after {ended}")
                policy = ask.rules_for(decision.placement.node_id).policy
                pool.reserve(arrived[-1], "t", "newcomer", decision.placement, policy)
    assert isinstance(large.place(pool), Placed)


def test_what_is_held_does_not_move_to_another_node_that_lacks_as_little() -> None:
    pool = make_pool([3, 3])
    one_gpu, large = Ask(PlacementRequest(1), (GpuRules(),)), Ask(PlacementRequest(3), (GpuRules(),))
    play(pool, [one_gpu] * 6)
    demand = demand_of(pool, large, "large", LONG_AGO)
    assert list(hold(pool, [demand])) == ["node-0"]
    assert list(hold(pool, [replace(demand, node_id="node-1")])) == ["node-1"]
    assert list(hold(pool, [replace(demand, node_id="gone")])) == ["node-0"]


@pytest.mark.slow
@often
@given(sizes, foreign_leases, actions, st.lists(st.tuples(gpu_asks, st.integers(0, 200)), min_size=1, max_size=4))
def test_what_is_held_is_what_each_trial_needs_and_the_oldest_chooses_first(
    node_sizes: list[int], leases: Leases, steps: list[Ask | int], waiting: list[tuple[Ask, int]]
) -> None:
    pool = make_pool(node_sizes, leases)
    play(pool, steps)
    demands = [demand_of(pool, ask, f"trial {n}", NOW - seconds) for n, (ask, seconds) in enumerate(waiting)]
    held = hold(pool, demands)
    by_name: dict[str, list[tuple[str, str]]] = {}
    for node_id, gpus in held.items():
        for uuid, demand in gpus.items():
            by_name.setdefault(demand.holder, []).append((node_id, uuid))
    for demand in demands:
        gpus = by_name.get(demand.holder, [])
        assert len(gpus) in {0, demand.gpu_number}
        assert len({node_id for node_id, _ in gpus}) <= 1
        assert not gpus or NOW - demand.since >= HOLD_AFTER_SECONDS
        for node_id, uuid in gpus:
            indices = demand.rules[node_id].gpu_indices
            assert indices is None or int(uuid.rpartition("-")[2]) in indices
    oldest = min(demands, key=lambda demand: demand.since)
    alone = hold(pool, [oldest])
    assert {uuid for gpus in alone.values() for uuid in gpus} == {uuid for _, uuid in by_name.get(oldest.holder, [])}


@pytest.mark.slow
@often
@given(
    sizes, foreign_leases, actions, asks, st.sampled_from([None, 0]), st.lists(gpu_asks, max_size=3), st.integers(1, 59)
)
def test_trials_that_have_not_waited_long_and_trials_without_gpus_are_not_in_each_others_way(
    node_sizes: list[int],
    leases: Leases,
    steps: list[Ask | int],
    ask: Ask,
    gpu_number: int | None,
    waiting: list[Ask],
    seconds: int,
) -> None:
    pool = make_pool(node_sizes, leases)
    play(pool, steps)
    recent = [demand_of(pool, each, f"trial {n}", NOW - seconds) for n, each in enumerate(waiting)]
    assert hold(pool, recent) == {}
    assert place_beside(pool, ask, recent) == ask.place(pool)
    old = [replace(demand, since=LONG_AGO) for demand in recent]
    assert isinstance(place_beside(pool, Ask(PlacementRequest(gpu_number), (GpuRules(),)), old), Placed)


@often
@given(st.integers(2, 4), st.integers(1, 4))
def test_nothing_is_held_beside_a_gpu_that_others_use(size: int, wanted: int) -> None:
    pool = make_pool([size])
    connect(
        pool, "node-0", [device("node-0", i, [DeviceProcess(pid=1, memory_mb=1)] if i else []) for i in range(size)]
    )
    held = hold(pool, [demand_of(pool, Ask(PlacementRequest(wanted), (GpuRules(),)), "trial 1", LONG_AGO)])
    assert held == {} if wanted > 1 else len(held["node-0"]) == 1
