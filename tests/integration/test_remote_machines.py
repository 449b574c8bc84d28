"""Machines with a real SSH server that forbids forwarding, or whose disk is full; the rest is in tests/e2e/remote."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakes.hub_manager import EXPERIMENT, HubManager, open_hub_manager, remote_settings
from fakes.machines.group import Group, loopback_group
from fakes.machines.machine import Machine
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
    record = manager.home / "nodes" / node_id
    await manager.until(lambda: not record.exists(), f"node {node_id} to be left")
    await manager.until(lambda: not manager.provider.has(node_id), f"node {node_id} to be forgotten")
    assert [node.id for node in manager.pool.nodes()] == []
    await asyncio.to_thread(group.leavings.expect_none)


async def keeper_of(manager: HubManager, machine: Machine) -> Process:
    """The one keeper process of a machine, once the one that has put it into the background is gone."""

    def find() -> list[Process]:
        return [process for process in machine.processes() if " serve" in process.command]

    await manager.until(lambda: len(find()) == 1, "one keeper to run there")
    return find()[0]


def relays(machine: Machine) -> int:
    """The number of sessions in which a relay runs."""
    return sum(" relay" in process.command for process in machine.processes())


async def test_where_forwarding_is_forbidden_a_relay_takes_its_place(group: Group, manager: HubManager) -> None:
    [machine] = group.machines
    machine.configure(DisableForwarding="yes", MaxSessions="5")
    steps = await manager.provider.inspect(remote_settings(group.machine_list()), {})
    [forwarding] = [step for step in steps if step.name == "forwarding"]
    assert forwarding.verdict is CheckVerdict.NOTE
    assert CheckVerdict.FAIL not in {step.verdict for step in steps}, steps
    await asyncio.to_thread(group.leavings.expect_none)
    node_id = claim(manager, group)
    await manager.until_status(node_id, "CONNECTED")
    await manager.until(lambda: relays(machine) == 4, "a session that listens and three for connections")
    manager.launch(node_id, "job.1", "true")
    await manager.until_job("job.1", TrialJobStatus.ENDED)
    machine.break_connections()
    await manager.until_status(node_id, "CONNECTING")
    await manager.until_status(node_id, "CONNECTED")
    (await keeper_of(manager, machine)).kill()
    await manager.until_status(node_id, "SILENT")
    await manager.until_status(node_id, "CONNECTED")
    await manager.until(lambda: relays(machine) == 4, "the sessions of the killed keeper to be replaced")
    await manager.provider.release(EXPERIMENT)
    await until_left(manager, group, node_id)


@pytest.mark.thorough
async def test_a_full_disk_is_the_reason_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback_group(tmp_path / "machines", 1, disk_mb=100) as group:
        for name, value in group.person.environment.items():
            monkeypatch.setenv(name, value)
        [machine] = group.machines
        machine.fill_disk()
        async with open_hub_manager(tmp_path / "home") as manager:
            node_id = claim(manager, group)
            await manager.until_status(node_id, "FAILED", reason="its disk is full")
            machine.empty_disk()
            manager.provider.check(node_id)
            await manager.until_status(node_id, "CONNECTED")
            machine.fill_disk()
            await manager.provider.release(EXPERIMENT)
            await until_left(manager, group, node_id)
