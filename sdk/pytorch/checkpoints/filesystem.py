"""The file system below the checkpoints and logs: one writer to a folder, storing while training continues, and files
that are appended to.

An attempt that should be dead and is not would mix its checkpoints with those of its successor, so a run locks its
folder. The lock is the kernel's: it goes with the process, however that ends, and forked loader workers do not hold it.
Within one process it excludes no other run, and is lost as soon as the file is closed anywhere in the process; so the
runs of a process have a table besides.

One piece of storing is under way at a time. To start the next one, or to be sure that the last one is done, one waits
at the barrier. A thread lives only as long as its work, and a run waits for it before it forks loader workers, see
`Run.read`: a process that forks must have no other thread.
"""

import errno
import fcntl
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.files import name_unfinished, replace_file
from proctor.sdk.pytorch.errors import (
    CheckpointNotStoredError,
    CheckpointWarning,
    TrainerError,
    UnreadableCheckpointError,
)

LOCK_FILE = ".lock"
LOCK_PATIENCE_SECONDS = 15.0
_RETRY_SECONDS = 0.25
_PIECES_TOGETHER = 100  # in one write
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
SYNC_PATIENCE_SECONDS = 3600.0

_Place = tuple[int, int, int]  # a process, and a folder's device and inode
_taken: "dict[_Place, FolderLock]" = {}  # what a forked child inherits of it is its parent's, not its own


def store_file(path: Path, data: "bytes | Callable[[int], object]", *, place: str) -> None:
    """Write a durable file into a folder that other hosts may write to as well.

    :param data: the bytes, or a function that writes them to the descriptor that it is given.
    :param place: what the fail points around the rename are called after.
    :raises OSError: the disk refuses.
    """
    unfinished = name_unfinished(str(path.parent))
    replace_file(path, data, durable=True, mode=0o644, unfinished=unfinished, place=place)


class FolderLock:
    """The right to write to a folder.

    :param patience_seconds: how long to wait for a run that is just ending.
    """

    def __init__(self, folder: Path, *, patience_seconds: float = LOCK_PATIENCE_SECONDS) -> None:
        self._path = folder / LOCK_FILE
        self._patience_seconds = patience_seconds
        self._place: _Place = (0, 0, 0)
        self._descriptor = -1

    @property
    def is_held(self) -> bool:
        """Whether it was taken and not given back."""
        return self._descriptor >= 0

    def acquire(self) -> None:
        """Take the lock; a file system that knows no locks gives it to every process.

        :raises TrainerError: another process has it, or another run in this one.
        """
        deadline = monotonic() + self._patience_seconds
        while owner := self._try():
            if monotonic() >= deadline:
                raise TrainerError(
                    f"the checkpoints in {self._path.parent} are being written by another run ({owner}); a run is "
                    "trained by one process group at a time. End it, or give this run another run_name or chkpt_root."
                )
            sleep(_RETRY_SECONDS)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, _describe_process().encode(), 0)

    def release(self) -> None:
        """Give the lock back; without it nothing happens."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            del _taken[self._place]

    def _try(self) -> str:
        """Return who has the lock; nothing if that is this one from now on."""
        folder = os.stat(self._path.parent)
        self._place = (os.getpid(), folder.st_dev, folder.st_ino)
        if _taken.setdefault(self._place, self) is not self:
            return _describe_process()
        try:
            return self._lock()
        finally:
            if not self.is_held:
                del _taken[self._place]

    def _lock(self) -> str:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Not `flock`: machines may share the folder over NFS.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # noqa: TID251
        except OSError as problem:
            if problem.errno not in _NO_LOCKS:
                owner = os.pread(descriptor, 200, 0).decode(errors="replace")
                os.close(descriptor)
                if problem.errno in {errno.EACCES, errno.EAGAIN}:
                    return owner or "unknown"
                raise
        self._descriptor = descriptor
        return ""


class AppendedFile:
    """A file that is appended to in whole pieces; those for which the disk has no room wait in memory, in their order.

    Others may read it meanwhile, or append whole pieces of their own.

    :param make_path: makes the file's folder, or the file, and returns the file's path; called whenever it is opened.
    """

    def __init__(self, make_path: "Callable[[], Path]") -> None:
        self.path: Path | None = None  # once it is there
        self.descriptor = -1
        self.waiting: list[bytes] = []
        self.size = self.written = 0  # the bytes of all pieces, and of those in the file
        self._make_path = make_path

    def ensure_open(self) -> None:
        """Make the file unless it is open. Raises OSError."""
        if self.descriptor < 0:
            self.path = self._make_path()
            self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, piece: bytes) -> None:
        """Add a piece, which waits for `write_waiting`."""
        self.waiting.append(piece)
        self.size += len(piece)

    def drop(self) -> bytes:
        """Take the last piece back, which waits, and return it."""
        piece = self.waiting.pop()
        self.size -= len(piece)
        return piece

    def write_waiting(self) -> None:
        """Write the pieces that wait, some at a time, so that on a full disk one more does not cost as much as all.

        :raises OSError: the disk refuses; the file is closed then, as a network file system may want it to be reopened.
        """
        try:
            while self.waiting:
                self._append(b"".join(self.waiting[:_PIECES_TOGETHER]))
                del self.waiting[:_PIECES_TOGETHER]
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Close the file; it is opened again when it is needed."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # a network file system may refuse even that
                os.close(descriptor)

    def _append(self, data: bytes) -> None:
        self.ensure_open()
        size = os.fstat(self.descriptor).st_size
        count = os.write(self.descriptor, data)
        if count < len(data):
            os.ftruncate(self.descriptor, size)  # no half piece, which would hide what comes after it
            raise OSError(errno.ENOSPC, f"only {count} of {len(data)} bytes fitted into it")
        self.written += count


def _describe_process() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


class BackgroundStorage:
    """Runs one piece of storing at a time beside the training.

    :param patience_seconds: how long the barrier waits for a disk that does not answer.
    """

    def __init__(self, *, patience_seconds: float = SYNC_PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None
        self._name = ""

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Do a piece of work in a thread of its own, after the work before, see `clear`.

        :param name: what is stored, for the errors.
        """
        self.clear()
        self._name = name
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"proctor-store-{name}")
        self._thread.start()

    def clear(self) -> None:
        """Wait for the work before.

        A disk without room does not end a training run: if it made the work before fail, a warning says so and the run
        continues with its earlier checkpoints.

        :raises CheckpointNotStoredError: the work before failed for another reason, or has not ended in time.
        """
        try:
            self.wait()
        except CheckpointNotStoredError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in PASSING:
                raise
            warnings.warn(
                f"{error} Training continues and saves again at the next occasion.", CheckpointWarning, stacklevel=3
            )

    def wait(self) -> None:
        """Return when nothing is under way; the barrier.

        :raises CheckpointNotStoredError: the last work failed (reported once), or has not ended in time.
        :raises UnreadableCheckpointError: what it stored cannot be read.
        """
        self.settle()
        if self._thread is not None and self._thread.is_alive():
            raise CheckpointNotStoredError(
                f"checkpoint {self._name} was not on the disk after {self._patience_seconds:g} s; look at the disk "
                "or the network file system of the checkpoint folder."
            )
        self._thread = None
        problem, self._problem = self._problem, None
        if isinstance(problem, UnreadableCheckpointError):
            raise problem
        if problem is not None:
            raise CheckpointNotStoredError(
                f"checkpoint {self._name} could not be stored: {problem!r}. The checkpoints before it are whole; make "
                "room or give another chkpt_root, and start again to continue from them."
            ) from problem

    def settle(self) -> None:
        """Return when nothing is under way; a problem is left to be raised by the next `start` or `wait`."""
        if self._thread is not None:
            self._thread.join(self._patience_seconds)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self._problem = problem
