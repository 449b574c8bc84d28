"""The run's checkpoints as its trial's: what a retry, a move to another machine or another trial continues from.

Registering copies the checkpoint into the job's own folder. A run that saves all the time registers the newest one
every few seconds and when it ends; the copies that it has superseded are removed, but only after a while, because a
trial that is just starting may have been told to continue from one of them.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time

from proctor.sdk import trial as sdk
from proctor.sdk.checkpoints import list_checkpoints
from proctor.sdk.protocol import ENV_JOB_DIRECTORY
from proctor.sdk.pytorch.handover import carry_others, registering
from proctor.sdk.pytorch.pointer import POINTER_FILE, read_pointer
from proctor.sdk.unfinished import UNFINISHED_PREFIX, name_unfinished, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from proctor.sdk.pytorch.folder import CheckpointFolder

INTERVAL_SECONDS = 5.0
KEPT_SECONDS = 60.0
KEPT_COUNT = 2


class Registrar:
    """Registers the checkpoints of one folder with the trial that this process belongs to.

    :param interval_seconds: how far apart two registrations are at least, the one at the end excepted.
    :param kept_seconds: how long a superseded copy stays at least.
    """

    def __init__(
        self,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
        clock: "Callable[[], float]" = monotonic,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._due = clock()  # the first one at once
        self._is_behind = False

    def on_stored(self, storage: "CheckpointFolder") -> None:
        """Called when a checkpoint has become the folder's newest."""
        self._is_behind = True
        if self._clock() >= self._due:
            self.catch_up(storage)

    def catch_up(self, storage: "CheckpointFolder") -> None:
        """Register the newest checkpoint unless it is, with its history, the best, the pinned and the other runs'.

        :raises CheckpointError: it cannot be read any more.
        """
        if not self._is_behind:
            return

        def export(target: Path) -> None:
            storage.export(target, trial=sdk.get_trial_id())

        register(storage.run_name, export, place=storage.path, kept_seconds=self._kept_seconds)
        self._is_behind = False
        self._due = self._clock() + self._interval_seconds


def register(
    run_name: str, export: "Callable[[Path], None]", *, place: Path, kept_seconds: float = KEPT_SECONDS
) -> None:
    """Register a run's checkpoint as its trial's newest, beside the newest of the trial's other runs.

    :param export: makes an empty folder hold the checkpoint, links to it too, and a pointer that names run and trial.
    :param place: where that folder may be made.
    :param kept_seconds: how long a superseded copy stays at least.
    :raises CheckpointError: the checkpoint cannot be read any more.
    """
    job_directory = os.environ[ENV_JOB_DIRECTORY]
    with registering(job_directory):
        with tempfile.TemporaryDirectory(prefix=f"{UNFINISHED_PREFIX}export-", dir=place) as folder:
            export(Path(folder))
            carry_others(Path(folder), run_name)
            newest = (read_pointer(Path(folder)) or [])[0]
            sdk.save_checkpoint(folder, step=newest.iteration)
        remove_superseded(job_directory, older_than_seconds=kept_seconds)


def remove_superseded(job_directory: str, *, older_than_seconds: float) -> None:
    """Remove the trainer's registered copies but the newest ones and the young ones; the user's own all stay."""
    ours = [path for path in list_checkpoints(job_directory) if os.path.exists(f"{path}/{POINTER_FILE}")]
    ages = {path: _age(path) for path in ours}
    for path in ours[:-KEPT_COUNT]:
        if ages[path] > older_than_seconds:
            del _made_at[path]
            unfinished = name_unfinished(os.path.dirname(path))
            os.rename(path, unfinished)  # first out of sight, so that nobody takes half of it for a checkpoint
            remove_tree(unfinished)


_made_at: "dict[str, float]" = {}
"""By path of a registered copy: when it was made, in this process's monotonic time."""


def _age(path: str) -> float:
    """How many seconds ago the copy was made. The file's time counts only when this process sees the copy first: were
    it read again after the clock was set, copies would go too early, or fill the disk while the clock catches up."""
    if path not in _made_at:
        _made_at[path] = monotonic() - max(0.0, time() - os.stat(path).st_mtime)
    return monotonic() - _made_at[path]
