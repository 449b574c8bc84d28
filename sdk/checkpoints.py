"""Checkpoints of a job: folders `output/checkpoints/<n>` that appear whole or not at all, and can be verified later.

A checkpoint is copied under a name beginning with a dot, synced to the disk, and renamed to the next free number; the
journal names it only after that. It is copied rather than moved or hard-linked, because a trial may continue writing to
the very files it has just handed over (the kernel shares the blocks where the file system can). A copy that a kill has
left half made keeps its dotted name; the next checkpoint of the job removes it, and the keeper when the job has ended.

Each has a manifest, `.proctor-manifest.json` in its folder: {"format": 1, "files": {path: [size, SHA-256]}}. It gets
its name together with the folder, and the journal's record has the SHA-256 of the manifest itself. Whoever is to
continue from a checkpoint verifies it first (`verify_checkpoint`): disks lose data, folders are copied, and files are
changed by hand. Checkpoints of earlier versions have no manifest; they count as whole when their folder is there.

The files are hashed in a thread while they are copied and synced. It reads the originals, which a trial has just
written and which are still in memory, so no disk is read twice; where an original has changed meanwhile, the copy is
read.
"""

import errno
import os
from stat import S_ISREG
from time import monotonic, sleep

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.errors import CheckpointError, notice_once
from proctor.sdk.files import (
    hash_file,
    name_unfinished,
    put_in_place,
    remove_tree,
    remove_unfinished,
    sync_file,
    sync_folder,
    write_all,
)
from proctor.sdk.journal import read_wait_seconds
from proctor.sdk.protocol import CHECKPOINT_FOLDER, ENV_CHECKPOINT_QUOTA
from proctor.sdk.quick_json import loads, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MANIFEST_FILE = ".proctor-manifest.json"
"""Not copied into a checkpoint: one that is found in a folder is that of another checkpoint."""
_MANIFEST_FORMAT = 1
_RETRY_SECONDS = 1.0
_BYTES_PER_MB = 10**6
_NO_SHARED_BLOCKS = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_BLOCK_BYTES = 1 << 22


class StoredCheckpoint:
    """A checkpoint that is whole and on the disk.

    :param path: relative to the job's directory.
    :param size: the bytes of all its files.
    :param manifest: the SHA-256 of its manifest.
    """

    __slots__ = ("manifest", "path", "size")

    def __init__(self, path: str, size: int, manifest: str) -> None:
        self.path = path
        self.size = size
        self.manifest = manifest


def save_checkpoint(source: str, job_directory: str) -> "StoredCheckpoint | str":
    """Copy a folder to be the job's next checkpoint, or return why it is not stored, as a sentence: the disk had no
    room (or failed) for as long as a report may wait, or alone it is larger than the quota of all checkpoints, in which
    case nothing of it was copied (said once; "" afterwards). Standard error says so, too, and the trial continues with
    its earlier checkpoints.

    :raises CheckpointError: the folder is missing, unreadable, or holds what cannot be copied.
    """
    folder = f"{job_directory}/{CHECKPOINT_FOLDER}"
    _check(source, folder)
    if refusal := _exceeds_quota(source):
        return refusal if notice_once("checkpoint quota", refusal) else ""
    deadline = monotonic() + read_wait_seconds()
    while True:
        try:
            return _save(source, folder)
        except OSError as problem:
            if problem.errno not in PASSING:
                raise CheckpointError(f"checkpoint {source} cannot be copied to {folder}: {problem}") from problem
            if monotonic() >= deadline:
                notice_once(
                    "checkpoint", f"a checkpoint could not be stored in {folder} ({problem}); the trial continues"
                )
                return "a checkpoint could not be stored: the disk was full"
            sleep(_RETRY_SECONDS)


def list_checkpoints(job_directory: str) -> "list[str]":
    """Return the absolute paths of the job's whole checkpoints, oldest first."""
    folder = f"{job_directory}/{CHECKPOINT_FOLDER}"
    return [f"{folder}/{number}" for number in sorted(_numbers(folder))]


def find_newest_checkpoint(job_directory: str) -> "str | None":
    """Return the absolute path of the job's newest whole checkpoint."""
    found = list_checkpoints(job_directory)
    return found[-1] if found else None


def verify_checkpoint(folder: str, manifest: "str | None", *, is_abandoned: "Callable[[], bool]" = bool) -> str:
    """Return why a trial must not continue from a checkpoint, as a clause; "" if it is whole. Reads all of it.

    :param manifest: the SHA-256 of its manifest, as it was registered; None: by an earlier version, without one.
    :param is_abandoned: asked again and again; once it is true, no one needs the answer, which may be wrong.
    """
    if not os.path.isdir(folder):
        return "its folder is gone"
    if manifest is None:
        return ""
    from hashlib import sha256  # slow to import

    try:
        with open(f"{folder}/{MANIFEST_FILE}", "rb") as file:
            data = file.read()
    except OSError as problem:
        return f"its manifest cannot be read: {problem.strerror}"
    if sha256(data).hexdigest() != manifest:
        return "its manifest is not the one that was registered"
    files: dict[str, list[Any]] = loads(data.decode())["files"]
    path = ""
    try:
        for path, (size, _) in files.items():  # sizes first: they cost nothing
            found = os.stat(f"{folder}/{path}")
            if not S_ISREG(found.st_mode):  # opening a pipe would wait for its other end
                return f"{_printable(path)} is no longer a file"
            if found.st_size != size:
                return f"{_printable(path)} has {found.st_size:,} bytes, {size:,} expected"
        for path, (_, digest) in files.items():
            if hash_file(f"{folder}/{path}", is_abandoned=is_abandoned) != digest:
                return f"{_printable(path)} is damaged: its content is not what was saved"
    except (FileNotFoundError, NotADirectoryError):
        return f"{_printable(path)} is missing"
    except OSError as problem:
        return f"{_printable(path)} cannot be read: {problem.strerror}"
    return ""


def _printable(path: str) -> str:
    return path if path.isprintable() else ascii(path)


def _check(source: str, folder: str) -> None:
    if not os.path.isdir(source):
        found = "a file" if os.path.exists(source) else "nothing"
        raise CheckpointError(f"a checkpoint must be a folder; found {found} at {source}. Save into a folder first.")
    real_source, real_folder = os.path.realpath(source), os.path.realpath(folder)
    if os.path.commonpath([real_source, real_folder]) == real_source:
        raise CheckpointError(
            f"a checkpoint must not contain the folder of the checkpoints; found {source}, which contains "
            f"{folder}. Save into a folder of its own."
        )


def _exceeds_quota(source: str) -> str:
    """Why a folder is no checkpoint, as a sentence, if alone it is larger than all checkpoints may be; else ""."""
    given = os.environ.get(ENV_CHECKPOINT_QUOTA, "")
    if not given.isdecimal():
        return ""
    quota, size = int(given) * _BYTES_PER_MB, 0
    for folder, _, names in os.walk(source, followlinks=True):
        for name in names:
            try:
                size += os.stat(f"{folder}/{name}").st_size
            except OSError:  # copying says what is wrong with it
                continue
    if size <= quota:
        return ""
    return (
        f"a checkpoint of {_gigabytes(size)} was not saved: all checkpoints of the experiment may take "
        f"{_gigabytes(quota)} together (checkpointQuotaMb); the trial continues with its earlier ones"
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _save(source: str, folder: str) -> StoredCheckpoint:
    os.makedirs(folder, exist_ok=True)
    remove_unfinished(folder)
    unfinished = name_unfinished(folder)
    copy = _Copy(unfinished)
    try:
        copy.add_folder(source)
        size, manifest = copy.write_manifest()
        sync_folder(unfinished)
        number = _rename_to_next(unfinished, folder)
    except BaseException:
        copy.abandon()
        remove_tree(unfinished)
        raise
    sync_folder(folder)
    return StoredCheckpoint(f"{CHECKPOINT_FOLDER}/{number}", size, manifest)


def _rename_to_next(unfinished: str, folder: str) -> int:
    number = max(_numbers(folder), default=0)
    while True:
        number += 1
        try:
            put_in_place(unfinished, f"{folder}/{number}")
            return number
        except OSError as problem:  # another process of the trial may take the same number first
            if problem.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise


class _Copy:
    """A folder's copy in the making, and the hashes of its files."""

    def __init__(self, target: str) -> None:
        from queue import SimpleQueue
        from threading import Thread

        self._target = target
        self._files: dict[str, tuple[str, os.stat_result]] = {}  # by path: the original, and how it was found
        self._hashes: dict[str, str] = {}  # by path of the original
        self._unhashed: SimpleQueue[str | None] = SimpleQueue()
        self._is_abandoned = False
        self._thread = Thread(target=self._hash_files, name="proctor-hash", daemon=True)

    def add_folder(self, source: str, path: str = "") -> None:
        """Copy all that is in a folder, and what the links in it point to, so that the copy needs nothing outside
        itself. `path` is where in the copy it belongs: "", or a name that ends with a slash.

        :raises OSError: it cannot be read or copied.
        """
        os.mkdir(f"{self._target}/{path}")
        with os.scandir(source) as entries:
            for entry in entries:
                if entry.name == MANIFEST_FILE:
                    continue
                if entry.is_dir():
                    self.add_folder(entry.path, f"{path}{entry.name}/")
                elif entry.is_file():
                    self._add_file(entry.path, f"{path}{entry.name}")
                else:
                    raise OSError(errno.EINVAL, "neither a file nor a folder (or a link to nothing)", entry.path)
        if path:  # the topmost one is synced together with its manifest
            sync_folder(f"{self._target}/{path}")

    def write_manifest(self) -> "tuple[int, str]":
        """Complete the copy. Return the bytes of its files, and the SHA-256 of its manifest. Raises OSError."""
        from hashlib import sha256  # slow to import

        self._wait()
        files = {path: self._facts(path) for path in sorted(self._files)}
        entries = ",".join(f'{quote(path)}:[{size},"{digest}"]' for path, (size, digest) in files.items())
        data = f'{{"format":{_MANIFEST_FORMAT},"files":{{{entries}}}}}'.encode("ascii")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        writer = os.open(f"{self._target}/{MANIFEST_FILE}", flags, 0o644)
        try:
            write_all(writer, data)
            sync_file(writer)
        finally:
            os.close(writer)
        return sum(size for size, _ in files.values()), sha256(data).hexdigest()

    def abandon(self) -> None:
        """No manifest will be wanted."""
        self._is_abandoned = True
        self._wait()

    def _add_file(self, source: str, path: str) -> None:
        reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(reader)
            self._files[path] = (source, found)
            self._hash_later(source)
            mode = found.st_mode & 0o777 | 0o600
            writer = os.open(f"{self._target}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                _copy_bytes(reader, writer)
                sync_file(writer)
            finally:
                os.close(writer)
        finally:
            os.close(reader)

    def _hash_later(self, source: str) -> None:
        self._unhashed.put(source)
        if len(self._files) == 1:
            try:
                self._thread.start()
            except RuntimeError:  # not while the interpreter ends: the copies are hashed afterwards
                self._is_abandoned = True

    def _hash_files(self) -> None:
        """The thread. What fails here is tried again with the copy."""
        while (source := self._unhashed.get()) is not None and not self._is_abandoned:
            try:
                self._hashes[source] = hash_file(source, is_abandoned=lambda: self._is_abandoned)
            except OSError:
                continue

    def _wait(self) -> None:
        self._unhashed.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _facts(self, path: str) -> "tuple[int, str]":
        """A copied file's size and SHA-256."""
        source, found = self._files[path]
        copy, digest = f"{self._target}/{path}", self._hashes.get(source)
        try:
            is_unchanged = _identity(os.stat(source)) == _identity(found)
        except OSError:
            is_unchanged = False
        return os.stat(copy).st_size, digest if digest is not None and is_unchanged else hash_file(copy)


def _identity(found: os.stat_result) -> "tuple[int, ...]":
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _copy_bytes(reader: int, writer: int) -> None:
    try:
        while os.copy_file_range(reader, writer, 1 << 30):
            pass
    except OSError as problem:
        if problem.errno not in _NO_SHARED_BLOCKS:
            raise
    while block := os.read(reader, _BLOCK_BYTES):
        write_all(writer, block)


def _numbers(folder: str) -> "list[int]":
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []
