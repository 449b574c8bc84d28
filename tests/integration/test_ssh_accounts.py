"""Connections to accounts of their own: a home directory, processes that are not root's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.machines.group import Group, loopback_group
from fakes.machines.requirements import needs_loopback

from proctor.training_services.ssh.connection import Connection, HostKeys, open_connection
from proctor.training_services.ssh.settings import Login, MachineSettings

pytestmark = [pytest.mark.anyio, needs_loopback]
PATIENCE_SECONDS = 120.0


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    with loopback_group(tmp_path, 1) as group:
        monkeypatch.setenv("HOME", str(group.person.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield group


@asynccontextmanager
async def connected(group: Group) -> AsyncIterator[Connection]:
    place = group.machines[0].place
    machine = MachineSettings.read({"host": place.address, "port": place.port, "user": group.users[0].name})
    keys = HostKeys(group.person.home / "manager_known_hosts")
    async with open_connection(
        machine, Login(), host_keys=keys, keep_alive_seconds=60.0, timeout_seconds=PATIENCE_SECONDS
    ) as connection:
        yield connection


async def test_a_relative_upload_lands_in_the_home_directory(group: Group) -> None:
    async with connected(group) as there:
        await there.run(["mkdir", "-m", "700", "here"])
        await there.upload(b"content", "here/file")
        assert (await there.run(["cat", "here/file"])).stdout == b"content"
    assert (group.machines[0].home() / "here" / "file").read_bytes() == b"content"


async def test_a_command_that_is_given_up_is_ended_there(group: Group) -> None:
    if group.users[0].uid == 0:
        pytest.skip("sshd passes no signals on to processes of root")
    async with connected(group) as there:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(there.run(["sleep", "3600"], timeout_seconds=PATIENCE_SECONDS))
            await until(lambda: sleeps(group))
            running.cancel()
        await until(lambda: not sleeps(group))


def sleeps(group: Group) -> bool:
    return any(Path(process.program).name == "sleep" for process in group.machines[0].processes())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
