"""A keeper whose way to the manager is dead without a word takes the new one that it is pointed to."""

from pathlib import Path

import pytest
from fakes.keeper_manager import FakeManager
from fakes.keeper_node import open_node

from proctor.sdk.files import replace_file

pytestmark = pytest.mark.anyio


async def test_a_keeper_leaves_a_session_that_still_stands_when_the_pointer_leads_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with open_node(tmp_path / "node") as node, FakeManager(other).running() as moved:
        await node.manager.until(lambda: node.manager.registrations)
        replace_file(str(node.manager.pointer), moved.pointer.read_bytes(), durable=False)
        await moved.until(lambda: moved.registrations, seconds=60)
        assert len(node.manager.registrations) == 1
