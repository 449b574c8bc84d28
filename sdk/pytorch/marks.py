"""Checkpoints that another framework writes in place, for its callback: each a folder, with a mark when it is whole.

The mark is a small file, written last; its content is what an exact resume depends on.
"""

import json
import os
import re
from functools import partial
from pathlib import Path

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch.errors import UnreadableCheckpointError
from proctor.sdk.pytorch.files import hash_file, write_whole
from proctor.sdk.pytorch.fingerprint import Fingerprint
from proctor.sdk.pytorch.pointer import write_pointer
from proctor.sdk.pytorch.registering import register
from proctor.sdk.pytorch.retention import Entry
from proctor.sdk.pytorch.trial import choose_folder, find_registered, is_in_trial

MARK = "proctor.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class MarkedFolder:
    """The folders `checkpoint-<step>` in `root/run_name`, in a trial in `root/<trial id>/run_name`.

    Every process may look; only the main one marks.

    :raises ConfigurationError: the name cannot be that of a folder.
    """

    def __init__(self, root: "str | os.PathLike[str]", run_name: str) -> None:
        self.path = choose_folder(os.path.expanduser(root), run_name)
        self._run_name = run_name

    def find_newest(self) -> "Path | None":
        """Return the checkpoint to continue from: the trial's own of this run, else the folder's; None for a new run.

        :raises UnreadableCheckpointError: what the trial has under this name no such callback has made.
        """
        own = max(((step, path) for step, path in self._list() if (path / MARK).is_file()), default=None)
        registered = find_registered(self._run_name, is_new=own is None)
        if registered is not None and not (registered / MARK).is_file():
            raise UnreadableCheckpointError(
                f"the checkpoint {registered} of run {self._run_name!r} should have the mark {MARK}; found none. Give "
                "runs of different kinds a run_name each."
            )
        return registered or (None if own is None else own[1])

    def read_mark(self, checkpoint: Path) -> Fingerprint:
        """Return what a checkpoint was marked with."""
        found: Fingerprint = json.loads((checkpoint / MARK).read_text())
        return found

    def unmark(self, first_step: int) -> None:
        """Take the marks from all checkpoints from a step on, because they will be written again."""
        for step, path in self._list():
            if step >= first_step:
                (path / MARK).unlink(missing_ok=True)

    def mark(self, step: int, fingerprint: Fingerprint) -> None:
        """Call a checkpoint whole once it is on the disk, and hand a copy to the trial.

        :raises OSError: the disk refuses.
        """
        folder = self.path / f"checkpoint-{step}"
        for path in folder.rglob("*"):
            if path.is_file():
                with open(path, "rb") as written:
                    os.fsync(written.fileno())
        write_whole(folder / MARK, json.dumps(fingerprint).encode(), place="trainer.mark")
        if is_in_trial():
            register(self._run_name, partial(self._export, folder, step), place=self.path)

    def _export(self, source: Path, step: int, target: Path) -> None:
        for path in source.iterdir():
            os.symlink(path.resolve(), target / path.name)
        mark = Entry(MARK, hash_file(source / MARK), (source / MARK).stat().st_size, epoch=0, iteration=step)
        write_pointer(target, self._run_name, [mark], trial=sdk.get_trial_id())

    def _list(self) -> "list[tuple[int, Path]]":
        found = [(_CHECKPOINT.fullmatch(path.name), path) for path in self.path.glob("checkpoint-*")]
        return [(int(match[1]), path) for match, path in found if match]
