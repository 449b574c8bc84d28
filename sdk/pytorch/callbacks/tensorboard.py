"""A run's metrics in TensorBoard, each step once however often the run was cut off.

Every checkpoint holds how far the event files had come. A resumed run cuts them back to that, removes the ones that are
younger, and has a TensorBoard that reads them drop the steps it has seen. Where the files are not (on another
machine) or are another run's (whose checkpoint this one continues from), or the disk had no room for all of them, the
run gets a new folder, filled from the history that came with the checkpoint.

Events are made by PyTorch's `SummaryWriter`, which a model may use for images, graphs and hyper-parameters, and encoded
by TensorBoard's `RecordWriter`. Only the file is the trainer's: the thread of `SummaryWriter` ends at the first problem
of the disk, and every later call fails; and a process that forks its loaders' workers should have no thread. See
decision 0031.
"""

import os
import socket
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

from proctor.sdk.pytorch.callbacks.base import Callback, make_new, name_start
from proctor.sdk.pytorch.callbacks.log_file import NonBlockingFile
from proctor.sdk.pytorch.checkpoints.history import HISTORY_FILE, read_history
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.state import Record

_EVENT_PREFIX = "events.out.tfevents."
_TEST_SUFFIX = ".test"  # the files of tests are no part of the training and are left alone
_VERSION = "brain.Event:2"
_INTERVAL_SECONDS = 5.0  # how old what TensorBoard shows may be
_numbers = count()


class TensorBoard(Callback):
    """Writes the event files of one run.

    :raises ConfigurationError: TensorBoard is not installed.
    """

    state_key = "tensorboard"

    def __init__(self, run_name: str, root: Path) -> None:
        if find_spec("tensorboard") is None:
            raise ConfigurationError(
                "enable_tensorboard needs the package tensorboard, which is not installed; run "
                "pip install 'proctor[tensorboard]', or leave enable_tensorboard out."
            )
        self._run_name = run_name
        self._root = root
        self._folder: Path | None = None
        self._sizes: dict[str, int] = {}
        self._file: NonBlockingFile | None = None
        self._events: Any = None  # of the model's writer, which the model may close

    def setup(self, model: Model) -> None:
        self._model = model

    def on_training_start(self) -> None:
        """Open the folder at the step from which the run continues."""
        run = self._model.trainer
        if self._folder is not None and _cut(self._folder, self._sizes):
            self._open(purge_step=run.state.current_iteration + 1)
            return
        self._folder = None
        self._open()
        history = run.checkpoint_folder and run.checkpoint_folder / HISTORY_FILE
        if history and run.state.global_iteration and history.is_file():
            for row in read_history(history):
                self._add(
                    {name: float(value) for name, value in row["metrics"].items()}, row["step"], row["time_ms"] / 1000
                )

    def on_evaluation_start(self, phase: Phase) -> None:
        """Begin a file of its own for a test, which has no `on_training_start`."""
        if self._file is None:
            self._open(suffix=_TEST_SUFFIX)

    def on_metrics(self, record: Record) -> None:
        """Add a point to each metric's curve."""
        self._add(record.metrics, record.step)

    def close(self) -> None:
        """Write what is waiting and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = self._model.tensorboard = None

    def state_dict(self) -> "dict[str, Any]":
        """The folder, and how far its files have come; nothing if they lack points, so that a new one is filled."""
        if self._file is None or not self._file.flush() or self._folder is None:
            return {}
        return {"folder": str(self._folder), "sizes": {path.name: path.stat().st_size for path in _files(self._folder)}}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Go back to that folder, if it is there and this user's; on another machine it may be neither."""
        folder = state.get("folder", "")
        if os.path.isdir(folder) and os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            self._folder, self._sizes = Path(folder), dict(state["sizes"])

    def _open(self, *, purge_step: "int | None" = None, suffix: str = "") -> None:
        @cache
        def make_path() -> Path:
            self._folder = self._folder or make_new(self._root, name_start(self._run_name))
            return self._folder / _name_events(self._folder, suffix)

        self._file = NonBlockingFile("TensorBoard run", make_path, interval_seconds=_INTERVAL_SECONDS)
        self._file.open()
        self._model.tensorboard, self._events = make_writer(str(self._folder or self._root), self._file, purge_step)

    def _add(self, metrics: "dict[str, float]", step: int, seconds: "float | None" = None) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._events.add_summary(Summary(value=points), step, seconds)


def make_writer(folder: str, file: NonBlockingFile, purge_step: "int | None") -> "tuple[Any, Any]":
    """Return a `SummaryWriter` and its `FileWriter`, whose events go into a file, at once and without a thread.

    :param purge_step: TensorBoard is to drop what it has seen from this step on.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard.writer import FileWriter, SummaryWriter

    records = RecordWriter(file)
    events = FileWriter.__new__(FileWriter)
    events.event_writer = SimpleNamespace(
        add_event=lambda event: records.write(event.SerializeToString()),
        get_logdir=lambda: folder,
        flush=file.flush,
        close=file.flush,  # the run closes it
    )

    class Writer(SummaryWriter):
        """One that makes no file of its own."""

        def _get_file_writer(self) -> FileWriter:
            self.file_writer, self.all_writers = events, {folder: events}
            return events

    events.add_event(Event(file_version=_VERSION))
    if purge_step is not None:
        events.add_event(Event(file_version=_VERSION), purge_step)
        events.add_event(Event(session_log=SessionLog(status=SessionLog.START)), purge_step)
    return Writer(folder), events


def _cut(folder: Path, sizes: "dict[str, int]") -> bool:
    """Bring the event files back to what they were, and return whether they could be."""
    files = {path.name: path for path in _files(folder)}
    if any(name not in files or files[name].stat().st_size < size for name, size in sizes.items()):
        return False
    for name, path in files.items():
        if name in sizes:
            os.truncate(path, sizes[name])
        else:
            path.unlink()
    return True


def _files(folder: Path) -> "list[Path]":
    return [path for path in sorted(folder.glob(f"{_EVENT_PREFIX}*")) if not path.name.endswith(_TEST_SUFFIX)]


def _name_events(folder: Path, suffix: str) -> str:
    """A new name that is sorted behind those that are there, as TensorBoard reads them in this order."""
    begins = [path.name[len(_EVENT_PREFIX) :].partition(".")[0] for path in folder.glob(f"{_EVENT_PREFIX}*")]
    begin = max([int(time()), *(int(text) + 1 for text in begins if text.isdecimal())])
    return f"{_EVENT_PREFIX}{begin:010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}{suffix}"
