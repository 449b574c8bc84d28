"""The pool: nodes, capacity, reservations, and who is notified of changes."""

import asyncio
from collections.abc import Sequence

import pytest

from proctor.training_services.base import NodePlacement
from proctor.training_services.capacity import SharingPolicy
from proctor.training_services.errors import ReservationRefused, UnknownNode
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import Device, DeviceProcess, GpuSlot, Lease

SHARE = NodePlacement("local", (GpuSlot("GPU-0", 0),))


def device(*processes: DeviceProcess, used_mb: int = 0, leases: Sequence[Lease] = ()) -> Device:
    return Device(0, "GPU-0", "Fake", 80_000, used_mb, 0, list(processes), list(leases))


def lease(job_id: str | None, slot: int = 0, limit: int = 1) -> Lease:
    return Lease(slot, "user bob, trial 7", job_id, 4242, "2026-01-01T00:00:00Z", limit)


def report_leases(pool: NodePool, *leases: Lease) -> None:
    """Node `local` tells who has leased its GPU."""
    pool.update("local", 2.0, devices=[device(leases=leases)])


def holders(pool: NodePool) -> list[tuple[str, int, str]]:
    (gpu,) = pool.capacity(["local"])[0].gpus or ()
    return [(held.job_id, held.slot, held.holder) for held in gpu.holdings]


@pytest.fixture
def pool() -> NodePool:
    pool = NodePool()
    pool.add("local", "local")
    pool.connect("local", [device()], driver_note="", hostname="here", version="0", seen_at=1.0)
    return pool


def count_changes(pool: NodePool) -> list[int]:
    """A list that grows with every change."""
    changes: list[int] = []
    pool.on_change(lambda: changes.append(1))
    return changes


def test_a_node_begins_as_connecting_and_says_so(pool: NodePool) -> None:
    pool.add("gpu-3", "remote", reason="its keeper is being started")
    [capacity] = pool.capacity(["gpu-3"])
    assert capacity.gpus is None
    assert not capacity.ready
    assert capacity.reason == "node gpu-3 is connecting: its keeper is being started"


def test_an_unknown_node_is_an_error_that_lists_the_known_ones(pool: NodePool) -> None:
    with pytest.raises(UnknownNode, match="known nodes: local"):
        pool.node("gpu-3")
    assert pool.capacity(["gpu-3"])[0].reason == "node gpu-3 is not known to the manager"


def test_a_reservation_shows_in_the_capacity_with_its_holder(pool: NodePool) -> None:
    pool.reserve("a.1", "t", "trial 17 of experiment Ab3dE5f7", SHARE, SharingPolicy(2))
    [gpu] = pool.capacity(["local"])[0].gpus or ()
    assert [(held.job_id, held.holder, held.slot, held.policy.max_trials_per_gpu) for held in gpu.holdings] == [
        ("a.1", "trial 17 of experiment Ab3dE5f7", 0, 2)
    ]


def test_reserving_twice_is_reserving_once(pool: NodePool) -> None:
    first = pool.reserve("a.1", "t", "trial 1", SHARE)
    assert pool.reserve("a.1", "t", "trial 1", SHARE) == first
    assert pool.reservations("local") == (first,)
    with pytest.raises(ReservationRefused, match=r"a\.1"):
        pool.reserve("a.1", "another token", "trial 1", SHARE)


@pytest.mark.parametrize(("slot", "holder", "asker"), [(0, 2, 2), (1, 1, 2), (0, 1, 1)])
def test_a_share_that_is_held_or_a_gpu_that_its_holder_wants_for_itself_is_refused(
    pool: NodePool, slot: int, holder: int, asker: int
) -> None:
    pool.reserve("a.1", "t", "trial 1", SHARE, SharingPolicy(holder))
    with pytest.raises(ReservationRefused, match="held by trial 1"):
        pool.reserve("b.1", "t", "trial 2", NodePlacement("local", (GpuSlot("GPU-0", slot),)), SharingPolicy(asker))
    assert pool.reservation("b.1") is None


def test_releasing_gives_back_once_and_is_never_an_error(pool: NodePool) -> None:
    pool.reserve("a.1", "t", "trial 1", SHARE)
    changes = count_changes(pool)
    pool.release("a.1")
    pool.release("a.1")
    pool.release("never.1")
    assert len(changes) == 1
    assert pool.reserve("b.1", "t", "trial 2", SHARE).job_id == "b.1"


def test_what_a_job_held_before_a_restart_is_held_again_before_its_node_is_known() -> None:
    pool = NodePool()
    pool.restore("a.1", SHARE, "trial 1", SharingPolicy(1))
    pool.add("local", "local")
    pool.connect("local", [device()], driver_note="", hostname="here", version="0", seen_at=1.0)
    with pytest.raises(ReservationRefused, match="trial 1"):
        pool.reserve("b.1", "t", "trial 2", SHARE)


def test_processes_of_our_own_trials_are_not_foreign(pool: NodePool) -> None:
    pool.update("local", 2.0, devices=[device(DeviceProcess(10, 5, "a.1"), DeviceProcess(11, 7))])
    [gpu] = pool.capacity(["local"])[0].gpus or ()
    assert [process.pid for process in gpu.foreign] == [11]


def test_only_what_matters_to_placement_or_people_is_a_change(pool: NodePool) -> None:
    changes = count_changes(pool)
    pool.update("local", 2.0, devices=[device(used_mb=5)], disk_free_mb=100)
    assert changes == []
    assert (pool.node("local").seen_at, pool.node("local").disk_free_mb) == (2.0, 100)
    pool.update("local", 3.0, devices=[device(DeviceProcess(11, 7))])
    pool.update("local", 3.0, notes=["the disk is nearly full"])
    pool.set_status("local", NodeStatus.SILENT, "no word for 15 s")
    pool.set_status("local", NodeStatus.SILENT, "no word for 15 s")
    assert len(changes) == 3


def test_a_callback_that_was_stopped_is_not_called(pool: NodePool) -> None:
    changes: list[int] = []
    stop = pool.on_change(lambda: changes.append(1))
    stop()
    stop()
    pool.set_status("local", NodeStatus.LOST, "gone")
    assert changes == []


def test_a_node_that_was_removed_is_unknown(pool: NodePool) -> None:
    pool.remove("local")
    pool.remove("local")
    assert pool.nodes() == ()


def test_a_held_node_gets_no_jobs_whatever_becomes_of_its_keeper(pool: NodePool) -> None:
    changes = count_changes(pool)
    pool.hold("local", "drained: its disk is replaced")
    (capacity,) = pool.capacity(["local"])
    assert (capacity.ready, capacity.reason) == (False, "node local is drained: its disk is replaced")
    assert pool.absence("local") == ""
    pool.set_status("local", NodeStatus.SILENT, "no word for 15 s")
    assert pool.obstacle("local") == "node local is silent: no word for 15 s, and it is drained: its disk is replaced"
    pool.connect("local", [device()], driver_note="", hostname="here", version="0", seen_at=3.0)
    assert pool.node("local").hold == "drained: its disk is replaced"
    assert not pool.capacity(["local"])[0].ready
    pool.unhold("local")
    pool.unhold("local")
    assert pool.capacity(["local"])[0].ready
    assert len(changes) == 4


def test_a_hold_waits_for_a_node_that_is_not_known_yet_and_outlasts_its_removal(pool: NodePool) -> None:
    pool.hold("gpu-3", "drained")
    assert pool.obstacle("gpu-3") == "node gpu-3 is not known to the manager, and it is drained"
    assert pool.add("gpu-3", "remote").hold == "drained"
    pool.remove("gpu-3")
    assert pool.add("gpu-3", "remote").hold == "drained"
    pool.unhold("gpu-3")
    pool.unhold("gpu-4")
    assert pool.node("gpu-3").hold == ""


def test_what_others_have_leased_on_the_machine_is_held_by_them(pool: NodePool) -> None:
    report_leases(pool, lease("b.1", 1, limit=3), lease(None, 2))
    assert holders(pool) == [
        ("b.1", 1, "user bob, trial 7, since 2026-01-01T00:00:00Z"),
        ("", 2, "user bob, trial 7, since 2026-01-01T00:00:00Z"),
    ]
    (gpu,) = pool.capacity(["local"])[0].gpus or ()
    assert [held.policy.max_trials_per_gpu for held in gpu.holdings] == [3, 1]
    with pytest.raises(ReservationRefused, match="it is held by user bob, trial 7, since 2026"):
        pool.reserve("a.1", "t", "trial 1", SHARE, SharingPolicy(5))
    report_leases(pool)
    pool.reserve("a.1", "t", "trial 1", SHARE)


def test_a_lease_without_a_note_is_somebodys(pool: NodePool) -> None:
    report_leases(pool, Lease(0, "", None, None, ""))
    assert holders(pool) == [("", 0, "an unknown holder")]


def test_a_job_that_holds_a_reservation_holds_its_lease_by_it(pool: NodePool) -> None:
    pool.reserve("a.1", "t", "trial 1", SHARE)
    changes = count_changes(pool)
    report_leases(pool, lease("a.1"))
    assert holders(pool) == [("a.1", 0, "trial 1")]
    assert changes == []
    pool.release("a.1")
    assert holders(pool) == []  # it has ended: its node will tell only later that the lease is gone


def test_a_job_that_was_given_up_and_still_runs_holds_its_gpu_when_its_node_is_back(pool: NodePool) -> None:
    pool.reserve("a.1", "t", "trial 1", SHARE)
    report_leases(pool, lease("a.1"))
    pool.set_status("local", NodeStatus.LOST, "silent for 600 s")
    pool.release("a.1")
    again = [device(leases=[lease("a.1")])]
    pool.connect("local", again, driver_note="", hostname="here", version="0", seen_at=9.0)
    assert holders(pool) == [("a.1", 0, "user bob, trial 7, since 2026-01-01T00:00:00Z")]
    report_leases(pool)
    assert holders(pool) == []


def test_the_lease_of_an_ended_job_goes_from_all_nodes_that_are_the_same_machine(pool: NodePool) -> None:
    pool.add("twin", "remote")
    pool.connect("twin", [device(leases=[lease("a.1")])], driver_note="", hostname="here", version="0", seen_at=1.0)
    pool.reserve("a.1", "t", "trial 1", SHARE)
    (gpu,) = pool.capacity(["twin"])[0].gpus or ()
    assert [held.job_id for held in gpu.holdings] == ["a.1"]
    pool.release("a.1")
    assert not (pool.capacity(["twin"])[0].gpus or ())[0].holdings


def test_leases_of_others_that_come_and_go_are_changes(pool: NodePool) -> None:
    changes = count_changes(pool)
    report_leases(pool, lease("b.1"))
    report_leases(pool, lease("b.1"))
    report_leases(pool)
    assert len(changes) == 2


def is_arriving(pool: NodePool, node_id: str = "gpu-3") -> bool:
    (capacity,) = pool.capacity([node_id])
    return capacity.arriving


def test_a_node_that_was_just_added_may_be_arriving_until_it_is_connected(pool: NodePool) -> None:
    pool.add("gpu-3", "remote", arriving=True)
    pool.set_status("gpu-3", NodeStatus.CONNECTING, "its keeper is being started")
    assert is_arriving(pool)
    pool.connect("gpu-3", [], driver_note="", hostname="gpu-3", version="0", seen_at=1.0)
    assert not is_arriving(pool)
    pool.add("gpu-3", "remote", arriving=True)
    pool.set_status("gpu-3", NodeStatus.CONNECTING, "its SSH connection has ended")
    assert not is_arriving(pool)


@pytest.mark.parametrize("status", [NodeStatus.FAILED, NodeStatus.SILENT, NodeStatus.LOST])
def test_a_node_that_has_failed_is_not_arriving_when_it_is_tried_again(pool: NodePool, status: NodeStatus) -> None:
    pool.add("gpu-3", "remote", arriving=True)
    pool.set_status("gpu-3", status, "it does not answer")
    pool.set_status("gpu-3", NodeStatus.CONNECTING, "it is being tried again")
    assert not is_arriving(pool)


def test_that_a_node_is_waited_for_anew_until_it_no_longer_is_a_change(pool: NodePool) -> None:
    pool.add("gpu-3", "remote")
    assert not is_arriving(pool)
    pool.add("gpu-3", "remote", arriving=True)
    assert is_arriving(pool)
    changes = count_changes(pool)
    pool.end_arrival("gpu-3")
    assert (is_arriving(pool), len(changes)) == (False, 1)
    pool.end_arrival("gpu-3")
    pool.end_arrival("nowhere")
    assert len(changes) == 1


def test_a_node_on_hold_is_not_waited_for_as_one_that_is_arriving(pool: NodePool) -> None:
    pool.hold("gpu-3", "drained")
    pool.add("gpu-3", "remote", arriving=True)
    assert not is_arriving(pool)
    pool.unhold("gpu-3")
    assert is_arriving(pool)


def test_a_node_without_room_takes_no_new_jobs_until_its_keeper_says_otherwise(pool: NodePool) -> None:
    changes = count_changes(pool)
    pool.update("local", 2.0, full={"": "its disk is full (/home); free some space"})
    [capacity] = pool.capacity(["local"])
    assert (capacity.ready, capacity.arriving) == (False, False)
    assert capacity.reason == "node local takes no new jobs: its disk is full (/home); free some space"
    assert pool.absence("local") == ""
    pool.update("local", 3.0)
    assert pool.obstacle("local")
    pool.update("local", 4.0, full={})
    assert pool.capacity(["local"])[0].ready
    assert len(changes) == 2


@pytest.mark.parametrize("place", ["/data/exp", "/data/exp/trials/0-a", "/data"])
def test_a_folder_without_room_keeps_only_those_waiting_whose_jobs_lie_there(pool: NodePool, place: str) -> None:
    pool.update("local", 2.0, full={place: "its disk is full (/data); free some space"})
    assert [node.ready for node in pool.capacity(["local"], "/data/exp")] == [False]
    assert [node.ready for node in pool.capacity(["local"], "/data2/exp")] == [True]
    assert [node.ready for node in pool.capacity(["local"])] == [True]
    assert pool.shortage(["local"], "/data/exp") == (
        "node local takes no new jobs: its disk is full (/data); free some space"
    )


def test_there_is_a_shortage_only_if_no_node_has_room(pool: NodePool) -> None:
    pool.add("gpu-3", "remote")
    pool.update("local", 2.0, full={"": "its disk is full"})
    assert pool.shortage(["local", "gpu-3"]) == ""
    assert pool.shortage(["local"]) == "node local takes no new jobs: its disk is full"


def test_a_node_to_which_nothing_could_be_copied_is_used_again_when_it_has_more_room(pool: NodePool) -> None:
    pool.update("local", 2.0, disk_free_mb=5)
    pool.set_copy_obstacle("local", "its disk is full")
    pool.update("local", 3.0, disk_free_mb=4)
    pool.update("local", 4.0, disk_free_mb=5)
    assert pool.obstacle("local") == "node local takes no new jobs: its disk is full"
    pool.update("local", 5.0, disk_free_mb=6)
    assert pool.obstacle("local") == ""
    pool.set_copy_obstacle("local", "its disk is full")
    pool.set_copy_obstacle("local", "")
    assert pool.obstacle("local") == ""
    pool.set_copy_obstacle("gone", "its disk is full")


def test_a_keeper_that_comes_back_says_at_once_that_it_has_no_room(pool: NodePool) -> None:
    facts = {"driver_note": "", "hostname": "here", "version": "0"}
    pool.connect("local", [], seen_at=1.0, full={"": "its disk is full"}, **facts)
    assert not pool.capacity(["local"])[0].ready


@pytest.mark.anyio
async def test_waiting_for_a_node_to_disconnect_ends_with_unknown_node_when_it_is_removed(pool: NodePool) -> None:
    waiting = asyncio.ensure_future(pool.wait_disconnected("local"))
    await asyncio.sleep(0)
    pool.remove("local")
    with pytest.raises(UnknownNode, match=r"^there is no node local; known nodes: none$"):
        await waiting


@pytest.mark.anyio
async def test_waiting_for_a_node_to_disconnect_ends_when_its_keeper_is_silent(pool: NodePool) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(pool.wait_disconnected("local"))
        await asyncio.sleep(0)
        pool.hold("local", "drained: its disk is replaced")  # no reason to end
        pool.set_status("local", NodeStatus.SILENT)
