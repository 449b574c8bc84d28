"""Sessions with keepers: who may connect for each, the commands that it has not received yet, and the file requests
that it has not answered yet.

A keeper is known by an id: the one of its node, or `job_keeper_id` of the trial job that it was started for.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError, UnknownNode, UnknownSession
from proctor.training_services.keepers.presence import KeeperPresence
from proctor.trial_keeper.protocol import (
    Command,
    FileAnswer,
    FileFacts,
    FileRequest,
    KeeperCommand,
    Launch,
    ListFiles,
    ProbeStorage,
    ReadFile,
    ReadFiles,
    Registration,
    RemoveCheckpoint,
    RemoveFolder,
    VerifyCheckpoint,
    to_json,
)

__all__ = ["MOST_BYTES", "FileRequests", "derive_secret", "is_job_keeper", "job_keeper_id"]

MOST_BYTES = 4 * 1024 * 1024
"""How much one answer of a keeper holds."""
_AT_ONCE = 8

_JOB_PREFIX = "job:"

_Answer = tuple[FileAnswer, bytes]


def job_keeper_id(job_id: str) -> str:
    """The id of the keeper that was started for one trial job. No node has such an id."""
    return _JOB_PREFIX + job_id


def is_job_keeper(keeper_id: str) -> bool:
    """Whether a keeper was started for one trial job."""
    return keeper_id.startswith(_JOB_PREFIX)


def derive_secret(key: bytes, job_id: str, token: str) -> str:
    """The secret of a trial job's keeper (hex HMAC-SHA256). Nothing of it is stored: the next manager derives it
    again."""
    return hmac.new(key, f"job keeper\n{job_id}\n{token}".encode(), hashlib.sha256).hexdigest()


class CommandQueue:
    """The numbered commands for one keeper in one session, kept until the keeper says that it has taken them."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._number = 0
        self.is_closed = False
        self._wake = asyncio.Event()

    def push(self, command: KeeperCommand | FileRequest) -> None:
        """Add a command; a waiting poll is answered at once."""
        self._number += 1
        self._commands.append(Command(self._number, type(command).__name__, to_json(command)))
        self._wake.set()

    def withdraw_job(self, job_id: str) -> None:
        """Take back the commands for a job that the keeper has not been given."""
        self._commands = deque(command for command in self._commands if command.order.get("job_id") != job_id)

    def withdraw_request(self, request: str) -> None:
        """Take back a request for files that the keeper has not been given."""
        self._commands = deque(command for command in self._commands if command.order.get("request") != request)

    def close(self) -> None:
        """The session is over; a waiting poll is answered at once."""
        self.is_closed = True
        self._wake.set()

    async def after(self, cursor: int, wait_seconds: float) -> list[Command]:
        """The commands after `cursor`, once there are any; those up to it are dropped. Empty when the wait is over."""
        while self._commands and self._commands[0].number <= cursor:
            self._commands.popleft()
        if not self._commands and not self.is_closed:
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return []
        return list(self._commands)


class FileRequests:
    """What was asked of one keeper in one session. Every question ends in time, or when the session does.

    They raise FileNotFoundError for what is not on the node, ServiceUnavailable when the keeper does not answer (try
    again), TrainingServiceError with the keeper's sentence when it cannot do it.

    :param place: what the keeper is called, after "the keeper of": "node gpu-3".
    :param commands: what the requests are sent with.
    :param registration: of the keeper.
    """

    def __init__(self, place: str, commands: CommandQueue, registration: Registration) -> None:
        self._place = place
        self._registration = registration
        self._commands = commands
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._verifying_turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting: dict[str, asyncio.Future[_Answer]] = {}
        self._is_closed = False

    async def list_files(self, folder: str, *, timeout_seconds: float) -> list[FileFacts]:
        """The regular files below a folder, by path. The time is that of each answer: long lists come in several."""
        found: list[FileFacts] = []
        while True:
            after = found[-1].path if found else ""
            answer, _ = await self._ask(ListFiles(_new_request(), folder, after), timeout_seconds)
            found += answer.files
            if not answer.more or not answer.files or found[-1].path <= after:
                return found

    async def read_file(self, folder: str, path: str, offset: int, limit: int, *, timeout_seconds: float) -> bytes:
        """At most `limit` bytes of a file from `offset`; a negative one counts from the end, and then no more than
        `MOST_BYTES` are read. The time is that of each `MOST_BYTES`."""
        parts: list[bytes] = []
        wanted, position = limit, offset
        while True:
            request = ReadFile(_new_request(), folder, path, position, min(wanted, MOST_BYTES))
            _, data = await self._ask(request, timeout_seconds)
            parts.append(data)
            wanted -= len(data)
            position += len(data)
            if wanted <= 0 or len(data) < request.limit or offset < 0:
                return b"".join(parts)

    async def read_files(
        self, folder: str, paths: Sequence[str], *, limit: int, timeout_seconds: float
    ) -> dict[str, bytes]:
        """The beginnings of files, each up to `limit` bytes. Those that are not there are missing, and so are those
        that come after `MOST_BYTES` in all."""
        answer, data = await self._ask(ReadFiles(_new_request(), folder, list(paths), limit), timeout_seconds)
        contents: dict[str, bytes] = {}
        position = 0
        for file in answer.files:
            contents[file.path] = data[position : position + file.size]
            position += file.size
        if position != len(data):
            raise TrainingServiceError(
                f"the keeper of {self._place} announces {position} bytes of files; {len(data)} follow"
            )
        return contents

    async def verify_checkpoint(self, folder: str, manifest: str | None, *, timeout_seconds: float) -> str:
        """Why no trial must continue from a checkpoint, as a clause; "" if it is whole. ServiceUnavailable also while
        the keeper is of an earlier version, which the manager replaces."""
        if VerifyCheckpoint.__name__ not in self._registration.commands:
            raise ServiceUnavailable(
                f"the keeper of {self._place} is of another version ({self._registration.version}) and cannot "
                "verify checkpoints; it is replaced when it connects"
            )
        answer, _ = await self._ask(VerifyCheckpoint(_new_request(), folder, manifest), timeout_seconds)
        return answer.damage

    async def probe_storage(self, storage: str, launch: Launch, *, timeout_seconds: float) -> str:
        """What keeps the trials of an experiment from storing checkpoints, as a clause; "" if nothing does, or if the
        keeper is of an earlier version and cannot tell."""
        if ProbeStorage.__name__ not in self._registration.commands:
            return ""
        answer, _ = await self._ask(ProbeStorage(_new_request(), storage, launch), timeout_seconds)
        return answer.damage

    async def remove_folder(self, folder: str, *, timeout_seconds: float) -> None:
        """Remove a folder with all that is in it; one that is not there is removed already."""
        await self._ask(RemoveFolder(_new_request(), folder), timeout_seconds)

    async def remove_checkpoint(self, folder: str, *, timeout_seconds: float) -> None:
        """Delete a checkpoint of a job, which may be running; one that is not there is deleted already."""
        if RemoveCheckpoint.__name__ not in self._registration.commands:
            raise TrainingServiceError(
                f"{self._place}: its keeper is of another version ({self._registration.version}) and cannot "
                "delete checkpoints; stop it and start it again with this manager's version"
            )
        await self._ask(RemoveCheckpoint(_new_request(), folder), timeout_seconds)

    def answer(self, answer: FileAnswer, data: bytes) -> None:
        """The keeper's answer; perhaps its request was canceled meanwhile."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None and not waiting.done():
            waiting.set_result((answer, data))

    def close(self) -> None:
        """The session is over: nothing more will be answered."""
        self._is_closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._ended())

    async def _ask(self, request: FileRequest, timeout_seconds: float) -> _Answer:
        turns = self._verifying_turns if isinstance(request, VerifyCheckpoint | ProbeStorage) else self._turns
        try:
            async with asyncio.timeout(timeout_seconds), turns:
                answer, data = await self._exchange(request)
        except TimeoutError:
            raise ServiceUnavailable(
                f"the keeper of {self._place} has not answered a request for {request.folder} within "
                f"{timeout_seconds:g} s; try again"
            ) from None
        if answer.missing:
            raise FileNotFoundError(f"{self._place}: {answer.error or f'{request.folder} is not there'}")
        if answer.error:
            raise TrainingServiceError(f"{self._place}: {answer.error}")
        if not all(map(_is_sound, answer.files)):
            raise TrainingServiceError(
                f"{self._place}: its keeper reports impossible files in {request.folder}; stop it and start it "
                "again with this manager's version"
            )
        return answer, data

    async def _exchange(self, request: FileRequest) -> _Answer:
        if self._is_closed:
            raise self._ended()
        waiting: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request.request] = waiting
        self._commands.push(request)
        try:
            return await waiting
        finally:
            del self._waiting[request.request]
            if waiting.cancelled():  # the time is over, or the caller was canceled
                self._commands.withdraw_request(request.request)
            elif waiting.done():
                waiting.exception()  # retrieved, so that the loop does not warn when this is canceled too

    def _ended(self) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"the session with the keeper of {self._place} ended before it had answered; try again"
        )


def _is_sound(file: FileFacts) -> bool:
    """A keeper's answer is checked before it is used: sizes are used to cut bytes, paths to name files."""
    is_number = isinstance(file.modified, (int, float)) and not isinstance(file.modified, bool)
    is_below = isinstance(file.path, str) and not {"", ".", ".."} & set(file.path.split("/"))
    return is_below and type(file.size) is int and file.size >= 0 and is_number


def _new_request() -> str:
    return secrets.token_hex(8)


class RegisteredKeeper:
    """One registration of one keeper: the commands for it, and the questions about files that are put to it.

    `place` is what it is called, after "the keeper of". `suspended` says which of its jobs are stuck, as far as their
    experiments know (`ReportHeader.stopped`). `refused` are the jobs of other keepers that it has reported on.
    """

    def __init__(self, place: str, registration: Registration) -> None:
        self.id = secrets.token_hex(16)
        self.place = place
        self.jobs = {job.job_id: job for job in registration.jobs}
        self.suspended: dict[str, str] = {}
        self.refused: set[str] = set()
        self.commands = CommandQueue()
        self.files = FileRequests(place, self.commands, registration)

    def close(self) -> None:
        """A newer session has taken its place; a waiting poll is answered at once, a question about files fails."""
        self.commands.close()
        self.files.close()


@dataclass(slots=True)
class _Keeper:
    """The secret of one keeper, where its presence is kept, and the session with it."""

    secret: str
    presence: KeeperPresence
    session: RegisteredKeeper | None = None


class KeeperSessions:
    """The keepers that are accepted, and at most one session with each.

    :param nodes: knows also of nodes whose keepers are not accepted why.
    """

    def __init__(self, nodes: KeeperPresence) -> None:
        self._nodes = nodes
        self._keepers: dict[str, _Keeper] = {}

    def add(self, keeper_id: str, secret: str, presence: KeeperPresence) -> None:
        """Accept a keeper with this secret."""
        known = self._keepers.setdefault(keeper_id, _Keeper(secret, presence))
        known.secret, known.presence = secret, presence

    def remove(self, keeper_id: str) -> None:
        """Refuse a keeper from now on. Does nothing for an unknown one."""
        self.end(keeper_id)
        self._keepers.pop(keeper_id, None)

    def secret(self, keeper_id: str) -> str:
        """A keeper's secret. Raises UnknownNode."""
        return self._keeper(keeper_id).secret

    def is_secret(self, keeper_id: str, bearer: str) -> bool:
        """Whether `bearer` is this keeper's secret; False for an unknown one."""
        keeper = self._keepers.get(keeper_id)
        return keeper is not None and hmac.compare_digest(keeper.secret.encode(), bearer.encode())

    def place(self, keeper_id: str) -> str:
        """What a keeper is called, after "the keeper of"."""
        return self._presence(keeper_id).place(keeper_id)

    def begin(self, keeper_id: str, registration: Registration) -> RegisteredKeeper:
        """A new session; the one before is over. Raises UnknownNode, KeeperReplaced."""
        keeper = self._keeper(keeper_id)
        keeper.presence.admit(keeper_id, registration)
        self.end(keeper_id)
        keeper.session = RegisteredKeeper(keeper.presence.place(keeper_id), registration)
        return keeper.session

    def end(self, keeper_id: str) -> None:
        """End its session, if it has one."""
        keeper = self._keepers.get(keeper_id)
        if keeper is not None and keeper.session is not None:
            keeper.session.close()
            keeper.session = None

    def close(self) -> None:
        """End all sessions."""
        for keeper_id in self._keepers:
            self.end(keeper_id)

    def all(self) -> list[RegisteredKeeper]:
        """The sessions there are."""
        return [keeper.session for keeper in self._keepers.values() if keeper.session is not None]

    def by_keeper(self) -> list[tuple[str, RegisteredKeeper]]:
        """The sessions there are, with the ids of their keepers."""
        return [(id, keeper.session) for id, keeper in self._keepers.items() if keeper.session is not None]

    def find(self, keeper_id: str) -> RegisteredKeeper | None:
        """The session with a keeper, if there is one."""
        keeper = self._keepers.get(keeper_id)
        return None if keeper is None else keeper.session

    def require(self, keeper_id: str, session_id: str) -> RegisteredKeeper:
        """The session with a keeper, if it is this one. Raises UnknownNode, UnknownSession."""
        session = self._keeper(keeper_id).session
        if session is None or session.id != session_id:
            place = self.place(keeper_id)
            raise UnknownSession(f"the session of the keeper of {place} is not known; it must register again")
        return session

    def files(self, keeper_id: str) -> FileRequests:
        """Where to ask a keeper for files. Raises ServiceUnavailable with the reason while it is away."""
        session = self.find(keeper_id)
        absence = self._presence(keeper_id).absence(keeper_id)
        if session is None or absence:
            place = self.place(keeper_id)
            raise ServiceUnavailable(absence or f"the keeper of {place} has not reconnected yet; try again")
        return session.files

    def _presence(self, keeper_id: str) -> KeeperPresence:
        keeper = self._keepers.get(keeper_id)
        return self._nodes if keeper is None else keeper.presence

    def _keeper(self, keeper_id: str) -> _Keeper:
        try:
            return self._keepers[keeper_id]
        except KeyError:
            raise UnknownNode(f"there is no node {keeper_id} here") from None
