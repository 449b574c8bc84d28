"""The `latest` pointer: a small file that decides what a run continues from, and which checkpoints stay.

It lists the stored checkpoints newest first with their digests and is replaced as a whole, only after the checkpoint
that it names is on the disk. Names of files decide nothing.

Where a run begins anew in the folder of another one, the pointer says so from that moment on: it names no checkpoint
and lists what is superseded. Those files stay until the new run has a checkpoint, and nothing continues from them.

What to resume from and what is best are two questions. The newest checkpoints stay for resuming, so that a torn one has
one before it; the best ones stay besides, and a run that gets worse never loses its best by going on.
"""

import json
import math
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
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
    def from_json(cls, document: "dict[str, Any]") -> "Entry":
        """Read an entry; what a newer version has added is left out.

        :raises KeyError: a field is missing.
        :raises TypeError: a field is no number or text.
        """
        score = document.get("score")
        return cls(
            name=str(document["name"]),
            sha256=str(document["sha256"]),
            size=int(document["size"]),
            epoch=int(document["epoch"]),
            iteration=int(document["iteration"]),
            score=None if score is None else float(score),
            history_size=int(document.get("history_size", 0)),
        )


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
        if self.keep_last is None:
            return list(entries)
        newest = {entry.name for entry in entries[: self.keep_last]}
        lasting = {entry.name for entry in self.choose_lasting(entries, pinned)}
        return [entry for entry in entries if entry.name in newest | lasting]

    def choose_lasting(self, entries: "Sequence[Entry]", pinned: "Collection[str]" = ()) -> "list[Entry]":
        """Return the entries that stay however many come after them, in their order: the best and the pinned."""
        stays = {entry.name for entry in self.rank(entries)[: self.keep_best]} | set(pinned)
        return [entry for entry in entries if entry.name in stays]

    def is_among_best(self, score: float, entries: "Sequence[Entry]") -> bool:
        """Whether a checkpoint of this score would be kept as one of the best, beside those that there are."""
        if not math.isfinite(score):
            return False
        is_max = self.best_mode == "max"
        scores = [entry.score or 0.0 for entry in self.rank(entries)]
        return sum(other >= score if is_max else other <= score for other in scores) < self.keep_best

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
class Owner:
    """Whose checkpoints a folder holds."""

    run: str
    trial: str  # empty where they are no part of what a trial hands over
    origin: "Origin | None" = None  # where they were copied from for that


def write_pointer(
    folder: Path,
    run_name: str,
    entries: "Sequence[Entry]",
    *,
    trial: str = "",
    origin: "Origin | None" = None,
    superseded: "Mapping[str, str] | None" = None,
) -> None:
    """Make the pointer of a folder name these checkpoints, newest first.

    :param trial: the id of the trial that hands the folder over.
    :param origin: where it has them from.
    :param superseded: files of an earlier run that are there, with their digests where these are known.
    :raises OSError: the disk refuses; the pointer is what it was.
    """
    document: dict[str, Any] = {"format": _FORMAT, "run": run_name, "checkpoints": [asdict(entry) for entry in entries]}
    if trial:
        document["trial"] = trial
    if origin is not None:
        document["origin"] = asdict(origin)
    if superseded:
        document["superseded"] = dict(superseded)
    store_file(folder / POINTER_FILE, json.dumps(document, indent=1).encode(), place="trainer.pointer")


def read_pointer(folder: Path) -> "list[Entry] | None":
    """Return what the pointer of a folder names, newest first; None if there is none.

    :raises UnreadableCheckpointError: there is one and it is damaged, or of a newer version.
    """
    found = _read(folder / POINTER_FILE)
    return None if found is None else found.entries


def read_owner(folder: Path) -> "Owner | None":
    """Return whose checkpoints the pointer of a folder names; None if there is none.

    :raises UnreadableCheckpointError: there is one and it is damaged, or of a newer version.
    """
    found = _read(folder / POINTER_FILE)
    return None if found is None else found.owner


def read_superseded(folder: Path) -> "dict[str, str]":
    """Return the files of an earlier run in a folder, by name the digest or nothing; of no use to a run that resumes.

    :raises UnreadableCheckpointError: there is a pointer and it is damaged, or of a newer version.
    """
    found = _read(folder / POINTER_FILE)
    return {} if found is None else found.superseded


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


@dataclass(frozen=True)
class _Pointer:
    owner: Owner
    entries: "list[Entry]"
    superseded: "dict[str, str]"


def _read(path: Path) -> "_Pointer | None":
    try:
        document = json.loads(path.read_bytes())
        format_number = int(document["format"])
        if format_number <= _FORMAT:
            origin = Origin(**document["origin"]) if "origin" in document else None
            owner = Owner(str(document.get("run", "")), str(document.get("trial", "")), origin)
            entries = [Entry.from_json(entry) for entry in document["checkpoints"]]
            superseded = {str(name): str(digest) for name, digest in dict(document.get("superseded", {})).items()}
            return _Pointer(owner, entries, superseded)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableCheckpointError(f"the pointer {path} is damaged: {problem!r}.") from problem
    raise UnreadableCheckpointError(
        f"the pointer {path} has format {format_number}; this version reads up to {_FORMAT}. Upgrade proctor."
    )
