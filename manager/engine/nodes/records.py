"""What the store remembers of nodes: a row each, and an event whenever one has moved."""

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from proctor.manager.actors import MANAGER, USER, Actor
from proctor.manager.clock import Clock
from proctor.manager.events import ChangeFeed
from proctor.manager.store.database import Database
from proctor.manager.store.rows import NodeRow
from proctor.manager.store.tables import events, nodes
from proctor.training_services.nodes.pool import Node, NodePool

log = logging.getLogger(__name__)

DRAINED = "drained"


class NodeRecords:
    """Writes down status, reason and hold of the pool's nodes. Load and memory of devices change all the time: they are
    not written; callers get them from the pool."""

    def __init__(self, pool: NodePool, control: Database, feed: ChangeFeed, clock: Clock) -> None:
        self._pool = pool
        self._control = control
        self._feed = feed
        self._clock = clock
        self._changed = asyncio.Event()
        self._written: dict[str, tuple[str, ...]] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """After a start: nodes that got no new jobs get none, whether they are known yet or not."""
        for row in await self._control.read(nodes.all):
            if row.hold:
                self._pool.hold(row.id, row.hold)

    async def keep(self) -> None:
        """Write until canceled."""
        self._pool.on_change(self._changed.set)
        while True:
            async with self._writing:
                moved = [node for node in self._pool.nodes() if self._written.get(node.id) != _shown(node)]
                if moved:
                    await self._write(moved)
            await self._changed.wait()
            self._changed.clear()

    async def drain(self, node_id: str, reason: str = "", *, actor: Actor = USER) -> Node:
        """Give a node no new jobs until it is resumed, also after a restart; what runs there keeps running. Written
        down when it returns. Raises UnknownNode."""
        return await self._hold(node_id, f"{DRAINED}: {reason}" if reason else DRAINED, actor)

    async def resume(self, node_id: str, *, actor: Actor = USER) -> Node:
        """Give a drained or quarantined node jobs again; one that gets them already is allowed. Written down when it
        returns. Raises UnknownNode."""
        return await self._hold(node_id, "", actor)

    async def _hold(self, node_id: str, clause: str, actor: Actor) -> Node:
        async with self._writing:
            await self._write([replace(self._pool.node(node_id), hold=clause)], actor)
            if clause:
                self._pool.hold(node_id, clause)
            else:
                self._pool.unhold(node_id)
        action = "node.drain" if clause else "node.resume"
        text = f"is {clause}" if clause else "gets jobs again"
        log.info("node %s %s", node_id, text, extra={"action": action, "node_id": node_id})
        return self._pool.node(node_id)

    async def add_request(self, node: Node, request: str, actor: Actor) -> None:
        """An event of what was requested of a node (check, collect, forget) and by whom. What becomes of it are events
        of the node's own changes."""
        data = _event_data(node) | {"request": request}
        now = self._clock.now()
        await self._control.write(lambda c: events.append(c, time=now, kind=events.NODE, data=data, actor=actor))
        self._feed.notify()

    async def _write(self, moved: Sequence[Node], actor: Actor = MANAGER) -> None:
        now = self._clock.now()

        def write(connection: sqlite3.Connection) -> None:
            for node in moved:
                facts = {"hostname": node.hostname, "version": node.version, "driver_note": node.driver_note}
                row = NodeRow(node.id, node.kind, node.status, node.reason, facts, node.seen_at, node.hold)
                nodes.upsert(connection, row)
                events.append(connection, time=now, kind=events.NODE, data=_event_data(node), actor=actor)

        await self._control.write(write)
        self._written.update({node.id: _shown(node) for node in moved})
        self._feed.notify()


def _event_data(node: Node) -> dict[str, str]:
    return {"node_id": node.id, "status": str(node.status), "reason": node.reason, "hold": node.hold}


def _shown(node: Node) -> tuple[str, ...]:
    shortages = (*node.full.values(), node.copy_obstacle)
    return (str(node.status), node.reason, node.hold, node.hostname, node.version, node.driver_note, *shortages)
