"""The machines that other tests use do what they promise: each has its own everything, and what is left there is found.

Those tests would fail without logins, Python, disks, GPUs and faults as they want them; that is not repeated here.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
from fakes.machines.group import Group, cabled_group, loopback_group
from fakes.machines.machine import Machine
from fakes.machines.network import open_network
from fakes.machines.person import Person
from fakes.machines.requirements import needs_loopback, needs_namespaces

pytestmark = pytest.mark.anyio
PATIENCE_SECONDS = 60.0


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Group]:
    with loopback_group(tmp_path, 2) as group:
        yield group


@pytest.fixture
def cabled(tmp_path: Path) -> Iterator[Group]:
    person = Person(tmp_path / "person")
    with (
        open_network() as network,
        network.manager.entered(),
        cabled_group(tmp_path, 2, network=network, person=person) as group,
    ):
        yield group


async def say(group: Group, machine: Machine, command: str) -> str:
    """The output of a command, over a connection as the manager's person would make it."""
    async with asyncssh.connect(
        machine.place.address,
        machine.place.port,
        username=machine.users[0].name,
        client_keys=[str(group.person.key_file)],
        known_hosts=str(group.person.known_hosts),
        config=None,
        agent_path=None,
        connect_timeout=PATIENCE_SECONDS,
    ) as connection:
        return str((await connection.run(command, check=True)).stdout).strip()


@needs_loopback
async def test_each_machine_has_its_own_home_name_temporary_files_and_processes(loopback: Group) -> None:
    first, second = loopback.machines
    assert await say(loopback, first, "hostname; echo ~; id -un; pwd") == "m1\n/run/home/trial\ntrial\n/run/home/trial"
    await say(loopback, first, "touch ~/here /tmp/here /run/lock/here; setsid sleep 1000 >/dev/null 2>&1 &")
    assert (first.home() / "here").exists()
    assert await say(loopback, second, "ls ~/* /tmp/here /run/lock/here 2>/dev/null; hostname") == "m2"
    assert any("sleep 1000" in process.command for process in first.processes())
    assert not any("sleep 1000" in process.command for process in second.processes())
    assert await say(loopback, first, "cat /proc/sys/kernel/random/boot_id") != await say(
        loopback, second, "cat /proc/sys/kernel/random/boot_id"
    )


@needs_loopback
async def test_what_is_left_behind_is_found(loopback: Group) -> None:
    [machine, _] = loopback.machines
    assert loopback.leavings.find() == []
    await say(loopback, machine, "mkdir -p a/b /tmp/x; touch a/f; setsid sleep 1000 >/dev/null 2>&1 &")
    gives_up = time.monotonic() + PATIENCE_SECONDS
    while len(found := loopback.leavings.find()) != 4 or not found[0].endswith("sleep 1000 "):
        assert time.monotonic() < gives_up, found
        await asyncio.sleep(0.01)  # the server's own processes need a moment to go
    assert found[1:] == ["m1: /run/home/trial/a/f", "m1: /run/home/trial/a/b", "m1: /tmp/x"]
    machine.run("pkill", "sleep")
    machine.run("rm", "-r", "/tmp/x", "/run/home/trial/a")
    loopback.leavings.expect_none()


@needs_namespaces
async def test_no_packet_leaves_the_network(cabled: Group) -> None:
    [machine, _] = cabled.machines
    routes = Path("/proc/thread-self/net/route").read_text()
    for table in (routes, await say(cabled, machine, "cat /proc/net/route")):
        assert [line.split()[1] for line in table.splitlines()[1:]] == ["00004D0A"]
