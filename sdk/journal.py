"""The trial's end of the journal: one `write` to an append-only file for each report, and nothing else.

Appending by one `write` makes it safe to share the file between threads, forked children and separate processes of one
trial, and a record written is safe from the death of its process (`os._exit` and SIGKILL included).

When the disk is full a report waits, for at most `PROCTOR_REPORT_WAIT_SECONDS` (30). Then it is counted instead, and
the next write that works is preceded by a record that says how many are missing. After one report has waited in vain
the next ones do not wait again until a write has worked, so a full disk slows a trial once, not at every step; a
patient append (the final metric) always waits.
"""

import errno
import os
from _thread import RLock
from time import monotonic, sleep, time

from proctor.sdk.notices import notice_once
from proctor.sdk.protocol import KIND_LOST

ENV_WAIT_SECONDS = "PROCTOR_REPORT_WAIT_SECONDS"
DEFAULT_WAIT_SECONDS = 30.0

_RETRY_SECONDS = 0.25
_HOPELESS = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG}
_NEWLINE = b"\n"


class Journal:
    """An append-only file of one-line records; no method raises because of the file system."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._identity = (0, 0)
        self._torn = False
        self._lost = 0
        self._gave_up = False
        self._wait_seconds = read_wait_seconds()
        self._lock = RLock()
        os.register_at_fork(after_in_child=self._start_over)

    def append(self, records: str, *, count: int = 1, patient: bool = False) -> bool:
        """Append complete lines in one `write`; return whether they are in the file.

        :param count: how many reports the lines stand for, should they be lost.
        :param patient: wait even if the report before has already waited in vain.
        """
        data = records.encode("ascii")
        with self._lock:
            patience = self._wait_seconds if patient or not self._gave_up else 0.0
            if self._write_losses(patience) and self._write(data, patience):
                self._gave_up = False
                return True
            self._give_up(count)
            return False

    def _write_losses(self, patience: float) -> bool:
        if not self._lost:
            return True
        record = f'{{"kind":"{KIND_LOST}","count":{self._lost},"time":{time():.6f}}}\n'
        if not self._write(record.encode("ascii"), patience):
            return False
        self._lost = 0
        return True

    def _write(self, data: bytes, patience: float) -> bool:
        """Write all of `data`, or nothing that a reader could take for a record."""
        deadline = None
        whole = False  # all of it is in the file but the end of its line
        while True:
            attempt, written, problem = b"", 0, errno.ENOSPC
            try:
                descriptor = self._open()
                attempt = (_NEWLINE if self._torn else b"") + (b"" if whole else data)
                written = os.write(descriptor, attempt)
                if written == len(attempt):
                    self._torn = False
                    return True
            except OSError as error:
                problem = error.errno or errno.EIO
            if written:
                self._torn = not attempt[:written].endswith(_NEWLINE)
                whole = written == len(attempt) - 1
            now = monotonic()
            deadline = now + patience if deadline is None else deadline
            if problem in _HOPELESS or now >= deadline:
                self._say_why(problem)
                return whole
            sleep(_RETRY_SECONDS)

    def _say_why(self, problem: int) -> None:
        notice_once(
            "journal",
            f"a report could not be written to {self._path} ({os.strerror(problem)}); the trial goes on, and "
            "what is missing is counted and recorded as soon as writing works again",
        )

    def _open(self) -> int:
        """The descriptor, opened anew if user code has closed it or given its number to another file."""
        if self._descriptor >= 0:
            try:
                found = os.fstat(self._descriptor)
                if (found.st_dev, found.st_ino) == self._identity:
                    return self._descriptor
            except OSError:
                pass
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found = os.fstat(self._descriptor)
        self._identity = (found.st_dev, found.st_ino)
        # A process of this trial may have been killed in the middle of its write.
        self._torn = found.st_size > 0 and os.pread(self._descriptor, 1, found.st_size - 1) != _NEWLINE
        return self._descriptor

    def _give_up(self, count: int) -> None:
        if not self._lost:
            import atexit

            atexit.register(self._write_losses_at_exit)
        self._lost += count
        self._gave_up = True

    def _write_losses_at_exit(self) -> None:
        with self._lock:
            self._write_losses(patience=0.0)

    def _start_over(self) -> None:
        """In a forked child: the lock may be held by a thread that is not here, and losses are the parent's to tell."""
        self._lock = RLock()
        self._lost = 0
        self._gave_up = False


def read_wait_seconds() -> float:
    """How long a report may wait for room on the disk."""
    try:
        return float(os.environ[ENV_WAIT_SECONDS])
    except (KeyError, ValueError):
        return DEFAULT_WAIT_SECONDS
