"""Properties of placement together with the pool's reservations."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.placement import Impossible, Placed, PlacementRequest, Waiting, place
from proctor.training_services.nodes import NodePool
from proctor.trial_keeper.protocol import Device, DeviceProcess


def device(node_id: str, index: int, processes: Sequence[DeviceProcess] = ()) -> Device:
    return Device(index, f"GPU-{node_id}-{index}", "Fake", 80_000, 0, 0, list(processes))


def make_pool(sizes: Sequence[int]) -> NodePool:
    pool = NodePool()
    for number, size in enumerate(sizes):
        node_id = f"node-{number}"
        pool.add(node_id, "remote")
        connect(pool, node_id, [device(node_id, index) for index in range(size)])
    return pool


def connect(pool: NodePool, node_id: str, devices: Sequence[Device]) -> None:
    pool.connect(node_id, devices, driver_note="", hostname=node_id, version="0", seen_at=0.0)


def node_ids(pool: NodePool) -> list[str]:
    return [node.id for node in pool.nodes()]


sizes = st.lists(st.integers(0, 4), min_size=1, max_size=3)
requests = st.builds(
    PlacementRequest,
    gpu_number=st.one_of(st.none(), st.integers(0, 5)),
    max_trials_per_gpu=st.integers(1, 3),
    use_active_gpu=st.booleans(),
    gpu_indices=st.one_of(st.none(), st.sets(st.integers(0, 5), min_size=1).map(lambda found: tuple(sorted(found)))),
)
actions = st.lists(st.one_of(requests, st.integers(0, 30)), max_size=40)  # a request, or "release the n-th held job"


def play(pool: NodePool, steps: Sequence[PlacementRequest | int]) -> dict[str, PlacementRequest]:
    """Place and release; returns the requests of the jobs that hold a place at the end."""
    held: dict[str, PlacementRequest] = {}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            if held:
                job_id = list(held)[step % len(held)]
                pool.release(job_id)
                del held[job_id]
            continue
        decision = place(step, pool.capacity(node_ids(pool)))
        if isinstance(decision, Placed):
            pool.reserve(f"job-{number}", "token", f"trial {number}", decision.placement, step.policy)
            held[f"job-{number}"] = step
        check(pool, held)
    return held


def check(pool: NodePool, held: dict[str, PlacementRequest]) -> None:
    for node in pool.capacity(node_ids(pool)):
        for gpu in node.gpus or ():
            slots = [holding.slot for holding in gpu.holdings]
            assert len(slots) == len(set(slots))
            for holding in gpu.holdings:
                request = held[holding.job_id]
                assert len(slots) <= request.max_trials_per_gpu
                assert 0 <= holding.slot < request.max_trials_per_gpu
                assert request.gpu_indices is None or gpu.index in request.gpu_indices
    for job_id, request in held.items():
        reservation = pool.reservation(job_id)
        assert reservation is not None
        if request.gpu_number is None:
            assert reservation.gpus is None
        else:
            assert reservation.gpus is not None
            assert len({share.uuid for share in reservation.gpus}) == request.gpu_number


@given(sizes, actions)
def test_no_gpu_is_ever_over_committed_and_every_job_gets_what_it_asked_for(
    node_sizes: list[int], steps: list[PlacementRequest | int]
) -> None:
    play(make_pool(node_sizes), steps)


@given(sizes, actions)
def test_what_is_released_can_be_had_again(node_sizes: list[int], steps: list[PlacementRequest | int]) -> None:
    pool = make_pool(node_sizes)
    fresh = pool.capacity(node_ids(pool))
    for job_id in play(pool, steps):
        pool.release(job_id)
    assert pool.capacity(node_ids(pool)) == fresh


@given(sizes)
def test_all_gpus_of_a_node_can_be_asked_for(node_sizes: list[int]) -> None:
    pool = make_pool(node_sizes)
    largest = max(node_sizes)
    decision = place(PlacementRequest(gpu_number=largest), pool.capacity(node_ids(pool)))
    assert isinstance(decision, Placed)
    assert len(decision.placement.gpus or ()) == largest


@given(sizes, actions, requests)
def test_impossible_is_said_exactly_when_an_empty_cluster_could_not_run_it(
    node_sizes: list[int], steps: list[PlacementRequest | int], request: PlacementRequest
) -> None:
    pool = make_pool(node_sizes)
    empty = place(request, pool.capacity(node_ids(pool)))
    play(pool, steps)
    busy = place(request, pool.capacity(node_ids(pool)))
    assert not isinstance(empty, Waiting)
    assert isinstance(empty, Impossible) == isinstance(busy, Impossible)
    if not isinstance(busy, Placed):
        assert busy.reason


@given(sizes, actions, requests)
def test_the_same_capacity_gives_the_same_place(
    node_sizes: list[int], steps: list[PlacementRequest | int], request: PlacementRequest
) -> None:
    pool = make_pool(node_sizes)
    play(pool, steps)
    capacity = pool.capacity(node_ids(pool))
    assert place(request, capacity) == place(request, capacity)


@given(st.integers(1, 4), st.sets(st.integers(0, 3)), st.booleans(), st.integers(1, 4))
def test_gpus_of_others_are_left_alone_unless_active_ones_are_asked_for(
    size: int, busy: set[int], use_active_gpu: bool, wanted: int
) -> None:
    pool = make_pool([size])
    stranger = [DeviceProcess(pid=4242, memory_mb=100)]
    connect(pool, "node-0", [device("node-0", i, stranger if i in busy else []) for i in range(size)])
    request = PlacementRequest(gpu_number=wanted, use_active_gpu=use_active_gpu)
    decision = place(request, pool.capacity(["node-0"]))
    free = size if use_active_gpu else size - len(busy & set(range(size)))
    if wanted > size:
        assert isinstance(decision, Impossible)
    elif wanted > free:
        assert isinstance(decision, Waiting)
        assert "4242" in decision.reason
    else:
        assert isinstance(decision, Placed)
