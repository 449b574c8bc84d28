"""Waiting for a node of the pool to be connected, or to be so no more."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from proctor.training_services.nodes import NodePool, NodeStatus


class StatusWatch:
    """One node's, made by `watch_status`."""

    def __init__(self, pool: NodePool, node_id: str) -> None:
        self._pool = pool
        self._node_id = node_id
        self._changed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether its keeper has a session and speaks."""
        return self._pool.node(self._node_id).status is NodeStatus.CONNECTED

    async def until(self, *, is_connected: bool) -> None:
        """Wait until it is so."""
        while self.is_connected is not is_connected:
            self._changed.clear()
            await self._changed.wait()

    def note(self) -> None:
        """Look again."""
        self._changed.set()


@contextmanager
def watch_status(pool: NodePool, node_id: str) -> Iterator[StatusWatch]:
    """Follow one node's status."""
    watch = StatusWatch(pool, node_id)
    stop = pool.on_change(watch.note)
    try:
        yield watch
    finally:
        stop()
