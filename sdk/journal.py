"""The trial's end of the journal: one `write` to an append-only file for each report, and nothing else.

Appending by one `write` makes it safe to share the file between threads, forked children and separate processes of one
trial, and a record written is safe from the death of its process (`os._exit` and SIGKILL included).

When the disk is full (or read-only, or over quota) a report waits, for at most `PROCTOR_REPORT_WAIT_SECONDS` (30). Then
it is counted as lost in the job's reserve (`reserve`), which needs no room, so that the job's end says how many are
missing even if nothing can ever be written again; the next write that works is preceded by a record that says how many.
After one report has waited in vain the next ones do not wait again until a write has worked, so a full disk slows a
trial once, not at every step. A patient append (the final metric) goes to the reserve instead; only where it does not
fit, it waits for as long as its process lives.
"""

import errno
import os
from _thread import RLock
from time import monotonic, sleep, time

from proctor.sdk.disk_errors import HOPELESS
from proctor.sdk.disk_reserve import Reserve  # not when it is needed: on a full disk some Pythons write half a .pyc
from proctor.sdk.errors import notice_once
from proctor.sdk.protocol import KIND_LOST, RESERVE_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ENV_WAIT_SECONDS = "PROCTOR_REPORT_WAIT_SECONDS"
DEFAULT_WAIT_SECONDS = 30.0

_RETRY_SECONDS = 0.25
_NEWLINE = b"\n"


class Journal:
    """An append-only file of one-line records; no method raises because of the file system.

    :param member: whose journal it is.
    :param memory: the path of the reserve in the reaper's memory, or "".
    """

    def __init__(
        self,
        path: str,
        *,
        wait_seconds: float,
        member: str = "0",
        memory: str = "",
        clock: "Callable[[], float]" = monotonic,
        pause: "Callable[[float], None]" = sleep,
    ) -> None:
        self._path = path
        self._reserve_path = f"{os.path.dirname(path)}/{RESERVE_FILE}"
        self._reserve = Reserve(self._reserve_path, member)
        self._memory = Reserve(memory, member)
        self._descriptor = -1
        self._identity = (0, 0)
        self._lost = 0  # reports that no record in the journal counts yet
        self._unregistered = 0  # checkpoints whose records are lost, as no record in the journal says yet
        self._uncounted = 0  # those of them that no reserve has counted
        self._has_kept = False  # records in the reserve may precede in the journal what comes next
        self._moves_at = 0.0  # when they are tried next
        self._has_waited_in_vain = False
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._pause = pause
        self._lock = RLock()
        os.register_at_fork(after_in_child=self._start_over)

    def append(self, record: str, *, count: int = 1, registers: bool = False, patient: bool = False) -> bool:
        """Append one complete line in one `write`; return whether it is stored.

        :param record: one line, so that what a full disk has taken of it is no record.
        :param count: how many reports are lost with it.
        :param registers: a checkpoint is not registered without it.
        :param patient: it must not be lost: keep it in the reserve or wait without end.
        """
        data = record.encode("ascii")
        if patient:
            self._recall()
        problem, whole = self._attempt(data, whole=False)
        if not problem or (patient and whole):
            return True
        is_kept = self._keep(data) if patient else None
        if is_kept:
            notice_once(
                "final metric",
                f"{self._path} cannot be written ({os.strerror(problem)}); the final metric is kept in {RESERVE_FILE} "
                "beside it, and is stored from there",
            )
            return True
        untold = count if is_kept is None else 0
        try:
            problem = self._insist(data, problem, whole, patient=patient)
        except BaseException:  # a signal handler that raises ends the pause
            self._give_up(untold, is_checkpoint=registers)
            raise
        if problem:
            self._warn_of_failure(problem)
            self._give_up(untold, is_checkpoint=registers)
        return not problem

    def _insist(self, data: bytes, problem: int, whole: bool, *, patient: bool) -> int:
        """Try again until it works or there is no point in it; returns the error's number. Other threads may append
        while this one pauses."""
        deadline = self._clock() + (0.0 if self._has_waited_in_vain else self._wait_seconds)
        while problem and problem not in HOPELESS and (patient or self._clock() < deadline):
            if patient:
                self._warn_of_waiting(problem)
            self._pause(_RETRY_SECONDS)
            problem, whole = self._attempt(data, whole=whole)
        return 0 if whole else problem

    def _attempt(self, data: bytes, *, whole: bool) -> "tuple[int, bool]":
        """Write what is owed and then `data`, once. Returns the error's number (0: it is done), and whether all of
        `data` is in the file but the end of its line, now or before."""
        with self._lock:
            problem = self._settle() if self._lost or self._unregistered or self._has_kept else 0
            if not problem:
                problem, whole = self._write(b"" if whole else data, whole)
                if not problem:
                    self._has_waited_in_vain = False
            return problem, whole

    def _settle(self) -> int:
        """Write what belongs before the next record; returns the error's number."""
        if self._has_kept and (problem := self._move_kept()):
            return problem
        if self._lost:
            self._count()
            record = f'{{"kind":"{KIND_LOST}","count":{self._lost},"time":{time():.6f}}}\n'
            problem, whole = self._write(record.encode("ascii"), False)
            if not (whole or not problem):
                return problem
            self._lost = self._uncounted = 0
        if self._unregistered:
            one = self._unregistered == 1
            what = "a checkpoint is" if one else f"{self._unregistered} checkpoints are"
            why = f"{what} not registered: the record could not be written"
            problem, whole = self._write(
                f'{{"kind":"{KIND_LOST}","why":"{why}","time":{time():.6f}}}\n'.encode(), False
            )
            if not (whole or not problem):
                return problem
            self._unregistered = 0
        return 0

    def _move_kept(self) -> int:
        """Move what the reserve keeps to the journal; returns the error's number. Tried now and then: it reads all of
        the journal, because the process that moved a record may have been killed before it marked it."""
        if self._clock() < self._moves_at:
            return errno.EAGAIN
        problem = errno.EAGAIN

        def write(record: bytes) -> bool:
            nonlocal problem
            with open(self._path, "rb") as file:
                is_there = any(line == record for line in file)
            problem, whole = (0, True) if is_there else self._write(record, False)
            return whole or not problem

        if self._reserve.move(write) or not os.path.exists(self._reserve_path):
            self._has_kept = False
            return 0
        self._moves_at = self._clock() + _RETRY_SECONDS
        return problem or errno.EAGAIN

    def _write(self, data: bytes, whole: bool) -> "tuple[int, bool]":
        """Write all of `data`, or nothing that a reader could take for a record. Returns as `_attempt`."""
        written, problem, attempt = 0, errno.ENOSPC, b""
        try:
            descriptor, line_end = self._open()
            attempt = line_end + data
            written = os.write(descriptor, attempt)
            if written == len(attempt):
                return 0, True
        except OSError as error:
            problem = error.errno or errno.EIO
            self._close()
        return problem, whole or (written > 0 and written == len(attempt) - 1)

    def _open(self) -> "tuple[int, bytes]":
        """Return the descriptor and what must come before the next record: a newline after a torn one.

        The file itself shows whether its last record is torn, because any process of the trial may have been killed
        in the middle of its write. A write in progress looks the same; then the newline makes an empty line, which
        readers skip. The descriptor is reopened if user code has closed it or given its number to another file.
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
        """After an error: the next attempt reopens the file, which is how a network file system recovers."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if descriptor >= 0:
                os.close(descriptor)
        except OSError:
            pass

    # ---- what the disk has no room for

    def _recall(self) -> None:
        """Have what any process of this member has put into the reserve written to the journal before what comes now:
        the first final metric counts."""
        try:
            descriptor = os.open(self._reserve_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            is_used = os.pread(descriptor, 1, 0) not in (b"", b"\0")
        except OSError:
            return
        finally:
            os.close(descriptor)
        if is_used:
            self._has_kept = True

    def _keep(self, data: bytes) -> "bool | None":
        """Put a record into the reserve. True: it is safe there. False: the end of the job will report it, should it
        never be written. None: neither."""
        with self._lock:
            is_kept = self._reserve.keep(data)
            if is_kept:
                self._has_kept = True
                return True
            in_memory = self._memory.keep(data)  # as good as noted: it is lost with the reaper
            return None if is_kept is None and in_memory is None else False

    def _give_up(self, count: int, *, is_checkpoint: bool) -> None:
        with self._lock:
            if not self._lost and not self._unregistered:
                import atexit

                atexit.unregister(self._settle_at_exit)
                atexit.register(self._settle_at_exit)
            self._lost += count
            self._uncounted += count
            self._unregistered += is_checkpoint
            self._has_waited_in_vain = True
            self._count()

    def _count(self) -> None:
        """Have the losses counted where that needs no room."""
        if self._uncounted and (self._reserve.count(self._uncounted) or self._memory.count(self._uncounted)):
            self._uncounted = 0

    def _settle_at_exit(self) -> None:
        with self._lock:
            self._settle()

    def _warn_of_failure(self, problem: int) -> None:
        notice_once(
            "journal",
            f"a report could not be written to {self._path} ({os.strerror(problem)}); the trial continues, and "
            "what is missing is counted and recorded as soon as writing works again",
        )

    def _warn_of_waiting(self, problem: int) -> None:
        notice_once(
            "final metric",
            f"the final metric waits until it can be written to {self._path} ({os.strerror(problem)}); make room for "
            "it, or stop the trial",
        )

    def _start_over(self) -> None:
        """In a forked child: the lock may be held by a thread that is not here, and the parent reports its losses."""
        self._lock = RLock()
        self._lost = self._uncounted = self._unregistered = 0
        self._has_kept = False
        self._has_waited_in_vain = False


def read_wait_seconds() -> float:
    """Return how long a report may wait for room on the disk, as the environment says."""
    try:
        return float(os.environ[ENV_WAIT_SECONDS])
    except (KeyError, ValueError):
        return DEFAULT_WAIT_SECONDS
