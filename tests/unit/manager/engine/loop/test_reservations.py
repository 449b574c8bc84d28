"""Places for the jobs of one experiment: its service's nodes and rules, asked anew for every job."""

from dataclasses import dataclass, field

import pytest

from proctor.manager.engine.loop.reservations import FreePlacer, PoolPlacer
from proctor.manager.placement import Impossible, Waiting
from proctor.training_services.base import NodePlacement, SupportsNodes
from proctor.training_services.capacity import GpuRules, SharingPolicy, Standing, Strategy
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import Device, GpuSlot


@dataclass
class Machines(SupportsNodes):
    """A service with settings that may change."""

    nodes: tuple[str, ...] = ("one", "two")
    rules: dict[str, GpuRules] = field(default_factory=dict)
    strategy: Strategy = Strategy.SPREAD

    def node_ids(self) -> tuple[str, ...]:
        return self.nodes

    def gpu_rules(self, node_id: str) -> GpuRules:
        return self.rules.get(node_id, GpuRules())

    def placement_strategy(self) -> Strategy:
        return self.strategy


class Plain(SupportsNodes):
    """A service that says nothing about rules."""

    def node_ids(self) -> tuple[str, ...]:
        return ("one",)


@pytest.fixture
def pool() -> NodePool:
    pool = NodePool()
    for node_id in ("one", "two"):
        pool.add(node_id, "remote")
        devices = [Device(index, f"GPU-{node_id}-{index}", "Fake", 80_000, 0, 0) for index in range(2)]
        pool.connect(node_id, devices, driver_note="", hostname=node_id, version="0", seen_at=1.0)
    return pool


def take(
    placer: PoolPlacer, number: int, *, since: float = 0.0, now: float = 0.0
) -> NodePlacement | Waiting | Impossible:
    return placer.take(f"t{number}.1", "token", f"trial {number}", since=since, now=now)


def waiting(placer: PoolPlacer, number: int, *, since: float = 0.0, now: float = 0.0) -> str:
    """Why a trial waits."""
    found = take(placer, number, since=since, now=now)
    assert isinstance(found, Waiting)
    return found.reason


def taken(placer: PoolPlacer, number: int) -> NodePlacement:
    place = take(placer, number)
    assert isinstance(place, NodePlacement)
    return place


def test_a_service_without_rules_gives_every_trial_gpus_of_its_own(pool: NodePool) -> None:
    placer = PoolPlacer(pool, Plain(), 1)
    assert [taken(placer, number) for number in (0, 1)] == [
        NodePlacement("one", (GpuSlot("GPU-one-0", 0),)),
        NodePlacement("one", (GpuSlot("GPU-one-1", 0),)),
    ]
    assert isinstance(take(placer, 2), Waiting)
    placer.give_back("t0.1")
    assert taken(placer, 2) == NodePlacement("one", (GpuSlot("GPU-one-0", 0),))


def test_every_node_is_used_under_its_own_rules(pool: NodePool) -> None:
    machines = Machines(rules={"one": GpuRules(gpu_indices=(1,)), "two": GpuRules(2, gpu_indices=(0,))})
    placer = PoolPlacer(pool, machines, 1)
    assert [taken(placer, number) for number in range(3)] == [
        NodePlacement("one", (GpuSlot("GPU-one-1", 0),)),
        NodePlacement("two", (GpuSlot("GPU-two-0", 0),)),
        NodePlacement("two", (GpuSlot("GPU-two-0", 1),)),
    ]
    reservation = pool.reservation("t1.1")
    assert reservation is not None
    assert reservation.policy == SharingPolicy(2)


def test_settings_that_change_count_from_the_next_job(pool: NodePool) -> None:
    machines = Machines()
    placer = PoolPlacer(pool, machines, 1)
    assert taken(placer, 0).node_id == "one"
    machines.strategy = Strategy.PACK
    assert taken(placer, 1) == NodePlacement("one", (GpuSlot("GPU-one-1", 0),))
    machines.nodes = ("one",)
    assert isinstance(take(placer, 2), Waiting)
    machines.rules["one"] = GpuRules(gpu_indices=(7,))
    assert isinstance(take(placer, 2), Impossible)


def test_a_place_from_before_a_restart_is_restored_under_its_nodes_rules(pool: NodePool) -> None:
    placer = PoolPlacer(pool, Machines(rules={"one": GpuRules(3)}), 1)
    placer.restore("t0.1", "trial 0", NodePlacement("one", (GpuSlot("GPU-one-0", 2),)))
    placer.restore("t1.1", "trial 1", NodePlacement("gone", (GpuSlot("GPU-gone-0", 0),)))
    (first, _) = pool.capacity(["one"])[0].gpus or ()
    assert [(held.slot, held.policy) for held in first.holdings] == [(2, SharingPolicy(3))]
    assert [reservation.policy for reservation in pool.reservations("gone")] == [SharingPolicy(1)]


def test_a_service_that_places_by_itself_is_given_no_place() -> None:
    placer = FreePlacer()
    placer.restore("t0.1", "trial 0", NodePlacement("one"))
    assert placer.take_notices() == ()
    placer.give_back("t0.1")
    placer.watch(lambda: None)()


BAD = "node one gets no trials of this experiment: gpuIndices names GPU 7, node one has 2 GPUs"


def test_a_node_that_gets_no_trials_is_noticed_once(pool: NodePool) -> None:
    placer = PoolPlacer(pool, Machines(rules={"one": GpuRules(gpu_indices=(7,))}), 1)
    stop = placer.watch(lambda: None)
    assert placer.take_notices() == [BAD]
    pool.set_status("one", NodeStatus.SILENT)
    pool.set_status("one", NodeStatus.CONNECTED)
    assert placer.take_notices() == []
    stop()


def test_a_node_is_noticed_when_it_connects(pool: NodePool) -> None:
    pool.add("three", "remote", arriving=True)
    nodes, rules = ("one", "two", "three"), {"three": GpuRules(gpu_indices=(0, 5, 6))}
    placer = PoolPlacer(pool, Machines(nodes, rules), 1)
    stop = placer.watch(lambda: None)
    assert placer.take_notices() == []
    pool.connect("three", [], driver_note="no driver", hostname="three", version="0", seen_at=1.0)
    assert placer.take_notices() == [
        "node three gets no trials of this experiment: gpuIndices names GPUs 0, 5, 6, node three has no GPU (no driver)"
    ]
    stop()


@pytest.mark.parametrize("gpu_number", [None, 0])
def test_rules_for_gpus_exclude_no_node_from_trials_without_any(pool: NodePool, gpu_number: int | None) -> None:
    placer = PoolPlacer(pool, Machines(rules={"one": GpuRules(gpu_indices=(7,))}), gpu_number)
    assert placer.take_notices() == ()
    assert taken(placer, 0).node_id == "one"


def test_a_second_trial_waits_for_a_machine_that_is_being_connected(pool: NodePool) -> None:
    pool.add("three", "remote", arriving=True)
    placer = PoolPlacer(pool, Machines(("one", "three")), None)
    changes: list[int] = []
    stop = placer.watch(lambda: changes.append(1))
    assert taken(placer, 0).node_id == "one"
    assert take(placer, 1) == Waiting("node three is being connected")
    pool.end_arrival("three")
    assert len(changes) == 1
    assert taken(placer, 1).node_id == "one"
    stop()


def test_gpus_are_held_for_the_trial_that_has_waited_longest(pool: NodePool) -> None:
    first, large, small = (PoolPlacer(pool, Plain(), number) for number in (1, 2, 1))
    taken(first, 0)
    assert isinstance(take(large, 1, since=0.0, now=0.0), Waiting)
    assert waiting(small, 2, since=70.0, now=70.0) == (
        "needs 1 GPU, node one has 0 free (GPU 0 held by trial 0; GPU 1 held for trial 1, which needs 2 GPUs and has "
        "waited since 1970-01-01T00:00:00Z)"
    )
    assert waiting(large, 1, now=70.0).endswith("; what becomes free on node one is held for trial 1")
    first.give_back("t0.1")
    assert isinstance(take(small, 2, since=70.0, now=71.0), Waiting)
    assert isinstance(take(large, 1, since=0.0, now=71.0), NodePlacement)


def test_what_was_held_is_free_again_when_its_trial_stops_waiting(pool: NodePool) -> None:
    first, large, small = (PoolPlacer(pool, Plain(), number) for number in (1, 2, 1))
    taken(first, 0)
    take(large, 1, since=0.0, now=0.0)
    assert isinstance(take(small, 2, since=70.0, now=70.0), Waiting)
    woken: list[int] = []
    stop = small.watch(lambda: woken.append(1))
    large.stop_waiting()
    large.stop_waiting()
    assert woken == [1]
    assert isinstance(take(small, 2, since=70.0, now=70.0), NodePlacement)
    stop()


def test_a_trial_that_has_waited_as_long_itself_is_not_held_up(pool: NodePool) -> None:
    first, large, small = (PoolPlacer(pool, Plain(), number) for number in (1, 2, 1))
    taken(first, 0)
    take(large, 1, since=5.0, now=5.0)
    assert isinstance(take(small, 2, since=3.0, now=90.0), NodePlacement)


@dataclass
class ElsewhereMachines(Machines):
    """An experiment whose job directories lie on a disk of their own."""

    def job_folder(self) -> str:
        return "/full/disk/jobs"


def test_nothing_is_held_on_a_node_whose_disk_is_full_for_the_trial_that_waits(pool: NodePool) -> None:
    first, small = PoolPlacer(pool, Machines(("one",)), 1), PoolPlacer(pool, Machines(("one",)), 1)
    large = PoolPlacer(pool, ElsewhereMachines(("one",)), 2)
    taken(first, 0)
    take(large, 1, since=0.0, now=70.0)
    pool.update("one", 2.0, full={"/full/disk": "the disk of /full/disk is full"})
    assert isinstance(take(small, 2, since=70.0, now=70.0), Waiting)  # before the other experiment has looked
    woken: list[int] = []
    stop = small.watch(lambda: woken.append(1))
    assert "is held for" not in waiting(large, 1, now=70.0)
    assert woken == [1]
    stop()
    assert isinstance(take(small, 2, since=70.0, now=70.0), NodePlacement)
    small.give_back("t2.1")
    pool.update("one", 3.0, full={})
    assert waiting(large, 1, now=71.0).endswith("; what becomes free on node one is held for trial 1")
    assert isinstance(take(small, 3, since=71.0, now=71.0), Waiting)


def test_a_share_of_a_gpu_counts_as_the_part_that_it_may_be(pool: NodePool) -> None:
    placer = PoolPlacer(pool, Machines(("one",), rules={"one": GpuRules(max_trials_per_gpu=4)}), 2)
    assert placer.counted_gpus(taken(placer, 0)) == 0.5
    whole = PoolPlacer(pool, Machines(("two",)), 2)
    assert whole.counted_gpus(taken(whole, 1)) == 2.0
    none = PoolPlacer(pool, Machines(("one",)), None)
    assert none.counted_gpus(taken(none, 2)) == 0.0
    assert (FreePlacer(3).counted_gpus(None), FreePlacer().counted_gpus(None)) == (3.0, 0.0)


def test_a_free_gpu_goes_to_the_experiment_that_has_used_less_and_both_agree_who_that_is(pool: NodePool) -> None:
    woken: list[None] = []
    busy, idle = (PoolPlacer(pool, Machines(("one",)), 1) for _ in range(2))
    first = [taken(PoolPlacer(pool, Machines(("one",)), 1), number) for number in (7, 8)]
    assert len(first) == 2
    used = {busy: 5000.0, idle: 10.0}

    def ask(placer: PoolPlacer, number: int) -> NodePlacement | Waiting | Impossible:
        standing = Standing(f"e{number}", 0, used[placer])
        return placer.take(f"t{number}.1", "t", f"trial {number}", since=float(number), now=10.0, standing=standing)

    assert isinstance(ask(busy, 1), Waiting)  # it has waited longer
    assert isinstance(ask(idle, 2), Waiting)
    pool.release("t7.1")
    reason = ask(busy, 1)
    assert isinstance(reason, Waiting)
    assert "GPU 0 held for trial 2, which needs 1 GPU" in reason.reason
    used[idle] = 6000.0  # by now
    pool.on_change(lambda: woken.append(None))
    assert isinstance(ask(idle, 2), Waiting)
    assert woken  # it was before the other one, and is no longer
    assert isinstance(ask(busy, 1), NodePlacement)
