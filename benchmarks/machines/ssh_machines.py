"""Machines to log in to: OpenSSH servers on loopback addresses, each with a home directory of its own."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import harness

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
SFTP = "/usr/lib/openssh/sftp-server"
SESSION = """#!/bin/sh
HOME={home}
export HOME
cd "$HOME" || exit 1
case "$SSH_ORIGINAL_COMMAND" in
  {sftp}) exec {sftp} ;;
  *) exec /bin/sh -c "$SSH_ORIGINAL_COMMAND" ;;
esac
"""
CONFIG = """ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
PidFile none
PasswordAuthentication no
UsePAM no
StrictModes no
Subsystem sftp {sftp}
ForceCommand {folder}/session
"""


class Machines:
    """`number` SSH servers that let the caller in by a key of their own."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._servers: list[subprocess.Popen[bytes]] = []
        self._key = folder / "key"
        _make_key(self._key)
        self._entries = [self._start(index) for index in range(number)]

    def service(self, number: int, **more: object) -> dict[str, Any]:
        """A `trainingService` of the first `number` of them. `more` are keys of it."""
        return {"platform": "remote", "machineList": self._entries[:number], **more}

    def close(self) -> None:
        """End the servers."""
        for server in self._servers:
            server.terminate()
            server.wait()

    def _start(self, index: int) -> dict[str, Any]:
        folder, address = self._folder / str(index), f"127.0.1.{index + 2}"
        home = folder / "home"
        home.mkdir(parents=True)
        _make_key(folder / "host_key")
        with socket.socket() as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        session = folder / "session"
        session.write_text(SESSION.format(home=home, sftp=SFTP))
        session.chmod(0o755)
        config = folder / "sshd_config"
        keys = self._key.with_suffix(".pub")
        config.write_text(CONFIG.format(address=address, port=port, folder=folder, keys=keys, sftp=SFTP))
        assert SSHD is not None
        with (folder / "sshd.log").open("wb") as log:
            server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
        self._servers.append(server)
        harness.wait_for(lambda: _answers(address, port), f"the SSH server on {address}")
        return {
            "host": address,
            "port": port,
            "user": getpass.getuser(),
            "sshKeyFile": str(self._key),
            "pythonPath": str(Path(sys.executable).parent),
            "trustOnFirstUse": True,
        }


@contextmanager
def machines(number: int) -> Iterator[Machines]:
    """Servers for the time of a benchmark. Raises BenchmarkError where there is no OpenSSH server."""
    if SSHD is None or not Path(SFTP).exists():
        raise harness.BenchmarkError("needs OpenSSH's server (Debian: openssh-server)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with harness.temporary_folder() as folder:
        made = Machines(folder, number)
        try:
            yield made
        finally:
            made.close()


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _answers(address: str, port: int) -> bool | None:
    try:
        with socket.create_connection((address, port), timeout=5):
            return True
    except OSError:
        return None
