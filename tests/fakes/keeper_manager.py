"""A small manager for a real keeper: the keeper routes over HTTP, on a Unix socket or over TLS, everything kept in
memory.

What it has stored survives `restart` (which forgets only the session), as a manager's database would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.manager.process.certificate import open_certificate
from proctor.manager.settings import Home
from proctor.trial_keeper.protocol import (
    Acknowledgement,
    Command,
    CommandBatch,
    CommandPoll,
    ContentRequest,
    End,
    Exit,
    FileAnswer,
    Launch,
    Registration,
    RegistrationAnswer,
    ReportAnswer,
    ReportHeader,
    Start,
    from_json,
    manager_proof,
    to_json,
)
from proctor.trial_keeper.uplink.pointer import ManagerEndpoint, write_pointer

HOST = "127.0.0.1"
NODE_ID = "node-1"
SECRET = "a secret of the node"


@dataclass
class FakeManager:
    """Stores what a keeper reports. `changed` is notified with every report and registration."""

    directory: Path
    heartbeat_seconds: float = 0.5
    journals: dict[tuple[str, str], bytes] = field(default_factory=dict)
    starts: dict[str, list[Start]] = field(default_factory=dict)
    ends: dict[str, list[End]] = field(default_factory=dict)
    answers: dict[str, tuple[FileAnswer, bytes]] = field(default_factory=dict)
    archives: dict[str, bytes] = field(default_factory=dict)  # what `content` answers, by SHA-256
    piece_bytes: int = 64 * 1024
    pieces: list[int] = field(default_factory=list)  # the offsets that were asked for
    headers: list[ReportHeader] = field(default_factory=list)
    registrations: list[Registration] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    overlaps: list[str] = field(default_factory=list)
    takes_ends: bool = True
    knows_secret: bool = True
    turns_away: bool = False
    before_answer: Callable[[str], None] | None = None
    hangs_up_after: set[str] = field(default_factory=set)
    uses_tls: bool = False

    def __post_init__(self) -> None:
        self.changed = asyncio.Condition()
        self._commands: list[Command] = []
        self._session = ""
        self._sessions = 0
        self._life: object = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._port = 0

    @property
    def pointer(self) -> Path:
        """The file that tells keepers where the socket is."""
        return self.directory / "socket"

    async def start(self) -> None:
        """Listen, and swap the pointer: on a fresh socket, or always on the same port with the same certificate."""
        self._sessions += 1
        self._life = life = object()
        if self.uses_tls:
            await self._start_tls(life)
            return
        path = self.directory / f"manager-{self._sessions}.sock"
        self._server = await asyncio.start_unix_server(
            lambda reader, writer: self._serve(life, reader, writer), str(path), limit=64 * 1024 * 1024
        )
        swap = self.directory / "socket.new"
        swap.write_text(str(path))
        swap.replace(self.pointer)

    async def _start_tls(self, life: object) -> None:
        context, fingerprint = open_certificate(Home(self.directory), HOST)
        self._server = await asyncio.start_server(
            lambda reader, writer: self._serve(life, reader, writer),
            HOST,
            self._port,
            ssl=context,
            limit=64 * 1024 * 1024,
        )
        self._port = self._server.sockets[0].getsockname()[1]
        write_pointer(self.pointer, ManagerEndpoint(host=HOST, port=self._port, fingerprint=fingerprint))

    async def stop(self) -> None:
        """Die: the socket closes, sessions and unsent commands are forgotten."""
        assert self._server is not None
        self._life = None
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        await asyncio.sleep(0)  # a server that is closed before a connection it has accepted is served leaves that open
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self.forget_session()
        await self._idle.wait()

    async def restart(self) -> None:
        """Die, and listen again."""
        await self.stop()
        await self.start()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeManager"]:
        """Listen for as long as the block lasts."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def command(self, *orders: Any) -> None:
        """Give orders to the keeper, as soon as there is one."""
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(lambda: self._session), 30)
            self._give(*orders)

    async def hand_over(self, launch: Launch) -> None:
        """Give a launch to a keeper that has not registered with the job. The real manager gives it to no other: a
        keeper that has reported the job's end and forgotten it would read its journal again."""
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(lambda: self._session), 30)
            if all(job.job_id != launch.job_id for job in self.registrations[-1].jobs):
                self._give(launch)

    async def ask(self, order: Any, *, seconds: float = 60.0) -> tuple[FileAnswer, bytes]:
        """Ask the keeper about files, and wait for its answer."""
        await self.command(order)
        await self.until(lambda: order.request in self.answers, seconds=seconds)
        return self.answers[order.request]

    async def until(self, condition: Callable[[], Any], *, seconds: float = 30.0) -> Any:
        """Wait until `condition` is true, looking after everything that happens."""
        async with self.changed:
            return await asyncio.wait_for(self.changed.wait_for(condition), seconds)

    async def end_of(self, job_id: str, *, seconds: float = 30.0) -> Exit:
        """Wait for a job's end."""
        await self.until(lambda: job_id in self.ends, seconds=seconds)
        return self.ends[job_id][-1].exit

    async def start_of(self, job_id: str) -> Start:
        """Wait until a job runs."""
        await self.until(lambda: job_id in self.starts)
        return self.starts[job_id][-1]

    async def forget_session(self) -> None:
        """Answer 409 to the next request, as a manager that was restarted behind a stable socket would."""
        async with self.changed:
            self._session = ""
            self._commands = []
            self.changed.notify_all()

    def forget_jobs(self) -> None:
        """Know nothing of jobs, files and what was asked; the session and its newest header stay."""
        for known in (self.journals, self.starts, self.ends, self.answers, self.archives, self.unknown, self.fenced):
            known.clear()
        for told in (self.pieces, self.overlaps, self.hangs_up_after):
            told.clear()
        del self.headers[:-1], self.registrations[:-1]
        self.takes_ends, self.before_answer = True, None

    def _give(self, *orders: Any) -> None:
        for order in orders:
            number = len(self._commands) + 1
            self._commands.append(Command(number, type(order).__name__, to_json(order)))
        self.changed.notify_all()

    async def _serve(self, life: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._idle.clear()
        try:
            while life is self._life:  # a connection that was being accepted when we died is dead, too
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = lines[0].split()[1]
                assert path.startswith(f"/api/v1/keepers/{NODE_ID}/"), path
                status, answer = await self._answer(path.rsplit("/", 1)[1], headers.get("authorization"), body)
                if self.before_answer is not None:
                    self.before_answer(path.rsplit("/", 1)[1])
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                if life is not self._life:
                    return
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
                if path.rsplit("/", 1)[1] in self.hangs_up_after:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            if not self._writers:
                self._idle.set()

    async def _answer(self, name: str, authorization: str | None, body: bytes) -> tuple[int, Any]:
        if name == "hello":
            secret = SECRET if self.knows_secret else "another secret"
            return 200, {"proof": manager_proof(secret, json.loads(body)["nonce"])}
        if authorization != f"Bearer {SECRET}":
            return 401, {}
        if self.turns_away:
            return 410, {"detail": "job T.1 has another keeper"}
        if name == "register":
            return 200, await self._register(from_json(Registration, json.loads(body)))
        if name == "commands":
            return await self._poll(from_json(CommandPoll, json.loads(body)))
        if name == "content":
            return self._send_piece(from_json(ContentRequest, json.loads(body)))
        header, _, data = body.partition(b"\n")
        if name == "answer":
            return await self._take_answer(from_json(FileAnswer, json.loads(header)), data)
        return await self._report(from_json(ReportHeader, json.loads(header)), data)

    def _send_piece(self, asked: ContentRequest) -> tuple[int, Any]:
        if asked.session != self._session:
            return 409, {}
        if asked.sha256 not in self.archives:
            return 404, {}
        self.pieces.append(asked.offset)
        return 200, self.archives[asked.sha256][asked.offset : asked.offset + self.piece_bytes]

    async def _register(self, registration: Registration) -> Any:
        async with self.changed:
            self._sessions += 1
            self._session = f"session-{self._sessions}"
            self._commands = []
            self.registrations.append(registration)
            self.changed.notify_all()
        offsets: dict[str, dict[str, int]] = {}
        for (job_id, member), data in self.journals.items():
            offsets.setdefault(job_id, {})[member] = len(data)
        unknown = [job.job_id for job in registration.jobs if job.job_id in self.unknown]
        return to_json(RegistrationAnswer(self._session, offsets, unknown, self.heartbeat_seconds))

    async def _poll(self, poll: CommandPoll) -> tuple[int, Any]:
        async with self.changed:
            await self.changed.wait_for(lambda: poll.session != self._session or len(self._commands) > poll.cursor)
            if poll.session != self._session:
                return 409, {}
            return 200, to_json(CommandBatch(self._commands[poll.cursor :]))

    async def _report(self, header: ReportHeader, data: bytes) -> tuple[int, Any]:
        if header.session != self._session:
            return 409, {}
        acknowledged = []
        position = 0
        for chunk in header.chunks:
            self._store(chunk.job_id, chunk.member, chunk.offset, data[position : position + chunk.length])
            position += chunk.length
            stored = len(self.journals[chunk.job_id, chunk.member])
            acknowledged.append(Acknowledgement(chunk.job_id, chunk.member, stored))
        assert position == len(data)
        async with self.changed:
            for start in header.starts:
                self.starts.setdefault(start.job_id, []).append(start)
            for end in header.ends:
                self.ends.setdefault(end.job_id, []).append(end)
            self.headers.append(header)
            self.changed.notify_all()
        ended = [end.job_id for end in header.ends if self.takes_ends]
        fenced = [chunk.job_id for chunk in header.chunks if chunk.job_id in self.fenced]
        return 200, to_json(ReportAnswer(acknowledged, ended, fenced))

    async def _take_answer(self, answer: FileAnswer, data: bytes) -> tuple[int, Any]:
        if answer.session != self._session:
            return 409, {}
        async with self.changed:
            self.answers[answer.request] = (answer, data)
            self.changed.notify_all()
        return 200, {}

    def _store(self, job_id: str, member: str, offset: int, data: bytes) -> None:
        known = self.journals.get((job_id, member), b"")
        if offset != len(known):
            self.overlaps.append(f"{job_id} {member}: got {offset}, have {len(known)}")
        if offset <= len(known):
            self.journals[job_id, member] = known[:offset] + data
