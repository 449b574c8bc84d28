"""What the store remembers of nodes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proctor.manager.clock import SystemClock
from proctor.manager.engine.nodes.records import NodeRecords
from proctor.manager.events import ChangeFeed
from proctor.manager.store.database import Database
from proctor.manager.store.rows import NodeRow
from proctor.manager.store.tables import events, nodes
from proctor.training_services.errors import UnknownNode
from proctor.training_services.nodes.pool import NodePool, NodeStatus

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 60.0


class Stage:
    """A pool, its records and what is written."""

    def __init__(self, control: Database) -> None:
        self.control = control
        self.pool = NodePool()
        self.feed = ChangeFeed()
        self.records = NodeRecords(self.pool, control, self.feed, SystemClock())

    async def rows(self) -> dict[str, NodeRow]:
        return {row.id: row for row in await self.control.read(nodes.all)}

    async def until_held(self, node_id: str, hold: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                bell = self.feed.next_change()
                row = (await self.rows()).get(node_id)
                if row is not None and row.hold == hold:
                    return
                await bell.wait()


@asynccontextmanager
async def open_stage(path: Path) -> AsyncIterator[Stage]:
    async with await Database.open(str(path / "control.db"), "control") as control:
        stage = Stage(control)
        await stage.records.load()
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(stage.records.keep(), name="keep")
            yield stage
            keeping.cancel()


async def test_a_node_that_is_drained_stays_so_over_a_restart(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.pool.add("gpu-3", "remote")
        assert (await stage.records.drain("gpu-3", "new disk")).hold == "drained: new disk"
    async with open_stage(tmp_path) as stage:
        assert stage.pool.add("gpu-3", "remote").hold == "drained: new disk"
        await stage.records.resume("gpu-3")
    async with open_stage(tmp_path) as stage:
        assert stage.pool.add("gpu-3", "remote").hold == ""


async def test_a_quarantine_is_kept_too(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.pool.add("gpu-3", "remote")
        stage.pool.hold("gpu-3", "quarantined: 3 trials in a row")
        await stage.until_held("gpu-3", "quarantined: 3 trials in a row")
    async with open_stage(tmp_path) as stage:
        assert stage.pool.add("gpu-3", "remote").hold == "quarantined: 3 trials in a row"


async def test_a_hold_is_not_lost_while_a_node_moves(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.pool.add("gpu-3", "remote")
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                stage.pool.set_status("gpu-3", NodeStatus.FAILED, f"try {number}")
                if number == 25:
                    group.create_task(stage.records.drain("gpu-3"))
                await asyncio.sleep(0)
        assert (await stage.rows())["gpu-3"].hold == "drained"


async def test_each_move_is_an_event_with_the_hold(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.pool.add("gpu-3", "remote")
        await stage.records.drain("gpu-3", "x")
        reported = await stage.control.read(lambda c: events.after(c, 0, limit=100))
    assert reported[-1].data == {"node_id": "gpu-3", "status": "CONNECTING", "reason": "", "hold": "drained: x"}


async def test_a_node_that_is_not_there_cannot_be_drained(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        with pytest.raises(UnknownNode):
            await stage.records.drain("gpu-3")
        assert await stage.rows() == {}
