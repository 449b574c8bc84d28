"""First contact with a machine: one SSH session in which one Python reports the facts of the machine, receives the
keeper archive and runs the keeper's commands.

A separate session or interpreter for each of these would cost the machine as much as all of them together. Reading
order: `NodeFacts` and the checks (`require_…`), then `open_contact` and `NodeContact`.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from proctor.training_services.keepers.archive import OLDEST_PYTHON, KeeperArchive
from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper, RemotePython, read_answer
from proctor.training_services.ssh.base import NodeConnection
from proctor.training_services.ssh.errors import NoPython, NoRoom, NotWritable, RemoteError, WrongClock

__all__ = [
    "NodeContact",
    "NodeFacts",
    "Site",
    "detach",
    "open_contact",
    "read_probe",
    "require_clock",
    "require_home",
    "require_python_path",
    "require_room",
    "require_system",
    "require_usable",
]

LARGEST_CLOCK_DIFFERENCE_SECONDS = 300.0
LEAST_FREE_MB = 64
LEAST_FREE_INODES = 1000
_NAMES = ("python3", "python")
_NOT_FOUND = (126, 127)
_PROBE_SECONDS = 30.0
_UPLOAD_SECONDS = 600.0


@functools.cache
def read_probe() -> str:
    """The source of the probe of a machine, for `python3 -c`; see `trial_keeper/probe.py`."""
    return files("proctor").joinpath("trial_keeper", "probe.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Site:
    """What is installed on one machine, and where: the same for every connection to it."""

    node_id: str
    key: str  # the name of the keeper's directory below ~/.proctor/nodes
    python_path: str | None
    archive: KeeperArchive


@dataclass(frozen=True)
class NodeFacts:
    """What a machine reports about itself, see `proctor.trial_keeper.probe`.

    clock_ahead_seconds: its clock less ours.
    archives: the names of the keeper archives that are there already.
    """

    python: str  # the interpreter to use there
    version: str  # its version
    home: str
    directory: str  # the keeper's, absolute
    exists: bool  # whether that is there
    archives: tuple[str, ...]
    clock_ahead_seconds: float
    why_not_writable: str
    free_mb: int | None
    free_inodes: int | None
    lacks: tuple[str, ...] = ()
    kills_at_logout: bool = False
    python_path_without: str = ""  # the machine's pythonPath, if no Python is in it
    user: str = ""

    @classmethod
    def read(cls, python: str, answer: dict[str, Any], now: float) -> "NodeFacts":
        """From the answer of an interpreter. Raises KeyError, TypeError.

        :param python: its name, used where it does not report its path.
        :param now: our clock, Unix time.
        """
        return cls(
            python=answer["executable"] or python,
            version=answer["python"],
            home=answer["home"],
            directory=answer["directory"],
            exists=answer["exists"],
            archives=tuple(answer["archives"]),
            clock_ahead_seconds=answer["time"] - now,
            why_not_writable=answer["why_not_writable"],
            free_mb=answer["free_mb"],
            free_inodes=answer["free_inodes"],
            lacks=tuple(answer["lacks"]),
            kills_at_logout=answer["kills_at_logout"],
            user=answer["user"],
            python_path_without=answer["python_path_without"],
        )


def require_usable(facts: NodeFacts) -> None:
    """Raises RemoteError, NoPython, WrongClock, NotWritable or NoRoom where a keeper or its trials could not work."""
    require_python_path(facts)
    require_system(facts)
    require_clock(facts)
    require_room(facts)
    require_home(facts)


def require_python_path(facts: NodeFacts) -> None:
    """Raises NoPython where trials would silently run another Python than that of `pythonPath`."""
    if facts.python_path_without:
        raise NoPython(
            f"pythonPath {facts.python_path_without} has no Python that can be executed, and its trials would run "
            f"another one, such as {facts.python}; give the absolute path of a directory that has one, or "
            "leave pythonPath out"
        )


def require_system(facts: NodeFacts) -> None:
    """Raises RemoteError where something is missing that a keeper needs besides Python."""
    if facts.lacks:
        raise RemoteError(f"it lacks what a keeper needs: {', '.join(facts.lacks)}; install it there")


def require_clock(facts: NodeFacts) -> None:
    """Raises WrongClock where times of trials would be far off."""
    ahead = facts.clock_ahead_seconds
    if abs(ahead) > LARGEST_CLOCK_DIFFERENCE_SECONDS:
        direction = "ahead of" if ahead > 0 else "behind"
        raise WrongClock(
            f"its clock is {abs(ahead):.0f} s {direction} the manager's, and times of trials would be wrong; set it "
            "(for example with chrony or systemd-timesyncd)"
        )


def require_room(facts: NodeFacts) -> None:
    """Raises NoRoom where its disk is full."""
    if facts.free_mb is not None and facts.free_mb < LEAST_FREE_MB:
        raise NoRoom(
            f"its disk is full: {facts.free_mb} MiB are free at {facts.home}, expected at least {LEAST_FREE_MB}; make "
            "room there"
        )
    if facts.free_inodes is not None and facts.free_inodes < LEAST_FREE_INODES:
        raise NoRoom(
            f"its disk is full: {facts.free_inodes} inodes are free at {facts.home}, expected at least "
            f"{LEAST_FREE_INODES}; remove files there"
        )


def require_home(facts: NodeFacts) -> None:
    """Raises NotWritable where no file can be written to the home directory."""
    if facts.why_not_writable:
        raise NotWritable(f"its home directory cannot be written: {facts.why_not_writable}")


class NodeContact:
    """A machine while a `RemotePython` runs on it.

    Every method raises ConnectionEnded, CommandFailed and, where the disk is the cause, NoRoom.
    """

    def __init__(self, connection: NodeConnection, python: RemotePython, facts: NodeFacts) -> None:
        self.facts = facts
        """What the machine reported."""
        self.python = python
        self._connection = connection

    async def install_keeper(self, archive: KeeperArchive) -> NodeKeeper:
        """Make sure that the keeper archive is in the keeper's directory; it gets its name there once its hash was
        checked. Its commands run in this Python until the contact ends."""
        path = f"{self.facts.directory}/{archive.name}"
        if archive.name not in self.facts.archives:
            data = await asyncio.to_thread(archive.path.read_bytes)
            request = {"write": path, "size": len(data), "sha256": archive.sha256}
            await self.python.ask(request, f"copying {archive.name}", data=data, timeout_seconds=_UPLOAD_SECONDS)
        return NodeKeeper(self._connection, self.facts.python, path, self.facts.directory, self.python)

    async def list_directories(self, prefix: str) -> list[str]:
        """The names of the keeper directories there that begin with a prefix."""
        answer = await self.python.ask({"list": prefix}, "listing keeper directories", timeout_seconds=_PROBE_SECONDS)
        names: list[str] = answer["names"]
        return names

    async def remove_directory(self) -> str:
        """Remove the keeper's directory where the keeper archive has not arrived: nothing can have run there. What is
        left, or ""."""
        directory = self.facts.directory
        request, what = {"remove": directory}, f"removing {directory}"
        answer = await self.python.ask(request, what, timeout_seconds=_PROBE_SECONDS)
        return f"{directory} could not be removed" if answer["left"] else ""


@asynccontextmanager
async def open_contact(
    connection: NodeConnection, key: str, *, python_path: str | None, now: Callable[[], float]
) -> AsyncIterator[NodeContact]:
    """Probe a machine with the first suitable Python there, and keep that running inside the context.

    :param key: the name of the keeper's directory.
    :param python_path: searched first. Where no Python of it is suitable, another one is used nevertheless, so that
        what is there can be removed; where it has none, the facts say so.
    :param now: our clock, Unix time.
    :raises NoPython: there is none, or only older ones.
    """
    found: list[str] = []
    candidates = [*(f"{python_path.rstrip('/')}/{name}" for name in _NAMES)] if python_path else []
    candidates += _NAMES
    while candidates:
        name = candidates.pop(0)
        async with connection.start_python(name, read_probe()) as process:
            python = RemotePython(process)
            answer = await _probe(python, name, key, python_path)
            if answer is not None and not answer["too_old"]:
                yield NodeContact(connection, python, NodeFacts.read(name, answer, now()))
                await python.close()
                return
        if answer is not None:
            found.append(f"{name} is {answer['python']}")
            candidates = [*answer.get("newer", ()), *candidates] if not python_path else candidates
    raise _no_python(python_path, found)


def detach(keeper: NodeKeeper) -> NodeKeeper:
    """The same keeper, for use after the contact: each command starts a Python of its own."""
    return replace(keeper, session=None)


async def _probe(python: RemotePython, name: str, key: str, python_path: str | None) -> dict[str, Any] | None:
    """What one interpreter reports; None where none has that name."""
    what = f"the probe with {name}"
    request = {"inspect": key, "python_path": python_path}
    finished = await python.exchange(request, what, timeout_seconds=_PROBE_SECONDS)
    if finished.code in _NOT_FOUND and not finished.stdout:
        return None
    return read_answer(finished, what)


def _no_python(python_path: str | None, seen: Sequence[str]) -> NoPython:
    where = f"in {python_path} or on the PATH of a command without a login" if python_path else "on its PATH"
    found = f" (found: {', '.join(seen)})" if seen else ""
    return NoPython(
        f"no Python ≥ {OLDEST_PYTHON} was found {where}{found}; install one there, or set pythonPath to its "
        "directory on the machine"
    )
