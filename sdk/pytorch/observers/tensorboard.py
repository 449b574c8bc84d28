"""A run's metrics in TensorBoard, each step once however often the run was cut off.

Every checkpoint holds how far the event files had come. A resumed run cuts them back to that, removes the ones that are
younger, and has a TensorBoard that reads them drop the steps it has seen. Where the files are not (on another
machine) or are another run's (whose checkpoint this one continues from), or the disk had no room for all of them, the
run gets a new folder, filled from the history that came with the checkpoint.

The files are written here and not by PyTorch's `SummaryWriter`: its thread ends at the first problem of the disk, and
every later call fails; and a process that forks the workers of its loaders should have no thread.
"""

import os
import socket
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

from proctor.sdk.pytorch.checkpoints.history import HISTORY_FILE, read_history
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.observers.base import Observer, make_folder, name_start
from proctor.sdk.pytorch.observers.log_file import NonBlockingFile
from proctor.sdk.pytorch.options import Settings
from proctor.sdk.pytorch.state import Record, TrainingState

_EVENT_PREFIX = "events.out.tfevents."
_TEST_SUFFIX = ".test"  # the files of tests are no part of the training and are left alone
_VERSION = "brain.Event:2"
_INTERVAL_SECONDS = 5.0  # how old what TensorBoard shows may be
_numbers = count()


class TensorBoardRun(Observer):
    """Writes the event files of one run.

    :raises ConfigurationError: TensorBoard is not installed.
    """

    name = "tensorboard"

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
        self._events: Any = None  # writes encoded events to the file

    def on_start(self, settings: Settings, state: TrainingState, resumed_from: "Path | None") -> None:
        """Open the folder at the step from which the run goes on."""
        if self._folder is not None and _cut(self._folder, self._sizes):
            self._open()
            self._drop_from(state.current_iteration + 1)
            return
        self._folder = None
        self._open()
        if resumed_from is not None:
            self._refill(resumed_from.parent / HISTORY_FILE)

    def on_metrics(self, record: Record) -> None:
        """Add a point to each metric's curve; a test has no `on_start`."""
        if self._file is None:
            self._open(suffix=_TEST_SUFFIX)
        for name, value in record.metrics.items():
            self._add_point(name, value, step=record.step)

    def close(self) -> None:
        """Write what is waiting and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = self._events = None

    def state_dict(self) -> "dict[str, Any]":
        """The folder, and how far its files have come; nothing if they lack points, so that a new one is filled."""
        if self._file is None or not self._file.write() or self._folder is None:
            return {}
        return {"folder": str(self._folder), "sizes": {path.name: path.stat().st_size for path in _files(self._folder)}}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Go back to that folder, if it is there and this user's; on another machine it may be neither."""
        folder = state.get("folder", "")
        if os.path.isdir(folder) and os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            self._folder, self._sizes = Path(state["folder"]), dict(state["sizes"])

    def _refill(self, history: Path) -> None:
        if not history.is_file():
            return
        for row in read_history(history):
            for name, value in row["metrics"].items():
                self._add_point(name, float(value), step=row["step"], seconds=row["time_ms"] / 1000)

    def _open(self, *, suffix: str = "") -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        def make_path() -> Path:
            self._folder = self._folder or make_folder(self._root, name_start(self._run_name))
            return self._folder / _name_events(self._folder, suffix)

        self._file = NonBlockingFile("TensorBoard run", make_path, interval_seconds=_INTERVAL_SECONDS)
        self._file.open()
        self._events = RecordWriter(SimpleNamespace(write=self._file.append))
        self._add(file_version=_VERSION)

    def _drop_from(self, step: int) -> None:
        """Have a TensorBoard that reads the files drop what it has seen from this step on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._add(step=step, file_version=_VERSION)
        self._add(step=step, session_log=SessionLog(status=SessionLog.START))

    def _add_point(self, name: str, value: float, *, step: int, seconds: "float | None" = None) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        point = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._add(seconds=seconds, step=step, summary=point)

    def _add(self, *, seconds: "float | None" = None, **parts: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time() if seconds is None else seconds, **parts)
        self._events.write(event.SerializeToString())


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
