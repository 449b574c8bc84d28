"""One test machine: an SSH server with users, homes, processes, locks and GPUs of its own, and everything that may go
wrong with it. Made by `loopback_group` and `cabled_group`.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from fakes.machines.network import Network
from fakes.machines.person import PASSWORD_HASH, Person, User
from fakes.machines.processes import Process, in_namespace_of
from fakes.machines.requirements import find_program, system_python
from fakes.nvidia import FakeGpus, gpu

PATIENCE_SECONDS = 90.0
_INIT = Path(__file__).parent / "init.py"
_DEFAULTS: Mapping[str, str] = {
    "HostKey": "/run/machine/host_key",
    "PidFile": "none",
    "AuthorizedKeysFile": "/run/machine/authorized_keys",
    "PermitRootLogin": "yes",
    "PasswordAuthentication": "yes",
    "KbdInteractiveAuthentication": "no",
    "UsePAM": "no",
    "StrictModes": "no",
    "Subsystem": "sftp internal-sftp",
    "LogLevel": "VERBOSE",
}
"""Everything else, MaxSessions and MaxStartups above all, is as OpenSSH has it by default."""


@dataclass(frozen=True)
class Place:
    """Where a machine is on its network."""

    address: str
    port: int
    network: Network | None = None
    index: int = 0


class Machine:
    """See the module. It has power from `power_on` to `power_off`, and everything on its disks meanwhile and after.

    :param homes: the host's folder of each user's home, by user; two machines may share them.
    :param disk_mb: the size of each user's home; None: no limit. Small disks lose what is on them with the power.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        place: Place,
        person: Person,
        users: Sequence[User],
        homes: Mapping[str, Path],
        disk_mb: int | None,
    ) -> None:
        self.name, self.folder, self.place, self.users, self._person = name, folder, place, users, person
        self._homes, self._disk_mb = homes, disk_mb
        self._options: dict[str, str | None] = {}
        self._variables: dict[str, str] = {} if system_python() else {"PATH": f"/run/machine/bin:{os.defpath}"}
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self.pid = 0
        self._make_folder()

    def _make_folder(self) -> None:
        for part in ("etc", "nvml", "bin"):
            (self.folder / part).mkdir(parents=True)
        self.records.mkdir()
        self.records.chmod(0o1777)
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(self.folder / "host_key")
        (self.folder / "host_key").chmod(0o600)
        self.host_key: str = key.export_public_key().decode().strip()
        (self.folder / "authorized_keys").write_text(f"{self._person.public_key}\n")
        if system_python() is None:
            (self.folder / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
        self._write_users()
        self._write_configuration()
        self._person.know(self.name, self.known_hosts_line)

    @property
    def records(self) -> Path:
        """Where trials on it write down what the test wants to know, as /run/machine/records; with or without power."""
        return self.folder / "records"

    @property
    def known_hosts_line(self) -> str:
        """What makes SSH clients accept its host key."""
        host = self.place.address if self.place.port == 22 else f"[{self.place.address}]:{self.place.port}"
        return f"{host} {self.host_key}"

    def entry(self, user: str | None = None, **more: object) -> dict[str, Any]:
        """Its entry in `machineList`."""
        return {"host": self.place.address, "port": self.place.port, "user": user or self.users[0].name, **more}

    # Power

    def power_on(self) -> None:
        """Start it; its SSH server answers on return."""
        self.begin_power_on()
        self.finish_power_on()

    def begin_power_on(self) -> None:
        """The first half of `power_on`, which does not wait."""
        assert self._process is None, f"{self.name} has power already"
        network = self.place.network.machines[self.place.index].descriptor if self.place.network else None
        specification = {
            "name": self.name,
            "network": network,
            "folder": str(self.folder),
            "homes": [
                {"user": user.name, "uid": user.uid, "source": str(self._homes[user.name]), "disk_mb": self._disk_mb}
                for user in self.users
            ],
            "kept": _kept(),
            "sshd": find_program("sshd"),
            "address": self.place.address,
            "port": self.place.port,
        }
        with (self.folder / "init.err").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_INIT), json.dumps(specification)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                pass_fds=[] if network is None else [network],
                start_new_session=True,
            )

    def finish_power_on(self) -> None:
        """The second half."""
        self.pid = int(self._receive("pid"))
        self._receive("ready")

    def power_off(self) -> None:
        """Pull the plug: every process of it is gone on return. Its disks stay."""
        if self._process is None:
            return
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process, self.pid, self._received = None, 0, b""

    @property
    def has_power(self) -> bool:
        """Between `power_on` and `power_off`."""
        return self._process is not None

    # Its network

    def cut(self) -> None:
        """From now on packets from and to it vanish."""
        self._network.cut(self.place.index)

    def heal(self) -> None:
        """Undo `cut`."""
        self._network.heal(self.place.index)

    def lose(self, percent: int) -> None:
        """So many packets to it are lost, at random. 0: none."""
        self._network.lose(self.place.index, percent)

    def slow(self, kbit: int) -> None:
        """So many bits a second reach it. 0: no limit."""
        self._network.slow(self.place.index, kbit)

    @property
    def _network(self) -> Network:
        assert self.place.network is not None, "machines on loopback addresses have no cable; use cabled_group"
        return self.place.network

    # Its SSH server

    def configure(self, **options: str | None) -> None:
        """Change lines of its sshd_config, for new connections; None: OpenSSH's default."""
        self._options.update(options)
        self._reconfigure()

    def set_environment(self, **variables: str | None) -> None:
        """Change what every new session finds in its environment; None: not set by the server."""
        for name, value in variables.items():
            if value is None:
                self._variables.pop(name, None)
            else:
                self._variables[name] = value
        self._reconfigure()

    def forbid_forwarding(self) -> None:
        """It forwards neither ports nor sockets from now on."""
        self.configure(DisableForwarding="yes")

    def refuse_logins(self) -> None:
        """Every login is refused from now on."""
        self.configure(DenyUsers="*")

    def accept_logins(self) -> None:
        """Undo it."""
        self.configure(DenyUsers=None)

    def authorize(self, *public_keys: str) -> None:
        """These keys open it, and no others."""
        (self.folder / "authorized_keys").write_text("".join(f"{key}\n" for key in public_keys))

    def stop_sshd(self) -> None:
        """Its SSH server is gone and its port closed, open connections are broken; its other processes keep running."""
        self.order("stop")
        self.break_connections()

    def start_sshd(self) -> None:
        """It answers again."""
        self.order("start")

    def break_connections(self) -> None:
        """Kill the server's process behind every open connection."""
        for process in self.processes():
            if process.is_sshd and not process.is_listener:
                process.kill()

    # What is on it

    def hide_python(self) -> None:
        """From now on no Python is found."""
        self.order("hide_python")

    def show_python(self) -> None:
        """Undo it."""
        self.order("show_python")

    def set_gpus(self, number: int) -> tuple[str, ...]:
        """It has so many idle fake GPUs from now on, with UUIDs of its own; returns them."""
        uuids = tuple(f"GPU-{self.name}-{index}-{uuid.uuid4().hex[:12]}" for index in range(number))
        if not hasattr(self, "gpus"):
            self.gpus = FakeGpus(self.folder / "nvml")
        self.gpus.set([gpu(name) for name in uuids])
        self.set_environment(LD_LIBRARY_PATH="/run/machine/nvml", FAKE_NVML_STATE="/run/machine/nvml/gpus")
        return uuids

    def fill_disk(self, user: str | None = None) -> None:
        """No byte fits into the home of a user any more. Only for machines made with `disk_mb`."""
        assert self._disk_mb is not None, "this machine has no small disk"
        with (self.home(user) / ".ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
            except OSError:
                return

    def empty_disk(self, user: str | None = None) -> None:
        """Undo it."""
        (self.home(user) / ".ballast").unlink()

    def home(self, user: str | None = None) -> Path:
        """The home of a user, as this process can read and write it."""
        name = user or self.users[0].name
        return self.path(f"/run/home/{name}") if self.has_power else self._homes[name]

    def path(self, path: str) -> Path:
        """What a path of the machine is for this process. It needs power for that."""
        assert self.has_power, f"{self.name} has no power"
        return Path(f"/proc/{self.pid}/root{path}")

    # Looking at it and acting on it

    def run(self, *words: str, user: str | None = None) -> str:
        """Run a command on it without SSH, as root or as a user; returns its output. Raises CalledProcessError."""
        chosen = next((found for found in self.users if found.name == user), None)
        identity = ["-S", str(chosen.uid), "-G", str(chosen.uid)] if chosen else []
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", *identity, "--"]
        done = subprocess.run([*enter, *words], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
        return done.stdout

    def processes(self) -> list[Process]:
        """All of its living processes but the first one."""
        return [process for process in in_namespace_of(self.pid) if process.pid != self.pid] if self.has_power else []

    def order(self, word: str) -> None:
        """Tell its first process to do something."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(word).encode() + b"\n")
        self._receive("done")

    def _receive(self, what: str) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, gives_up - time.monotonic()))
            more = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            assert more, f"{self.name} should say {what!r}\n{(self.folder / 'init.err').read_text()}"
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        reported = json.loads(line)
        assert what in reported, (
            f"{self.name} should say {what!r}: {reported}\n{(self.folder / 'init.err').read_text()}"
        )
        return reported[what]

    def _reconfigure(self) -> None:
        self._write_configuration()
        if self.has_power:
            self.order("stop")
            self.order("start")

    def _write_configuration(self) -> None:
        lines = {"ListenAddress": self.place.address, "Port": str(self.place.port), **_DEFAULTS, **self._options}
        text = [f"{name} {value}" for name, value in lines.items() if value is not None]
        if self._variables:
            text.append("SetEnv " + " ".join(f'"{name}={value}"' for name, value in self._variables.items()))
        (self.folder / "sshd_config").write_text("\n".join(text) + "\n")

    def _write_users(self) -> None:
        kept = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        names = {user.name for user in self.users}
        others = [line for line in kept if line.partition(":")[0] not in names]
        ours = [f"{user.name}:x:{user.uid}:{user.uid}::/run/home/{user.name}:/bin/bash" for user in self.users]
        root = ["root:x:0:0:root:/root:/bin/bash"]
        etc = self.folder / "etc"
        (etc / "passwd").write_text("\n".join([*ours, *root, *others]) + "\n")
        (etc / "group").write_text(
            Path("/etc/group").read_text() + "".join(f"{user.name}:x:{user.uid}:\n" for user in self.users if user.uid)
        )
        (etc / "shadow").write_text("".join(f"{user.name}:{PASSWORD_HASH}:20000:0:99999:7:::\n" for user in self.users))
        (etc / "shadow").chmod(0o600)


def _kept() -> list[str]:
    """What of this machine must be visible on all: the interpreter, what it has installed, and this source tree."""
    return sorted({sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix), str(_INIT.parents[3])})
