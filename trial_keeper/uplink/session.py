"""The keeper's conversation with the manager: find it, check it, register, take commands, send reports, start over."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from proctor.sdk.failpoints import failpoint
from proctor.trial_keeper.errors import AccessRefused, SessionError, SessionLost, TurnedAway
from proctor.trial_keeper.files.server import AT_ONCE, VERIFIED_AT_ONCE, FileAnswers
from proctor.trial_keeper.jobs.outbox import Outbox, SettledReport
from proctor.trial_keeper.linux.backoff import BackOff
from proctor.trial_keeper.linux.tasks import until_first_ends
from proctor.trial_keeper.protocol import (
    Command,
    CommandBatch,
    CommandPoll,
    ContentRequest,
    Registration,
    RegistrationAnswer,
    ReportAnswer,
    from_json,
    manager_proof,
    to_json,
)
from proctor.trial_keeper.uplink.http_client import HttpConnection
from proctor.trial_keeper.uplink.pointer import ManagerEndpoint, read_pointer

_POLL_INTERVAL_SECONDS = 0.25
_MOVED_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_LONGEST_REMOTE_PAUSE_SECONDS = 15.0  # there is no socket on the disk by which a manager that has come is noticed
_ANSWER_SECONDS = 60.0
_NO_PROGRESS_SECONDS = 1.0

log = logging.getLogger(__name__)
T = TypeVar("T")


class SessionHandler(ABC):
    """What a session is held for: it has jobs to register, and acts on what the manager says."""

    @abstractmethod
    def registration(self) -> Registration:
        """What the next session begins with."""

    @abstractmethod
    def begin_session(self, answer: RegistrationAnswer) -> None:
        """A session has begun; nothing else was sent yet. The manager says how far it has each journal, and which jobs
        it does not know."""

    @abstractmethod
    async def carry_out(self, commands: list[Command]) -> None:
        """Carry out a batch of commands; returns when they are done or written down."""

    @abstractmethod
    def settle(self, report: SettledReport) -> None:
        """The manager has answered a report."""

    @abstractmethod
    def turn_away(self, why: str) -> None:
        """The manager has no use for this keeper."""


class ManagerSession:
    """Keeps a session with the manager for as long as the keeper lives."""

    def __init__(
        self,
        *,
        node_id: str,
        pointer: str,
        secret_file: Path,
        outbox: Outbox,
        answers: FileAnswers,
    ) -> None:
        self._base_path = f"/api/v1/keepers/{node_id}"
        self._pointer = pointer
        self._secret_file = secret_file
        self._outbox = outbox
        self._answers = answers
        self._session = ""
        self._complaint = ""
        self.last_answer = asyncio.get_running_loop().time()

    async def run(self, handler: SessionHandler) -> None:
        """Hold sessions for `handler`, one after another, without end."""
        backoff = BackOff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=_LONGEST_REMOTE_PAUSE_SECONDS)
        while True:
            self._session = ""
            place = self._place()
            try:
                await self._hold_session(handler)
            except SessionError as error:
                if str(error) != self._complaint:  # once, not at every attempt
                    log.warning("%s", error)
                    self._complaint = str(error)
                if isinstance(error, TurnedAway):
                    handler.turn_away(str(error))
            if self._session:
                backoff.reset()
            pointed = self._pointed()
            is_remote = pointed is not None and pointed.is_remote
            longest = _LONGEST_REMOTE_PAUSE_SECONDS if is_remote else _LONGEST_PAUSE_SECONDS
            await self._wait_for_change(place, backoff.take(longest))

    async def _hold_session(self, handler: SessionHandler) -> None:
        async with AsyncExitStack() as stack:
            pointed = self._pointed()
            commands = await self._connect(stack)
            reports = await self._connect(stack)
            failpoint("keeper.register.before")
            answer = await self._ask(commands, "register", handler.registration(), RegistrationAnswer)
            failpoint("keeper.register.after")
            self._session = answer.session
            self._complaint = ""
            log.info("registered with the manager as %s", self._base_path)
            handler.begin_session(answer)
            self._answers.begin_session()
            await until_first_ends(
                commands=self._take_commands(commands, handler),
                reports=self._send_reports(reports, handler, answer.heartbeat_seconds),
                moved=self._until_moved(pointed),
                answers=self._answer_questions(),
            )

    async def _connect(self, stack: AsyncExitStack) -> HttpConnection:
        """A connection to a manager that has proved that it knows our secret, before we show it."""
        try:
            endpoint = read_pointer(self._pointer)
            secret = self._secret_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SessionError(f"{error.filename} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise SessionError(f"where the manager listens cannot be read yet: {error}") from error
        connection = await stack.enter_async_context(HttpConnection(endpoint, self._base_path))
        nonce = secrets.token_hex(16)
        answer = await self._post(connection, "hello", json.dumps({"nonce": nonce}).encode())
        if not secrets.compare_digest(str(answer.get("proof")), manager_proof(secret, nonce)):
            raise SessionError(
                f"what listens on {endpoint} does not know this node's secret, so it is not this node's manager"
            )
        connection.authorize(secret)
        return connection

    async def _until_moved(self, pointed: ManagerEndpoint | None) -> None:
        """A socket that leads through a network may be dead silently; the manager then points to a fresh one."""
        while True:
            await asyncio.sleep(_MOVED_SECONDS)
            if self._pointed() not in (pointed, None):
                return

    async def _take_commands(self, connection: HttpConnection, handler: SessionHandler) -> None:
        cursor = 0
        while True:
            batch = await self._ask(connection, "commands", CommandPoll(self._session, cursor), CommandBatch)
            if batch.commands:
                failpoint("keeper.commands.before")
                await handler.carry_out(batch.commands)
                failpoint("keeper.commands.after")
                cursor = batch.commands[-1].number

    async def _send_reports(
        self, connection: HttpConnection, handler: SessionHandler, heartbeat_seconds: float
    ) -> None:
        while True:
            await self._outbox.wait(heartbeat_seconds)
            report = self._outbox.build(self._session)
            failpoint("keeper.report.before")
            body = await self._post(connection, "report", report.body, "application/octet-stream")
            failpoint("keeper.report.after")
            answer = _read(ReportAnswer, body)
            settled = self._outbox.settle(report, answer)
            handler.settle(settled)
            if report.has_news and not settled.has_progress:
                await asyncio.sleep(_NO_PROGRESS_SECONDS)
            await self._outbox.rest(answer.pause_seconds)

    async def _answer_questions(self) -> None:
        """Several questions about files at a time; their answers share one connection, because a relay has room for no
        more."""
        bodies: asyncio.Queue[bytes] = asyncio.Queue(1)

        async def answer(wait_for_next: "Callable[[str], Awaitable[bytes]]") -> None:
            while True:
                await bodies.put(await wait_for_next(self._session))

        works = {f"answers {number}": answer(self._answers.next) for number in range(AT_ONCE)}
        works |= {f"verified {number}": answer(self._answers.next_verified) for number in range(VERIFIED_AT_ONCE)}
        works["fetched"] = self._fetch_archives(bodies)
        await until_first_ends(sender=self._send_answers(bodies), **works)

    async def _fetch_archives(self, bodies: "asyncio.Queue[bytes]") -> None:
        """One archive after another, each over a connection of its own, so that reports do not wait for it."""
        while True:
            request = await self._answers.next_fetch()
            async with AsyncExitStack() as stack:
                read = partial(self._read_content, await self._connect(stack), request.sha256)
                body = await self._answers.fetch(request, self._session, read)
            await bodies.put(body)

    async def _read_content(self, connection: HttpConnection, sha256: str, offset: int) -> bytes:
        asked = json.dumps(to_json(ContentRequest(self._session, sha256, offset))).encode()
        status, data = await connection.post("content", asked, timeout_seconds=_ANSWER_SECONDS)
        if status == 404:
            raise AccessRefused("the manager no longer offers this archive")
        self._check("content", status, data)
        return data

    async def _send_answers(self, bodies: "asyncio.Queue[bytes]") -> None:
        """One after another, on a connection that is opened when there is an answer."""
        body = b""
        while True:
            body = body or await bodies.get()
            async with AsyncExitStack() as stack:
                connection = await self._connect(stack)
                await self._post(connection, "answer", body, "application/octet-stream")
                body = await bodies.get()
                with contextlib.suppress(SessionError):  # managers close what is idle; once more, on a new connection
                    while True:
                        await self._post(connection, "answer", body, "application/octet-stream")
                        body = await bodies.get()

    async def _ask(self, connection: HttpConnection, name: str, message: Any, kind: type[T]) -> T:
        return _read(kind, await self._post(connection, name, json.dumps(to_json(message)).encode()))

    async def _post(
        self, connection: HttpConnection, name: str, body: bytes, content_type: str = "application/json"
    ) -> Any:
        status, answer = await connection.post(name, body, timeout_seconds=_ANSWER_SECONDS, content_type=content_type)
        self._check(name, status, answer)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise SessionError(f"the manager's answer to {name!r} is not JSON: {error}") from error

    def _check(self, name: str, status: int, answer: bytes) -> None:
        """Raise what an answer without success means for the session."""
        if status == 409:
            raise SessionLost("the manager does not know this session; registering again")
        text = answer[:300].decode(errors="replace")
        if status == 410:
            raise TurnedAway(f"the manager has turned this keeper away: {text}")
        if status != 200:
            raise SessionError(f"the manager answers {name!r} with status {status}: {text}")
        self.last_answer = asyncio.get_running_loop().time()

    async def _wait_for_change(self, place: tuple[Any, ...], seconds: float) -> None:
        """Pause, but no longer than until the manager's socket is another one: that is a manager that has just come."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while (left := ends - loop.time()) > 0:
            await asyncio.sleep(min(left, _POLL_INTERVAL_SECONDS))
            if self._place() != place:
                return

    def _place(self) -> tuple[Any, ...]:
        """What changes when a manager opens its socket."""
        endpoint = self._pointed()
        if endpoint is None or endpoint.is_remote:
            return (endpoint,)
        try:
            facts = os.stat(endpoint.socket_path)
        except (OSError, ValueError):
            return ()
        return endpoint, facts.st_ino, facts.st_ctime_ns

    def _pointed(self) -> ManagerEndpoint | None:
        """Where the pointer leads; None while it cannot be read."""
        try:
            return read_pointer(self._pointer)
        except (OSError, ValueError):
            return None


def _read(kind: type[T], body: Any) -> T:
    try:
        return from_json(kind, body)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise SessionError(f"the manager's answer is not a {kind.__name__}: {error}") from error
