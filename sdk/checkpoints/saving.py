"""Checkpoints of a job: folders `<n>` that appear whole or not at all, and can be verified later. They are in
`output/checkpoints` of the job's directory, or in the folder that the experiment's `checkpointStorage` has for the job.
Where that is a URL, they are made in the job's directory as ever, and uploaded from there; the newest one stays here,
and the one that the job began with is downloaded to be number 0. When the job has ended, the keeper removes both.

A checkpoint is copied under a name beginning with a dot, synced to the disk, and renamed to the next free number; the
journal names it only after that. It is copied rather than moved or hard-linked, because a trial may continue writing to
the very files it has just handed over (the kernel shares the blocks where the file system can). Files that are never
written to again, as those of the trainer, are registered in place, by links: nothing is copied. What a kill has left
half made keeps its dotted name; the next checkpoint of the job removes it, and the keeper when the job has ended.

Each has a manifest (`proctor.sdk.checkpoints.manifest`), which gets its name together with the folder. The files are
hashed in a thread while they are copied and synced. It reads the originals, which a trial has just written and which
are still in memory, so no disk is read twice; where an original has changed meanwhile, the copy is read.
"""

import errno
import os
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE, encode_manifest
from proctor.sdk.disk_errors import PASSING
from proctor.sdk.errors import CheckpointError, notice_once
from proctor.sdk.files import (
    discard,
    hash_file,
    link_file,
    lock_file,
    name_unfinished,
    put_in_place,
    remove_tree,
    remove_unfinished,
    sync_file,
    sync_folder,
    unlock_file,
    write_all,
)
from proctor.sdk.journal import read_wait_seconds
from proctor.sdk.protocol import CHECKPOINT_FOLDER, ENV_CHECKPOINT_QUOTA, ENV_CHECKPOINT_STORAGE, is_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_RETRY_SECONDS = 1.0
_DOWNLOAD_PATIENCE_SECONDS = 600.0
_uploaded: "list[str]" = []
"""The copy here of what this process has uploaded last."""
_BYTES_PER_MB = 10**6
_NO_SHARED_BLOCKS = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_BLOCK_BYTES = 1 << 22


class StoredCheckpoint:
    """A checkpoint that is whole and on the disk.

    :param path: relative to the job's directory; in the experiment's storage absolute, or a URL.
    :param size: the bytes of all its files.
    :param manifest: the SHA-256 of its manifest.
    """

    __slots__ = ("manifest", "path", "size")

    def __init__(self, path: str, size: int, manifest: str) -> None:
        self.path = path
        self.size = size
        self.manifest = manifest


def save_checkpoint(source: str, job_directory: str, *, shares_files: bool = False) -> "StoredCheckpoint | str":
    """Copy a folder to be the job's next checkpoint, or return why it is not stored, as a sentence: the disk had no
    room (or failed) for as long as a report may wait, or alone it is larger than the quota of all checkpoints, in which
    case nothing of it was copied (said once; "" afterwards). Standard error says so, too, and the trial continues with
    its earlier checkpoints.

    :param shares_files: the files are never written to again, at most replaced, so that links take the place of copies
        where the file system has them.
    :raises CheckpointError: the folder is missing, unreadable, or holds what cannot be copied.
    """
    storage = os.environ.get(ENV_CHECKPOINT_STORAGE, "")
    folder = checkpoint_folder(job_directory, storage)
    _check(source, folder)
    if refusal := _exceeds_quota(source):
        return refusal if notice_once("checkpoint quota", refusal) else ""
    deadline = monotonic() + read_wait_seconds()
    while True:
        try:
            number, size, manifest = _save(source, folder, shares_files=shares_files)
            if is_url(storage):
                return _upload(folder, number, storage) or StoredCheckpoint(f"{storage}/{number}", size, manifest)
            return StoredCheckpoint(f"{folder if storage else CHECKPOINT_FOLDER}/{number}", size, manifest)
        except OSError as problem:
            if problem.errno not in PASSING:
                raise CheckpointError(f"checkpoint {source} cannot be copied to {folder}: {problem}") from problem
            if monotonic() >= deadline:
                notice_once(
                    "checkpoint", f"a checkpoint could not be stored in {folder} ({problem}); the trial continues"
                )
                return "a checkpoint could not be stored: the disk was full"
            sleep(_RETRY_SECONDS)


def checkpoint_folder(job_directory: str, storage: str) -> str:
    """Return the folder of a job's checkpoints on this machine.

    :param storage: where the experiment's storage keeps them, a folder or a URL; "": it has none.
    """
    return f"{job_directory}/{CHECKPOINT_FOLDER}" if not storage or is_url(storage) else storage


def _upload(folder: str, number: int, storage: str) -> str:
    """Put a checkpoint that is whole here into the storage, and remove the one before from here. Returns why it is not
    there, as a sentence. Raises CheckpointError where it never will be."""
    from proctor.sdk.checkpoints.storage import StorageError, upload

    deadline = monotonic() + read_wait_seconds()
    while True:
        try:
            upload(f"{folder}/{number}", f"{storage}/{number}")
        except StorageError as problem:
            if isinstance(problem.__cause__, ImportError):
                raise CheckpointError(f"a checkpoint cannot be stored: {problem}") from problem
            if monotonic() < deadline:
                sleep(_RETRY_SECONDS)
                continue
            notice_once("checkpoint", f"a checkpoint could not be stored ({problem}); the trial continues")
            discard(f"{folder}/{number}")
            return "a checkpoint could not be stored: the storage did not take it"
        if _uploaded:  # by this process: another rank may still be uploading its own
            discard(_uploaded.pop())
        _uploaded.append(f"{folder}/{number}")
        return ""


def fetch_checkpoint(job_directory: str, handed: str) -> str:
    """Return the folder of the checkpoint that a job was handed: downloads it where it is a URL, once for all processes
    of the job.

    :raises CheckpointError: it cannot be read, or is damaged.
    """
    if not is_url(handed):
        return handed
    from proctor.sdk.checkpoints.storage import download

    folder = f"{job_directory}/{CHECKPOINT_FOLDER}"
    if os.path.isdir(f"{folder}/0"):
        return f"{folder}/0"
    os.makedirs(folder, exist_ok=True)
    # Not of the checkpoints' own folder, which this process may have locked: the trainer does so while it registers.
    with locked_folder(os.path.dirname(folder)):
        if not os.path.isdir(f"{folder}/0"):
            patience_seconds, is_own = _DOWNLOAD_PATIENCE_SECONDS, _is_of_this_experiment(handed)
            download(handed, f"{folder}/0", patience_seconds=patience_seconds, discards_damaged=is_own)
    return f"{folder}/0"


@contextmanager
def locked_folder(folder: str) -> "Iterator[None]":
    """Let one process of a job at a time work in a folder, which is made if it is missing; where the file system knows
    no locks, it continues without."""
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            lock_file(descriptor, waits=True)
        yield
    finally:
        with suppress(OSError):  # explicitly, because a worker that was forked meanwhile holds the folder open too
            unlock_file(descriptor)
        os.close(descriptor)


def _is_of_this_experiment(handed: str) -> bool:
    """Whether a checkpoint is where this experiment stores its own: what a copied home has brought with it is not."""
    experiment = os.environ.get(ENV_CHECKPOINT_STORAGE, "").rsplit("/", 2)[0]  # less the trial and the job
    return bool(experiment) and handed.startswith(f"{experiment}/")


def list_checkpoints(job_directory: str) -> "list[str]":
    """Return the absolute paths of the job's whole checkpoints on this machine, oldest first."""
    folder = checkpoint_folder(job_directory, os.environ.get(ENV_CHECKPOINT_STORAGE, ""))
    return [f"{folder}/{number}" for number in sorted(_numbers(folder)) if number > 0]


def find_newest_checkpoint(job_directory: str) -> "str | None":
    """Return the absolute path of the job's newest whole checkpoint on this machine."""
    found = list_checkpoints(job_directory)
    return found[-1] if found else None


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


def _save(source: str, folder: str, *, shares_files: bool) -> "tuple[int, int, str]":
    """Make the folder's next checkpoint. Returns its number, its size, and the SHA-256 of its manifest."""
    os.makedirs(folder, exist_ok=True)
    remove_unfinished(folder)
    unfinished = name_unfinished(folder)
    copy = _Copy(unfinished, shares_files=shares_files)
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
    return number, size, manifest


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

    def __init__(self, target: str, *, shares_files: bool) -> None:
        from queue import SimpleQueue
        from threading import Thread

        self._target = target
        self._shares_files = shares_files
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
                if entry.name == MANIFEST_FILE:  # of another checkpoint
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
        data = encode_manifest(files)
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
            if self._shares_files and _link(source, f"{self._target}/{path}"):
                sync_file(reader)
                return
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


def _link(source: str, path: str) -> bool:
    """Give a file a second name, and return whether that could be done: not on another file system, or for a file of
    another user."""
    try:
        link_file(os.path.realpath(source), path)
    except OSError:
        return False
    return True


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
