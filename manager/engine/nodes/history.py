"""How busy nodes were over the last day, sampled from what their keepers report, and who held their GPUs when.

Samples of the minute that is not over are in memory; each full minute is written once, in one transaction for all nodes
(docs/decisions/0053).
"""

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from proctor.manager.clock import Clock
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound, StoreError
from proctor.manager.store.rows import TrialJobRow
from proctor.manager.store.tables import jobs, nodes
from proctor.manager.store.tables.nodes import GpuSample, NodeSample
from proctor.training_services.nodes.pool import Node, NodePool, NodeStatus

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 10.0
CLEAN_UP_SECONDS = 3600.0
"""Between two deletions of what is too old of all nodes: one that is gone deletes nothing by writing."""
MOST_UNWRITTEN = 600
"""Samples of a node that are kept in memory while nothing can be written."""


@dataclass(frozen=True)
class PastHolding:
    """A job on a node: which GPUs it held (UUIDs; None: its platform does not manage them), and for those without a
    GPU the number of a place that it had to itself, from 0."""

    job: TrialJobRow
    sequence_id: int
    gpus: tuple[str, ...] | None
    slot: int | None = None


@dataclass(frozen=True)
class Occupancy:
    """Who held what on a node in a stretch of time, and how busy it was. `complete_since` as in `jobs.JobsOnNode`."""

    holdings: list[PastHolding]
    complete_since: float | None
    samples: list[NodeSample]


class NodeHistory:
    """Takes samples of the pool's nodes, and reads them back."""

    def __init__(self, pool: NodePool, control: Database, clock: Clock) -> None:
        self._pool = pool
        self._control = control
        self._clock = clock
        self._unwritten: dict[str, list[NodeSample]] = {}
        self._clean_up_due = float("-inf")

    async def keep(self) -> None:
        """Take samples until canceled."""
        while True:
            await self.delete_old()
            self.sample()
            await self.write_full_minutes()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def delete_old(self) -> None:
        """Delete what is too old, also of nodes that are gone; at most once an hour."""
        if self._clock.monotonic() < self._clean_up_due:
            return
        self._clean_up_due = self._clock.monotonic() + CLEAN_UP_SECONDS
        now = self._clock.now()
        try:
            await self._control.write(lambda c: nodes.delete_old_samples(c, now=now))
        except StoreError as error:
            log.warning("old samples of nodes are kept for now: %s", error, extra={"action": "nodes.sample"})

    def sample(self) -> None:
        """Take one sample of each connected node."""
        now = self._clock.now()
        for node in self._pool.nodes():
            if node.status is NodeStatus.CONNECTED:
                found = self._unwritten.setdefault(node.id, [])
                found.append(_sample(node, now))
                del found[:-MOST_UNWRITTEN]

    async def write_full_minutes(self) -> None:
        """Write the samples of those minutes that are over; those that cannot be written now stay."""
        current = int(self._clock.now() // 60)
        full = {id: [s for s in found if s.minute < current] for id, found in self._unwritten.items()}
        full = {id: found for id, found in full.items() if found}
        if not full:
            return

        def write(connection: sqlite3.Connection) -> None:
            for node_id, samples in full.items():
                nodes.write_samples(connection, node_id, samples)

        try:
            await self._control.write(write)
        except StoreError as error:
            log.warning("the load of nodes is not written down: %s", error, extra={"action": "nodes.sample"})
            return
        for node_id in full:
            self._unwritten[node_id] = [s for s in self._unwritten[node_id] if s.minute >= current]
            if not self._unwritten[node_id]:
                del self._unwritten[node_id]

    async def read(self, node_id: str, *, since: float, until: float, limit: int) -> Occupancy:
        """Who held what on a node between two times (Unix time), and its samples. Also of a node of the past. Raises
        UnknownNode.

        :param limit: how many jobs at most that have ended, the newest; and as many that run.
        """

        def read(connection: sqlite3.Connection) -> tuple[bool, jobs.JobsOnNode, list[NodeSample]]:
            try:
                nodes.get(connection, node_id)
                is_written = True
            except RowNotFound:
                is_written = False
            found = jobs.on_node(connection, node_id, since=since, until=until, limit=limit)
            return is_written, found, nodes.samples(connection, node_id, since=since, until=until)

        is_written, found, written = await self._control.read(read)
        if not is_written:
            self._pool.node(node_id)  # known, and not written down yet; else it raises
        last = written[-1].time if written else 0.0
        fresh = [s for s in self._unwritten.get(node_id, ()) if since <= s.time <= until and s.time > last + 0.1]
        holdings = [_holding(job, sequence_id) for job, sequence_id in found.jobs]
        return Occupancy(with_slots(holdings), found.complete_since, [*written, *fresh])


def with_slots(holdings: Sequence[PastHolding]) -> list[PastHolding]:
    """In the order of their starts, those without a GPU each in the first place that was free."""
    ends: list[float | None] = []  # of the last job in each place; None: it runs
    placed = []
    for each in sorted(holdings, key=lambda holding: (holding.job.started_at or 0.0, holding.job.id)):
        slot = None
        if not each.gpus:
            start = each.job.started_at or 0.0
            free = (place for place, end in enumerate(ends) if end is not None and end <= start)
            slot = next(free, len(ends))
            ends[slot : slot + 1] = [each.job.ended_at]
        placed.append(replace(each, slot=slot))
    return placed


def thin_out(samples: Sequence[NodeSample], points: int, *, since: float, until: float) -> list[NodeSample]:
    """At most `points` samples: of equal stretches of the time, the means of what was measured."""
    if len(samples) <= points:
        return list(samples)
    width = (until - since) / points
    stretches: dict[int, list[NodeSample]] = {}
    for sample in samples:
        stretches.setdefault(min(points - 1, int((sample.time - since) / width)), []).append(sample)
    return [_mean(found) for found in stretches.values()]


def _mean(samples: Sequence[NodeSample]) -> NodeSample:
    loads = [sample.load for sample in samples if sample.load is not None]
    memories = [sample.memory_used_mb for sample in samples if sample.memory_used_mb is not None]
    gpus: dict[str, list[GpuSample]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            gpus.setdefault(gpu.uuid, []).append(gpu)
    return NodeSample(
        samples[len(samples) // 2].time,
        sum(loads) / len(loads) if loads else None,
        sum(memories) // len(memories) if memories else None,
        tuple(
            GpuSample(
                uuid,
                round(sum(gpu.utilization for gpu in found) / len(found)),
                sum(gpu.memory_used_mb for gpu in found) // len(found),
            )
            for uuid, found in gpus.items()
        ),
    )


def _sample(node: Node, now: float) -> NodeSample:
    system = node.system
    return NodeSample(
        now,
        None if system is None else round(system.load, 2),
        None if system is None else system.memory_used_mb,
        tuple(GpuSample(each.uuid, each.utilization, each.memory_used_mb) for each in node.devices or ()),
    )


def _holding(job: TrialJobRow, sequence_id: int) -> PastHolding:
    placed = (job.placement or {}).get("gpus")
    gpus = None if placed is None else tuple(dict.fromkeys(str(gpu["uuid"]) for gpu in placed))
    return PastHolding(job, sequence_id, gpus)
