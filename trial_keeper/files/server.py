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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from proctor.sdk.checkpoints.manifest import verify_checkpoint
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import UNFINISHED_PREFIX, set_aside, sync_folder
from proctor.trial_keeper.errors import AccessRefused
from proctor.trial_keeper.files.access import FileAccess, list_files, read_file
from proctor.trial_keeper.protocol import (
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

AT_ONCE = 4
VERIFIED_AT_ONCE = 2
MOST_BYTES = 4 * 1024 * 1024
_PAGE_FILES = 2000
_REMOVAL_TRIES = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadablePaths:
    """Where the jobs of this node are: the directories of those that are known, and (job id, path) of everything that
    running ones need."""

    known: Sequence[str]
    busy: Sequence[tuple[str, str]]


class FileAnswers:
    """The requests for files that were received and not answered yet.

    :param directory: the keeper's, absolute.
    :param jobs: called when a request's turn has come.
    :param probe: says what keeps trials from storing checkpoints, as a clause; blocks.
    """

    def __init__(self, directory: str, jobs: Callable[[], ReadablePaths], probe: Callable[[ProbeStorage], str]) -> None:
        self._directory = directory
        self._probe = probe
        self._access = FileAccess(directory)
        self._jobs = jobs
        self._requests: asyncio.Queue[FileRequest] = asyncio.Queue()
        self._checkpoints: asyncio.Queue[VerifyCheckpoint | ProbeStorage] = asyncio.Queue()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="files")
        self._verifying_threads = ThreadPoolExecutor(VERIFIED_AT_ONCE, thread_name_prefix="checkpoints")
        self._verifying: set[str] = set()  # requests whose answers are still needed

    def take(self, request: FileRequest) -> None:
        """Answer this when its turn comes."""
        if isinstance(request, VerifyCheckpoint | ProbeStorage):
            self._checkpoints.put_nowait(request)
        else:
            self._requests.put_nowait(request)

    def begin_session(self) -> None:
        """Requests of an earlier session are no longer answered."""
        for queue in (self._requests, self._checkpoints):
            while not queue.empty():
                queue.get_nowait()

    async def next(self, session: str) -> bytes:
        """Wait for a request, carry it out; the body of its answer: one line of JSON, then bytes."""
        request = await self._requests.get()
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
        except FileNotFoundError as error:
            answer = replace(blank, error=str(error), missing=True)
        except AccessRefused as error:
            answer = replace(blank, error=str(error))
        except OSError as error:
            answer = replace(blank, error=f"{error.filename or request.folder}: {error.strerror}")
        except Exception as error:
            log.exception("a %s of %s has failed", type(request).__name__, request.folder)
            answer = replace(blank, error=f"{type(request).__name__} of {request.folder} has failed: {error!r}")
        return json.dumps(to_json(answer)).encode() + b"\n" + data

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
            return replace(blank, damage=self._probe(request)), b""
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
