"""The keeper's conversation with the manager: find it, check it, register, take commands, send reports, start over."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from proctor.sdk.failpoints import failpoint
from proctor.trial_keeper.errors import LinkError, SessionLost
from proctor.trial_keeper.files.server import AT_ONCE, FileAnswers
from proctor.trial_keeper.jobs.outbox import Outbox
from proctor.trial_keeper.linux.backoff import BackOff
from proctor.trial_keeper.linux.tasks import until_first_ends
from proctor.trial_keeper.protocol import (
    Command,
    CommandBatch,
    CommandPoll,
    Registration,
    RegistrationAnswer,
    ReportAnswer,
    from_json,
    manager_proof,
    to_json,
)
from proctor.trial_keeper.uplink.http_client import HttpConnection

_POLL_INTERVAL_SECONDS = 0.25
_MOVED_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_ANSWER_SECONDS = 60.0
_NO_PROGRESS_SECONDS = 1.0

log = logging.getLogger(__name__)
T = TypeVar("T")


class ManagerSession:
    """Keeps a session with the manager for as long as the keeper lives.

    `on_session` is given the answer to a registration before anything else is sent; `carry_out` is awaited with each
    batch of commands and returns when they are done or written down.
    """

    def __init__(
        self,
        *,
        node_id: str,
        pointer: str,
        secret_file: Path,
        on_session: Callable[[RegistrationAnswer], None],
        carry_out: Callable[[list[Command]], Awaitable[None]],
        outbox: Outbox,
        answers: FileAnswers,
    ) -> None:
        self._base_path = f"/api/v1/keepers/{node_id}"
        self._pointer = pointer
        self._secret_file = secret_file
        self._on_session = on_session
        self._carry_out = carry_out
        self._outbox = outbox
        self._answers = answers
        self._session = ""
        self._complaint = ""
        self.last_answer = asyncio.get_running_loop().time()

    async def run(self, register: Callable[[], Registration]) -> None:
        """Hold sessions, one after another, without end; each begins with what `register` returns then."""
        backoff = BackOff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=_LONGEST_PAUSE_SECONDS)
        while True:
            self._session = ""
            place = self._place()
            try:
                await self._hold_session(register)
            except LinkError as error:
                if str(error) != self._complaint:  # once, not at every attempt
                    log.warning("%s", error)
                    self._complaint = str(error)
            if self._session:
                backoff.reset()
            await self._wait_for_change(place, backoff.take())

    async def _hold_session(self, register: Callable[[], Registration]) -> None:
        async with AsyncExitStack() as stack:
            pointed = self._pointed()
            commands = await self._connect(stack)
            reports = await self._connect(stack)
            failpoint("keeper.register.before")
            answer = await self._ask(commands, "register", register(), RegistrationAnswer)
            failpoint("keeper.register.after")
            self._session = answer.session
            self._complaint = ""
            log.info("registered with the manager as %s", self._base_path)
            self._on_session(answer)
            self._answers.begin_session()
            await until_first_ends(
                commands=self._take_commands(commands),
                reports=self._send_reports(reports, answer.heartbeat_seconds),
                moved=self._until_moved(pointed),
                answers=self._answer_questions(),
            )

    async def _connect(self, stack: AsyncExitStack) -> HttpConnection:
        """A connection to a manager that has proved that it knows our secret, before we show it."""
        try:
            path = self._read_pointer()
            secret = self._secret_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise LinkError(f"{error.filename} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise LinkError(f"the path to the manager's socket cannot be read yet: {error}") from error
        connection = await stack.enter_async_context(HttpConnection(path, self._base_path))
        nonce = secrets.token_hex(16)
        answer = await self._post(connection, "hello", json.dumps({"nonce": nonce}).encode())
        if not secrets.compare_digest(str(answer.get("proof")), manager_proof(secret, nonce)):
            raise LinkError(
                f"what listens on {path} does not know this node's secret, so it is not this node's manager"
            )
        connection.authorize(secret)
        return connection

    async def _until_moved(self, pointed: str) -> None:
        """A socket that leads through a network may be dead silently; the manager then points to a fresh one."""
        while True:
            await asyncio.sleep(_MOVED_SECONDS)
            if self._pointed() not in (pointed, ""):
                return

    async def _take_commands(self, connection: HttpConnection) -> None:
        cursor = 0
        while True:
            batch = await self._ask(connection, "commands", CommandPoll(self._session, cursor), CommandBatch)
            if batch.commands:
                failpoint("keeper.commands.before")
                await self._carry_out(batch.commands)
                failpoint("keeper.commands.after")
                cursor = batch.commands[-1].number

    async def _send_reports(self, connection: HttpConnection, heartbeat_seconds: float) -> None:
        while True:
            await self._outbox.wait(heartbeat_seconds)
            report = self._outbox.build(self._session)
            failpoint("keeper.report.before")
            body = await self._post(connection, "report", report.body, "application/octet-stream")
            failpoint("keeper.report.after")
            answer = _read(ReportAnswer, body)
            moved = self._outbox.settle(report, answer)
            if report.has_news and not moved:
                await asyncio.sleep(_NO_PROGRESS_SECONDS)
            await self._outbox.rest(answer.pause_seconds)

    async def _answer_questions(self) -> None:
        """Several questions about files at a time; their answers share one connection, because a relay has room for no
        more."""
        bodies: asyncio.Queue[bytes] = asyncio.Queue(1)

        async def answer() -> None:
            while True:
                await bodies.put(await self._answers.next(self._session))

        works = {f"answers {number}": answer() for number in range(AT_ONCE)}
        await until_first_ends(sender=self._send_answers(bodies), **works)

    async def _send_answers(self, bodies: "asyncio.Queue[bytes]") -> None:
        """One after another, on a connection that is opened when there is an answer."""
        body = b""
        while True:
            body = body or await bodies.get()
            async with AsyncExitStack() as stack:
                connection = await self._connect(stack)
                await self._post(connection, "answer", body, "application/octet-stream")
                body = await bodies.get()
                with contextlib.suppress(LinkError):  # managers close what is idle; once more, on a new connection
                    while True:
                        await self._post(connection, "answer", body, "application/octet-stream")
                        body = await bodies.get()

    async def _ask(self, connection: HttpConnection, name: str, message: Any, kind: type[T]) -> T:
        return _read(kind, await self._post(connection, name, json.dumps(to_json(message)).encode()))

    async def _post(
        self, connection: HttpConnection, name: str, body: bytes, content_type: str = "application/json"
    ) -> Any:
        status, answer = await connection.post(name, body, timeout_seconds=_ANSWER_SECONDS, content_type=content_type)
        if status == 409:
            raise SessionLost("the manager does not know this session; registering again")
        if status != 200:
            text = answer[:300].decode(errors="replace")
            raise LinkError(f"the manager answers {name!r} with status {status}: {text}")
        self.last_answer = asyncio.get_running_loop().time()
        try:
            return json.loads(answer)
        except ValueError as error:
            raise LinkError(f"the manager's answer to {name!r} is not JSON: {error}") from error

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
        try:
            path = self._read_pointer()
            facts = os.stat(path)
        except (OSError, ValueError):
            return ()
        return path, facts.st_ino, facts.st_ctime_ns

    def _pointed(self) -> str:
        """Where the pointer leads; "" while it cannot be read."""
        try:
            return self._read_pointer()
        except (OSError, ValueError):
            return ""

    def _read_pointer(self) -> str:
        """Raises OSError, and ValueError for one that was cut short by a power cut, until a manager writes it again."""
        with open(self._pointer, "rb") as file:
            path = os.fsdecode(file.read()).strip()
        if not path or "\0" in path:
            raise ValueError(f"{self._pointer} should hold the path of the manager's socket, found {path!r}")
        return path


def _read(kind: type[T], body: Any) -> T:
    try:
        return from_json(kind, body)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise LinkError(f"the manager's answer is not a {kind.__name__}: {error}") from error
