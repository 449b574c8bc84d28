"""The checkpoints of one run: a folder, a pointer to the latest one, a history, and what is kept.

A save has two halves. The first, while training waits, copies the content; there is one such copy at a time. The second
runs in the background: serialize, write, sync, rename, and only then does the pointer move. A kill at any place leaves
the pointer at a whole checkpoint.
"""

import os
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.files import copy_file, hash_file, link_file, remove_file, remove_unfinished
from proctor.sdk.pytorch.checkpoints.filesystem import BackgroundStorage, FolderLock, store_file
from proctor.sdk.pytorch.checkpoints.history import HISTORY_FILE, History, HistoryPosition
from proctor.sdk.pytorch.checkpoints.pointer import (
    POINTER_FILE,
    Entry,
    Origin,
    Pointer,
    Retention,
    find_damage,
    is_whole,
    read_pointer,
)
from proctor.sdk.pytorch.checkpoints.serialization import copy_content, load_upgraded, prove, write_content
from proctor.sdk.pytorch.errors import (
    CheckpointWarning,
    ConfigurationError,
    TrainerError,
    UnreadableCheckpointError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from proctor.sdk.pytorch.trial import Registrar

SUFFIX = ".pth"
_METADATA = re.compile(r"[A-Za-z0-9._+=-]*")
PIN_SUFFIX = ".pinned"


def name_checkpoint(run_name: str, content: "Mapping[str, Any]", metadata: "str | None" = None) -> str:
    """Return `<run>_epoch_<e>_iter_<i>[_<metadata>].pth`; people read these names, the trainer never does.

    :param metadata: what the model adds to the name, never the whole name; nothing or None for no more than that.
    :raises ConfigurationError: the metadata cannot be part of a file's name.
    """
    state = content["training_state"]
    beginning = f"{run_name}_epoch_{state['global_epoch']}_iter_{state['current_iteration']}"
    if metadata is None:
        metadata = ""
    if not isinstance(metadata, str) or metadata.startswith(beginning) or not _METADATA.fullmatch(metadata):
        raise ConfigurationError(
            "append_metadata_to_chkpt_name must return only what is added behind the name (letters, digits and ._+=-, "
            f"such as 'acc=0.93'); found {metadata!r} for {beginning}."
        )
    return f"{beginning}_{metadata}{SUFFIX}" if metadata else f"{beginning}{SUFFIX}"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that was found whole, upgraded to the present format."""

    path: Path
    entry: Entry
    content: "dict[str, Any]"


class CheckpointFolder:
    """The folder `chkpt_root/run_name`. Only the process of global rank 0 opens it; every process may load from it.

    :param in_background: sync to the disk while training continues; else `save` returns when all is stored.
    :param safe_types: classes of the user that may be in a checkpoint.
    :param registrar: makes the newest checkpoint that of the trial, if this is one.
    """

    def __init__(
        self,
        root: "str | os.PathLike[str]",
        run_name: str,
        *,
        retention: "Retention | None" = None,
        in_background: bool = True,
        safe_types: "Sequence[type]" = (),
        registrar: "Registrar | None" = None,
    ) -> None:
        self.path = Path(root) / run_name
        self.run_name = run_name
        self.history = History(self.path / HISTORY_FILE)
        self._retention = retention or Retention()
        self._in_background = in_background
        self._safe_types = tuple(safe_types)
        self._registrar = registrar
        self._storage = BackgroundStorage()
        self._lock = FolderLock(self.path)
        self._superseded: Mapping[str, str] = {}  # see `Pointer`
        self._is_proven: bool | None = None  # whether a checkpoint of this start could be read back; None: none was
        self._entries: list[Entry] = []  # newest first; changed by the background thread only while it runs

    def open(self, *, anew: bool = False) -> None:
        """Take the folder for writing, made if it is missing, and clear away what a killed save has left half made.

        :param anew: the run starts over, from now on also if it ends before its first checkpoint.
        :raises ConfigurationError: it cannot be made there.
        :raises TrainerError: another run writes to it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as problem:
            raise ConfigurationError(
                f"chkpt_root must be a folder that may be written to; {self.path} cannot be made in it: {problem}."
            ) from problem
        self._lock.acquire()
        remove_unfinished(str(self.path), is_only_writer=True)
        self._superseded = self._read_pointer(warns=False).superseded
        if anew:
            self._supersede()

    def close(self) -> None:
        """Wait until everything is stored and release the folder.

        :raises CheckpointNotStoredError: the last checkpoint could not be stored.
        """
        try:
            self._storage.wait()
            if self._registrar is not None:
                self._registrar.register_newest(self)
        finally:
            try:
                self.history.close()
            finally:
                self._lock.release()

    def wait(self) -> None:
        """The barrier: return when the last checkpoint is on the disk and the pointer names it.

        :raises CheckpointNotStoredError: it could not be stored.
        """
        self._storage.wait()

    def settle(self) -> None:
        """Return when nothing is being stored; what failed is raised by the next save or `wait`."""
        self._storage.settle()

    def save(self, content: "dict[str, Any]", *, metadata: "str | None" = None, score: "float | None" = None) -> Path:
        """Store a checkpoint and return the path that it will have once it is whole.

        The first one of each start is read back before this returns: what no run could load is no checkpoint.

        The history's position is added to the content. What the tensors hold now is stored, whatever happens to them
        afterwards; until it is stored, this takes as much memory as the tensors have bytes.

        :param content: in the present format, see `snapshots`.
        :param score: the value of the metric that judges the run, measured at this very point.
        :raises ConfigurationError: something in the content could not be loaded again, or the metadata cannot be part
            of a name.
        :raises CheckpointNotStoredError: the one before could not be stored, for another reason than a full disk.
        :raises UnreadableCheckpointError: it was read back and no run could continue from it; it is removed.
        """
        name, proves = name_checkpoint(self.run_name, content, metadata), not self._is_proven
        self._storage.clear()
        copied = copy_content({**content, "history": asdict(self.history.position)}, self._safe_types)

        def store() -> None:
            self.history.sync()
            written: list[tuple[str, int]] = []
            store_file(
                self.path / name, lambda file: written.append(write_content(copied, file)), place="trainer.checkpoint"
            )
            if proves:
                self._prove(self.path / name, copied)
            self._commit(Entry.of(name, written[0], copied, score))

        self._storage.start(name, store)
        if not self._in_background:
            self._storage.wait()
        elif proves:
            self._storage.settle()
            if self._is_proven is False:
                self._storage.wait()  # raises why
        return self.path / name

    def _prove(self, path: Path, content: "dict[str, Any]") -> None:
        try:
            prove(path, content, self._safe_types)
        except UnreadableCheckpointError:
            self._is_proven = False
            remove_file(path)
            raise
        self._is_proven = True

    def is_among_best(self, score: float) -> bool:
        """Whether a checkpoint of this score, saved now, would be kept as one of the best."""
        self._storage.settle()
        return self._retention.is_among_best(score, self._entries)

    def load_newest(self, device: "torch.device | str" = "cpu") -> "LoadedCheckpoint | None":
        """Return the checkpoint to continue from, None if the run has none yet.

        One that is torn is passed over with a `CheckpointWarning` for the one before it. Where none that the pointer
        names is left, the other files are looked through; one may have been brought back.

        :raises UnreadableCheckpointError: there are checkpoints and none can be used, or the newest whole one was made
            by a newer version or by something else, or the disk does not let it be read.
        """
        pointer = self._read_pointer()
        for place, entry in enumerate(pointer.entries):
            if is_whole(self.path, entry):
                loaded = self._load(entry, device)
                self._entries = pointer.entries[place:]
                if self._lock.is_held:  # what a kill has left takes up room, and a file that was put back is not needed
                    self._remove_unnamed(pointer.entries)
                return loaded
        self._entries = self._read_entries(but={*(entry.name for entry in pointer.entries), *pointer.superseded})
        if self._entries:
            return self._load(self._entries[0], device)
        if pointer.entries or any(path.name not in pointer.superseded for path in self._list_own()):
            raise UnreadableCheckpointError(
                f"none of the checkpoints in {self.path} can be used (warnings say why); the run would start from its "
                "beginning. Bring one back, or start over with resume=False or another run_name."
            )
        return None

    def load_best(self, device: "torch.device | str" = "cpu") -> "LoadedCheckpoint | None":
        """Return the whole checkpoint with the best score, None if none has one."""
        whole = (entry for entry in self._retention.rank(self._find_entries()) if is_whole(self.path, entry))
        entry = next(whole, None)
        return None if entry is None else self._load(entry, device)

    def restore_history(self, content: "dict[str, Any]") -> None:
        """Cut the history back to where a loaded checkpoint left it."""
        self.history.cut(HistoryPosition.from_json(content.get("history")))

    def entries(self) -> "list[Entry]":
        """What the pointer names, newest first."""
        return read_pointer(self.path)

    def pin(self, name: str) -> None:
        """Keep a checkpoint until its file `<name>.pinned` is removed; anyone may make or remove that file.

        :raises FileNotFoundError: there is no checkpoint of that name.
        """
        os.stat(self.path / name)
        (self.path / f"{name}{PIN_SUFFIX}").touch()

    def is_empty(self) -> bool:
        """Whether there is no checkpoint at all, whole or torn, named or not; an earlier run's do not count."""
        superseded = self._read_pointer(warns=False).superseded
        return all(path.name in superseded for path in self.path.glob(f"*{SUFFIX}"))

    def export(self, target: Path, *, trial: str = "") -> None:
        """Make `target`, an empty folder, hold what the run is continued with elsewhere.

        That is the newest checkpoint with its history, the best ones and the pinned ones.

        :param trial: the id of the trial that hands the folder over.
        """
        entries = self.entries()
        newest = entries[0]
        os.stat(self.path / newest.name)
        lasting = self._retention.choose_lasting(entries, self._pinned())
        brought = _bring(self.path, target, [newest, *(entry for entry in lasting if entry != newest)])
        if newest.history_size:
            copy_file(self.path / HISTORY_FILE, target / HISTORY_FILE, size=newest.history_size)
        Pointer(self.run_name, brought, trial, Origin.of(self.path)).write(target)

    def adopt(self, source: Path, *, behind: bool = False) -> bool:
        """Take over what `export` put into `source`, or what another run of this name has there; return whether that
        was done.

        A checkpoint that is known here came from this very folder, which may have gone on since; nothing is done then,
        unless it was damaged here and gets its bytes back. Any other was made by an attempt elsewhere, or by another
        trial that this one is to continue, and becomes the newest; what is known here stays behind it. What is of
        another run than this one is left alone, and so is what was in this folder before the run started over.

        :param behind: it came from this very folder, which may have gone on since and have removed it; so it becomes
            the oldest, in case nothing else is whole.
        """
        given, superseded = Pointer.read(source), self._read_pointer(warns=False).superseded
        entries = given.entries if given.run == self.run_name else []
        if not entries or entries[0].sha256 in superseded.values():
            return False
        own = self._find_entries()
        for known in own:
            if known.sha256 == entries[0].sha256:
                return self._mend(known, source / entries[0].name)
        self.path.mkdir(parents=True, exist_ok=True)
        if behind:
            entries = [entry for entry in entries if entry.name not in {mine.name for mine in own}]
        else:
            os.stat(source / entries[0].name)
        brought = _bring(source, self.path, entries)
        names = {entry.name for entry in brought}
        if not (behind and own):
            with suppress(FileNotFoundError):
                copy_file(source / HISTORY_FILE, self.path / HISTORY_FILE)
        self._superseded = {name: digest for name, digest in superseded.items() if name not in names}
        others = [entry for entry in own if entry.name not in names]
        self._point_to([*others, *brought] if behind else [*brought, *others])
        return True

    def catch_up(self, origin: Path) -> bool:
        """Take over what another folder of this run has by now, and return whether that was done.

        Nothing is done while a process writes there, which should be dead and is not, or where the disk has no room.

        :param origin: where what was adopted comes from.
        """
        lock = FolderLock(origin, patience_seconds=0.0)
        try:
            lock.acquire()
            newest = read_pointer(origin)[:1]
            is_there = all((origin / entry.name).stat().st_size == entry.size for entry in newest)
            return is_there and self.adopt(origin)
        except (TrainerError, OSError):
            return False
        finally:
            lock.release()

    def _commit(self, entry: Entry) -> None:
        """Move the pointer to a checkpoint that is on the disk, then remove what need not stay."""
        entries = [entry, *(other for other in self._entries if other.name != entry.name)]
        kept = self._retention.choose(entries, self._pinned())
        names = {stays.name for stays in kept}
        there = {name: digest for name, digest in self._superseded.items() if (self.path / name).exists()}
        self._superseded = {name: digest for name, digest in there.items() if name not in names}
        self._point_to(kept)
        self._entries = kept
        for other in entries:
            if other.name not in names:
                remove_file(self.path / other.name)
        self._remove_unnamed(kept)
        if self._registrar is not None:
            self._registrar.on_stored(self)

    def _point_to(self, entries: "list[Entry]") -> None:
        Pointer(self.run_name, entries, superseded=self._superseded).write(self.path)

    def _supersede(self) -> None:
        """Make the pointer name nothing of what is here, which stays until the new run has a checkpoint.

        A disk without room is no reason not to train; then the first checkpoint says that the run is a new one.
        """
        named = {entry.name: entry.sha256 for entry in self._read_pointer(warns=False).entries}
        found = {path.name: named.get(path.name, "") for path in self.path.glob(f"*{SUFFIX}")}
        if not found and not (self.path / POINTER_FILE).exists():
            return
        self._superseded = {name: digest or self._superseded.get(name, "") for name, digest in found.items()}
        try:
            self._point_to([])
        except OSError as problem:
            if problem.errno not in PASSING:
                raise
            text = (
                f"the disk has no room to record in {self.path} that the run starts over: {problem}. Until its first "
            )
            text += "checkpoint is stored, a start that resumes would continue the run before it; make room."
            warnings.warn(CheckpointWarning(text), stacklevel=4)

    def _read_pointer(self, *, warns: bool = True) -> Pointer:
        """What the pointer says; one that names nothing where there is none, or it is damaged."""
        try:
            return Pointer.read(self.path)
        except UnreadableCheckpointError as problem:
            if warns:
                text = f"{problem} The checkpoints themselves are looked through."
                warnings.warn(CheckpointWarning(text), stacklevel=4)
            return Pointer()

    def _mend(self, entry: Entry, copy: Path) -> bool:
        """Replace a checkpoint by a copy of it unless it is whole, and return whether that was done."""
        try:
            damage = find_damage(self.path, entry)
        except UnreadableCheckpointError as problem:
            damage = str(problem)
        if damage:
            warnings.warn(CheckpointWarning(f"{damage} {copy} takes its place."), stacklevel=4)
            _link_or_copy(copy, self.path / entry.name)
        return bool(damage)

    def _remove_unnamed(self, named: "Sequence[Entry]") -> None:
        """Remove this run's files that the pointer does not name, so that none of them wins should it ever be lost.

        A kill after the pointer has moved leaves such a file, a run that was started over all those of the one before.
        Pinned ones stay, files with other names, and everything where all are kept.
        """
        if self._retention.keep_last is None:
            return
        stays = {entry.name for entry in named} | self._pinned()
        for path in self._list_own():
            if path.name not in stays:
                remove_file(path)

    def _list_own(self) -> "list[Path]":
        """What is called as `name_checkpoint` does it."""
        own = re.compile(
            rf"{re.escape(self.run_name)}_epoch_[0-9]+_iter_[0-9]+(_{_METADATA.pattern})?{re.escape(SUFFIX)}"
        )
        return [path for path in self.path.glob(f"*{SUFFIX}") if own.fullmatch(path.name)]

    def _pinned(self) -> "set[str]":
        return {path.name[: -len(PIN_SUFFIX)] for path in self.path.glob(f"*{PIN_SUFFIX}")}

    def _find_entries(self) -> "list[Entry]":
        """What the pointer names or, if that is nothing, what the files themselves say."""
        found = self._read_pointer()
        return found.entries or self._read_entries(but=found.superseded)

    def _read_entries(self, *, but: "Collection[str]" = ()) -> "list[Entry]":
        """What the files say, the furthest first.

        :param but: names of those whose hash proves that they are damaged, though they might look whole, or which are
            superseded.
        """
        found: list[tuple[int, int, Entry]] = []
        for path in sorted(path for path in self.path.glob(f"*{SUFFIX}") if path.name not in but):
            try:
                content = load_upgraded(path, "cpu", self._safe_types)
            except UnreadableCheckpointError as problem:
                warnings.warn(CheckpointWarning(f"passed over: {problem}"), stacklevel=4)
                continue
            entry = Entry.of(path.name, (hash_file(path), path.stat().st_size), content)
            found.append((entry.epoch, int(content["training_state"]["global_iteration"]), entry))
        return [entry for *_, entry in sorted(found, key=lambda item: item[:2], reverse=True)]

    def _load(self, entry: Entry, device: "torch.device | str") -> LoadedCheckpoint:
        path = self.path / entry.name
        return LoadedCheckpoint(path, entry, load_upgraded(path, device, self._safe_types))


def _bring(source: Path, target: Path, entries: "Sequence[Entry]") -> "list[Entry]":
    """Take checkpoints from one folder to another, and return those that were there; the user may have removed some."""
    brought = []
    for entry in entries:
        with suppress(FileNotFoundError):
            _link_or_copy(source / entry.name, target / entry.name)
            brought.append(entry)
            if (source / f"{entry.name}{PIN_SUFFIX}").exists():
                (target / f"{entry.name}{PIN_SUFFIX}").touch()
    return brought


def _link_or_copy(source: Path, target: Path) -> None:
    """A stored checkpoint is never changed, only replaced, so two names may share it."""
    try:
        link_file(source, target)
    except OSError:  # another file system, one without links, or an older file of that name
        copy_file(source, target)
