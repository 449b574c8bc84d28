"""Answers the manager's questions about files, a few at a time and in threads of their own, so that a slow disk delays
neither launches nor reports. Verifying checkpoints takes as long as reading them, so they have turns of their own, with
the questions whether they can be stored.
"""

import asyncio
import json
import logging
import os
import shutil
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from proctor.sdk.checkpoints.manifest import verify_checkpoint
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import UNFINISHED_PREFIX, remove_file, set_aside, sync_folder
from proctor.sdk.process_limits import is_short
from proctor.trial_keeper.errors import AccessRefused, CommandRefused, SessionError
from proctor.trial_keeper.files.access import FileAccess, list_files, read_file
from proctor.trial_keeper.files.archives import place_archive
from proctor.trial_keeper.linux.tasks import start_threads
from proctor.trial_keeper.protocol import (
    FetchArchive,
    FileAnswer,
    FileFacts,
    FileRequest,
    ListFiles,
    ProbeStorage,
    ReadFile,
    ReadFiles,
    RemoveCheckpoint,
    RemoveFolder,
    VerifyCheckpoint,
    to_json,
)
from proctor.trial_keeper.settings import UPLOADS_FOLDER

AT_ONCE = 4
VERIFIED_AT_ONCE = 2
MOST_BYTES = 4 * 1024 * 1024
_PAGE_FILES = 2000
_NAME_LENGTH = 20
_REMOVAL_TRIES = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadablePaths:
    """Where the jobs of this node are: the directories of those that are known, and (job id, path) of everything that
    running ones need."""

    known: Sequence[str]
    busy: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class _Refused:
    """A request that cannot be read."""

    request: str
    reason: str


class FileAnswers:
    """The requests for files that were received and not answered yet.

    :param directory: the keeper's, absolute.
    :param jobs: called when a request's turn has come.
    :param probe: says what keeps trials from storing checkpoints, as a clause, and whether the mark is there; blocks.
    """

    def __init__(
        self,
        directory: str,
        jobs: Callable[[], ReadablePaths],
        probe: Callable[[ProbeStorage], tuple[str, bool | None]],
    ) -> None:
        self._directory = directory
        self._probe = probe
        self._access = FileAccess(directory)
        self._jobs = jobs
        self._requests: asyncio.Queue[FileRequest | _Refused] = asyncio.Queue()
        self._checkpoints: asyncio.Queue[VerifyCheckpoint | ProbeStorage] = asyncio.Queue()
        self._fetches: asyncio.Queue[FetchArchive] = asyncio.Queue()
        self._threads = start_threads(AT_ONCE, "files")
        self._verifying_threads = start_threads(VERIFIED_AT_ONCE, "checkpoints")
        self._verifying: set[str] = set()  # requests whose answers are still needed

    def take(self, request: FileRequest) -> None:
        """Answer this when its turn comes."""
        if isinstance(request, VerifyCheckpoint | ProbeStorage):
            self._checkpoints.put_nowait(request)
        elif isinstance(request, FetchArchive):
            self._fetches.put_nowait(request)
        else:
            self._requests.put_nowait(request)

    def refuse(self, request: str, reason: str) -> None:
        """Answer a request that cannot be read, with a sentence."""
        self._requests.put_nowait(_Refused(request, reason))

    def begin_session(self) -> None:
        """Requests of an earlier session are no longer answered."""
        for queue in (self._requests, self._checkpoints, self._fetches):
            while not queue.empty():
                queue.get_nowait()

    async def next(self, session: str) -> bytes:
        """Wait for a request, carry it out; the body of its answer: one line of JSON, then bytes."""
        request = await self._requests.get()
        if isinstance(request, _Refused):
            return _body(FileAnswer(session, request.request, error=request.reason))
        jobs = self._jobs()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, request, session, jobs)

    async def next_verified(self, session: str) -> bytes:
        """As `next`, for checkpoints. Canceled, it stops reading."""
        request = await self._checkpoints.get()
        self._verifying.add(request.request)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._verifying_threads, self._answer, request, session, ReadablePaths((), ())
            )
        finally:
            self._verifying.discard(request.request)

    async def next_fetch(self) -> FetchArchive:
        """Wait for an archive that is to be fetched."""
        return await self._fetches.get()

    async def fetch(self, request: FetchArchive, session: str, read: Callable[[int], Awaitable[bytes]]) -> bytes:
        """Fetch an archive and unpack it; the body of the answer. What has arrived of it is kept when this is broken
        off, and not asked for again.

        :param read: gets some of the archive's bytes from an offset on, none behind its end; raises AccessRefused when
            the manager no longer offers it.
        """
        blank = FileAnswer(session, request.request)
        try:
            await self._fetch(request, read)
            answer = blank
        except SessionError:
            raise
        except Exception as error:
            answer = _failed(request, blank, error)
        return _body(answer)

    async def _fetch(self, request: FetchArchive, read: Callable[[int], Awaitable[bytes]]) -> None:
        target = Path(self._access.unpackable(request.folder))
        if target.is_dir():
            return
        archive = Path(self._directory, UPLOADS_FOLDER, f"{request.sha256[:_NAME_LENGTH]}.tar.gz")
        archive.parent.mkdir(mode=0o700, exist_ok=True)
        offset = archive.stat().st_size if archive.exists() else 0
        while offset < request.size:
            data = await read(offset)
            if not data:
                raise AccessRefused(f"the archive for {request.folder} ends after {offset} of {request.size} bytes")
            await asyncio.to_thread(_append, archive, data)
            offset += len(data)
        failpoint("keeper.archive.before")
        await asyncio.to_thread(place_archive, archive, request.sha256, target)
        failpoint("keeper.archive.after")
        remove_file(str(archive))

    def close(self) -> None:
        """Begin nothing new. What is being done is finished before the process ends; verifying is broken off."""
        self._verifying.clear()
        for threads in (self._threads, self._verifying_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, request: FileRequest, session: str, jobs: ReadablePaths) -> bytes:
        """In a thread. Whatever goes wrong is an answer, too."""
        blank, data = FileAnswer(session, request.request), b""
        try:
            answer, data = self._carry_out(request, blank, jobs)
        except Exception as error:
            answer = _failed(request, blank, error)
        return _body(answer) + data

    def _carry_out(self, request: FileRequest, blank: FileAnswer, jobs: ReadablePaths) -> tuple[FileAnswer, bytes]:
        if isinstance(request, RemoveFolder):
            _remove(self._access.removable(request.folder, jobs.busy))
            return blank, b""
        if isinstance(request, RemoveCheckpoint):
            _delete_checkpoint(self._access.checkpoint(request.folder, jobs.busy))
            return blank, b""
        if isinstance(request, VerifyCheckpoint):  # a launch may name any folder, and no content is answered
            folder = os.path.join(self._directory, request.folder)
            damage = verify_checkpoint(
                folder, request.manifest, is_abandoned=lambda: request.request not in self._verifying
            )
            return replace(blank, damage=damage), b""
        if isinstance(request, ProbeStorage):
            damage, has_mark = self._probe(request)
            return replace(blank, damage=damage, has_mark=has_mark), b""
        assert not isinstance(request, FetchArchive)
        folder = self._access.readable(request.folder, jobs.known)
        if isinstance(request, ListFiles):
            files = list_files(folder)
            first = bisect_right([file.path for file in files], request.after) if request.after else 0
            page = files[first : first + _PAGE_FILES]
            return replace(blank, files=page, more=first + len(page) < len(files)), b""
        if isinstance(request, ReadFile):
            return blank, read_file(folder, request.path, request.offset, min(request.limit, MOST_BYTES))
        files, data = _read_small(folder, request)
        return replace(blank, files=files), data


def _body(answer: FileAnswer) -> bytes:
    return json.dumps(to_json(answer)).encode() + b"\n"


def _failed(request: FileRequest, blank: FileAnswer, error: Exception) -> FileAnswer:
    """The answer that says what went wrong."""
    if isinstance(error, FileNotFoundError):
        return replace(blank, error=str(error), missing=True)
    if isinstance(error, AccessRefused | CommandRefused):
        return replace(blank, error=str(error))
    if isinstance(error, OSError):
        return replace(blank, error=f"{error.filename or request.folder}: {error.strerror}", passing=is_short(error))
    log.error("a %s of %s has failed", type(request).__name__, request.folder, exc_info=error)
    return replace(blank, error=f"{type(request).__name__} of {request.folder} has failed: {error!r}")


def _append(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


def _read_small(folder: str, request: ReadFiles) -> tuple[list[FileFacts], bytes]:
    """As many of the files as fit into one answer."""
    files: list[FileFacts] = []
    parts: list[bytes] = []
    left = MOST_BYTES
    for path in request.paths:
        try:
            data = read_file(folder, path, 0, min(request.limit, MOST_BYTES))
        except FileNotFoundError:
            continue
        left -= len(data)
        if left < 0:
            break
        files.append(FileFacts(path, len(data)))
        parts.append(data)
    return files, b"".join(parts)


def _delete_checkpoint(path: str) -> None:
    """Take its name away first, then remove it. Asked again, what a keeper that was killed in between has left."""
    folder, name = os.path.split(path)
    discarded = os.path.join(folder, f"{UNFINISHED_PREFIX}deleted-{name}")
    failpoint("keeper.checkpoint.delete.before")
    if os.path.lexists(path):
        _remove(discarded)
        set_aside(path, discarded)
        sync_folder(folder)
    failpoint("keeper.checkpoint.delete.after")
    _remove(discarded)


def _remove(path: str) -> None:
    """Remove a folder, or what has taken its place, whatever trials have left in it: folders that may not be written
    to, files that come and go meanwhile."""
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        os.unlink(path)
        return
    for left in reversed(range(_REMOVAL_TRIES)):
        if not os.path.lexists(path):
            return
        try:
            shutil.rmtree(path)
        except OSError:
            if not left:
                raise
            _open_folders(path)


def _open_folders(path: str) -> None:
    """Let the owner write in every folder below `path`, itself included."""
    os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
