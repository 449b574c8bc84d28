"""Files for people, which grow by whole pieces and never end a run: what does not fit waits until there is room.

A log must not cost the training that it tells of. So whatever the disk says in the middle of a run is told once, by a
`LogWarning`; the pieces wait in memory and are written, in their order, when the disk takes them. No thread is behind
this: a process that forks the workers of its loaders must not have one.
"""

import errno
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.pytorch.errors import LogWarning

RETRY_SECONDS = 1.0
WAITING_BYTES = 64 << 20


class PatientFile:
    """A file that is appended to. Others may read it meanwhile, or append whole pieces of their own.

    :param what: names it in warnings, such as "log file".
    :param make_path: makes the file's folder, or the file, and returns the file's path; called until it succeeds.
    :param interval_seconds: how long pieces may wait for company before they are written.
    :param clock: seconds.
    """

    def __init__(
        self,
        what: str,
        make_path: "Callable[[], Path]",
        *,
        interval_seconds: float = 0.0,
        clock: "Callable[[], float]" = monotonic,
    ) -> None:
        self.path: Path | None = None  # once it is there
        self.lost = 0  # pieces that found no place in memory either
        self._what = what
        self._make_path = make_path
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._due = clock()
        self._descriptor = -1
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_told = False

    def open(self) -> None:
        """Make the file now, so that a wrong path is noticed at once; that there is no room is no error here either.

        :raises OSError: the file cannot be made or written to, whatever room there is.
        """
        try:
            self._open()
        except OSError as problem:
            if problem.errno not in PASSING:
                raise
            self._tell(problem)

    def append(self, piece: bytes) -> None:
        """Add a piece, which is written whole, at once or when it is due."""
        if self._waiting_bytes + len(piece) > WAITING_BYTES:
            self.lost += 1
        else:
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
        if self._clock() >= self._due:
            self.write()

    def write(self) -> bool:
        """Write what waits, and return whether every piece is in the file."""
        try:
            if self._waiting:
                self._write(b"".join(self._waiting))
        except OSError as problem:
            self._release()  # a network file system may want the file to be opened anew
            self._due = self._clock() + max(self._interval_seconds, RETRY_SECONDS)
            self._tell(problem)
            return False
        self._waiting.clear()
        self._waiting_bytes = 0
        self._due = self._clock() + self._interval_seconds
        self._is_told = False
        return self.lost == 0

    def close(self) -> None:
        """Write what waits, if that is possible now, and let the file go."""
        self.write()
        self._release()

    def _open(self) -> int:
        if self.path is None:
            self.path = self._make_path()
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._descriptor

    def _write(self, data: bytes) -> None:
        descriptor = self._open()
        size = os.fstat(descriptor).st_size
        count = os.write(descriptor, data)
        if count < len(data):
            os.ftruncate(descriptor, size)  # no half piece, which would hide what comes after it
            raise OSError(errno.ENOSPC, f"only {count} of {len(data)} bytes fitted into it")

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # a network file system may refuse even that
                os.close(descriptor)

    def _tell(self, problem: OSError) -> None:
        if self._is_told:
            return
        self._is_told = True
        warnings.warn(
            LogWarning(
                f"the {self._what}{'' if self.path is None else f' {self.path}'} could not be written: {problem}. What "
                "belongs there waits in memory, and training goes on; make room before it ends."
            ),
            stacklevel=2,
        )
