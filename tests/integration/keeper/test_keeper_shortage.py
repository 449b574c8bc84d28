"""A real keeper on a machine that has no processes left, or no descriptors."""

import os
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakes.keeper_node import Node, lend, open_node
from fakes.process_limit import ProcessLimit, process_limit

from proctor.trial_keeper.protocol import EndReason
from proctor.trial_keeper.start import find_keeper

pytestmark = pytest.mark.anyio


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A keeper of its own, whose processes are limited, that has run a job."""
    async with open_node(tmp_path) as shared, lend(shared, tmp_path / "node") as node:
        await node.run(node.launch("T.0", "true"))
        yield node


@pytest.fixture
def limit() -> Iterator[ProcessLimit]:
    with process_limit() as limit:
        yield limit


@pytest.mark.parametrize("left", [0, 1])  # none for the reaper, or none for the trial
async def test_a_job_for_which_there_is_no_process_is_given_back_and_others_wait_until_there_is_one(
    node: Node, limit: ProcessLimit, left: int
) -> None:
    keeper = find_keeper(node.keeper_directory)
    assert keeper is not None
    limit.close(keeper, left=left)
    end = await node.run(node.launch("T.1", "true"))
    assert (end.reason, end.detail.split(":")[0]) == (EndReason.NO_ROOM, "no process can be started")
    await node.manager.until(lambda: node.manager.headers[-1].full.get("", "").startswith("no process can be started"))
    assert find_keeper(node.keeper_directory) == keeper
    limit.open()
    await node.manager.until(lambda: node.manager.headers[-1].full == {})
    assert (await node.run(node.launch("T.2", "true"))).reason == EndReason.EXITED_OK


async def test_a_job_for_which_there_is_no_descriptor_is_given_back_and_others_wait_until_there_is_one(
    node: Node,
) -> None:
    keeper = find_keeper(node.keeper_directory)
    assert keeper is not None
    limits = resource.prlimit(keeper, resource.RLIMIT_NOFILE)
    opened = max(map(int, os.listdir(f"/proc/{keeper}/fd")))
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, (opened + 1, limits[1]))
    end = await node.run(node.launch("T.1", "true"))
    assert (end.reason, end.detail.split(":")[0]) == (EndReason.NO_ROOM, "no file can be opened")
    await node.manager.until(lambda: node.manager.headers[-1].full.get("", "").startswith("no file can be opened"))
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, limits)
    await node.manager.until(lambda: node.manager.headers[-1].full == {})
    assert (await node.run(node.launch("T.2", "true"))).reason == EndReason.EXITED_OK
    assert find_keeper(node.keeper_directory) == keeper
