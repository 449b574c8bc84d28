"""A run's metrics in TensorBoard, each step once however often the run was cut off.

Every checkpoint holds how far the event files had come. A resumed run cuts them back to that, removes the ones that are
younger, and tells a TensorBoard that is looking on to forget the steps it had seen. Where the files are not (on another
machine) the run gets a new folder, filled from the history that came with the checkpoint.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.history import HISTORY_FILE, read_history
from proctor.sdk.pytorch.observing import Observer, Record
from proctor.sdk.pytorch.places import make_folder, name_start
from proctor.sdk.pytorch.settings import Settings
from proctor.sdk.pytorch.state import TrainingState

_EVENT_FILES = "events.out.tfevents.*"
_TEST_SUFFIX = ".test"  # the files of tests are no part of the training and are left alone


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
        self._writer: Any = None

    def on_start(self, settings: Settings, state: TrainingState, resumed_from: "Path | None") -> None:
        """Open the folder at the step from which the run goes on."""
        if self._folder is not None and _cut(self._folder, self._sizes):
            self._writer = _open_writer(self._folder, purge_step=state.current_iteration + 1)
            return
        self._folder = make_folder(self._root, name_start(self._run_name))
        self._writer = _open_writer(self._folder)
        if resumed_from is not None:
            self._refill(resumed_from.parent / HISTORY_FILE)

    def on_metrics(self, record: Record) -> None:
        """Add a point to each metric's curve; a test has no `on_start`."""
        if self._writer is None:
            self._folder = self._folder or make_folder(self._root, name_start(self._run_name))
            self._writer = _open_writer(self._folder, suffix=_TEST_SUFFIX)
        for name, value in record.metrics.items():
            self._writer.add_scalar(name, value, record.step)

    def close(self) -> None:
        """Write what is waiting and let the files go."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def state_dict(self) -> "dict[str, Any]":
        """The folder, and how far its files have come."""
        if self._folder is None or self._writer is None:
            return {}
        self._writer.flush()
        return {"folder": str(self._folder), "sizes": {path.name: path.stat().st_size for path in _files(self._folder)}}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Go back to that folder, if it is there."""
        if "folder" in state and Path(state["folder"]).is_dir():
            self._folder, self._sizes = Path(state["folder"]), dict(state["sizes"])

    def _refill(self, history: Path) -> None:
        if not history.is_file():
            return
        for row in read_history(history):
            for name, value in row["metrics"].items():
                self._writer.add_scalar(name, float(value), row["step"], walltime=row["time_ms"] / 1000)


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
    return [path for path in sorted(folder.glob(_EVENT_FILES)) if not path.name.endswith(_TEST_SUFFIX)]


def _open_writer(folder: Path, *, purge_step: "int | None" = None, suffix: str = "") -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step, filename_suffix=suffix)
