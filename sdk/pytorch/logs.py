"""The log file of a run: what happened, line by line, in one file from the first start to the end.

The file takes whatever goes to the logger `proctor.sdk.pytorch`; a model may log there too. A resumed run appends to
the file that it was started with. Only its checkpoint tells which one that is, so the lines of its set-up wait until
it was read; if it fails before, they begin a new file. A resume that finds nothing left to do writes none.

Lines are not taken back when a run is cut off and steps are done again: the file tells what happened. Metrics that
stand there once for each step are in the history and in TensorBoard. A disk without room makes lines wait, and never
ends a run.
"""

import logging
import os
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

from proctor.sdk.pytorch.appending import PatientFile
from proctor.sdk.pytorch.observing import Observer, Record
from proctor.sdk.pytorch.places import make_file, name_start
from proctor.sdk.pytorch.settings import Settings
from proctor.sdk.pytorch.state import TrainingState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOGGER = logging.getLogger("proctor.sdk.pytorch")
_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_EARLY_LINES = 10_000
_RUN = "proctor_run"  # the attribute of a record that says which run speaks; a model's records have none


class FileLog(Observer):
    """Writes the log file. Its handler is on the logger only while the run is under way."""

    name = "log_file"

    def __init__(self, run_name: str, folder: Path) -> None:
        self._run_name = run_name
        self._folder = folder
        self._log = logging.LoggerAdapter(LOGGER, {_RUN: run_name})
        self._path: Path | None = None  # the file that the run was started with
        self._file: PatientFile | None = None
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
        """Open the file and say from where the run goes on."""
        self._open_file()
        if resumed_from is None:
            self._log.info("run %s starts, seed %d", settings.run_name, settings.random_seed)
        else:
            self._log.info("run %s continues from %s, %s", settings.run_name, resumed_from, _describe(state))

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
        """Say what the run failed of, if it did, and let the file go."""
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
        file = PatientFile("log file", self._make_path)
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
        self.addFilter(lambda record: getattr(record, _RUN, run_name) == run_name)  # not what another open run says
        self._early: deque[bytes] = deque(maxlen=_EARLY_LINES)
        self._file: PatientFile | None = None

    def write_to(self, file: PatientFile) -> None:
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
