"""The first look at a machine: is there a Python, room, a right clock, a home that can be written?"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proctor.training_services.remote.errors import (
    NoPython,
    NoRoom,
    NotWritable,
    RemoteError,
    WrongClock,
)
from proctor.training_services.remote.keeper_archive import read_probe
from proctor.training_services.remote.node_keeper import Finished, read_answer

__all__ = ["NodeFacts", "Prober", "look", "require_usable", "verify"]

LARGEST_CLOCK_DIFFERENCE_SECONDS = 300.0
LEAST_FREE_MB = 64
LEAST_FREE_INODES = 1000
OLDEST_PYTHON = (3, 10)
_NAMES = ("python3", "python")
_NOT_FOUND = (126, 127)
_LOOK_SECONDS = 30.0


class Prober(Protocol):
    """What runs Python on the machine: a `connection.Connection`."""

    async def python(self, python: str, source: str, *, input: bytes = b"", timeout_seconds: float) -> Finished:
        """Run a Python source with an interpreter there. Raises ConnectionEnded, CommandFailed."""


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
    user: str = ""
    hostname: str = ""


async def look(connection: Prober, key: str, *, python_path: str | None, now: float) -> NodeFacts:
    """Look at a machine with the first Python there that will do.

    :param key: the name of the keeper's directory.
    :param now: our clock, Unix time.
    :raises NoPython: there is none, or only older ones.
    """
    seen: list[str] = []
    left = list(_candidates(python_path))
    while left:
        name = left.pop(0)
        answer = await _probe(connection, name, {"key": key})
        if answer is None:
            continue
        if not answer["too_old"]:
            return _read(name, answer, now)
        seen.append(f"{name} is {answer['python']}")
        left = [*answer.get("newer", ()), *left] if not python_path else left
    raise _no_python(python_path, seen)


async def verify(connection: Prober, python: str, path: str, *, sha256: str) -> bool:
    """Check what was uploaded to `path` + ".part"; a whole file gets its name, any other one is removed."""
    answer = await _probe(connection, python, {"verify": {"path": path, "sha256": sha256}})
    return answer is not None and bool(answer["verified"]["ok"])


def require_usable(facts: NodeFacts) -> None:
    """Raises NoPython, WrongClock, NotWritable or NoRoom where a keeper could not work."""
    require_system(facts)
    require_clock(facts)
    require_room(facts)
    require_home(facts)


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


def _candidates(python_path: str | None) -> Sequence[str]:
    first = (f"{python_path.rstrip('/')}/{name}" for name in _NAMES) if python_path else ()
    return (*first, *_NAMES)


async def _probe(connection: Prober, python: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """What one interpreter says; None where there is none of that name."""
    finished = await connection.python(
        python, _source(), input=json.dumps(request).encode(), timeout_seconds=_LOOK_SECONDS
    )
    if finished.code in _NOT_FOUND and not finished.stdout.strip():
        return None
    return read_answer(finished, f"the first look with {python}")


@functools.cache
def _source() -> str:
    return read_probe()


def _no_python(python_path: str | None, seen: Sequence[str]) -> NoPython:
    where = f"in {python_path} or on the PATH of a command without a login" if python_path else "on its PATH"
    found = f" (found: {', '.join(seen)})" if seen else ""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return NoPython(
        f"no Python ≥ {oldest} was found {where}{found}; install one there, or say with pythonPath in which directory "
        "of the machine it lies"
    )


def _read(python: str, answer: dict[str, Any], now: float) -> NodeFacts:
    return NodeFacts(
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
    )
