"""One run at a time writes to a folder.

An attempt that should be dead and is not would mix its checkpoints with those of its successor. The lock is the
kernel's: it goes with the process, however that ends, and forked loader workers do not hold it. Within one process it
keeps nobody out, and is lost as soon as anyone there closes the file; so the runs of a process have a table besides.
"""

import errno
import fcntl
import os
from pathlib import Path
from time import monotonic, sleep

from proctor.sdk.pytorch.errors import TrainerError

LOCK_FILE = ".lock"
PATIENCE_SECONDS = 15.0
_RETRY_SECONDS = 0.25
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

_Place = tuple[int, int, int]  # a process, and a folder's device and inode
_taken: "dict[_Place, FolderLock]" = {}  # what a forked child inherits of it is its parent's, not its own


class FolderLock:
    """The right to write to a folder.

    :param patience_seconds: how long to wait for a run that is just ending.
    """

    def __init__(self, folder: Path, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
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
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno not in _NO_LOCKS:
                owner = os.pread(descriptor, 200, 0).decode(errors="replace")
                os.close(descriptor)
                if problem.errno in {errno.EACCES, errno.EAGAIN}:
                    return owner or "unknown"
                raise
        self._descriptor = descriptor
        return ""


def _describe_process() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"
