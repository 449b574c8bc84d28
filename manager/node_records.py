"""What the store remembers of nodes: a row each, and an event whenever one has moved."""

import asyncio
import sqlite3

from proctor.manager.clock import Clock
from proctor.manager.events import ChangeFeed
from proctor.manager.store import events, nodes
from proctor.manager.store.database import Database
from proctor.manager.store.rows import NodeRow
from proctor.training_services.nodes import Node, NodePool


class NodeRecords:
    """Writes down status and reason of the pool's nodes. Load and memory of devices change all the time: they are not
    written, whoever asks for them gets them from the pool."""

    def __init__(self, pool: NodePool, control: Database, feed: ChangeFeed, clock: Clock) -> None:
        self._pool = pool
        self._control = control
        self._feed = feed
        self._clock = clock
        self._changed = asyncio.Event()
        self._written: dict[str, tuple[str, ...]] = {}

    async def keep(self) -> None:
        """Write until cancelled."""
        self._pool.on_change(self._changed.set)
        while True:
            moved = [node for node in self._pool.nodes() if self._written.get(node.id) != _shown(node)]
            if moved:
                await self._write(moved)
            await self._changed.wait()
            self._changed.clear()

    async def _write(self, moved: list[Node]) -> None:
        now = self._clock.now()

        def write(connection: sqlite3.Connection) -> None:
            for node in moved:
                facts = {"hostname": node.hostname, "version": node.version, "driver_note": node.driver_note}
                nodes.upsert(connection, NodeRow(node.id, node.kind, node.status, node.reason, facts, node.seen_at))
                data = {"node_id": node.id, "status": str(node.status), "reason": node.reason}
                events.append(connection, time=now, kind=events.NODE, data=data)

        await self._control.write(write)
        self._written.update({node.id: _shown(node) for node in moved})
        self._feed.notify()


def _shown(node: Node) -> tuple[str, ...]:
    return (str(node.status), node.reason, node.hostname, node.version, node.driver_note)
