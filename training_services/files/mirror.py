"""Copying a node's files to the manager's disk: what is missing here or has changed is fetched through the node's
keeper.

`CollectedFiles` fetches, `MirrorFolder` writes, a piece at a time. A file that is being copied is `<name>.part`, with
the modification time of the complete file: an interrupted copy is continued if that is still the same. `MirrorFolder`
blocks on the disk.
"""

import asyncio
import errno
import hashlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proctor.sdk.disk_errors import advise
from proctor.sdk.files import UNFINISHED_PREFIX, put_in_place, remove_file, sync_file, sync_folder
from proctor.sdk.protocol import CHECKPOINT_FOLDER
from proctor.training_services.errors import CollectionFailed, ServiceUnavailable, TrainingServiceError
from proctor.training_services.keepers.file_requests import MOST_BYTES
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.providers import FileCollection
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["PART_SUFFIX", "CollectedFiles", "CollectionResult", "MirrorFolder", "UnusableName", "size_text"]

log = logging.getLogger(__name__)

PART_SUFFIX = ".part"
_CLOCK_SECONDS = 0.001  # how far apart two readings of one modification time may be
_LONGEST_NAME = 255
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EINVAL, errno.EILSEQ)
_SMALL_BYTES = 256 * 1024
_MOST_TOGETHER = 500
_FIRST_BYTES = 512 * 1024
_FEWEST_BYTES = 64 * 1024
_QUICK_SECONDS = 1.0
_SLOW_SECONDS = 5.0
_LIST_SECONDS = 60.0
_READ_SECONDS = 120.0


class UnusableName(Exception):
    """A node's file has a name that cannot be used here."""


class MirrorFolder:
    """A folder and what is copied into it. Links in it are never followed. One process and one copier at a time.

    All methods raise UnusableName for the file's name, CollectionFailed for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._names: frozenset[str] = frozenset()
        self._made: set[str] = set()

    def lacking(self, files: Sequence[FileFacts]) -> list[FileFacts]:
        """Those of a node's files that are not here as they are there. To be called first, with all of them."""
        self._names = frozenset(file.path for file in files)
        self._made = set()
        return [file for file in files if not self._has(file)]

    def begin(self, file: FileFacts) -> int:
        """Prepare to copy a file; returns how many bytes of it are here already."""
        with _Failures(file, self._folder):
            part = self._part_of(file)
            self._make_parents(file)
            if (size := _matching_size(part, file)) is not None and size <= file.size:
                return size
            os.close(self._create(part))
        return 0

    def store(self, file: FileFacts, data: bytes) -> None:
        """Copy a whole file at once. When the disk is full, nothing of it is left."""
        try:
            with _Failures(file, self._folder):
                part = self._part_of(file)
                self._make_parents(file)
                _fill(self._create(part), data, 0, file.modified)
                put_in_place(part, self._path_of(file))
        except (CollectionFailed, UnusableName):
            self.abandon(file)
            raise

    def append(self, file: FileFacts, offset: int, data: bytes) -> None:
        """Add the bytes from `offset`. When the disk is full, what was copied of this file is removed again."""
        try:
            with _Failures(file, self._folder):
                descriptor = os.open(self._part_of(file), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                _fill(descriptor, data, offset, file.modified)
        except CollectionFailed:
            self.abandon(file)
            raise

    def finish(self, file: FileFacts) -> None:
        """The file is complete: give it its name."""
        with _Failures(file, self._folder):
            part = self._part_of(file)
            os.utime(part, (file.modified, file.modified), follow_symlinks=False)
            put_in_place(part, self._path_of(file))

    def abandon(self, file: FileFacts) -> None:
        """Remove what was copied of a file, if anything."""
        try:
            os.unlink(self._part_of(file))
        except (OSError, ValueError, UnusableName):
            return

    def sync(self, files: Iterable[FileFacts]) -> None:
        """Make those files that are here survive a power cut."""
        folders = {self._folder}
        for file in files:
            with _Failures(file, self._folder):
                path = self._path_of(file)
                try:
                    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
                try:
                    sync_file(descriptor)
                finally:
                    os.close(descriptor)
                folders.add(os.path.dirname(path))
        for folder in folders:
            if os.path.isdir(folder):
                sync_folder(folder)

    def _has(self, file: FileFacts) -> bool:
        try:
            return _matching_size(self._path_of(file), file) == file.size
        except (OSError, ValueError, UnusableName):
            return False

    def _path_of(self, file: FileFacts) -> str:
        """Where a file is here; a name that would leave the folder is no name."""
        parts = file.path.split("/")
        if any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise UnusableName(f"{file.path!r} is not the name of a file below a folder")
        return os.path.join(self._folder, *parts)

    def _part_of(self, file: FileFacts) -> str:
        folder, name = os.path.split(self._path_of(file))
        if len(os.fsencode(name)) + len(PART_SUFFIX) > _LONGEST_NAME:
            name = hashlib.sha256(os.fsencode(name)).hexdigest()
        name += PART_SUFFIX
        while os.path.relpath(os.path.join(folder, name), self._folder) in self._names:  # the node has one of its own
            name += PART_SUFFIX
        return os.path.join(folder, name)

    def _make_parents(self, file: FileFacts) -> None:
        parent = os.path.dirname(file.path)
        if parent in self._made:
            return
        os.makedirs(self._folder, exist_ok=True)
        folder = self._folder
        for part in file.path.split("/")[:-1]:
            folder = os.path.join(folder, part)
            try:
                os.mkdir(folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(folder).st_mode):
                    raise UnusableName(f"{folder} should be a folder, but is a file or a link") from None
        self._made.add(parent)

    def _create(self, part: str) -> int:
        """A fresh, empty file, open for writing; what was there under its name is removed."""
        try:
            return os.open(part, _FRESH, 0o644)
        except FileExistsError:
            remove_file(part)
            return os.open(part, _FRESH, 0o644)


class _Failures:
    """Translates what goes wrong with the disk into sentences."""

    def __init__(self, file: FileFacts, folder: str) -> None:
        self._file = file
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno not in _NAME_ERRORS:
            advice = advise(error) or "mend it"
            raise CollectionFailed(
                f"{self._file.path} ({self._file.size} bytes) cannot be stored in {self._folder} on the manager's "
                f"machine: {error.strerror}; {advice}, it stays on its node until then"
            ) from error
        if isinstance(error, (OSError, ValueError, OverflowError)):
            raise UnusableName(f"{self._file.path!r} cannot be stored in {self._folder}: {error}") from error


def _matching_size(path: str, file: FileFacts) -> int | None:
    """The size of the regular file at `path` if it was modified when `file` was."""
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(facts.st_mode) or not abs(facts.st_mtime - file.modified) < _CLOCK_SECONDS:
        return None
    return facts.st_size


def _fill(descriptor: int, data: bytes, offset: int, modified: float) -> None:
    """Write the bytes from `offset`, set the modification time, close."""
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
        os.utime(descriptor, (modified, modified))
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class CollectionResult:
    """What one `collect` has done: how many files and bytes it has fetched, and which files are only on the node,
    because they are larger than allowed or because they, and no others, cannot be copied (the log says why)."""

    files: int
    bytes: int
    left: list[FileFacts]


class CollectedFiles:
    """A mirror of one folder of a node. Only regular files are copied, none of a checkpoint that is half saved or half
    deleted; what is gone from the node stays here.

    :param folder: on the node, as in `KeeperHub.list_files`.
    :param local_folder: made when there is something to put into it. One mirror at a time may write to it.
    """

    def __init__(self, hub: KeeperHub, node_id: str, *, folder: str, local_folder: Path) -> None:
        self._hub = hub
        self._node_id = node_id
        self._folder = folder
        self._mirror = MirrorFolder(local_folder)
        self._piece = _FIRST_BYTES

    async def collect(
        self, *, largest: int | None = None, durable: bool = False, progress: FileCollection | None = None
    ) -> CollectionResult:
        """Fetch what is missing here or has another size or modification time, small files first. An interrupted
        copy is continued. A folder that is not on the node has no files.

        :param largest: leave files over so many bytes; None: none.
        :param durable: everything that is here survives a power cut when this returns.
        :param progress: kept up to date meanwhile; one that has counted other files continues counting.
        :raises ServiceUnavailable: the node's keeper is away; what is here stays, try again.
        :raises CollectionFailed: our disk is full or cannot be written to; no half file is left.
        """
        try:
            found = await self._hub.list_files(self._node_id, self._folder, timeout_seconds=_LIST_SECONDS)
        except FileNotFoundError:
            return CollectionResult(0, 0, [])
        files = [file for file in found if f"{CHECKPOINT_FOLDER}/{UNFINISHED_PREFIX}" not in file.path]
        lacking = await asyncio.to_thread(self._mirror.lacking, files)
        left = [file for file in lacking if largest is not None and file.size > largest]
        wanted = sorted((file for file in lacking if largest is None or file.size <= largest), key=lambda f: f.size)
        progress = progress or FileCollection()
        before = progress.files, progress.bytes
        progress.total_files = progress.files + len(wanted)
        progress.total_bytes = progress.bytes + sum(file.size for file in wanted)
        await self._fetch_all(wanted, left, progress)
        if durable:
            lacks = {file.path for file in left}
            await asyncio.to_thread(self._mirror.sync, [file for file in files if file.path not in lacks])
        return CollectionResult(progress.files - before[0], progress.bytes - before[1], left)

    async def _fetch_all(self, wanted: Sequence[FileFacts], left: list[FileFacts], progress: FileCollection) -> None:
        """Fetch files; adds to `left` those that cannot be copied."""
        for batch in self._batches(wanted):
            contents = await self._read_together(batch) if len(batch) > 1 else {}
            together = [file for file in batch if file.path in contents]
            unusable = await asyncio.to_thread(self._store, together, contents) if together else []
            stored = [len(contents[file.path]) for file in together if file not in unusable]
            progress.files += len(stored)
            progress.bytes += sum(stored)
            left += unusable
            for file in batch:
                if file.path not in contents:
                    await self._fetch(file, left, progress)

    async def _fetch(self, file: FileFacts, left: list[FileFacts], progress: FileCollection) -> None:
        try:
            await self._copy(file, progress)
            progress.files += 1
        except FileNotFoundError:
            self._mirror.abandon(file)
            log.info("file %s of %s is gone from node %s", file.path, self._folder, self._node_id)
        except (ServiceUnavailable, CollectionFailed):
            raise
        except (UnusableName, TrainingServiceError) as error:
            self._mirror.abandon(file)
            left.append(file)
            log.warning("a file of node %s was not collected: %s", self._node_id, error)

    def _batches(self, files: Sequence[FileFacts]) -> Iterator[list[FileFacts]]:
        """Small files in batches that are asked for together; each large one by itself. Looks at how quick the
        connection has been so far."""
        batch: list[FileFacts] = []
        size = 0
        for file in files:
            if batch and (size + file.size > self._piece or len(batch) == _MOST_TOGETHER or file.size > _SMALL_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(file)
            size += file.size
        if batch:
            yield batch

    async def _copy(self, file: FileFacts, progress: FileCollection) -> None:
        """Copy one file piece by piece."""
        offset = await asyncio.to_thread(self._mirror.begin, file)
        while offset < file.size:
            data = await self._read(file.path, offset, min(self._piece, file.size - offset))
            if not data:
                break  # it has become shorter; the next collection sees that
            await asyncio.to_thread(self._mirror.append, file, offset, data)
            offset += len(data)
            progress.bytes += len(data)
        await asyncio.to_thread(self._mirror.finish, file)

    def _store(self, files: Sequence[FileFacts], contents: Mapping[str, bytes]) -> list[FileFacts]:
        """In a thread: store whole files; returns those whose names cannot be used here."""
        unusable = []
        for file in files:
            try:
                self._mirror.store(file, contents[file.path])
            except UnusableName as error:
                unusable.append(file)
                log.warning("a file of node %s was not collected: %s", self._node_id, error)
        return unusable

    async def _read_together(self, batch: Sequence[FileFacts]) -> dict[str, bytes]:
        """The contents of small files; those that are missing are asked for one by one."""
        paths = [file.path for file in batch]
        begun = asyncio.get_running_loop().time()
        try:
            contents = await self._hub.read_files(
                self._node_id, self._folder, paths, limit=_SMALL_BYTES, timeout_seconds=_READ_SECONDS
            )
        except ServiceUnavailable:
            raise
        except (FileNotFoundError, TrainingServiceError):
            return {}
        self._adapt(sum(map(len, contents.values())), asyncio.get_running_loop().time() - begun)
        return contents

    async def _read(self, path: str, offset: int, limit: int) -> bytes:
        begun = asyncio.get_running_loop().time()
        data = await self._hub.read_file(
            self._node_id, self._folder, path, offset, limit, timeout_seconds=_READ_SECONDS
        )
        self._adapt(len(data), asyncio.get_running_loop().time() - begun)
        return data

    def _adapt(self, size: int, seconds: float) -> None:
        """Ask for so much at once that others need not wait long on a slow connection."""
        if seconds > _SLOW_SECONDS:
            self._piece = max(self._piece // 2, _FEWEST_BYTES)
        elif seconds < _QUICK_SECONDS and 2 * size >= self._piece:
            self._piece = min(self._piece * 2, MOST_BYTES)


def size_text(size: int) -> str:
    """A number of bytes for users: "120 MB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            value = size / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{size} bytes"
