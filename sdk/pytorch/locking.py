"""One process at a time writes to the folder of a run.

An attempt that should be dead and is not would mix its checkpoints with those of its successor. The lock is the
kernel's: it goes with the process, however that ends, and forked loader workers do not hold it.
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


class FolderLock:
    """The right to write to a folder.

    :param patience_seconds: how long to wait for a process that is just ending.
    """

    def __init__(self, folder: Path, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._path = folder / LOCK_FILE
        self._patience_seconds = patience_seconds
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock; a file system that knows no locks gives it to everyone.

        :raises TrainerError: another process has it.
        """
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = monotonic() + self._patience_seconds
        while not self._try():
            if monotonic() >= deadline:
                owner = os.pread(self._descriptor, 200, 0).decode(errors="replace") or "unknown"
                self.release()
                raise TrainerError(
                    f"the checkpoints in {self._path.parent} are being written by another process ({owner}); a run is "
                    "trained by one process group at a time. End it, or give this run another run_name or chkpt_root."
                )
            sleep(_RETRY_SECONDS)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)

    def release(self) -> None:
        """Give the lock back; without it nothing happens."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno in {errno.EACCES, errno.EAGAIN}:
                return False
            if problem.errno not in _NO_LOCKS:
                raise
        return True
