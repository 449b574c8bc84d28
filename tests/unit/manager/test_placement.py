"""What placement says and which GPUs it takes; its properties are in tests/property/test_placement.py."""

import pytest

from proctor.manager.placement import Impossible, Placed, PlacementRequest, Waiting, place
from proctor.training_services.base import NodePlacement
from proctor.training_services.capacity import ForeignProcess, GpuCapacity, Holding, NodeCapacity, SharingPolicy
from proctor.trial_keeper.protocol import GpuSlot


def held_by(trial: int, *, slot: int = 0, limit: int = 1) -> Holding:
    return Holding(f"t{trial}.1", slot, f"trial {trial} of experiment Ab3dE5f7", SharingPolicy(limit))


def gpu(index: int, *holdings: Holding, foreign: tuple[int, ...] = ()) -> GpuCapacity:
    processes = tuple(ForeignProcess(pid, 100) for pid in foreign)
    return GpuCapacity(index, f"GPU-{index}", holdings=holdings, foreign=processes)


def local(*gpus: GpuCapacity, jobs: int = 0) -> NodeCapacity:
    return NodeCapacity("local", gpus, jobs=jobs)


def slots(decision: object) -> list[tuple[str, int]]:
    assert isinstance(decision, Placed)
    return [(share.uuid, share.slot) for share in decision.placement.gpus or ()]


def test_without_gpu_number_gpus_are_not_managed() -> None:
    assert place(PlacementRequest(), [local(gpu(0))]) == Placed(NodePlacement("local", None))


def test_with_gpu_number_zero_no_gpu_is_seen() -> None:
    assert place(PlacementRequest(gpu_number=0), [local()]) == Placed(NodePlacement("local", ()))


def test_a_trial_that_waits_for_gpus_is_told_who_holds_them() -> None:
    decision = place(PlacementRequest(gpu_number=2), [local(gpu(0, held_by(17)), gpu(1))])
    assert decision == Waiting("needs 2 GPUs, node local has 1 free (GPU 0 held by trial 17 of experiment Ab3dE5f7)")


def test_a_gpu_on_which_others_work_is_refused_with_their_pid() -> None:
    decision = place(PlacementRequest(gpu_number=1), [local(gpu(0, foreign=(4242,)))])
    assert isinstance(decision, Waiting)
    assert "GPU 0 busy with process 4242 of others, useActiveGpu is false" in decision.reason
    assert slots(place(PlacementRequest(gpu_number=1, use_active_gpu=True), [local(gpu(0, foreign=(4242,)))]))


def test_more_gpus_than_any_node_has_is_impossible() -> None:
    decision = place(PlacementRequest(gpu_number=3), [local(gpu(0), gpu(1))])
    assert decision == Impossible("needs 3 GPUs, node local has 2 GPUs")


def test_a_node_without_gpus_says_why_it_has_none() -> None:
    node = NodeCapacity("local", (), driver_note="no NVIDIA driver is installed")
    assert place(PlacementRequest(gpu_number=1), [node]) == Impossible(
        "needs 1 GPU, node local has no GPU (no NVIDIA driver is installed)"
    )


def test_an_index_that_no_gpu_has_is_impossible() -> None:
    request = PlacementRequest(gpu_number=1, gpu_indices=(0, 5, 7))
    assert place(request, [local(gpu(0))]) == Impossible("gpuIndices names GPUs 5, 7, node local has 1 GPU")


def test_fewer_allowed_gpus_than_asked_for_is_impossible() -> None:
    request = PlacementRequest(gpu_number=2, gpu_indices=(1,))
    assert place(request, [local(gpu(0), gpu(1))]) == Impossible(
        "needs 2 GPUs, node local has 2 GPUs, of which gpuIndices allows 1"
    )


def test_only_allowed_gpus_are_taken() -> None:
    assert slots(place(PlacementRequest(gpu_number=1, gpu_indices=(1,)), [local(gpu(0), gpu(1))])) == [("GPU-1", 0)]


def test_the_least_loaded_gpu_is_taken_first_and_its_lowest_free_share() -> None:
    crowded = gpu(0, held_by(1, slot=0, limit=3), held_by(2, slot=2, limit=3))
    request = PlacementRequest(gpu_number=1, max_trials_per_gpu=3)
    assert slots(place(request, [local(crowded, gpu(1, held_by(3, limit=3)))])) == [("GPU-1", 1)]
    assert slots(place(request, [local(crowded)])) == [("GPU-0", 1)]


@pytest.mark.parametrize(("holder", "asker"), [(1, 2), (2, 1), (1, 1)])
def test_a_gpu_that_one_side_wants_for_itself_is_not_shared(holder: int, asker: int) -> None:
    request = PlacementRequest(gpu_number=1, max_trials_per_gpu=asker)
    assert isinstance(place(request, [local(gpu(0, held_by(1, limit=holder)))]), Waiting)


def test_a_gpu_is_shared_where_both_sides_allow_it() -> None:
    request = PlacementRequest(gpu_number=1, max_trials_per_gpu=2)
    assert slots(place(request, [local(gpu(0, held_by(1, limit=4)))])) == [("GPU-0", 1)]


def test_the_least_loaded_node_gets_the_job_and_the_first_named_one_among_equals() -> None:
    busy = NodeCapacity("busy", (gpu(0, held_by(1)), gpu(1)), jobs=1)
    idle = NodeCapacity("idle", (gpu(2), gpu(3)))
    also = NodeCapacity("also", (gpu(4), gpu(5)))
    for request in (PlacementRequest(gpu_number=1), PlacementRequest()):
        decision = place(request, [busy, idle, also])
        assert isinstance(decision, Placed)
        assert decision.placement.node_id == "idle"


def test_a_node_that_has_not_told_what_it_has_is_waited_for() -> None:
    unknown = NodeCapacity("gpu-3", None, ready=False, reason="node gpu-3 is connecting")
    assert place(PlacementRequest(gpu_number=8), [local(gpu(0)), unknown]) == Waiting("node gpu-3 is connecting")


def test_a_node_that_is_away_gets_nothing() -> None:
    away = NodeCapacity("local", (gpu(0),), ready=False, reason="node local is silent: no word for 15 s")
    assert place(PlacementRequest(), [away]) == Waiting("node local is silent: no word for 15 s")


def test_an_experiment_without_nodes_can_run_nothing() -> None:
    assert isinstance(place(PlacementRequest(), []), Impossible)


def test_the_share_is_what_the_keeper_is_told() -> None:
    decision = place(PlacementRequest(gpu_number=1), [local(gpu(0))])
    assert decision == Placed(NodePlacement("local", (GpuSlot("GPU-0", 0),)))
