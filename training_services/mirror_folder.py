"""The manager's end of a mirror: a folder into which a node's files are copied, a piece at a time.

A file that is being copied is `<name>.part`, with the modification time of the file that it will be: a copy that was
cut off goes on if that is still the file it was begun from. Everything here blocks on the disk.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from proctor.sdk.disk_errors import advise
from proctor.training_services.errors import CollectionFailed
from proctor.trial_keeper.linux.files import remove_file, sync_folder
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["PART_SUFFIX", "MirrorFolder", "UnusableName"]

PART_SUFFIX = ".part"
_CLOCK_SECONDS = 0.001  # how far apart two readings of one modification time may be
_LONGEST_NAME = 255
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EINVAL, errno.EILSEQ)


class UnusableName(Exception):
    """A node's file has a name that cannot be used here."""


class MirrorFolder:
    """A folder and what is copied into it. Links in it are never followed. One process and one copier at a time.

    All methods raise UnusableName when it is this file's fault, CollectionFailed when it is the disk's.
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
                os.rename(part, self._path_of(file))
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
            os.rename(part, self._path_of(file))

    def abandon(self, file: FileFacts) -> None:
        """Forget what was copied of a file; nothing is no error."""
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
                    os.fsync(descriptor)
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
        """Where a file lies here; a name that would leave the folder is no name."""
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
