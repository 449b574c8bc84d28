"""Connections to OpenSSH's own server, with sshd's default limits, and every login shell that is installed."""

import asyncio
import os
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from threading import enumerate as threads

import pytest
from fakes.openssh import OpenSsh, call, connections_of, descendants, make_key, missing, openssh_server, ssh_agent

from proctor.training_services.ssh.connection import Connection, HostKeys, RouteTrace, open_connection
from proctor.training_services.ssh.errors import (
    CommandFailed,
    HostKeyRefused,
    KeyUnusable,
    LoginRefused,
    NoRoom,
    Unreachable,
)
from proctor.training_services.ssh.settings import Login, MachineSettings

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(missing()), reason=missing() or "OpenSSH is there")]

PATIENCE_SECONDS = 120.0
OTHER_SHELLS = ("bash", "dash", "zsh", "tcsh", "ksh", "busybox")
Serve = Callable[..., OpenSsh]
HARD_WORDS = [
    "a b",
    "it's",
    'say "hi"',
    "back\\slash",
    "\\",
    "wow!",
    "$HOME",
    "`x`",
    "~",
    "*",
    "",
    "é",
    "a;b&c|d>e",
    "\t",
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, for sockets."""
    with tempfile.TemporaryDirectory(prefix="ssh-") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home on the manager's machine, without an agent."""
    path = folder / "home"
    (path / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return path


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Starts servers; all end with the test."""
    with ExitStack() as stack:
        number = iter(range(100))
        yield lambda *settings: stack.enter_context(openssh_server(folder / f"m{next(number)}", *settings))


@asynccontextmanager
async def connected(
    server: OpenSsh, *, login: Login | None = None, trace: RouteTrace | None = None, **more: object
) -> AsyncIterator[Connection]:
    entry = {"host": server.host, "port": server.port, "user": server.user, "trust_on_first_use": True, **more}
    if "ssh_key_file" not in entry:
        entry["ssh_key_file"] = str(server.client_key)
    keys = HostKeys(Path.home() / "manager_known_hosts")
    async with open_connection(
        MachineSettings.read(entry),
        login or Login(),
        host_keys=keys,
        keep_alive_seconds=30,
        timeout_seconds=PATIENCE_SECONDS,
        trace=trace,
    ) as connection:
        yield connection


async def test_everything_works_with_the_defaults_of_sshd(serve: Serve, folder: Path) -> None:
    server = serve()
    async with connected(server) as there:
        assert there.peer == f"{server.user}@{server.host}:{server.port}"
        assert (await there.run(["printenv", "SSH_CONNECTION"])).stdout.decode().split()[-1] == str(server.port)
        content = random.Random(3).randbytes(9_000_000)
        await there.upload(content, f"{folder}/target")
        assert (folder / "target").read_bytes() == content
        assert (await there.run(["cat"], input=content)).stdout == content
        async with answering(folder / "here", b"hello"):
            await there.forward(f"{folder}/there", f"{folder}/here")
            assert (folder / "there").stat().st_mode & 0o077 == 0
            assert await read_from(folder / "there") == b"hello"


@pytest.mark.parametrize(
    "shell",
    ["sh", "fish", *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHER_SHELLS)],
)
async def test_commands_mean_the_same_to_every_login_shell(serve: Serve, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    called = f"{path} sh" if shell == "busybox" else path
    # an account's shell is called exactly so, with what the client has asked for
    server = serve(f'ForceCommand {called} -c "$SSH_ORIGINAL_COMMAND"')
    async with connected(server) as there:
        listing = "import sys; print(sys.argv[1:])"
        finished = await there.run(["python3", "-c", listing, *HARD_WORDS])
        assert finished.stdout.decode() == f"{HARD_WORDS}\n", finished.last_line
        chosen = random.Random(5)
        words = ["".join(chosen.choices("ab '\"\\!$`#&;|<>(){}[]*?~^%=@:,.-+", k=12)) for _ in range(40)]
        assert (await there.run(["python3", "-c", listing, *words])).stdout.decode() == f"{words}\n"
        source = "import sys\n# 'x' \"y\" $z !! \\\nprint(len(sys.stdin.buffer.read()))\n" + "#\n" * 50_000
        async with there.start_python("python3", source) as process:
            process.stdin.write(b"x" * 100_000)
            process.stdin.write_eof()
            assert await process.stdout.read() == b"100000\n"
        async with there.start_process(["cat"]) as process:
            process.stdin.write(bytes(range(256)))
            assert await process.stdout.readexactly(256) == bytes(range(256))
        assert (await there.run(["no-such-command"])).code != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_is_named(serve: Serve, folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    call("mount", "-t", "tmpfs", "-o", "size=5m,nr_inodes=4", "none", str(disk))
    try:
        async with connected(serve()) as there:
            with pytest.raises(NoRoom, match=r"its disk is full .*, 0 MiB free"):
                await there.upload(b"x" * 9_000_000, f"{disk}/target")
            (disk / "target").unlink()
            await there.run(["touch", *(f"{disk}/{number}" for number in range(3))])
            with pytest.raises(NoRoom, match="no inodes free"):
                await there.upload(b"x", f"{disk}/target")
    finally:
        call("umount", str(disk))


async def test_the_keys_of_an_agent_open_the_door(
    serve: Serve, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    make_key(folder / "other")
    with ssh_agent(folder, folder / "other", server.client_key) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        trace = RouteTrace("m1")
        await send_hello(server, ssh_key_file=None, trace=trace)
        assert trace.steps()[-1].found == f"as {server.user} with a key of the SSH agent"
        (home / ".ssh" / "config").write_text(f"IdentityFile {folder}/other\nIdentitiesOnly yes\n")
        with pytest.raises(LoginRefused, match=r"tried the SSH agent \(1 key\) and .*other;"):
            await send_hello(server, ssh_key_file=None)
        make_key(folder / "locked")
        call("ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(folder / "locked"))
        (home / ".ssh" / "config").write_text(f"IdentityFile {folder}/locked\nIdentitiesOnly yes\n")
        with pytest.raises(LoginRefused, match=r"locked needs a passphrase and no key file can be used"):
            await send_hello(server, ssh_key_file=None)
        monkeypatch.delenv("SSH_AUTH_SOCK")
        (home / ".ssh" / "config").write_text(f"IdentityAgent {agent}\n")
        await send_hello(server, ssh_key_file=None)
        (home / ".ssh" / "config").unlink()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    with pytest.raises(LoginRefused, match=r"the SSH agent at \$SSH_AUTH_SOCK no longer responds and no key file"):
        await send_hello(server, ssh_key_file=None)


async def test_a_locked_key_file_is_used_through_the_agent(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    make_key(folder / "mine")
    server.authorize(folder / "mine.pub")
    with ssh_agent(folder, folder / "mine") as agent:
        call("ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(folder / "mine"))
        with pytest.raises(KeyUnusable, match="is protected by a passphrase"):
            await send_hello(server, ssh_key_file=str(folder / "mine"))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        await send_hello(server, ssh_key_file=str(folder / "mine"))
    monkeypatch.delenv("SSH_AUTH_SOCK")
    await send_hello(server, ssh_key_file=str(folder / "mine"), login=Login(passphrase="secret"))


async def test_an_agent_with_too_many_keys_is_the_reason(
    serve: Serve, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    others = [folder / f"other{number}" for number in range(7)]
    for path in others:
        make_key(path)
    with ssh_agent(folder, *others, server.client_key) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        with pytest.raises(LoginRefused, match="Too many authentication failures"):
            await send_hello(server, ssh_key_file=None)
        await send_hello(server)
        # as ssh does it, the keys that IdentityFile names come first
        (home / ".ssh" / "config").write_text(f"IdentityFile {server.client_key}\n")
        await send_hello(server, ssh_key_file=None)


async def test_a_hashed_known_hosts_file_is_understood(serve: Serve, home: Path) -> None:
    server = serve()
    known = home / ".ssh" / "known_hosts"
    known.write_text(f"{server.line}\n")
    call("ssh-keygen", "-q", "-H", "-f", str(known))
    assert server.host not in known.read_text()
    await send_hello(server, trust_on_first_use=False)
    other = serve()
    with pytest.raises(HostKeyRefused, match="not known") as caught:
        await send_hello(other, trust_on_first_use=False)
    assert caught.value.line == other.line


async def test_a_proxy_command_makes_the_connection(serve: Serve, folder: Path, home: Path) -> None:
    server = serve()
    (folder / "pass.py").write_text(
        "import os, select, socket, sys\n"
        "there = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    ready, _, _ = select.select([0, there], [], [])\n"
        "    data = there.recv(65536) if there in ready else os.read(0, 65536)\n"
        "    if not data: break\n"
        "    os.write(1, data) if there in ready else there.sendall(data)\n"
    )
    before = set(descendants(os.getpid()))
    config = home / ".ssh" / "config"
    config.write_text(f"Host inner\n HostName {server.host}\n ProxyCommand python3 {folder}/pass.py %h %p\n")
    await send_hello(server, host="inner")
    config.write_text(f"Host inner\n HostName {server.host}\n ProxyCommand false\n")
    with pytest.raises(Unreachable, match=f"the ProxyCommand for {server.host}:{server.port} ended before"):
        await send_hello(server, host="inner")
    # the library does not wait for these, nor for the threads that do
    await until(lambda: before.issuperset(descendants(os.getpid())))
    await until(lambda: not any(thread.name.startswith("waitpid") for thread in threads()))
    await asyncio.sleep(0)


async def test_leaving_a_connection_leaves_no_process_there(serve: Serve, folder: Path) -> None:
    server = serve()
    async with connected(server) as there:
        async with answering(folder / "here", b"hello"):
            await there.forward(f"{folder}/there", f"{folder}/here")
        async with there.start_process(["cat"]):
            pass
        with pytest.raises(CommandFailed):
            await there.run(["sh", "-c", "cat; sleep 0.1; echo over"], input=b"x", timeout_seconds=0)
    await until(lambda: not connections_of(server))


async def send_hello(server: OpenSsh, **more: object) -> None:
    async with connected(server, **more) as there:  # type: ignore[arg-type]
        assert (await there.run(["echo", "hello"])).stdout == b"hello\n"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def kill_connections(server: OpenSsh) -> None:
    for pid in connections_of(server):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@asynccontextmanager
async def answering(path: Path, answer: bytes) -> AsyncIterator[None]:
    async def reply(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    listener = await asyncio.start_unix_server(reply, str(path))
    try:
        yield
    finally:
        listener.close()
        await listener.wait_closed()


async def read_from(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.read()
    writer.close()
    return answer
