"""OpenSSH's own server and agent, run by whoever runs the tests, on a loopback address and a port of their own."""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "/usr/sbin/sshd"
_PATIENCE_SECONDS = 60.0


def missing() -> str:
    """Why OpenSSH cannot be used here; empty: it can."""
    if not os.access(PROGRAM, os.X_OK):
        return f"{PROGRAM} is missing; install openssh-server"
    tools = [name for name in ("ssh-keygen", "ssh-agent", "ssh-add") if shutil.which(name) is None]
    return f"{', '.join(tools)} missing; install openssh-client" if tools else ""


@dataclass(frozen=True)
class OpenSsh:
    """A running server. Its account is that of whoever runs the tests; its key is `client_key`."""

    host: str
    port: int
    folder: Path
    user: str
    pid: int

    @property
    def client_key(self) -> Path:
        """The private key that gets in."""
        return self.folder / "client"

    @property
    def line(self) -> str:
        """The line of known_hosts that makes it known."""
        kind, blob = (self.folder / "host.pub").read_text().split()[:2]
        return f"[{self.host}]:{self.port} {kind} {blob}"

    @property
    def log(self) -> str:
        """What it has written until now."""
        return (self.folder / "log").read_text(errors="replace")

    def authorize(self, public_key: Path) -> None:
        """Let one more key in."""
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(public_key.read_text())


@contextmanager
def openssh_server(folder: Path, *settings: str) -> Iterator[OpenSsh]:
    """A server with sshd's defaults.

    :param settings: lines of sshd_config.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("host", "client"):
        make_key(folder / name)
    shutil.copy(folder / "client.pub", folder / "authorized_keys")
    with socket.socket() as probe:
        # an address of its own: no other process takes the port between here and the start
        probe.bind((f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(2, 254)}", 0))
        host, port = probe.getsockname()
    own = {setting.split()[0] for setting in settings}
    basics = [line for line in _basics(folder, host, port) if line.split()[0] not in own]
    (folder / "sshd_config").write_text("\n".join([*settings, *basics, ""]))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    command = [PROGRAM, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "log")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait_for(process, host, port, folder)
        yield OpenSsh(host, port, folder, pwd.getpwuid(os.geteuid()).pw_name, process.pid)
    finally:
        _end_all(process)


@contextmanager
def ssh_agent(folder: Path, *keys: Path) -> Iterator[Path]:
    """An agent that holds keys without a passphrase; the path of its socket."""
    path = folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        _until(path.exists, "the agent's socket")
        for key in keys:
            subprocess.run(
                ["ssh-add", "-q", str(key)], env={**os.environ, "SSH_AUTH_SOCK": str(path)}, check=True, timeout=60
            )
        yield path
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


def make_key(path: Path) -> None:
    """A new key pair, without a passphrase."""
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path))


def call(*command: str) -> None:
    """Run a tool to its end. Raises with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr or done.stdout}")


def _basics(folder: Path, host: str, port: int) -> list[str]:
    return [
        f"Port {port}",
        f"ListenAddress {host}",
        f"HostKey {folder}/host",
        f"PidFile {folder}/pid",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin yes",
        "Subsystem sftp internal-sftp",
        "LogLevel VERBOSE",
    ]


def _wait_for(process: subprocess.Popen[bytes], host: str, port: int, folder: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise OSError(f"sshd has ended at once: {(folder / 'log').read_text()[-2000:]}")
        with socket.socket() as probe:
            return probe.connect_ex((host, port)) == 0

    _until(answers, "its SSH server")


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """The server first, so that no new connection comes, then those that are open."""
    children = descendants(process.pid)
    process.terminate()
    process.wait(_PATIENCE_SECONDS)
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def connections_of(server: OpenSsh) -> list[int]:
    """The processes that serve its connections."""
    return descendants(server.pid)


def descendants(pid: int) -> list[int]:
    """Every process that a process has started, directly or not."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += [int(entry.name), *descendants(int(entry.name))]
    return found


def _until(holds: object, what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not holds():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_SECONDS:g} s for {what}")
        time.sleep(0.02)
