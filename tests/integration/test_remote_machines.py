"""Machines with a real SSH server: connected, given a keeper, again after every loss, and left without a trace."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakes.hub_manager import EXPERIMENT, HubManager, open_hub_manager, remote_settings
from fakes.machines.group import Group, loopback_group
from fakes.machines.machine import Machine
from fakes.machines.person import PASSWORD
from fakes.machines.processes import Process
from fakes.machines.requirements import needs_loopback

from proctor.training_services.base import TrialJobStatus
from proctor.training_services.providers import CheckVerdict

pytestmark = [pytest.mark.anyio, needs_loopback]

LONG = "exec sleep 1000"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    with loopback_group(tmp_path / "machines", 1) as group:
        for name, value in group.person.environment.items():
            monkeypatch.setenv(name, value)
        yield group


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[HubManager]:
    async with open_hub_manager(tmp_path / "home") as manager:
        yield manager


def claim(manager: HubManager, group: Group, experiment_id: str = EXPERIMENT) -> str:
    """The machine's node id, once an experiment has claimed it."""
    [node_id] = manager.provider.claim(experiment_id, remote_settings(group.machine_list()), {})
    return node_id


async def until_left(manager: HubManager, group: Group, node_id: str) -> None:
    """Wait until the manager says that it has left a machine, and see whether it has."""
    await manager.until(lambda: not manager.provider.has(node_id), f"node {node_id} to be left")
    assert [node.id for node in manager.pool.nodes()] == []
    assert not (manager.home / "nodes" / node_id).exists()
    await asyncio.to_thread(group.leavings.expect_none)


def keeper_of(machine: Machine) -> Process:
    """The one keeper process of a machine."""
    [found] = [process for process in machine.processes() if " serve" in process.command]
    return found


async def test_a_machine_that_is_claimed_gets_a_keeper_and_a_released_one_is_left_without_a_trace(
    group: Group, manager: HubManager
) -> None:
    [machine] = group.machines
    node_id = claim(manager, group)
    node = await manager.until_status(node_id, "CONNECTED")
    assert node.hostname == "m1"
    manager.launch(node_id, "job.1", LONG)
    await manager.until_job("job.1", TrialJobStatus.RUNNING)
    assert any("sleep 1000" in process.command for process in machine.processes())

    await manager.provider.release(EXPERIMENT)
    await until_left(manager, group, node_id)
