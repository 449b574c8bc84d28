"""Connections to accounts of their own: a password, a home directory, processes that are not root's."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.machines.group import Group, loopback_group
from fakes.machines.person import PASSWORD
from fakes.machines.requirements import needs_loopback

from proctor.training_services.ssh.connection import Connection, HostKeys, open_connection
from proctor.training_services.ssh.errors import LoginRefused
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
async def connected(
    group: Group, *, keep_alive_seconds: float = 60.0, login: Login | None = None, **more: object
) -> AsyncIterator[Connection]:
    place = group.machines[0].place
    user = group.machines[0].users[0].name
    machine = MachineSettings.read({"host": place.address, "port": place.port, "user": user, **more})
    async with open_connection(
        machine,
        login or Login(),
        host_keys=HostKeys(group.person.home / "manager_known_hosts"),
        keep_alive_seconds=keep_alive_seconds,
        timeout_seconds=PATIENCE_SECONDS,
    ) as connection:
        yield connection


async def test_a_relative_upload_lands_in_the_home_directory(group: Group) -> None:
    async with connected(group) as there:
        await there.run(["mkdir", "-m", "700", "here"])
        await there.upload(b"content", "here/file")
        assert (await there.run(["cat", "here/file"])).stdout == b"content"
    assert (group.machines[0].home() / "here" / "file").read_bytes() == b"content"


async def test_a_password_opens_the_door_and_is_never_told(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group.person.key_file.unlink()
    with caplog.at_level(logging.DEBUG):
        async with connected(group, login=Login(password=PASSWORD)) as there:
            assert (await there.run(["id", "-un"])).stdout.decode().strip() == group.users[0].name
        with pytest.raises(LoginRefused, match="tried the password; correct the password or the user") as caught:
            async with connected(group, login=Login(password="wrong battery")):
                pass
    assert "wrong battery" not in str(caught.value) + caplog.text
    assert PASSWORD not in caplog.text


async def test_a_command_that_is_given_up_is_ended_there(group: Group) -> None:
    if group.users[0].uid == 0:
        pytest.skip("sshd passes no signals on to processes of root")
    async with connected(group) as there:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(there.run(["sleep", "3600"], timeout_seconds=PATIENCE_SECONDS))
            await until(lambda: sleeps(group))
            running.cancel()
        await until(lambda: not sleeps(group))


async def test_a_machine_without_power_is_given_up(group: Group) -> None:
    async with connected(group, keep_alive_seconds=0.5) as there:
        group.machines[0].power_off()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await there.until_ended()


def sleeps(group: Group) -> bool:
    return any(Path(process.program).name == "sleep" for process in group.machines[0].processes())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
