"""Machines that exist only in a test: what a connection to one answers, without SSH, processes or time."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.remote.machines.records import Claim
from proctor.training_services.ssh.base import CompletedCommand, ProgressCallback
from proctor.training_services.ssh.errors import ConnectionEnded, ForwardingRefused, LoginRefused, RemoteError
from proctor.training_services.ssh.route import STAGES, RouteTrace


@dataclass
class FakeMachine:
    """One machine's state; a test changes it at will. Times of the machine's clock are `clock_ahead` off ours."""

    pool: NodePool
    node_id: str = ""
    failure: RemoteError | None = None  # raised at the next logins
    refused: set[str] = field(default_factory=set)  # experiments whose way in is not taken
    hangs: bool = False  # logins never end
    pythons: dict[str, str] = field(default_factory=lambda: {"python3": "3.11.2"})
    clock_ahead: float = 0.0
    free_mb: int | None = 50_000
    free_inodes: int | None = 1_000_000
    why_not_writable: str = ""
    lacks: list[str] = field(default_factory=list)
    forwards: bool = True
    damages: int = 0  # so many uploads arrive damaged
    devices: list[dict[str, Any]] = field(default_factory=list)
    lock_problem: str = ""
    paths: dict[str, str] = field(default_factory=dict)
    registers: bool = True  # whether a keeper that is started finds the manager
    left: list[str] = field(default_factory=list)  # what cannot be removed
    files: dict[str, bytes] = field(default_factory=dict)
    exists: bool = False
    keeper: bool = False
    logins: int = 0
    uploads: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    connections: list["FakeConnection"] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, claim: Claim, trace: RouteTrace | None) -> AsyncIterator["FakeConnection"]:
        """As `open_connection`."""
        self.logins += 1
        if self.hangs:
            await asyncio.Event().wait()
        failure = LoginRefused("login as bob was refused") if claim.experiment_id in self.refused else self.failure
        if failure is not None:
            if trace is not None:
                trace.failed(failure)
            raise failure
        for stage in STAGES if trace is not None else ():
            trace.passed(stage, "fake")
        connection = FakeConnection(self, claim)
        self.connections.append(connection)
        try:
            yield connection
        finally:
            connection.end("the connection was closed")
            self.connections.remove(connection)

    def cut(self, why: str = "it hung up") -> None:
        """Break every connection."""
        for connection in list(self.connections):
            connection.end(why)

    def clear(self) -> None:
        """Everything of ours is taken away."""
        self.files.clear()
        self.exists = self.keeper = False

    def experiments(self) -> list[str] | None:
        """Whose folders are there; None: its keeper is an older one, which does not say."""
        return []

    def register(self) -> None:
        """Its keeper registers with the manager."""
        self.pool.connect(self.node_id, [], driver_note="", hostname="fake", version="0", seen_at=time.time())


class FakeConnection:
    """A connection to a `FakeMachine`."""

    def __init__(self, machine: FakeMachine, claim: Claim) -> None:
        self.peer = "bob@fake"
        self.claim = claim
        self.forwarded = ""
        self._machine = machine
        self._ended = asyncio.Event()
        self._why = ""

    def end(self, why: str) -> None:
        """It has ended."""
        if not self._ended.is_set():
            self._why = why
            self._ended.set()

    async def until_ended(self) -> str:
        """As the real one."""
        await self._ended.wait()
        return self._why

    @asynccontextmanager
    async def start_python(self, python: str, source: str) -> AsyncIterator["FakePython"]:
        """A Python that answers what the first contact asks, or a shell that finds none."""
        self._check()
        yield FakePython(self, python if python in self._machine.pythons else "")

    async def run(
        self, command: Sequence[str], *, input: bytes = b"", timeout_seconds: float = 0.0
    ) -> CompletedCommand:
        """Carries out the commands of the keeper's one file, and `true`."""
        self._check()
        if command == ["true"]:
            return CompletedCommand(0, b"", b"")
        line, _, data = input.partition(b"\n")
        return _answer(self.run_command(command[-1], json.loads(line), data))

    @asynccontextmanager
    async def start_process(self, command: Sequence[str], *, is_lasting: bool = False) -> AsyncIterator[Any]:
        """A relay that listens, and whose connections never come."""
        self._check()
        self._machine.commands.append(command[-1])
        yield FakeRelay()

    async def upload(self, source: Path | bytes, target: str, *, on_progress: ProgressCallback | None = None) -> None:
        """The file is there at once."""
        self._check()
        data = source if isinstance(source, bytes) else await asyncio.to_thread(source.read_bytes)
        machine = self._machine
        machine.uploads.append(target)
        machine.files[target] = self._damaged(data)

    async def forward(self, remote_socket: str, local_socket: str) -> None:
        """As the machine allows."""
        self._check()
        if not self._machine.forwards:
            raise ForwardingRefused("its SSH server does not forward sockets")
        self.forwarded = local_socket

    def _check(self) -> None:
        if self._ended.is_set():
            raise ConnectionEnded(self._why)

    def reply(self, python: str, asked: dict[str, Any], data: bytes) -> dict[str, Any]:
        """As `trial_keeper/probe.py`."""
        self._check()
        if "inspect" in asked:
            return self._inspect(python, asked["inspect"], asked["python_path"])
        if "write" in asked:
            return self._write(asked["write"], self._damaged(data), asked["sha256"])
        if "command" in asked:
            return self.run_command(asked["command"], asked, b"")
        if "list" in asked:
            return {"names": []}
        self._machine.exists = False
        return {"left": False}

    def run_command(self, name: str, given: dict[str, Any], data: bytes) -> dict[str, Any]:
        """A command of the keeper's one file."""
        self._machine.commands.append(name)
        if data:
            path = f"{given['directory']}/{given['archive']}"
            self._machine.files[path] = self._damaged(data)
            self._machine.uploads.append(path)
        answer: dict[str, Any] = getattr(self, f"_{name}")(given)
        return answer

    def _inspect(self, python: str, key: str, python_path: str | None) -> dict[str, Any]:
        machine = self._machine
        version = machine.pythons[python]
        directory = f"/home/bob/.proctor/nodes/{key}"
        names = [path.rpartition("/")[2] for path in machine.files]
        has_python = any(path.startswith(f"{python_path}/") for path in machine.pythons)
        return {
            "python": version,
            "too_old": tuple(map(int, version.split("."))) < (3, 10),
            "newer": [name for name in machine.pythons if name not in ("python3", "python")],
            "executable": python,
            "lacks": machine.lacks,
            "home": "/home/bob",
            "user": "bob",
            "hostname": "fake",
            "time": time.time() + machine.clock_ahead,
            "why_not_writable": machine.why_not_writable,
            "free_mb": machine.free_mb,
            "free_inodes": machine.free_inodes,
            "directory": directory,
            "exists": machine.exists,
            "archives": [name for name in names if name.endswith(".pyz")],
            "kills_at_logout": False,
            "python_path_without": python_path if python_path and not has_python else "",
        }

    def _write(self, path: str, data: bytes, sha256: str) -> dict[str, Any]:
        self._machine.exists = True
        self._machine.uploads.append(path)
        if hashlib.sha256(data).hexdigest() != sha256:
            return {"error": f"{path} arrived damaged"}
        self._machine.files[path] = data
        return {}

    def _damaged(self, data: bytes) -> bytes:
        if not self._machine.damages:
            return data
        self._machine.damages -= 1
        return b"damaged"

    def _prepare(self, given: dict[str, Any]) -> dict[str, Any]:
        codes = [path.rpartition("/")[2] for path in self._machine.files if "/code/" in path]
        return {"directory": given["directory"], "socket": "/run/1.sock", "codes": codes, "jobs": 0}

    def _start(self, given: dict[str, Any]) -> dict[str, Any]:
        machine = self._machine
        started, machine.keeper = not machine.keeper, True
        if machine.registers:
            machine.register()
        return {"pid": 17, "started": started}

    def _stop(self, given: dict[str, Any]) -> dict[str, Any]:
        self._machine.keeper = False
        if not given["kill_jobs"]:
            return {"jobs": 0, "left": []}
        return {"jobs": 0, "left": self._machine.left, "experiments": self._machine.experiments()}

    def _remove(self, given: dict[str, Any]) -> dict[str, Any]:
        if not self._machine.left:
            self._machine.clear()
        return {"removed": not self._machine.left, "jobs": 0, "left": self._machine.left}

    def _unpack(self, given: dict[str, Any]) -> dict[str, Any]:
        path = f"{given['directory']}/{given['archive']}"
        data = self._machine.files.pop(path)
        if hashlib.sha256(data).hexdigest() != given["sha256"]:
            return {"error": "the upload was damaged in transit"}
        self._machine.files[f"{given['directory']}/{given['target']}"] = data
        return {"target": given["target"]}

    def _probe(self, given: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": "0",
            "python": "3.11.2",
            "devices": self._machine.devices,
            "driver_note": "" if self._machine.devices else "no NVIDIA driver",
            "gpu_lock_problem": self._machine.lock_problem,
            "paths": {path: self._machine.paths.get(path, "missing") for path in given["paths"]},
        }


class FakePython:
    """The pipes of a Python. It answers a line at a time; without a name there is none."""

    stderr_tail = b"not found"

    def __init__(self, connection: FakeConnection, python: str) -> None:
        self.stdin = self.stdout = self
        self._connection = connection
        self._python = python
        self._said = b""

    def write(self, data: bytes) -> None:
        """What the manager says."""
        self._said += data

    def write_eof(self) -> None:
        """It ends."""

    async def drain(self) -> None:
        """It is there."""

    async def readline(self) -> bytes:
        """The answer to the newest line."""
        line, _, data = self._said.partition(b"\n")
        self._said = b""
        if not self._python:
            return b""
        return json.dumps(self._connection.reply(self._python, json.loads(line), data)).encode() + b"\n"

    async def wait(self) -> int:
        """Its exit code."""
        return 0 if self._python else 127


class FakeRelay:
    """The pipes of a session of a relay, which confirms its request and then says nothing."""

    stderr_tail = b""

    def __init__(self) -> None:
        self.stdin = self.stdout = self
        self._request = b""

    def write(self, data: bytes) -> None:
        """What the manager says."""
        self._request += data

    async def drain(self) -> None:
        """It is there."""

    async def read(self) -> bytes:
        """It does not end."""
        await asyncio.Event().wait()
        return b""

    async def readline(self) -> bytes:
        """What confirms the request; no line follows."""
        if not self._request:
            return await self.read()
        request, self._request = json.loads(self._request), b""
        return json.dumps({"socket": request["socket"]}).encode() + b"\n"


def _answer(body: dict[str, Any]) -> CompletedCommand:
    return CompletedCommand(1 if "error" in body else 0, json.dumps(body).encode() + b"\n", b"")
