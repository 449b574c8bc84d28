"""Who gets GPUs first: properties of preemption, and of turns among experiments of one priority."""

import heapq
import itertools
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.engine.loop.reservations import PoolPlacer
from proctor.manager.engine.loop.state import GpuTime
from proctor.manager.placement import HOLD_AFTER_SECONDS, OVERDUE_AFTER_SECONDS, Placed, place, preempted_jobs
from proctor.manager.store.rows import TrialJobRow
from proctor.training_services.base import NodePlacement, SupportsNodes, TrialJobStatus
from proctor.training_services.capacity import (
    Candidate,
    GpuDemand,
    GpuRules,
    NodeCapacity,
    PlacementRequest,
    Preemptible,
    Standing,
)
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.protocol import Device

NOW = 1_000_000.0


def make_pool(node_sizes: list[int]) -> NodePool:
    pool = NodePool()
    for number, size in enumerate(node_sizes):
        name = f"node-{number}"
        pool.add(name, "remote")
        devices = [Device(index, f"{name}-{index}", "Fake", 80_000, 0, 0) for index in range(size)]
        pool.connect(name, devices, driver_note="", hostname=name, version="0", seen_at=1.0)
    return pool


def capacity(pool: NodePool) -> dict[str, NodeCapacity]:
    return {node.node_id: node for node in pool.capacity([node.id for node in pool.nodes()])}


# ---- preemption ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningJob:
    """What is drawn of a job that runs."""

    gpus: int
    most: int  # how many trials it allows on each of its GPUs
    priority: int
    is_preemptible: bool
    is_leaving: bool
    saved_at: float


running_jobs = st.builds(
    RunningJob,
    gpus=st.integers(1, 3),
    most=st.integers(1, 3),
    priority=st.integers(-1, 2),
    is_preemptible=st.booleans(),
    is_leaving=st.integers(0, 5).map(lambda drawn: drawn == 0),
    saved_at=st.floats(0, 1000),
)
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def fill(pool: NodePool, jobs: list[RunningJob]) -> dict[str, RunningJob]:
    """Reserve what has room; by job id."""
    placed: dict[str, RunningJob] = {}
    for number, job in enumerate(jobs):
        rules = GpuRules(max_trials_per_gpu=job.most)
        decision = place(PlacementRequest(job.gpus), [Candidate(node, rules) for node in capacity(pool).values()])
        if isinstance(decision, Placed):
            job_id = f"t{number}.1"
            pool.reserve(job_id, "t", f"trial {number}", decision.placement, rules.policy)
            placed[job_id] = job
    owners: dict[int, dict[str, Preemptible]] = {}
    for job_id, job in placed.items():
        if job.is_preemptible:
            owners.setdefault(job.priority, {})[job_id] = Preemptible(job.priority, job.saved_at)
        pool.set_leaving(job_id, job.is_leaving)
    for priority, terms in owners.items():
        pool.set_preemptible(f"experiment of priority {priority}", terms)
    return placed


def can_start(pool: NodePool, demand: GpuDemand, without: Collection[str]) -> set[str]:
    """The nodes on which the trial could start when these jobs have ended."""
    found = set()
    for node in capacity(pool).values():
        gpus = [
            replace(gpu, holdings=tuple(each for each in gpu.holdings if each.job_id not in without))
            for gpu in node.gpus or ()
        ]
        candidate = Candidate(replace(node, gpus=tuple(gpus)), demand.rules[node.node_id])
        if isinstance(place(PlacementRequest(demand.gpu_number), [candidate]), Placed):
            found.add(node.node_id)
    return found


@pytest.mark.slow
@settings(max_examples=300)
@given(sizes, st.lists(running_jobs, max_size=14), st.integers(1, 4), st.integers(1, 2), st.integers(0, 2))
def test_what_is_preempted_is_needed_enough_and_allowed(
    node_sizes: list[int], jobs: list[RunningJob], wanted: int, most: int, priority: int
) -> None:
    pool = make_pool(node_sizes)
    placed = fill(pool, jobs)
    rules = {node.id: GpuRules(max_trials_per_gpu=most) for node in pool.nodes()}
    demand = GpuDemand("trial 0", wanted, NOW, rules, standing=Standing("high", priority))
    asking = Standing("low", -5)
    found = preempted_jobs([demand], capacity(pool), NOW, asking)
    leaving = {job_id for job_id, job in placed.items() if job.is_leaving}
    allowed = {
        job_id
        for job_id, job in placed.items()
        if job.is_preemptible and job.priority < priority and not job.is_leaving
    }
    assert found.keys() <= allowed
    if can_start(pool, demand, leaving):
        assert not found  # it is enough to wait
    assert bool(found) == bool(not can_start(pool, demand, leaving) and can_start(pool, demand, leaving | allowed))
    if found:
        nodes = {reservation.node_id for job_id in found if (reservation := pool.reservation(job_id)) is not None}
        assert len(nodes) == 1
        assert nodes <= can_start(pool, demand, leaving | found.keys())
        for job_id in found:
            assert not nodes & can_start(pool, demand, (leaving | found.keys()) - {job_id})
    for job_id in found:
        pool.set_leaving(job_id)
    assert preempted_jobs([demand], capacity(pool), NOW, asking) == {}  # never twice for one need


# ---- turns -----------------------------------------------------------------------------------------------------------

LONGEST = 900.0
"""Seconds that a job takes at most."""


class AllNodes(SupportsNodes):
    """A service that may use every node of the pool."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    def node_ids(self) -> tuple[str, ...]:
        return tuple(node.id for node in self._pool.nodes())


@dataclass
class Player:
    """An experiment that always has trials to run, some at the same time."""

    name: str
    gpus: int
    concurrency: int
    placer: PoolPlacer
    gpu_time: GpuTime = field(default_factory=GpuTime)
    live: int = 0
    number: int = 0
    since: float = 0.0  # since when its next trial waits

    def try_to_start(self, now: float) -> TrialJobRow | None:
        """Its next job, if there is a place for it."""
        if self.live >= self.concurrency:
            self.placer.stop_waiting()
            return None
        job_id, standing = f"{self.name}{self.number}.1", Standing(self.name, 0, self.gpu_time.in_last_hour(now))
        place = self.placer.take(job_id, "t", job_id, since=self.since, now=now, standing=standing)
        if not isinstance(place, NodePlacement):
            return None
        job = TrialJobRow(job_id, job_id[:-2], self.name, 1, "t", TrialJobStatus.RUNNING, 0, {})
        job = replace(job, started_at=now, counted_gpus=self.gpus)
        self.gpu_time.start(job, now)
        self.live, self.number, self.since = self.live + 1, self.number + 1, now
        return job

    def end(self, job: TrialJobRow, now: float) -> None:
        if self.live >= self.concurrency:
            self.since = now
        self.live -= 1
        self.gpu_time.end(replace(job, ended_at=now), now)
        self.placer.give_back(job.id)


def run(pool: NodePool, players: list[Player], chance: random.Random) -> None:
    """Let them run for four hours; the loops are asked in any order. Fails where a trial waits for too long."""
    bound = OVERDUE_AFTER_SECONDS + HOLD_AFTER_SECONDS + 2 * LONGEST * len(players)
    counter = itertools.count()
    ends: list[tuple[float, int, Player, TrialJobRow]] = []
    wakes: list[None] = []
    pool.on_change(lambda: wakes.append(None))
    now = 0.0
    while now < 4 * OVERDUE_AFTER_SECONDS:
        for turns in itertools.count():  # while the loops are woken
            assert turns < 20, "they wake each other forever"
            wakes.clear()
            for player in chance.sample(players, len(players)):
                while (job := player.try_to_start(now)) is not None:
                    heapq.heappush(ends, (now + chance.uniform(1.0, LONGEST), next(counter), player, job))
            if not wakes:
                break
        for player in players:
            assert player.live >= player.concurrency or now - player.since <= bound, (player.name, now)
        assert ends, "nothing runs, and all wait"
        now, _, player, job = heapq.heappop(ends)
        player.end(job, now)


def make_player(pool: NodePool, name: str, gpus: int, concurrency: int) -> Player:
    return Player(name, gpus, concurrency, PoolPlacer(pool, AllNodes(pool), gpus))


@pytest.mark.slow
@settings(max_examples=25)
@given(
    sizes,
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=4),
    st.integers(0, 2**32),
)
def test_every_waiting_trial_of_one_priority_starts_eventually(
    node_sizes: list[int], experiments: list[tuple[int, int]], seed: int
) -> None:
    pool, most = make_pool(node_sizes), max(node_sizes)
    players = [
        make_player(pool, f"e{n}-", min(gpus, most), concurrency) for n, (gpus, concurrency) in enumerate(experiments)
    ]
    run(pool, players, random.Random(seed))


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_an_experiment_that_always_uses_more_gets_its_turn_when_it_is_overdue(seed: int) -> None:
    pool = make_pool([3])
    greedy = make_player(pool, "greedy", 1, 2)
    assert greedy.try_to_start(0.0) is not None  # a job that never ends
    others = [make_player(pool, f"e{n}-", 1, 1) for n in range(3)]
    run(pool, [greedy, *others], random.Random(seed))
    assert greedy.number > 2
