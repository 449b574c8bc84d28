"""The keeper of one machine, commanded over the SSH connection: what its one file can be asked to do there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proctor.sdk.disk_errors import full_problem
from proctor.training_services.ssh.errors import CommandFailed, NoRoom
from proctor.training_services.ssh.shell import ISOLATED

__all__ = ["Asker", "Commander", "Finished", "NodeKeeper", "PreparedNode", "read_answer"]

_QUICK_SECONDS = 60.0
_START_SECONDS = 90.0
_STOP_SECONDS = 180.0
_UNPACK_SECONDS = 1800.0


class Finished(Protocol):
    """How a command on the machine ended."""

    @property
    def code(self) -> int:
        """Its exit code."""

    @property
    def stdout(self) -> bytes:
        """All that it printed."""

    @property
    def stderr(self) -> bytes:
        """The same of its complaints."""


class Commander(Protocol):
    """What runs commands on the machine: a `connection.Connection`."""

    async def run(self, command: Sequence[str], *, input: bytes = b"", timeout_seconds: float) -> Finished:
        """Run one command to its end. Raises ConnectionEnded, CommandFailed."""


class Asker(Protocol):
    """A Python that runs on the machine already, and can carry out commands: a `door.Door`."""

    async def carry_out(
        self, archive: str, command: str, body: dict[str, Any], *, timeout_seconds: float
    ) -> dict[str, Any]:
        """The answer to a command of the keeper's one file. Raises ConnectionEnded, CommandFailed, NoRoom."""


@dataclass(frozen=True)
class PreparedNode:
    """What is there before the keeper is started.

    socket: a fresh path in a folder that only its owner may enter, for this connection.
    codes: the code that is unpacked there, by name.
    jobs: how many jobs its records know.
    """

    socket: str
    codes: frozenset[str] = frozenset()
    jobs: int = 0


@dataclass(frozen=True)
class NodeKeeper:
    """Commands of the keeper's one file on a machine. All of them may be repeated.

    Every method raises ConnectionEnded when the connection breaks, and CommandFailed or NoRoom with the machine's own
    sentence.
    """

    connection: Commander
    python: str  # the interpreter there
    archive: str  # absolute path there of the keeper's one file
    directory: str  # absolute path there of the keeper's directory
    asker: Asker | None = None  # carries out the commands; without one, each starts a Python of its own

    async def prepare(self) -> PreparedNode:
        """Make the folders (0700) and look at what is there."""
        answer = await self.ask("prepare", {}, timeout_seconds=_QUICK_SECONDS)
        return PreparedNode(answer["socket"], frozenset(answer["codes"]), answer["jobs"])

    async def start(self, *, node_id: str, secret: str, socket: str, search_path: str = "") -> bool:
        """Make sure that a keeper of this version runs and finds the manager at `socket`; whether one was started.
        Sockets of earlier connections are removed."""
        body = {"node_id": node_id, "secret": secret, "socket": socket, "search_path": search_path}
        return bool((await self.ask("start", body, timeout_seconds=_START_SECONDS))["started"])

    async def stop(self) -> None:
        """Have the keeper leave; its jobs go on."""
        await self.ask("stop", {"kill_jobs": False}, timeout_seconds=_STOP_SECONDS)

    async def end_jobs(self) -> str:
        """Have the keeper leave, and every job end with all its processes; returns what could not be ended and why,
        or ""."""
        return "; ".join((await self.ask("stop", {"kill_jobs": True}, timeout_seconds=_STOP_SECONDS))["left"])

    async def remove(self) -> str:
        """Stop it with its jobs and remove everything of it; returns what is left and why, or ""."""
        return "; ".join((await self.ask("remove", {}, timeout_seconds=_STOP_SECONDS))["left"])

    async def unpack(self, archive: str, sha256: str, *, target: str, data: bytes = b"") -> None:
        """Unpack a .tar.gz, after checking it, as a folder of the keeper's directory. Does nothing where that is there.

        :param archive: where it was uploaded to, or is to be put.
        :param data: all of it, where it was not uploaded.
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
        """Any of its commands; returns its answer.

        :param data: what follows the body.
        """
        body = {"directory": self.directory, **body}
        if self.asker is not None and not data:
            return await self.asker.carry_out(self.archive, command, body, timeout_seconds=timeout_seconds)
        request = json.dumps(body).encode() + b"\n" + data
        finished = await self.connection.run(self.words(command), input=request, timeout_seconds=timeout_seconds)
        return read_answer(finished, f"the keeper's command {command!r}")

    def words(self, command: str) -> list[str]:
        """The command line of one of its commands."""
        return [self.python, *ISOLATED, self.archive, command]


def read_answer(finished: Finished, what: str) -> dict[str, Any]:
    """The one JSON object that a command printed, on its last line: a login shell may have printed before it.

    Raises CommandFailed with the machine's own sentence where it has one; NoRoom where the disk is to blame.
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
