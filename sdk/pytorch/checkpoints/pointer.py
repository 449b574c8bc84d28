"""The `latest` pointer: a small file that decides what a run continues from, and which checkpoints stay.

It lists the stored checkpoints newest first with their digests and is replaced as a whole, only after the checkpoint
that it names is on the disk. Names of files decide nothing.

Where a run starts over in the folder of another one, the pointer says so from that moment on: it names no checkpoint
and lists what is superseded. Those files stay until the new run has a checkpoint, and nothing continues from them.

What to resume from and what is best are two questions. The newest checkpoints stay for resuming, so that a torn one has
one before it; the best ones stay besides, and a run that gets worse never loses its best by continuing.
"""

import json
import math
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from proctor.sdk.files import hash_file
from proctor.sdk.pytorch.checkpoints.filesystem import store_file
from proctor.sdk.pytorch.errors import CheckpointWarning, UnreadableCheckpointError

POINTER_FILE = "latest.json"
_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One stored checkpoint, as the `latest` pointer names it."""

    name: str
    sha256: str
    size: int
    epoch: int
    iteration: int
    score: "float | None" = None  # the value of the metric that judges the run, if it was measured at this point
    history_size: int = 0  # the bytes of the history that belong to it

    @classmethod
    def of(
        cls, name: str, written: "tuple[str, int]", content: "Mapping[str, Any]", score: "float | None" = None
    ) -> "Entry":
        """Describe a checkpoint by what it holds.

        :param written: the hash and the number of its bytes.
        """
        state, history = content["training_state"], content.get("history") or {}
        epoch, iteration = int(state["global_epoch"]), int(state["current_iteration"])
        return cls(name, *written, epoch, iteration, score, int(history.get("size", 0)))


@dataclass(frozen=True)
class Retention:
    """How many checkpoints are kept; pure."""

    keep_last: "int | None" = 3  # None keeps all
    keep_best: int = 0
    best_mode: str = "max"

    def choose(self, entries: "Sequence[Entry]", pinned: "Collection[str]" = ()) -> "list[Entry]":
        """Return the entries that stay, in their order.

        :param entries: newest first.
        :param pinned: names that stay whatever happens.
        """
        lasting = self.choose_lasting(entries, pinned)
        newest = entries[: len(entries) if self.keep_last is None else self.keep_last]
        return [entry for entry in entries if entry in newest or entry in lasting]

    def choose_lasting(self, entries: "Sequence[Entry]", pinned: "Collection[str]" = ()) -> "list[Entry]":
        """Return the entries that stay however many come after them, in their order: the best and the pinned."""
        best = self.rank(entries)[: self.keep_best]
        return [entry for entry in entries if entry in best or entry.name in pinned]

    def is_among_best(self, score: float, entries: "Sequence[Entry]") -> bool:
        """Whether a checkpoint of this score would be kept as one of the best, beside those that there are."""
        new = Entry("", "", size=0, epoch=0, iteration=0, score=score)
        return new in self.rank([*entries, new])[: self.keep_best]  # behind those of the same score

    def rank(self, entries: "Sequence[Entry]") -> "list[Entry]":
        """Return the entries that have a finite score, the best first and of equal ones the newest first."""
        judged = [entry for entry in entries if entry.score is not None and math.isfinite(entry.score)]
        sign = -1.0 if self.best_mode == "max" else 1.0
        return sorted(judged, key=lambda entry: sign * (entry.score or 0.0))


@dataclass(frozen=True)
class Origin:
    """The folder in which a run saves, for those who find a copy of what was there."""

    path: str
    node: str  # the machine or the container
    device: int
    inode: int

    @classmethod
    def of(cls, folder: Path) -> "Origin":
        """Identify a folder.

        :raises OSError: it is not there.
        """
        found = os.stat(folder)
        return cls(str(folder.absolute()), os.uname().nodename, found.st_dev, found.st_ino)

    def find(self) -> "Path | None":
        """Return the folder if it is here: this very one, not one of that path on another machine."""
        try:
            return Path(self.path) if self == Origin.of(Path(self.path)) else None
        except OSError:
            return None


@dataclass(frozen=True)
class Pointer:
    """What the pointer of a folder says."""

    run: str = ""  # whose checkpoints these are
    entries: "list[Entry]" = field(default_factory=list)  # newest first
    trial: str = ""  # which hands the folder over; empty where it is no part of what a trial hands over
    origin: "Origin | None" = None  # where they were copied from for that
    superseded: "Mapping[str, str]" = field(default_factory=dict)
    """Files of an earlier run that are there, with their digests where these are known; a resumed run ignores them."""

    @classmethod
    def read(cls, folder: Path) -> "Pointer":
        """Read the pointer of a folder; one that names no run if there is none. What a newer version has added is left
        out.

        :raises UnreadableCheckpointError: there is one and it is damaged, or of a newer version.
        """
        path = folder / POINTER_FILE
        try:
            document = json.loads(path.read_bytes())
            format_number = int(document["format"])
            if format_number <= _FORMAT:
                return cls(
                    str(document.get("run", "")),
                    [Entry(**_known(Entry, entry)) for entry in document["checkpoints"]],
                    str(document.get("trial", "")),
                    Origin(**_known(Origin, document["origin"])) if "origin" in document else None,
                    dict(document.get("superseded", {})),
                )
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except (ValueError, KeyError, TypeError) as problem:
            raise UnreadableCheckpointError(f"the pointer {path} is damaged: {problem!r}.") from problem
        raise UnreadableCheckpointError(
            f"the pointer {path} has format {format_number}; this version reads up to {_FORMAT}. Upgrade proctor."
        )

    def write(self, folder: Path) -> None:
        """Make this the pointer of a folder.

        :raises OSError: the disk refuses; the pointer is what it was.
        """
        parts = {name: value for name, value in asdict(self).items() if value and name != "entries"}
        document = {"format": _FORMAT, **parts, "checkpoints": [asdict(entry) for entry in self.entries]}
        store_file(folder / POINTER_FILE, json.dumps(document, indent=1).encode(), place="trainer.pointer")


def _known(kind: Any, document: "Mapping[str, Any]") -> "dict[str, Any]":
    return {each.name: document[each.name] for each in fields(kind) if each.name in document}


def read_pointer(folder: Path) -> "list[Entry]":
    """Return what the pointer of a folder names, newest first; nothing if there is none.

    :raises UnreadableCheckpointError: there is one and it is damaged, or of a newer version.
    """
    return Pointer.read(folder).entries


def is_whole(folder: Path, entry: Entry) -> bool:
    """Whether a checkpoint in a folder is what was stored; a `CheckpointWarning` says if it is not.

    :raises UnreadableCheckpointError: the disk does not say, and the checkpoint may be as good as ever.
    """
    damage = find_damage(folder, entry)
    if damage:
        warnings.warn(CheckpointWarning(f"{damage} It is passed over."), stacklevel=3)
    return not damage


def find_damage(folder: Path, entry: Entry) -> str:
    """Return how a checkpoint in a folder differs from what was stored, in a sentence; nothing if it does not.

    :raises UnreadableCheckpointError: the disk does not say.
    """
    path = folder / entry.name
    try:
        size = path.stat().st_size
        if size == entry.size and hash_file(path) == entry.sha256:
            return ""
        found = f"{size} bytes" if size != entry.size else "other bytes of the same length"
    except FileNotFoundError:
        found = "no file"
    except OSError as problem:
        raise UnreadableCheckpointError(
            f"the checkpoint {path} cannot be read, so it is unknown whether it is whole: {problem}. Start again when "
            "the disk answers, or move the file away to continue from the one before it."
        ) from problem
    stored = f"{entry.size} bytes, sha256 {entry.sha256[:12]}…"
    return f"the checkpoint {path} is not what was stored ({stored}): found {found}."
