"""The history of a run's metrics: JSON lines beside the checkpoints, each step once however often the run was cut off.

A checkpoint holds the position that the history had when it was made. Resuming cuts the file back to that position, so
steps that are done again do not appear twice. The position's digest is a chain over the rows without their wall times:
two runs with the same digest have the same metrics to the last bit, and continuing it needs no reading of the file.

A disk without room does not end a run: rows wait in memory until there is room, and no checkpoint that counts them is
stored before they are.
"""

import hashlib
import json
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.files import sync_file
from proctor.sdk.metrics import to_json_word
from proctor.sdk.pytorch.checkpoints.filesystem import AppendedFile
from proctor.sdk.pytorch.errors import CheckpointNotStoredError, CheckpointWarning

HISTORY_FILE = "history.jsonl"
_TIME = "time_ms"  # of as many digits in each row, so that equal runs have equal positions
_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode
_NO_ROWS = hashlib.sha256(b"proctor history").hexdigest()


@dataclass(frozen=True)
class HistoryPosition:
    """How far a history had come: its rows, its size in the file, and the digest of the rows without wall times."""

    rows: int = 0
    size: int = 0
    digest: str = _NO_ROWS

    @classmethod
    def from_json(cls, document: "Mapping[str, Any] | None") -> "HistoryPosition":
        """Read the plain form; None (a checkpoint without a history) is the beginning."""
        if document is None:
            return cls()
        return cls(rows=int(document["rows"]), size=int(document["size"]), digest=str(document["digest"]))


class History:
    """The metrics of one run. A row is in the file (safe from the death of this process) once `append` has returned.

    Where the disk has no room, rows wait in memory, reported once by a `CheckpointWarning`, and are written in their
    order by a later `append`, `sync` or `close`. May be used by the thread that trains and the one that stores.

    :param path: the file, made at the first row; None keeps only the digest.
    """

    def __init__(self, path: "Path | None") -> None:
        self._path = path
        self._file = AppendedFile(self._make_path)
        self._position = HistoryPosition()  # the waiting rows included
        self._has_warned = False
        self._lock = threading.Lock()

    @property
    def position(self) -> HistoryPosition:
        """Where the history stands; part of a checkpoint that is made now."""
        return self._position

    def append(self, metrics: "Mapping[str, float]", *, step: int, iteration: int, epoch: int) -> None:
        """Add a row.

        :param step: the `current_iteration`, `iteration` the `global_iteration`, `epoch` the `global_epoch`.
        :raises OSError: the disk refuses for another reason than room.
        """
        values = {name: to_json_word(value) for name, value in metrics.items()}  # JSON has no NaN or infinity
        row = {"step": step, "iteration": iteration, "epoch": epoch, "metrics": values}
        text = _encode(row)
        digest = hashlib.sha256((self._position.digest + text).encode("ascii")).hexdigest()
        line = f'{text[:-1]},"{_TIME}":{time() * 1000:.0f}}}\n'.encode("ascii")
        if self._path is not None:
            with self._lock:
                self._add(line)
        self._position = HistoryPosition(self._position.rows + 1, self._position.size + len(line), digest)

    def cut(self, position: HistoryPosition) -> None:
        """Drop what was written after `position`; a file that is shorter gives a warning and is continued as it is."""
        self.close()
        found = size = self._size()
        if found < position.size and self._path is not None:
            warnings.warn(
                f"the history {self._path} has {found} bytes where the checkpoint knows of {position.size}: the first "
                "rows are missing or it was recreated. The metrics themselves continue exactly.",
                CheckpointWarning,
                stacklevel=2,
            )
            size = self._path.read_bytes().rfind(b"\n") + 1 if found else 0  # its last row may be torn
        self._file.written = min(size, position.size)
        if found > self._file.written:
            self._make_path()
        self._position = HistoryPosition(position.rows, self._file.written, position.digest)

    def sync(self) -> None:
        """Make all rows outlast a power cut; a checkpoint must not name rows that could vanish.

        :raises OSError: the disk refuses, or still has no room for the rows that wait.
        """
        with self._lock:
            self._file.write_waiting()
            descriptor = os.dup(self._file.descriptor) if self._file.descriptor >= 0 else -1
        if descriptor >= 0:  # outside of the lock, so that training does not wait for a slow disk to add a row
            try:
                sync_file(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Write what waits and release the file; a later row opens it again.

        :raises CheckpointNotStoredError: there is still no room; those rows are lost.
        """
        with self._lock:
            try:
                self._file.write_waiting()
            except OSError as problem:
                raise CheckpointNotStoredError(
                    f"the last {len(self._file.waiting)} rows of the history {self._path} could not be written: "
                    f"{problem}. The rows before are whole; make room and start again to continue from the latest "
                    "checkpoint."
                ) from problem
            finally:
                self._file.waiting.clear()
                self._file.release()

    def _add(self, line: bytes) -> None:
        self._file.add(line)
        try:
            self._file.write_waiting()
        except OSError as problem:
            if problem.errno not in PASSING:
                self._file.drop()
                raise
            if not self._has_warned:
                self._has_warned = True
                text = f"the disk does not take rows of the history {self._path}: {problem}. They wait in memory, and "
                warnings.warn(f"{text}training continues; make room before it ends.", CheckpointWarning, stacklevel=4)

    def _make_path(self) -> Path:
        """Make the folder, and cut off what is in the file besides this run's rows: an earlier run's, a torn one."""
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._size() > self._file.written:
            os.truncate(self._path, self._file.written)
        return self._path

    def _size(self) -> int:
        try:
            return 0 if self._path is None else os.stat(self._path).st_size
        except FileNotFoundError:
            return 0


def read_history(path: Path) -> "Iterator[dict[str, Any]]":
    """Yield the rows of a history file in order; a last row that a kill has torn is left out."""
    with open(path, "rb") as reader:
        for line in reader:
            if line.endswith(b"\n"):
                yield json.loads(line)
