"""The processes of a test machine, seen from outside."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process; its pid is the one it has outside."""

    pid: int
    command: str
    program: str

    @property
    def is_sshd(self) -> bool:
        """A part of the SSH server: the listener, or what serves one connection."""
        return os.path.basename(self.program).startswith("sshd") or self.command.startswith("sshd:")

    @property
    def is_listener(self) -> bool:
        """The part that waits for connections."""
        return self.is_sshd and ("[listener]" in self.command or " -D " in self.command)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal; no error when it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def in_namespace_of(pid: int) -> list[Process]:
    """The living processes that share a process's table of processes."""
    return list(_find(_namespace(pid)))


def _find(namespace: str) -> Iterator[Process]:
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        with suppress(OSError):
            if _namespace(pid) == namespace and read_state(pid) not in (b"Z", b"X"):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield Process(pid, command, os.readlink(f"/proc/{pid}/exe"))


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def read_state(pid: int) -> bytes:
    """The letter of a process's state, such as T: suspended. Raises OSError when it is gone."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
