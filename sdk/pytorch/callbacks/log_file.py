"""The log file of a run: what happened, line by line, in one file from the first start to the end.

The file takes whatever goes to the logger `proctor.sdk.pytorch`; a model may log there too. A resumed run appends to
the file that it was started with. Only its checkpoint says which one that is, so the lines of its set-up wait until
it was read; if it fails before, they begin a new file. A resume that finds nothing left to do writes none.

Lines are not taken back when a run is cut off and steps are done again: the file records what happened. Metrics that
stand there once for each step are in the history and in TensorBoard.

A log must not cost the training it describes. So what the disk refuses in the middle of a run is reported once, by a
`LogWarning`; it waits in memory and is written, in order, when the disk takes it. No thread does this: a process that
forks the workers of its loaders must not have one. See decision 0031.
"""

import logging
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.pytorch.callbacks.base import Callback, make_new, name_start
from proctor.sdk.pytorch.checkpoints.filesystem import AppendedFile
from proctor.sdk.pytorch.config import Phase, StopReason
from proctor.sdk.pytorch.errors import LogWarning
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.state import Record, TrainingState

RETRY_SECONDS = 1.0
WAITING_BYTES = 64 << 20
LOGGER = logging.getLogger("proctor.sdk.pytorch")
_RUN = "proctor_run"  # the attribute of a record that says which run logs; a model's records have none


class FileLog(Callback):
    """Writes the log file. Its handler is on the logger only while the run is under way."""

    state_key = "log_file"

    def __init__(self, run_name: str, folder: Path) -> None:
        self._run_name = run_name
        self._folder = folder
        self._log = logging.LoggerAdapter(LOGGER, {_RUN: run_name})
        self._path: Path | None = None  # the file that the run was started with, or has made
        self._file: NonBlockingFile | None = None
        self._handler = MemoryHandler(1)  # keeps records as long as it has no target
        self._handler.addFilter(lambda record: getattr(record, _RUN, run_name) == run_name)  # no other open run's
        self._level_before = LOGGER.level

    def setup(self, model: Model) -> None:
        """Take what is logged from now on."""
        self._model = model
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(self._handler)

    def on_training_start(self) -> None:
        """Open the file; from where a run continues, `announce` has logged."""
        self._open()
        run = self._model.trainer
        if not run.state.global_iteration:
            self._log.info("run %s starts, seed %d", self._run_name, run.settings.seed)

    def on_training_epoch_start(self, state: TrainingState, batches: int) -> None:
        self._log.info("epoch %d is entered after %d of %d batches", state.global_epoch, state.batch, batches)

    def on_evaluation_start(self, phase: Phase) -> None:
        self._open()  # a test has no `on_training_start`
        self._log.info("%s of %d batches", phase.value, len(self._model.datamodule.open(phase)))

    def on_metrics(self, record: Record) -> None:
        values = " ".join(f"{name}={value:.6g}" for name, value in record.metrics.items())
        self._log.info("epoch %d step %d: %s", record.epoch, record.step, values)

    def on_checkpoint(self, path: Path) -> None:
        self._log.info("checkpoint %s, %s", path.name, self._model.trainer.state.describe())

    def on_fit_end(self, reason: "StopReason | None") -> None:
        self._log.info("run %s ended: %s", self._run_name, "left" if reason is None else reason.value)

    def on_exception(self, problem: BaseException) -> None:
        with suppress(OSError):  # a wrong folder is no reason to hide what the run failed of
            self._open()
        self._log.error("run %s failed: %s: %s", self._run_name, type(problem).__name__, problem, exc_info=problem)

    def close(self) -> None:
        LOGGER.removeHandler(self._handler)
        LOGGER.setLevel(self._level_before)
        self._handler.close()
        if self._file is not None:
            self._file.close()

    def state_dict(self) -> "dict[str, Any]":
        """Where the file is."""
        return {} if self._path is None else {"path": str(self._path)}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Go back to that file, if it is there and this user's; on another machine it may be neither."""
        path = state.get("path", "")
        if os.path.isfile(path) and os.access(path, os.R_OK | os.W_OK):
            self._path = Path(path)

    def _open(self) -> None:
        """Make or find the file, and give it what has waited for it."""
        if self._file is not None:
            return
        self._file = file = NonBlockingFile("log file", self._make_path)
        try:
            file.open()
        except OSError:
            self._file = None
            raise
        if self._path is not None and not _ends_whole(self._path):
            file.write("\n")  # after a line that a kill has torn
        writer: logging.StreamHandler[Any] = logging.StreamHandler(SimpleNamespace(write=file.write))
        writer.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._handler.setTarget(writer)
        self._handler.flush()

    def _make_path(self) -> Path:
        self._path = self._path or make_new(self._folder, name_start(self._run_name), ".log")
        return self._path


def _ends_whole(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in (b"", b"\n")


class NonBlockingFile(AppendedFile):
    """One that never ends a run: what the disk does not take is reported by a `LogWarning` and tried again.

    :param what: names it in warnings, such as "log file".
    :param make_path: see `AppendedFile`.
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
        super().__init__(make_path)
        self._what = what
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._due = clock()
        self._has_lost = False  # a piece that found no place in memory either
        self._has_warned = False

    def open(self) -> None:
        """Make the file now, so that a wrong path is noticed at once; lack of room does not raise here either.

        :raises OSError: the file cannot be made or written to, whatever room there is.
        """
        try:
            self.ensure_open()
        except OSError as problem:
            if problem.errno not in PASSING:
                raise
            self._warn(problem)

    def write(self, piece: "bytes | str") -> None:
        """Add a piece, which is written whole, at once or when it is due."""
        self.add(piece.encode(errors="backslashreplace") if isinstance(piece, str) else piece)
        may_only_wait_for_company = self._has_too_much() and not self._has_warned
        if self._clock() >= self._due or may_only_wait_for_company:
            self.flush()
        if self._has_too_much():
            size = len(self.drop())
            if not self._has_lost:
                self._tell(
                    f"lacks {size} bytes from now on: what waits for the disk may take {WAITING_BYTES >> 20} MiB of "
                    "memory. More may follow; make room."
                )
            self._has_lost = True

    def flush(self) -> bool:
        """Write what waits, and return whether every piece is in the file."""
        try:
            self.write_waiting()
        except OSError as problem:
            self._due = self._clock() + max(self._interval_seconds, RETRY_SECONDS)
            self._warn(problem)
            return False
        self._due = self._clock() + self._interval_seconds
        self._has_warned = False
        return not self._has_lost

    def close(self) -> None:
        """Write what waits, if that is possible now, and close the file."""
        self.flush()
        self.release()

    def _has_too_much(self) -> bool:
        return self.size - self.written > WAITING_BYTES

    def _warn(self, problem: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._tell(
                f"could not be written: {problem}. What belongs there waits in memory, and training continues; make "
                "room before it ends."
            )

    def _tell(self, clause: str) -> None:
        text = f"the {self._what}{'' if self.path is None else f' {self.path}'} {clause}"
        warnings.warn(LogWarning(text), stacklevel=4)
