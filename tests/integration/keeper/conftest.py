"""One keeper for all tests of a module that do not need another one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.keeper_node import Node, lend, open_node


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for all tests of a module, as they have one keeper."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    async with open_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
async def node(shared_node: Node, tmp_path: Path) -> AsyncIterator[Node]:
    """A running keeper that knows of no jobs, with a directory for those of one test."""
    async with lend(shared_node, tmp_path / "node") as node:
        yield node
