"""One manager for one home: the lock that says so, and manager.json, which says where it is reached.

The lock is the kernel's (flock), so it is gone with its process however that ends. The locked file says which process
that is, and what it does while it comes up. manager.json is only an address: it is believed when the process it names
is alive (same pid, start time and boot) and has the lock of this very home open.
"""

import json
import os
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

import proctor
from proctor.manager.settings import Home
from proctor.sdk.client.home import serves
from proctor.sdk.disk_errors import explain, is_full
from proctor.sdk.files import open_locked, replace_file
from proctor.trial_keeper.linux.identity import boot_id, open_pidfd, start_time

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFLICT = 5


class StartError(Exception):
    """The manager cannot start; the text says why and what to do."""

    exit_code = EXIT_FAILED


class AlreadyRunning(StartError):
    """Another manager serves this home."""

    exit_code = EXIT_CONFLICT


def describe_unwritable(home: Home, error: OSError) -> str:
    """That a home cannot be written, why, and what to do."""
    why = explain(error, error.filename or str(home.path))
    advice = "" if is_full(error) else "make it writable, "
    return f"cannot write the home {home.path}: {why}; {advice}or name another one with PROCTOR_HOME"


@dataclass(frozen=True)
class ManagerAddress:
    """Where a running manager is reached, and which process it is."""

    pid: int
    start_time: int
    """In clock ticks since boot."""
    boot_id: str
    host: str
    port: int
    url: str
    """Scheme, host, port and prefix; no slash at the end."""
    version: str
    keeper_url: str = ""
    """Under which keepers reach it over a network; "": they do not."""

    @classmethod
    def of_this_process(cls, *, host: str, port: int, url: str, keeper_url: str = "") -> "ManagerAddress":
        """The address of this very process."""
        pid = os.getpid()
        return cls(pid, start_time(pid) or 0, boot_id(), host, port, url, proctor.__version__, keeper_url)

    def open_pidfd(self) -> int | None:
        """A pidfd of the manager, or None when it is gone."""
        return open_pidfd(self.pid, self.start_time) if self.boot_id == boot_id() else None

    def is_of(self, home: Home) -> bool:
        """Whether its process still runs, and serves this home rather than one that this is a copy of."""
        descriptor = self.open_pidfd()
        if descriptor is None:
            return False
        os.close(descriptor)
        return serves(self.pid, home.path)


def read_address(home: Home) -> ManagerAddress | None:
    """The running manager of the home; None when there is none, or it is still starting."""
    try:
        address = ManagerAddress(**json.loads(home.manager_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return address if address.is_of(home) else None


def write_address(home: Home, address: ManagerAddress) -> None:
    """Say where this manager is reached. The file is complete whenever it is there."""
    replace_file(str(home.manager_file), json.dumps(asdict(address), indent=1).encode(), durable=False)


def remove_address(home: Home) -> None:
    """Remove the address of the manager. Only for the holder of the lock; one whose home was renamed under it leaves
    alone what is at its old path by now."""
    if serves(os.getpid(), home.path):
        home.manager_file.unlink(missing_ok=True)


@dataclass(frozen=True)
class LockHolder:
    """The process that holds the lock of a home, or was the last to hold it."""

    pid: int
    start_time: int
    """In clock ticks since boot."""
    stage: str
    """What it does, as a participle clause."""

    def is_same(self, other: "LockHolder") -> bool:
        """Whether both are one process."""
        return (self.pid, self.start_time) == (other.pid, other.start_time)

    def is_alive(self) -> bool:
        """Whether it still runs, on this machine."""
        return start_time(self.pid) == self.start_time


def read_holder(home: Home) -> LockHolder | None:
    """Who holds the lock of a home; None where the file does not say."""
    try:
        numbers, _, stage = home.lock_file.read_text(encoding="utf-8", errors="replace").partition("\n")
        pid, *started = map(int, numbers.split())
    except (OSError, ValueError):
        return None
    return LockHolder(pid, started[0] if started else start_time(pid) or 0, stage.strip() or "just starting")


class InstanceLock:
    """Held by the one manager of a home, as a context manager. Raises AlreadyRunning, or OSError."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock, or say who has it."""
        descriptor = open_locked(self._home.lock_file)
        if descriptor is None:
            raise AlreadyRunning(self._refusal(read_holder(self._home)))
        self._descriptor = descriptor
        self.report("starting")
        remove_address(self._home)  # of one that was killed
        return self

    def report(self, stage: str) -> None:
        """Say what the manager does, for those who wait for it."""
        if self._descriptor is not None:
            pid = os.getpid()
            text = f"{pid} {start_time(pid) or 0}\n{stage}\n".encode()
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _refusal(self, holder: LockHolder | None) -> str:
        if address := read_address(self._home):
            who = f"pid {address.pid} at {address.url}"
        else:
            who = f"pid {holder.pid}, {holder.stage}" if holder else "it is just starting"
        return (
            f"a manager runs on the home {self._home.path} already: {who}. "
            "Use that one, stop it with `proctor manager stop`, or choose another home with --home"
        )
