"""Which checkpoints stay: pure, nothing of the file system.

What to resume from and what is best are two questions. The newest ones stay for resuming, so that a torn one has one
before it; the best ones stay besides, and a run that gets worse never loses its best by going on.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


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
    """How many checkpoints are kept."""

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
        if math.isnan(score):
            return False
        is_max = self.best_mode == "max"
        scores = [entry.score or 0.0 for entry in self.rank(entries)]
        return sum(other >= score if is_max else other <= score for other in scores) < self.keep_best

    def rank(self, entries: "Sequence[Entry]") -> "list[Entry]":
        """Return the entries that have a score, the best first and of equal ones the newest first."""
        judged = [entry for entry in entries if entry.score is not None and not math.isnan(entry.score)]
        sign = -1.0 if self.best_mode == "max" else 1.0
        return sorted(judged, key=lambda entry: sign * (entry.score or 0.0))
