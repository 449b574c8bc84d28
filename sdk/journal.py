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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ENV_WAIT_SECONDS = "PROCTOR_REPORT_WAIT_SECONDS"
DEFAULT_WAIT_SECONDS = 30.0

_RETRY_SECONDS = 0.25
_HOPELESS = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG}
_NEWLINE = b"\n"


class Journal:
    """An append-only file of one-line records; no method raises because of the file system."""

    def __init__(
        self,
        path: str,
        *,
        wait_seconds: float,
        clock: "Callable[[], float]" = monotonic,
        pause: "Callable[[float], None]" = sleep,
    ) -> None:
        self._path = path
        self._descriptor = -1
        self._identity = (0, 0)
        self._lost = 0
        self._gave_up = False
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._pause = pause
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
            written, problem = 0, errno.ENOSPC
            try:
                descriptor, line_end = self._open()
                attempt = line_end + (b"" if whole else data)
                written = os.write(descriptor, attempt)
                if written == len(attempt):
                    return True
            except OSError as error:
                problem = error.errno or errno.EIO
                self._close()
            whole = whole or (written > 0 and written == len(attempt) - 1)
            now = self._clock()
            deadline = now + patience if deadline is None else deadline
            if problem in _HOPELESS or now >= deadline:
                if not whole:
                    self._say_why(problem)
                return whole
            self._pause(_RETRY_SECONDS)

    def _open(self) -> "tuple[int, bytes]":
        """Return the descriptor and what must come before the next record: a newline after a torn one.

        The file itself tells whether its last record is torn, because any process of the trial may have been killed
        in the middle of its write. A write in progress looks the same; then the newline makes an empty line, which
        readers skip. The descriptor is opened anew if user code has closed it or given its number to another file.
        """
        found = None
        if self._descriptor >= 0:
            try:
                found = os.fstat(self._descriptor)
            except OSError:
                self._descriptor = -1
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            found = self._open_anew()
        elif found.st_nlink == 0:  # removed or replaced: the keeper reads what has the name
            try:
                replaced, found = self._descriptor, self._open_anew()
                os.close(replaced)
            except FileNotFoundError:  # its folder is gone too; a keeper that has it open reads it on
                pass
        if found.st_size == 0 or os.pread(self._descriptor, 1, found.st_size - 1) == _NEWLINE:
            return self._descriptor, b""
        return self._descriptor, _NEWLINE

    def _open_anew(self) -> os.stat_result:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found = os.fstat(self._descriptor)
        self._identity = (found.st_dev, found.st_ino)
        return found

    def _close(self) -> None:
        """After an error: the next attempt opens the file anew, which is how a network file system recovers."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if descriptor >= 0:
                os.close(descriptor)
        except OSError:
            pass

    def _say_why(self, problem: int) -> None:
        notice_once(
            "journal",
            f"a report could not be written to {self._path} ({os.strerror(problem)}); the trial goes on, and "
            "what is missing is counted and recorded as soon as writing works again",
        )

    def _give_up(self, count: int) -> None:
        if not self._lost:
            import atexit

            atexit.unregister(self._write_losses_at_exit)
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
    """Return how long a report may wait for room on the disk, as the environment says."""
    try:
        return float(os.environ[ENV_WAIT_SECONDS])
    except (KeyError, ValueError):
        return DEFAULT_WAIT_SECONDS
