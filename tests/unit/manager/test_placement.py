"""What placement says and which GPUs it takes; its properties are in tests/property/test_placement.py."""

import pytest

from proctor.manager.placement import (
    Impossible,
    Placed,
    PlacementRequest,
    Waiting,
    exclusions,
    place,
    preempted_jobs,
)
from proctor.training_services.base import NodePlacement
from proctor.training_services.capacity import (
    Candidate,
    ForeignProcess,
    GpuCapacity,
    GpuDemand,
    GpuRules,
    Holding,
    NodeCapacity,
    Preemptible,
    SharingPolicy,
    Standing,
    Strategy,
)
from proctor.trial_keeper.protocol import GpuSlot


def held_by(trial: int, *, slot: int = 0, limit: int = 1) -> Holding:
    return Holding(f"t{trial}.1", slot, f"trial {trial} of experiment Ab3dE5f7", SharingPolicy(limit))


def gpu(index: int, *holdings: Holding, foreign: tuple[int, ...] = ()) -> GpuCapacity:
    processes = tuple(ForeignProcess(pid, 100) for pid in foreign)
    return GpuCapacity(index, f"GPU-{index}", holdings=holdings, foreign=processes)


def local(*gpus: GpuCapacity, rules: GpuRules | None = None) -> Candidate:
    return Candidate(NodeCapacity("local", gpus), rules or GpuRules())


def node(node_id: str, *gpus: GpuCapacity, jobs: int = 0, rules: GpuRules | None = None) -> Candidate:
    return Candidate(NodeCapacity(node_id, gpus, jobs=jobs), rules or GpuRules())


def arriving(
    node_id: str, *gpus: GpuCapacity, jobs: int = 0, known: bool = False, rules: GpuRules | None = None
) -> Candidate:
    """A node that is being connected; its GPUs are `known` if it was here before."""
    found = gpus if known else None
    reason = f"node {node_id} is connecting: it is being connected"
    return Candidate(NodeCapacity(node_id, found, False, reason, jobs, arriving=True), rules or GpuRules())


def node_of(decision: object) -> str:
    assert isinstance(decision, Placed)
    return decision.placement.node_id


def slots(decision: object) -> list[tuple[str, int]]:
    assert isinstance(decision, Placed)
    return [(share.uuid, share.slot) for share in decision.placement.gpus or ()]


BARE = Candidate(NodeCapacity("local", (), driver_note="no NVIDIA driver is installed"))
UNKNOWN = Candidate(NodeCapacity("gpu-3", None, ready=False, reason="node gpu-3 is connecting"))
AWAY = Candidate(NodeCapacity("local", (gpu(0),), ready=False, reason="node local is silent: no word for 15 s"))
DECISIONS = {
    "without gpuNumber GPUs are not managed": (None, [local(gpu(0))], Placed(NodePlacement("local", None))),
    "with 0 no GPU is seen": (0, [local()], Placed(NodePlacement("local", ()))),
    "the share is what the keeper receives": (
        1,
        [local(gpu(0))],
        Placed(NodePlacement("local", (GpuSlot("GPU-0", 0),))),
    ),
    "only allowed GPUs are taken": (
        1,
        [local(gpu(0), gpu(1), rules=GpuRules(gpu_indices=(1,)))],
        Placed(NodePlacement("local", (GpuSlot("GPU-1", 0),))),
    ),
    "a trial that waits says who holds its GPUs": (
        2,
        [local(gpu(0, held_by(17)), gpu(1))],
        Waiting("needs 2 GPUs, node local has 1 free (GPU 0 held by trial 17 of experiment Ab3dE5f7)"),
    ),
    "a node that has not told what it has is waited for": (
        8,
        [local(gpu(0)), UNKNOWN],
        Waiting("node gpu-3 is connecting"),
    ),
    "a node that is away gets nothing": (None, [AWAY], Waiting("node local is silent: no word for 15 s")),
    "more GPUs than any node has": (
        3,
        [local(gpu(0), gpu(1)), node("gpu-3", gpu(2))],
        Impossible("needs 3 GPUs, node local has 2 GPUs; needs 3 GPUs, node gpu-3 has 1 GPU"),
    ),
    "a node without GPUs says why it has none": (
        1,
        [BARE],
        Impossible("needs 1 GPU, node local has no GPU (no NVIDIA driver is installed)"),
    ),
    "an index that no GPU has": (
        1,
        [local(gpu(0), rules=GpuRules(gpu_indices=(0, 5, 7)))],
        Impossible("gpuIndices names GPUs 5, 7, node local has 1 GPU"),
    ),
    "fewer allowed GPUs than asked for": (
        2,
        [local(gpu(0), gpu(1), rules=GpuRules(gpu_indices=(1,)))],
        Impossible("needs 2 GPUs, node local has 2 GPUs, of which gpuIndices allows 1"),
    ),
}


@pytest.mark.parametrize(("number", "candidates", "decision"), DECISIONS.values(), ids=DECISIONS)
def test_a_decision_says_where_or_what_is_waited_for_or_why_never(
    number: int | None, candidates: list[Candidate], decision: object
) -> None:
    assert place(PlacementRequest(gpu_number=number), candidates) == decision


def test_a_gpu_on_which_others_work_is_refused_with_their_pid() -> None:
    decision = place(PlacementRequest(gpu_number=1), [local(gpu(0, foreign=(4242,)))])
    assert isinstance(decision, Waiting)
    assert "GPU 0 in use by another process (pid 4242), useActiveGpu is false" in decision.reason
    active = GpuRules(use_active_gpu=True)
    assert slots(place(PlacementRequest(gpu_number=1), [local(gpu(0, foreign=(4242,)), rules=active)]))


def test_every_node_has_its_own_rules() -> None:
    held = gpu(0, held_by(1, limit=2))
    alone, sharing = node("alone", held), node("sharing", held, rules=GpuRules(max_trials_per_gpu=2))
    decision = place(PlacementRequest(gpu_number=1), [alone, sharing])
    assert decision == Placed(NodePlacement("sharing", (GpuSlot("GPU-0", 1),)))


def test_the_least_loaded_gpu_is_taken_first_and_its_lowest_free_share() -> None:
    crowded = gpu(0, held_by(1, slot=0, limit=3), held_by(2, slot=2, limit=3))
    rules, request = GpuRules(max_trials_per_gpu=3), PlacementRequest(gpu_number=1)
    assert slots(place(request, [local(crowded, gpu(1, held_by(3, limit=3)), rules=rules)])) == [("GPU-1", 1)]
    assert slots(place(request, [local(crowded, rules=rules)])) == [("GPU-0", 1)]


def test_packing_takes_gpus_first_that_are_shared_already() -> None:
    rules, request = GpuRules(max_trials_per_gpu=2), PlacementRequest(gpu_number=1, strategy=Strategy.PACK)
    full = gpu(0, held_by(1, limit=2), held_by(2, slot=1, limit=2))
    half = gpu(2, held_by(3, limit=2))
    assert slots(place(request, [local(full, gpu(1), half, gpu(3), rules=rules)])) == [("GPU-2", 1)]
    assert slots(place(request, [local(full, gpu(1), gpu(3), rules=rules)])) == [("GPU-1", 0)]


@pytest.mark.parametrize(("holder", "asker"), [(1, 2), (2, 1), (1, 1)])
def test_a_gpu_that_one_side_wants_for_itself_is_not_shared(holder: int, asker: int) -> None:
    candidate = local(gpu(0, held_by(1, limit=holder)), rules=GpuRules(max_trials_per_gpu=asker))
    assert isinstance(place(PlacementRequest(gpu_number=1), [candidate]), Waiting)


def test_a_gpu_is_shared_where_both_sides_allow_it() -> None:
    candidate = local(gpu(0, held_by(1, limit=4)), rules=GpuRules(max_trials_per_gpu=2))
    assert slots(place(PlacementRequest(gpu_number=1), [candidate])) == [("GPU-0", 1)]


def test_the_least_loaded_node_gets_the_job_and_the_first_named_one_among_equals() -> None:
    candidates = [
        node("busy", gpu(0, held_by(1)), gpu(1), jobs=1),
        node("idle", gpu(2), gpu(3)),
        node("also", gpu(4), gpu(5)),
    ]
    for request in (PlacementRequest(gpu_number=1), PlacementRequest()):
        assert node_of(place(request, candidates)) == "idle"


def test_packing_gives_the_job_to_the_fullest_node_that_has_room() -> None:
    candidates = [
        node("idle", gpu(0), gpu(1)),
        node("full", gpu(2, held_by(1)), gpu(3, held_by(2)), jobs=2),
        node("half", gpu(4, held_by(3)), gpu(5), jobs=1),
        node("also", gpu(6, held_by(4)), gpu(7), jobs=1),
    ]
    for number, expected in ((1, "half"), (2, "idle")):
        assert node_of(place(PlacementRequest(number, Strategy.PACK), candidates)) == expected


def test_jobs_without_gpus_are_spread_even_when_packing() -> None:
    candidates = [node("busy", jobs=1), node("idle")]
    for number in (None, 0):
        assert node_of(place(PlacementRequest(number, Strategy.PACK), candidates)) == "idle"


def test_an_experiment_without_nodes_can_run_nothing() -> None:
    assert isinstance(place(PlacementRequest(), []), Impossible)


@pytest.mark.parametrize("number", [None, 0, 1])
def test_only_the_first_job_goes_to_the_only_machine_that_is_there_yet(number: int | None) -> None:
    request = PlacementRequest(gpu_number=number)
    others = [arriving("m2"), arriving("m3")]
    assert node_of(place(request, [node("m1", gpu(0), gpu(1)), *others])) == "m1"
    busy = node("m1", gpu(0, held_by(1)), gpu(1), jobs=1)
    assert place(request, [busy, *others]) == Waiting("node m2 is being connected")
    assert node_of(place(request, [busy, others[0], node("m3", gpu(2), gpu(3))])) == "m3"
    assert place(request, [busy, node("m2", gpu(2, held_by(2)), gpu(3), jobs=1), others[1]]) == Waiting(
        "node m3 is being connected"
    )


@pytest.mark.parametrize("number", [None, 0, 1])
def test_packing_waits_for_no_machine_that_is_being_connected(number: int | None) -> None:
    candidates = [node("m1", gpu(0, held_by(1)), gpu(1), jobs=1), arriving("m2")]
    assert node_of(place(PlacementRequest(number, Strategy.PACK), candidates)) == "m1"


def test_a_machine_that_is_being_connected_and_has_jobs_already_is_waited_for_only_while_it_has_fewer() -> None:
    busy = node("m1", jobs=2)
    assert place(PlacementRequest(), [busy, arriving("m2", jobs=1)]) == Waiting("node m2 is being connected")
    assert node_of(place(PlacementRequest(), [busy, arriving("m2", jobs=2)])) == "m1"


def test_a_machine_whose_gpus_are_not_known_yet_counts_as_empty_unless_it_has_jobs() -> None:
    request = PlacementRequest(gpu_number=1)
    busy = node("m1", gpu(0, held_by(1)), gpu(1), jobs=1)
    assert isinstance(place(request, [busy, arriving("m2")]), Waiting)
    assert node_of(place(request, [busy, arriving("m2", jobs=1)])) == "m1"


def test_a_machine_that_could_not_take_the_job_is_not_waited_for() -> None:
    request = PlacementRequest(gpu_number=1)
    busy = node("m1", gpu(0, held_by(1)), gpu(1), jobs=1)
    assert isinstance(place(request, [busy, arriving("m2", gpu(2), known=True)]), Waiting)
    assert node_of(place(request, [busy, arriving("m2", gpu(2, foreign=(7,)), known=True)])) == "m1"
    assert node_of(place(request, [busy, arriving("m2", known=True)])) == "m1"


def test_a_node_that_can_never_run_the_jobs_while_another_one_can_is_excluded_with_the_reason() -> None:
    bad = node("m1", gpu(0), gpu(1), rules=GpuRules(gpu_indices=(7,)))
    good, unknown = node("m2", gpu(2), gpu(3)), arriving("m3", rules=GpuRules(gpu_indices=(7,)))
    why = {"m1": "gpuIndices names GPU 7, node m1 has 2 GPUs"}
    assert exclusions(PlacementRequest(gpu_number=1), [bad, good, unknown]) == why
    assert exclusions(PlacementRequest(gpu_number=1), [good, unknown]) == {}
    assert exclusions(PlacementRequest(gpu_number=1), [bad, unknown]) == {}
    assert exclusions(PlacementRequest(gpu_number=3), [bad, good]) == {}
    assert exclusions(PlacementRequest(gpu_number=0), [bad, good]) == {}


@pytest.mark.parametrize(
    ("jobs", "wanted", "stopped"),
    [
        # Jobs are (priority, saved at, GPUs).
        ({"a": (1, 90.0, [0]), "b": (0, 10.0, [1])}, 1, {"b"}),  # the lower priority, whatever is lost
        ({"a": (0, 90.0, [0]), "b": (0, 90.0, [1]), "c": (0, 10.0, [2, 3])}, 2, {"c"}),  # frees more of what is needed
        ({"a": (0, 90.0, [0, 1]), "b": (0, 10.0, [2])}, 1, {"b"}),  # holds fewer others
        ({"a": (0, 10.0, [0]), "b": (0, 90.0, [1])}, 1, {"b"}),  # loses less
        ({"a": (0, 10.0, [0]), "b": (1, 90.0, [1]), "c": (2, 50.0, [2, 3])}, 3, {"a", "c"}),  # b is not needed
        ({"a": (0, 90.0, [0]), "b": (0, 10.0, [1]), "c": (2, 50.0, [2, 3])}, 3, {"a", "c"}),  # b would lose more
    ],
)
def test_who_is_preempted_first(jobs: dict[str, tuple[int, float, list[int]]], wanted: int, stopped: set[str]) -> None:
    holdings = {
        index: Holding(name, 0, f"trial {name}", preemptible=Preemptible(priority, saved_at))
        for name, (priority, saved_at, indices) in jobs.items()
        for index in indices
    }
    machine = NodeCapacity("m1", tuple(gpu(index, holding) for index, holding in sorted(holdings.items())))
    demand = GpuDemand("trial 0", wanted, 0.0, {"m1": GpuRules()}, standing=Standing("high", 5))
    assert preempted_jobs([demand], {"m1": machine}, 0.0, Standing("low", 0)).keys() == stopped
