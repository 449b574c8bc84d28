"""The first contact with a machine: one session, in which one Python there tells what there is, takes the keeper's one
file and carries out its commands. Each start of a session and of a Python costs the machine as much as all of that.
"""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from proctor.training_services.remote.bootstrap.archive import OLDEST_PYTHON, read_probe
from proctor.training_services.remote.bootstrap.keeper_commands import Commander, NodeKeeper, read_answer
from proctor.training_services.remote.files.transfer import Carrier
from proctor.training_services.ssh.base import CompletedCommand, Process
from proctor.training_services.ssh.errors import CommandFailed, NoPython, NoRoom, NotWritable, RemoteError, WrongClock

__all__ = [
    "Archive",
    "Door",
    "Knocker",
    "NodeConnection",
    "NodeFacts",
    "Site",
    "arrive",
    "open_door",
    "require_clock",
    "require_home",
    "require_python_path",
    "require_room",
    "require_system",
    "require_usable",
]


# ---- look -----------------------------------------------------------------------------------------------------------
# What a machine says at the first look: has it room, a right clock, a home that can be written?

LARGEST_CLOCK_DIFFERENCE_SECONDS = 300.0
LEAST_FREE_MB = 64
LEAST_FREE_INODES = 1000


@dataclass(frozen=True)
class NodeFacts:
    """What a machine says of itself, see `proctor.trial_keeper.probe`.

    clock_ahead_seconds: its clock less ours.
    archives: the keeper's one file, by name, as far as it lies there already.
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
    hostname: str = ""

    @classmethod
    def read(cls, python: str, answer: dict[str, Any], now: float) -> "NodeFacts":
        """From the answer of an interpreter. Raises KeyError, TypeError.

        :param python: its name, in case that it does not know where it is.
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
            hostname=answer["hostname"],
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
    """Raises NotWritable where the home directory does not take files."""
    if facts.why_not_writable:
        raise NotWritable(f"its home directory cannot be written: {facts.why_not_writable}")


_NAMES = ("python3", "python")
_NOT_FOUND = (126, 127)
_LOOK_SECONDS = 30.0
_TAKE_SECONDS = 600.0
_CLOSING_SECONDS = 5.0


class Archive(Protocol):
    """A file to bring: `keeper_archive.KeeperArchive`."""

    @property
    def path(self) -> Path:
        """Where it lies here."""

    @property
    def sha256(self) -> str:
        """The hash of its bytes."""

    @property
    def name(self) -> str:
        """Its name there."""


class Knocker(Commander, Protocol):
    """What opens doors: a `connection.Connection`."""

    def start_python(self, python: str, source: str) -> AbstractAsyncContextManager[Process]:
        """Run a Python source there and talk with it. Raises CommandFailed, ConnectionEnded."""


class Door:
    """A Python that runs on the machine, see `trial_keeper/probe.py`. One question at a time.

    Everything raises ConnectionEnded, CommandFailed and, where the disk is to blame, NoRoom.
    """

    def __init__(self, process: Process, connection: Commander, facts: NodeFacts) -> None:
        self.facts = facts
        """What it said of the machine."""
        self._process = process
        self._connection = connection

    async def bring(self, archive: Archive) -> NodeKeeper:
        """Make sure that the keeper's one file lies in its directory there, where it gets its name once its hash was
        checked. Its commands go through this door as long as it is open."""
        path = f"{self.facts.directory}/{archive.name}"
        if archive.name not in self.facts.archives:
            data = await asyncio.to_thread(archive.path.read_bytes)
            request = {"take": path, "size": len(data), "sha256": archive.sha256}
            await self._ask(request, f"bringing {archive.name}", data=data, timeout_seconds=_TAKE_SECONDS)
        return NodeKeeper(self._connection, self.facts.python, path, self.facts.directory, self)

    async def carry_out(
        self, archive: str, command: str, body: dict[str, Any], *, timeout_seconds: float
    ) -> dict[str, Any]:
        """The answer to a command of the keeper's one file, always of the same one."""
        request = {**body, "command": command, "file": archive}
        return await self._ask(request, f"the keeper's command {command!r}", timeout_seconds=timeout_seconds)

    async def list_folders(self, prefix: str) -> list[str]:
        """The names of nodes' directories there that begin so."""
        names: list[str] = (await self._ask({"list": prefix}, "looking for folders"))["names"]
        return names

    async def remove_folder(self) -> str:
        """Take the keeper's directory away where the keeper's file has not arrived: nothing can have run there. What is
        left, or ""."""
        directory = self.facts.directory
        answer = await self._ask({"remove": directory}, f"removing {directory}")
        return f"{directory} could not be removed" if answer["left"] else ""

    async def _ask(
        self, request: dict[str, Any], what: str, *, data: bytes = b"", timeout_seconds: float = _LOOK_SECONDS
    ) -> dict[str, Any]:
        return read_answer(await _converse(self._process, request, data, what, timeout_seconds), what)


@asynccontextmanager
async def open_door(
    connection: Knocker, key: str, *, python_path: str | None, now: Callable[[], float]
) -> AsyncIterator[Door]:
    """Look at a machine with the first Python there that will do, and keep it. Nothing of it is there any more
    afterwards.

    :param key: the name of the keeper's directory.
    :param python_path: looked into first. Where no Python of it will do, another one is kept all the same, so that what
        is there can be taken away; where it has none, the facts say so.
    :param now: our clock, Unix time.
    :raises NoPython: there is none, or only older ones.
    """
    seen: list[str] = []
    left = list(_candidates(python_path))
    while left:
        name = left.pop(0)
        async with connection.start_python(name, _source()) as process:
            answer = await _look(process, name, key, python_path)
            if answer is not None and not answer["too_old"]:
                yield Door(process, connection, NodeFacts.read(name, answer, now()))
                await _close(process)
                return
        if answer is not None:
            seen.append(f"{name} is {answer['python']}")
            left = [*answer.get("newer", ()), *left] if not python_path else left
    raise _no_python(python_path, seen)


def shut(keeper: NodeKeeper) -> NodeKeeper:
    """The same keeper, for when the door is closed."""
    return replace(keeper, asker=None)


def _candidates(python_path: str | None) -> Sequence[str]:
    first = (f"{python_path.rstrip('/')}/{name}" for name in _NAMES) if python_path else ()
    return (*first, *_NAMES)


async def _look(process: Process, name: str, key: str, python_path: str | None) -> dict[str, Any] | None:
    """What one interpreter says; None where there is none of that name."""
    what = f"the first look with {name}"
    request = {"look": key, "python_path": python_path}
    finished = await _converse(process, request, b"", what, _LOOK_SECONDS)
    if finished.code in _NOT_FOUND and not finished.stdout:
        return None
    return read_answer(finished, what)


async def _converse(
    process: Process, request: dict[str, Any], data: bytes, what: str, timeout_seconds: float
) -> CompletedCommand:
    """One line of answer; or how it ended instead."""
    try:
        async with asyncio.timeout(timeout_seconds):
            with suppress(BrokenPipeError):  # it may have ended already
                process.stdin.write(json.dumps(request).encode() + b"\n" + data)
                await process.stdin.drain()
            line = await process.stdout.readline()
            code = 0 if line.endswith(b"\n") else await process.wait()
    except TimeoutError as error:
        raise CommandFailed(f"{what} did not end within {timeout_seconds:g} s") from error
    if code is None:
        raise CommandFailed(f"{what} was ended by a signal")
    return CompletedCommand(code, line, process.stderr_tail)


async def _close(process: Process) -> None:
    """Let it end by itself, lest an SSH server still counts it among the sessions."""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(_CLOSING_SECONDS):
            process.stdin.write_eof()
            await process.wait()


@functools.cache
def _source() -> str:
    return read_probe()


def _no_python(python_path: str | None, seen: Sequence[str]) -> NoPython:
    where = f"in {python_path} or on the PATH of a command without a login" if python_path else "on its PATH"
    found = f" (found: {', '.join(seen)})" if seen else ""
    return NoPython(
        f"no Python ≥ {OLDEST_PYTHON} was found {where}{found}; install one there, or say with pythonPath in which "
        "directory of the machine it lies"
    )


# ---- bootstrap ------------------------------------------------------------------------------------------------------
# From a login to a machine on which the keeper's one file lies: the first look, and the file where it is missing.


class NodeConnection(Carrier, Knocker, Protocol):
    """The SSH connection of one machine: `connection.Connection`."""

    peer: str
    """Whom it leads to: "bob@10.0.0.3:22"."""

    async def forward(self, remote_socket: str, local_socket: str) -> None:
        """Lead connections to a Unix socket there to one here. Raises ForwardingRefused, ConnectionEnded."""

    def start_process(self, command: Sequence[str]) -> AbstractAsyncContextManager[Any]:
        """Run a program and talk with it (`sessions.Process`). Raises CommandFailed, ConnectionEnded."""

    async def until_ended(self) -> str:
        """Wait for its end; a clause says why."""


@dataclass(frozen=True)
class Site:
    """What to bring, and where to: the same for every connection to one machine."""

    node_id: str
    key: str  # the name of the keeper's directory below ~/.proctor/nodes
    python_path: str | None
    archive: Archive


@asynccontextmanager
async def arrive(
    connection: NodeConnection,
    site: Site,
    *,
    now: Callable[[], float],
    tell: Callable[[str], None],
    enter: Callable[[], None],
    check: bool = True,
) -> AsyncIterator[NodeKeeper]:
    """Look at the machine and bring the keeper's file; what is asked of the keeper inside goes through the same door.
    Raises RemoteError, and what `enter` raises.

    :param tell: given a clause before something that takes its time.
    :param enter: called before the first thing is brought there; when it raises, nothing is.
    :param check: refuse a machine on which no trial could run; without it only Python is needed.
    """
    async with open_door(connection, site.key, python_path=site.python_path, now=now) as door:
        if check:
            require_usable(door.facts)
        enter()
        if site.archive.name not in door.facts.archives:
            tell("the keeper is being copied there")
        yield await door.bring(site.archive)
