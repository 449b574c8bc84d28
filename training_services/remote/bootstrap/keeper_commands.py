"""The commands of a keeper archive on a machine, run over its SSH connection.

Each command is a process of its own, or a request to a `RemotePython` that runs there already: a session and an
interpreter less for the machine to start.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from proctor.sdk.disk_errors import full_problem
from proctor.training_services.ssh.base import CompletedCommand, NodeConnection, Process
from proctor.training_services.ssh.errors import CommandFailed, NoRoom
from proctor.training_services.ssh.shell import ISOLATED

__all__ = ["NodeKeeper", "PreparedNode", "RemotePython", "read_answer"]

_QUICK_SECONDS = 60.0
_START_SECONDS = 90.0
_STOP_SECONDS = 180.0
_UNPACK_SECONDS = 1800.0
_CLOSING_SECONDS = 5.0


@dataclass(frozen=True)
class PreparedNode:
    """The keeper directory before the keeper is started.

    socket: an unused path for this connection, in a folder that only its owner may enter.
    codes: the names of the code that is unpacked there.
    """

    socket: str
    codes: frozenset[str] = frozenset()


class RemotePython:
    """A Python that runs `trial_keeper/probe.py` on the machine and answers one request at a time.

    Every method raises ConnectionEnded and CommandFailed.
    """

    def __init__(self, process: Process) -> None:
        self._process = process

    async def exchange(
        self, request: dict[str, Any], what: str, *, data: bytes = b"", timeout_seconds: float
    ) -> CompletedCommand:
        """Send a request; its answer as one line with exit code 0, or how the process ended instead."""
        process = self._process
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

    async def ask(
        self, request: dict[str, Any], what: str, *, data: bytes = b"", timeout_seconds: float
    ) -> dict[str, Any]:
        """The answer to a request. Raises NoRoom too, where the disk is the cause."""
        return read_answer(await self.exchange(request, what, data=data, timeout_seconds=timeout_seconds), what)

    async def run_command(
        self, archive: str, command: str, body: dict[str, Any], *, timeout_seconds: float
    ) -> dict[str, Any]:
        """The answer to a command of a keeper archive, which must be the same one in every call."""
        request = {**body, "command": command, "file": archive}
        return await self.ask(request, f"the keeper's command {command!r}", timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        """Let it exit by itself, so that the SSH server does not count its session any longer."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                self._process.stdin.write_eof()
                await self._process.wait()


@dataclass(frozen=True)
class NodeKeeper:
    """Commands of a keeper archive on a machine. All of them are idempotent.

    Every method raises ConnectionEnded when the connection breaks, and CommandFailed or NoRoom with the machine's own
    sentence.
    """

    connection: NodeConnection
    python: str  # the interpreter there
    archive: str  # absolute path there of the keeper archive
    directory: str  # absolute path there of the keeper's directory
    session: RemotePython | None = None  # runs the commands; without one, each command starts a Python of its own

    async def prepare(self) -> PreparedNode:
        """Make the folders (0700) and report what is there."""
        answer = await self.ask("prepare", {}, timeout_seconds=_QUICK_SECONDS)
        return PreparedNode(answer["socket"], frozenset(answer["codes"]))

    async def start(self, *, node_id: str, secret: str, socket: str, search_path: str = "") -> bool:
        """Make sure that a keeper of this version runs and connects to the manager at `socket`; whether one was
        started. Sockets of earlier connections are removed."""
        body = {"node_id": node_id, "secret": secret, "socket": socket, "search_path": search_path}
        return bool((await self.ask("start", body, timeout_seconds=_START_SECONDS))["started"])

    async def stop(self) -> None:
        """Stop the keeper; its jobs keep running."""
        await self.ask("stop", {"kill_jobs": False}, timeout_seconds=_STOP_SECONDS)

    async def end_jobs(self) -> Sequence[str] | None:
        """Stop the keeper, and end every job with all its processes. Returns the ids of the experiments whose files are
        there; None where an older keeper does not say. Raises CommandFailed too for what could not be ended."""
        answer = await self.ask("stop", {"kill_jobs": True}, timeout_seconds=_STOP_SECONDS)
        if answer["left"]:
            raise CommandFailed(f"its trials cannot be stopped: {'; '.join(answer['left'])}")
        found: Sequence[str] | None = answer.get("experiments")
        return found

    async def remove(self) -> str:
        """Stop it with its jobs and remove everything of it; returns what is left and why, or ""."""
        return "; ".join((await self.ask("remove", {}, timeout_seconds=_STOP_SECONDS))["left"])

    async def unpack(self, archive: str, sha256: str, *, target: str, data: bytes = b"") -> None:
        """Unpack a .tar.gz, after checking it, as a folder of the keeper's directory. Does nothing where that exists.

        :param archive: the path it was uploaded to, or is to be written to.
        :param data: the whole file, where it was not uploaded.
        """
        body = {"archive": archive, "sha256": sha256, "target": target, "size": len(data)}
        await self.ask("unpack", body, data=data, timeout_seconds=_UNPACK_SECONDS)

    async def probe(self, *paths: str) -> dict[str, Any]:
        """What a keeper would find there: its devices, and whether the paths are folders; see
        `proctor.trial_keeper.commands.main`."""
        return await self.ask("probe", {"paths": list(paths)}, timeout_seconds=_QUICK_SECONDS)

    async def ask(
        self, command: str, body: dict[str, Any], *, data: bytes = b"", timeout_seconds: float
    ) -> dict[str, Any]:
        """Run one of its commands; returns its answer.

        :param data: sent after the body.
        """
        body = {"directory": self.directory, **body}
        if self.session is not None and not data:
            return await self.session.run_command(self.archive, command, body, timeout_seconds=timeout_seconds)
        request = json.dumps(body).encode() + b"\n" + data
        finished = await self.connection.run(self.words(command), input=request, timeout_seconds=timeout_seconds)
        return read_answer(finished, f"the keeper's command {command!r}")

    def words(self, command: str) -> list[str]:
        """The command line of one of its commands."""
        return [self.python, *ISOLATED, self.archive, command]


def read_answer(finished: CompletedCommand, what: str) -> dict[str, Any]:
    """The one JSON object that a command printed, on its last line: a login shell may have printed before it.

    Raises CommandFailed with the machine's own sentence where it has one; NoRoom where the disk is the cause.
    """
    try:
        answer = json.loads(finished.stdout.strip().rpartition(b"\n")[2])
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or (finished.code and "error" not in answer):
        complaint = (finished.stderr.strip() or finished.stdout.strip()).decode(errors="replace")[-500:]
        said = complaint or "it printed nothing"
        raise CommandFailed(f"{what} failed there with exit code {finished.code}: {said}", finished.code)
    if problem := full_problem(answer.get("errno")):
        raise NoRoom(f"{problem} ({what} failed there: {answer['error']}); make room there")
    if "error" in answer:
        raise CommandFailed(f"{what} failed there: {answer['error']}", finished.code)
    return answer
