"""Files on the machines of jobs, asked for through their keepers: what a keeper was asked and has not answered yet.

They travel as commands of a session, so its queue of commands is here too. Entry: `KeeperFiles`, which the hub is.
"""

import asyncio
import os
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from proctor.training_services.errors import KeeperOutdated, ServiceUnavailable, TrainingServiceError, UnknownContent
from proctor.trial_keeper.protocol import (
    Command,
    FetchArchive,
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

__all__ = ["MOST_BYTES", "CommandQueue", "FileRequests", "KeeperFiles", "StorageAnswer"]

MOST_BYTES = 4 * 1024 * 1024
"""How much one answer holds, of a keeper and to one."""
LONG_SECONDS = 6 * 3600.0
"""A terabyte at 50 MB/s."""
_AT_ONCE = 8

_Answer = tuple[FileAnswer, bytes]


class StorageAnswer(NamedTuple):
    """The answer of a node about a storage for checkpoints."""

    problem: str = ""
    """Obstacle to storing there, as a clause; "" if there is none, or if that is not known."""
    has_mark: bool | None = None
    """Whether the file that was asked for is there; None if that is not known."""


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


@dataclass
class _Offer:
    """An archive that a keeper was asked to fetch."""

    path: Path
    users: int = 0


class FileRequests:
    """What was asked of one keeper in one session. Every question ends in time, or when the session does.

    They raise FileNotFoundError for what is not on the node, ServiceUnavailable when the keeper does not answer or its
    machine has no descriptors left (try again), KeeperOutdated when it does not know the command, TrainingServiceError
    with the keeper's sentence when it cannot do it.

    :param place: what the keeper is called, after "the keeper of": "node gpu-3".
    :param commands: what the requests are sent with.
    :param registration: of the keeper.
    """

    def __init__(self, place: str, commands: CommandQueue, registration: Registration) -> None:
        self._place = place
        self._registration = registration
        self._commands = commands
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._long_turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting: dict[str, asyncio.Future[_Answer]] = {}
        self._offers: dict[str, _Offer] = {}  # by SHA-256
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
        """Why no trial must continue from a checkpoint, as a clause; "" if it is whole."""
        self._require(VerifyCheckpoint, "verify checkpoints")
        answer, _ = await self._ask(VerifyCheckpoint(_new_request(), folder, manifest), timeout_seconds)
        return answer.damage

    async def probe_storage(
        self, storage: str, launch: Launch, *, mark: str, makes_mark: bool, timeout_seconds: float
    ) -> StorageAnswer:
        """Return whether the trials of an experiment can store checkpoints; a keeper of an earlier version cannot tell,
        or not all of it."""
        if ProbeStorage.__name__ not in self._registration.commands:
            return StorageAnswer()
        request = ProbeStorage(_new_request(), storage, launch, mark=mark, makes_mark=makes_mark)
        answer, _ = await self._ask(request, timeout_seconds)
        return StorageAnswer(answer.damage, answer.has_mark)

    async def remove_folder(self, folder: str, *, timeout_seconds: float) -> None:
        """Remove a folder with all that is in it; one that is not there is removed already."""
        await self._ask(RemoveFolder(_new_request(), folder), timeout_seconds)

    async def remove_checkpoint(self, folder: str, *, timeout_seconds: float) -> None:
        """Delete a checkpoint of a job, which may be running; one that is not there is deleted already."""
        self._require(RemoveCheckpoint, "delete checkpoints")
        await self._ask(RemoveCheckpoint(_new_request(), folder), timeout_seconds)

    async def fetch_archive(self, archive: Path, sha256: str, folder: str, *, timeout_seconds: float) -> None:
        """Have an archive of this machine unpacked as a folder below the keeper's directory. Until this ends, the
        keeper may read it, and no other one."""
        self._require(FetchArchive, "fetch files")
        size = (await asyncio.to_thread(archive.stat)).st_size
        offer = self._offers.setdefault(sha256, _Offer(archive))
        offer.users += 1
        try:
            await self._ask(FetchArchive(_new_request(), folder, sha256, size), timeout_seconds)
        finally:
            offer.users -= 1
            if not offer.users:
                del self._offers[sha256]

    async def read_offered(self, sha256: str, offset: int) -> bytes:
        """Up to `MOST_BYTES` of an archive that this keeper was asked to fetch. Raises UnknownContent."""
        offer = self._offers.get(sha256)
        if offer is None or offset < 0:
            raise UnknownContent(f"the keeper of {self._place} was not asked to fetch {sha256[:64]!r}")
        try:
            return await asyncio.to_thread(_read_piece, offer.path, offset)
        except OSError as error:
            raise UnknownContent(f"{offer.path} cannot be read: {error.strerror}") from error

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

    def _require(self, command: type[FileRequest], ability: str) -> None:
        """Raise KeeperOutdated where the keeper does not know a command: it would not answer."""
        if command.__name__ not in self._registration.commands:
            raise KeeperOutdated(
                f"the keeper of {self._place} is of another version ({self._registration.version}) and cannot {ability}"
            )

    async def _ask(self, request: FileRequest, timeout_seconds: float) -> _Answer:
        is_long = isinstance(request, VerifyCheckpoint | ProbeStorage | FetchArchive)
        turns = self._long_turns if is_long else self._turns
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
        if answer.passing:
            raise ServiceUnavailable(f"{self._place}: {answer.error}; try again")
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


def _read_piece(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), MOST_BYTES, offset)


def _new_request() -> str:
    return secrets.token_hex(8)


class KeeperFiles(ABC):
    """What a service can ask any keeper about files, by the keeper's id."""

    async def list_files(self, keeper_id: str, folder: str, *, timeout_seconds: float = 30.0) -> list[FileFacts]:
        """The regular files below a folder of a node, by path; `folder` is relative to the keeper's directory, or is
        the absolute path of a job's. Raises as `FileRequests` does; ServiceUnavailable at once while the keeper is
        disconnected. So do all of these."""
        return await self._requests(keeper_id).list_files(folder, timeout_seconds=timeout_seconds)

    async def read_file(
        self, keeper_id: str, folder: str, path: str, offset: int, limit: int, *, timeout_seconds: float = 30.0
    ) -> bytes:
        """At most `limit` bytes of a file of a folder from `offset` (negative: from the end)."""
        files = self._requests(keeper_id)
        return await files.read_file(folder, path, offset, limit, timeout_seconds=timeout_seconds)

    async def read_files(
        self, keeper_id: str, folder: str, paths: Sequence[str], *, limit: int, timeout_seconds: float = 30.0
    ) -> dict[str, bytes]:
        """The beginnings of small files of a folder, each up to `limit` bytes, as many as fit into one answer."""
        files = self._requests(keeper_id)
        return await files.read_files(folder, paths, limit=limit, timeout_seconds=timeout_seconds)

    async def verify_checkpoint(
        self, keeper_id: str, folder: str, manifest: str | None, *, timeout_seconds: float = LONG_SECONDS
    ) -> str:
        """What keeps a trial from continuing from the checkpoint in a folder of a node, as a clause; "" if it is whole.
        `manifest` is the SHA-256 with which it was registered. Takes as long as reading all of it."""
        return await self._requests(keeper_id).verify_checkpoint(folder, manifest, timeout_seconds=timeout_seconds)

    async def probe_storage(
        self,
        keeper_id: str,
        storage: str,
        launch: Launch,
        *,
        mark: str = "",
        makes_mark: bool = False,
        timeout_seconds: float = 120.0,
    ) -> StorageAnswer:
        """Return whether the trials of an experiment on a node can store checkpoints in a folder or under a URL.

        :param launch: of one of its jobs there.
        :param mark: the name of a file to look for in it.
        :param makes_mark: have the keeper make that file, in a folder.
        """
        return await self._requests(keeper_id).probe_storage(
            storage, launch, mark=mark, makes_mark=makes_mark, timeout_seconds=timeout_seconds
        )

    async def remove_folder(self, keeper_id: str, folder: str, *, timeout_seconds: float = 60.0) -> None:
        """Remove a folder of a node in which no job runs; one that is not there is removed already."""
        await self._requests(keeper_id).remove_folder(folder, timeout_seconds=timeout_seconds)

    async def remove_checkpoint(self, keeper_id: str, folder: str, *, timeout_seconds: float = 600.0) -> None:
        """Delete a checkpoint of a job, which may be running; one that is not there is deleted already."""
        await self._requests(keeper_id).remove_checkpoint(folder, timeout_seconds=timeout_seconds)

    async def fetch_archive(
        self, keeper_id: str, archive: Path, sha256: str, folder: str, *, timeout_seconds: float = LONG_SECONDS
    ) -> None:
        """Have an archive (.tar.gz) of the manager unpacked as a folder below a keeper's directory; one that is there
        already is not sent again. The archive must not change meanwhile. Takes as long as sending all of it."""
        requests = self._requests(keeper_id)
        await requests.fetch_archive(archive, sha256, folder, timeout_seconds=timeout_seconds)

    @abstractmethod
    def _requests(self, keeper_id: str) -> FileRequests:
        """Where to ask a keeper for files. Raises ServiceUnavailable with the reason while it is away."""
