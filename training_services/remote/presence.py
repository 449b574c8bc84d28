"""Waiting for a node's keeper."""

import asyncio

from proctor.training_services.nodes import NodePool


async def until_present(pool: NodePool, node_id: str) -> None:
    """Until a node's keeper answers; at once if it does. A node on which no new jobs are wanted is present."""
    while pool.absence(node_id):
        await until_changed(pool)


async def until_changed(pool: NodePool) -> None:
    """Until something has become of a node from now on."""
    changed = asyncio.Event()
    stop = pool.on_change(changed.set)
    try:
        await changed.wait()
    finally:
        stop()
