"""The log file of a run: what happened, line by line, in one file from the first start to the end.

The file takes whatever goes to the logger `proctor.sdk.pytorch`; a model may log there too. A resumed run appends to
the file that it was started with. Only its checkpoint says which one that is, so the lines of its set-up wait until
it was read; if it fails before, they begin a new file. A resume that finds nothing left to do writes none.

Lines are not taken back when a run is cut off and steps are done again: the file records what happened. Metrics that
stand there once for each step are in the history and in TensorBoard.

A log must not cost the training it describes. So what the disk refuses in the middle of a run is reported once, by a
`LogWarning`; it waits in memory and is written, in order, when the disk takes it. No thread does this: a process that
forks the workers of its loaders must not have one.
"""

import errno
import logging
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.pytorch.errors import LogWarning
from proctor.sdk.pytorch.observers.base import Observer, make_file, name_start
from proctor.sdk.pytorch.options import Settings
from proctor.sdk.pytorch.state import Record, TrainingState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RETRY_SECONDS = 1.0
WAITING_BYTES = 64 << 20
LOGGER = logging.getLogger("proctor.sdk.pytorch")
_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_EARLY_LINES = 10_000
_RUN = "proctor_run"  # the attribute of a record that says which run logs; a model's records have none


class FileLog(Observer):
    """Writes the log file. Its handler is on the logger only while the run is under way."""

    name = "log_file"

    def __init__(self, run_name: str, folder: Path) -> None:
        self._run_name = run_name
        self._folder = folder
        self._log = logging.LoggerAdapter(LOGGER, {_RUN: run_name})
        self._path: Path | None = None  # the file that the run was started with
        self._file: NonBlockingFile | None = None
        self._handler: _LineHandler | None = None
        self._level_before = logging.NOTSET
        self._handled = sys.exc_info()[1]  # by the caller, while it makes and runs this

    def open(self) -> None:
        """Take what is logged from now on."""
        if self._handler is not None:
            return
        self._handler = _LineHandler(self._run_name)
        self._level_before = LOGGER.level
        if self._level_before == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(self._handler)

    def on_start(self, settings: Settings, state: TrainingState, resumed_from: "Path | None") -> None:
        """Open the file; from where a run continues, `announce` has logged."""
        self._open_file()
        if resumed_from is None:
            self._log.info("run %s starts, seed %d", settings.run_name, settings.random_seed)

    def on_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Say which epoch is entered, and where."""
        self._log.info("epoch %d is entered after %d of %d batches", state.global_epoch, state.batch, batches)

    def on_evaluation_start(self, phase: str, batches: int) -> None:
        """Say what is judged; a test has no `on_start`."""
        self._open_file()
        self._log.info("%s of %d batches", phase, batches)

    def on_metrics(self, record: Record) -> None:
        """Write a line of metrics."""
        values = " ".join(f"{name}={value:.6g}" for name, value in record.metrics.items())
        self._log.info("epoch %d step %d: %s", record.epoch, record.step, values)

    def on_checkpoint(self, path: Path, state: TrainingState) -> None:
        """Name the checkpoint."""
        self._log.info("checkpoint %s, %s", path.name, _describe(state))

    def on_end(self, reason: str) -> None:
        """Say why the run ended."""
        self._log.info("run %s ended: %s", self._run_name, reason)

    def close(self) -> None:
        """Log what the run failed of, if it did, and close the file."""
        problem = sys.exc_info()[1]
        if problem is not None and problem is not self._handled:
            with suppress(OSError):  # a wrong folder is no reason to hide what the run failed of
                self._open_file()
            self._log.error("run %s failed: %s: %s", self._run_name, type(problem).__name__, problem, exc_info=problem)
        if self._handler is not None:
            LOGGER.removeHandler(self._handler)
            LOGGER.setLevel(self._level_before)
            self._handler.close()
        if self._file is not None:
            self._file.close()
            self._path = self._file.path
        self._file = self._handler = None

    def state_dict(self) -> "dict[str, Any]":
        """Where the file is."""
        path = self._path if self._file is None else self._file.path
        return {} if path is None else {"path": str(path)}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Go back to that file, if it is there and this user's; on another machine it may be neither."""
        path = state.get("path", "")
        if os.path.isfile(path) and os.access(path, os.R_OK | os.W_OK):
            self._path = Path(path)

    def _open_file(self) -> None:
        if self._file is not None:
            return
        self.open()
        file = NonBlockingFile("log file", self._make_path)
        file.open()
        if self._path is not None and _is_torn(self._path):
            file.append(b"\n")
        self._file = file
        assert self._handler is not None
        self._handler.write_to(file)

    def _make_path(self) -> Path:
        return self._path or make_file(self._folder, name_start(self._run_name), ".log")


class _LineHandler(logging.Handler):
    """Gives each record to a file that never raises, and keeps the newest ones until there is one."""

    def __init__(self, run_name: str) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self.addFilter(lambda record: getattr(record, _RUN, run_name) == run_name)  # not what another open run logs
        self._early: deque[bytes] = deque(maxlen=_EARLY_LINES)
        self._file: NonBlockingFile | None = None

    def write_to(self, file: "NonBlockingFile") -> None:
        """Give the file what has waited for it, and from now on everything."""
        self.acquire()
        try:
            self._file = file
            while self._early:
                file.append(self._early.popleft())
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, and what belongs to it, such as a traceback."""
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        line = f"{text}\n".encode(errors="backslashreplace")
        if self._file is None:
            self._early.append(line)
        else:
            self._file.append(line)


def _describe(state: TrainingState) -> str:
    return f"epoch {state.global_epoch}, step {state.current_iteration}, batch {state.global_iteration}"


def _is_torn(path: Path) -> bool:
    """Whether a kill has left a line without its end."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() not in (b"", b"\n")


class NonBlockingFile:
    """A file that is appended to in whole pieces and never ends a run; pieces without room on the disk wait in memory.

    Others may read it meanwhile, or append whole pieces of their own.

    :param what: names it in warnings, such as "log file".
    :param make_path: makes the file's folder, or the file, and returns the file's path; called until it succeeds.
    :param interval_seconds: how long pieces may wait to be written together.
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
        self._has_warned = False

    def open(self) -> None:
        """Make the file now, so that a wrong path is noticed at once; lack of room does not raise here either.

        :raises OSError: the file cannot be made or written to, whatever room there is.
        """
        try:
            self._open()
        except OSError as problem:
            if problem.errno not in PASSING:
                raise
            self._warn(problem)

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
            self._warn(problem)
            return False
        self._waiting.clear()
        self._waiting_bytes = 0
        self._due = self._clock() + self._interval_seconds
        self._has_warned = False
        return self.lost == 0

    def close(self) -> None:
        """Write what waits, if that is possible now, and close the file."""
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

    def _warn(self, problem: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            LogWarning(
                f"the {self._what}{'' if self.path is None else f' {self.path}'} could not be written: {problem}. What "
                "belongs there waits in memory, and training goes on; make room before it ends."
            ),
            stacklevel=2,
        )
