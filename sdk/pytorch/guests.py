"""Checkpoints that another framework writes, for its callback: one run's folder of them, each a file.

As in the trainer's own folder, a pointer decides what a run continues from, and names only what is on the disk.
"""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch.errors import ConfigurationError, UnreadableCheckpointError
from proctor.sdk.pytorch.files import hash_file, remove_leftovers, sync_folder
from proctor.sdk.pytorch.pointer import is_whole, read_pointer, write_pointer
from proctor.sdk.pytorch.registering import register
from proctor.sdk.pytorch.retention import Entry
from proctor.sdk.pytorch.trial import choose_folder, find_registered, is_in_trial
from proctor.sdk.unfinished import UNFINISHED_PREFIX


class GuestFolder:
    """The folder `root/run_name`, in a trial `root/<trial id>/run_name`; only the main rank adds to it.

    :param keep_last: how many of the newest checkpoints stay.
    :raises ConfigurationError: none would stay.
    """

    def __init__(self, root: "str | os.PathLike[str]", run_name: str, *, keep_last: int) -> None:
        if keep_last < 1:
            raise ConfigurationError(f"keep_last must be at least 1, for a run to continue from; found {keep_last}.")
        self.path = choose_folder(root, run_name)
        self._run_name = run_name
        self._keep_last = keep_last

    def find_newest(self) -> "str | None":
        """Return the checkpoint to continue from: the trial's own of this run, else the folder's; None for a new run.

        One that is torn is passed over with a `CheckpointWarning` for the one before it.

        :raises UnreadableCheckpointError: there are checkpoints and none is whole, or the pointer is damaged.
        """
        own = read_pointer(self.path) or []
        registered = find_registered(self._run_name, is_new=not own)
        places = [(self.path, entry) for entry in own]
        if registered is not None:
            places = [*((registered, entry) for entry in read_pointer(registered) or []), *places]
        for folder, entry in places:
            if is_whole(folder, entry):
                return str(folder / entry.name)
        if places:
            raise UnreadableCheckpointError(
                f"none of the {len(places)} checkpoints of run {self._run_name!r} is whole, the last of them in "
                f"{places[-1][0]}; the run would start from its beginning. Bring one back, or use another run_name."
            )
        return None

    def begin(self, step: int) -> Path:
        """Return where the checkpoint of a step is to be written, the same path on all ranks."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path / f"{UNFINISHED_PREFIX}step-{step}.ckpt"

    def add(self, step: int) -> None:
        """Make what was written to `begin(step)` the newest checkpoint, here and of the trial.

        :raises OSError: the disk refuses; the pointer is what it was.
        """
        unfinished, path = self.begin(step), self.path / f"step-{step}.ckpt"
        with open(unfinished, "rb") as written:
            os.fsync(written.fileno())
        entry = Entry(path.name, hash_file(unfinished), unfinished.stat().st_size, epoch=0, iteration=step)
        os.replace(unfinished, path)
        sync_folder(self.path)
        others = [other for other in read_pointer(self.path) or [] if other.name != entry.name]
        kept = [entry, *others][: self._keep_last]
        write_pointer(self.path, self._run_name, kept)
        self._remove_others({other.name for other in kept})
        if is_in_trial():
            register(self._run_name, partial(self._export, entry), place=self.path)

    def _export(self, entry: Entry, target: Path) -> None:
        os.symlink((self.path / entry.name).resolve(), target / entry.name)
        write_pointer(target, self._run_name, [entry], trial=sdk.get_trial_id())

    def _remove_others(self, kept: "set[str]") -> None:
        """Remove what the pointer does not name and what kills have left half made."""
        remove_leftovers(self.path)
        for path in self.path.glob("step-*.ckpt"):
            if path.name not in kept:
                with suppress(FileNotFoundError):
                    path.unlink()
