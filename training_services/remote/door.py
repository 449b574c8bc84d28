"""The first contact with a machine: one session, in which one Python there tells what there is, takes the keeper's one
file and carries out its commands. Each start of a session and of a Python costs the machine as much as all of that.
"""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from proctor.training_services.remote.errors import CommandFailed, NoPython
from proctor.training_services.remote.keeper_archive import OLDEST_PYTHON, read_probe
from proctor.training_services.remote.look import NodeFacts
from proctor.training_services.remote.node_keeper import Commander, NodeKeeper, read_answer
from proctor.training_services.remote.sessions import Finished, Process

__all__ = ["Archive", "Door", "Knocker", "open_door"]

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
) -> Finished:
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
    return Finished(code, line, process.stderr_tail)


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
