"""The machines that other tests use do what they promise: each has its own everything, and each fault is one."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest
from fakes.machines.group import Group, loopback_group, namespace_group
from fakes.machines.machine import Machine
from fakes.machines.person import PASSWORD
from fakes.machines.requirements import needs_faketime, needs_loopback, needs_namespaces, needs_nft
from fakes.nvidia import find_compiler

pytestmark = pytest.mark.anyio
PATIENCE_SECONDS = 60.0


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Group]:
    with loopback_group(tmp_path, 2) as group:
        yield group


@pytest.fixture
def cabled(tmp_path: Path) -> Iterator[Group]:
    with namespace_group(tmp_path, 2) as group:
        yield group


@asynccontextmanager
async def connected(group: Group, machine: Machine, **options: object) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection as the manager's person would make it."""
    defaults: dict[str, object] = {
        "username": machine.users[0].name,
        "client_keys": [str(group.person.key_file)],
        "known_hosts": str(group.person.known_hosts),
        "config": None,
        "agent_path": None,
        "connect_timeout": PATIENCE_SECONDS,
    }
    where = machine.place
    async with asyncssh.connect(where.address, where.port, **{**defaults, **options}) as connection:
        yield connection


async def say(group: Group, machine: Machine, command: str) -> str:
    """The output of a command."""
    async with connected(group, machine) as connection:
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
async def test_there_is_a_python_and_sftp(loopback: Group) -> None:
    [machine, _] = loopback.machines
    assert int(await say(loopback, machine, "python3 -c 'import sys; print(sys.version_info[1])'")) >= 10
    async with connected(loopback, machine) as connection, connection.start_sftp_client() as sftp:
        await sftp.put(str(loopback.person.key_file), "copy")
    assert (machine.home() / "copy").stat().st_uid == machine.users[0].uid


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


@needs_loopback
async def test_passwords_and_keys_open_a_machine_unless_they_are_wrong(loopback: Group) -> None:
    [machine, _] = loopback.machines
    async with connected(loopback, machine, client_keys=None, password=PASSWORD) as connection:
        await connection.run("true", check=True)
    other, _ = loopback.person.make_key("other")
    for wrong in ({"client_keys": None, "password": "wrong"}, {"client_keys": [str(other)]}):
        with pytest.raises(asyncssh.PermissionDenied):
            async with connected(loopback, machine, **wrong):
                pass
    machine.refuse_logins()
    with pytest.raises(asyncssh.PermissionDenied):
        await say(loopback, machine, "true")
    machine.accept_logins()
    await say(loopback, machine, "true")


@needs_loopback
async def test_host_keys_can_be_forgotten(loopback: Group) -> None:
    [machine, _] = loopback.machines
    loopback.person.forget("m1")
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await say(loopback, machine, "true")


@needs_loopback
@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here to build the fake NVML library")
async def test_fake_gpus_are_seen_by_the_keepers_library(loopback: Group) -> None:
    [machine, other] = loopback.machines
    uuids = machine.set_gpus(4)
    read_state = 'python3 -c \'import ctypes; lib = ctypes.CDLL("libnvidia-ml.so.1"); number = ctypes.c_uint();'
    read_state += " lib.nvmlInit_v2(); lib.nvmlDeviceGetCount_v2(ctypes.byref(number)); print(number.value)'"
    assert len(set(uuids)) == 4
    assert await say(loopback, machine, read_state) == "4"
    with pytest.raises(asyncssh.ProcessError):
        await say(loopback, other, read_state)


@needs_loopback
async def test_python_can_be_hidden_and_shown_again(loopback: Group) -> None:
    [machine, _] = loopback.machines
    machine.hide_python()
    found = await say(
        loopback, machine, "for it in $(echo $PATH | tr : ' '); do ls $it/python*; done 2>/dev/null; true"
    )
    assert found == ""
    assert "not found" in await say(loopback, machine, "command -v python3 python; python3 -V 2>&1; true")
    machine.show_python()
    assert "Python 3" in await say(loopback, machine, "python3 -V")


@needs_loopback
async def test_a_power_cut_ends_everything_but_what_is_on_the_disk(loopback: Group) -> None:
    [machine, _] = loopback.machines
    await say(loopback, machine, "echo kept > kept; touch /tmp/gone; setsid sleep 1000 >/dev/null 2>&1 &")
    pids = [process.pid for process in machine.processes()]
    machine.power_off()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    with pytest.raises(OSError):
        await say(loopback, machine, "true")
    machine.power_on()
    assert await say(loopback, machine, "cat kept; ls /tmp/gone 2>/dev/null; hostname") == "kept\nm1"


@needs_loopback
async def test_a_stopped_ssh_server_takes_its_connections_along_and_nothing_else(loopback: Group) -> None:
    [machine, _] = loopback.machines
    async with connected(loopback, machine) as connection:
        await connection.run("setsid sleep 1000 >/dev/null 2>&1 &", check=True)
        machine.stop_sshd()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connection.wait_closed()
    with pytest.raises(OSError):
        await say(loopback, machine, "true")
    machine.start_sshd()
    assert await say(loopback, machine, "pgrep -x sleep >/dev/null && echo lives") == "lives"


@needs_loopback
async def test_forwarding_can_be_forbidden(loopback: Group, tmp_path: Path) -> None:
    [machine, _] = loopback.machines
    async with connected(loopback, machine) as connection:
        await connection.forward_remote_path("/tmp/socket", str(tmp_path / "socket"))
    machine.forbid_forwarding()
    async with connected(loopback, machine) as connection:
        with pytest.raises(asyncssh.ChannelListenError):
            await connection.forward_remote_path("/tmp/other", str(tmp_path / "socket"))


@needs_loopback
async def test_a_small_disk_is_full_and_has_room_again(tmp_path: Path) -> None:
    with loopback_group(tmp_path, 1, disk_mb=4) as group:
        [machine] = group.machines
        machine.fill_disk()
        with pytest.raises(asyncssh.ProcessError) as refused:
            await say(group, machine, "echo more > more")
        assert "No space left" in str(refused.value.stderr)
        machine.empty_disk()
        assert await say(group, machine, "echo more > more; cat more") == "more"


@needs_loopback
async def test_machines_may_share_a_home(tmp_path: Path) -> None:
    with loopback_group(tmp_path, 2, homes="shared", users=("bob", "eve")) as group:
        first, second = group.machines
        async with connected(group, first, username="eve") as connection:
            await connection.run("touch mine", check=True)
        assert (second.home("eve") / "mine").exists()
        assert not (second.home("bob") / "mine").exists()


@needs_loopback
@needs_faketime
async def test_a_clock_may_be_wrong(loopback: Group) -> None:
    [machine, _] = loopback.machines
    machine.set_clock("+7200")
    assert 7000 < int(await say(loopback, machine, "date +%s")) - time.time() < 7400


@needs_namespaces
async def test_a_cut_link_is_silent_and_heals(cabled: Group) -> None:
    [machine, other] = cabled.machines
    async with connected(cabled, machine) as connection:
        machine.cut()
        with pytest.raises((TimeoutError, asyncssh.Error, OSError)):
            async with connected(cabled, machine, connect_timeout=0.5):
                pass
        assert await say(cabled, other, "hostname") == "m2"
        machine.heal()
        assert (await connection.run("hostname", check=True)).stdout == "m1\n"
    assert await say(cabled, machine, "hostname") == "m1"


@needs_namespaces
async def test_a_power_cut_leaves_the_cable(cabled: Group) -> None:
    [machine, _] = cabled.machines
    machine.power_off()
    machine.power_on()
    assert await say(cabled, machine, "hostname") == "m1"


@needs_namespaces
async def test_no_packet_leaves_the_network(cabled: Group) -> None:
    [machine, _] = cabled.machines
    routes = Path("/proc/thread-self/net/route").read_text()
    for table in (routes, await say(cabled, machine, "cat /proc/net/route")):
        assert [line.split()[1] for line in table.splitlines()[1:]] == ["00004D0A"]


@needs_namespaces
@needs_nft
async def test_packets_are_lost_and_links_are_narrow(cabled: Group) -> None:
    [machine, _] = cabled.machines
    machine.lose(20)
    assert await say(cabled, machine, "hostname") == "m1"
    machine.lose(0)
    machine.slow(8000)
    assert await say(cabled, machine, "hostname") == "m1"
    machine.slow(0)
    assert await say(cabled, machine, "hostname") == "m1"
