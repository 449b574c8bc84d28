"""Which control database this is, what it has deleted, and a witness against its loss.

By its deletions a job that no experiment knows is distinguished from one of a lost database. A database that was itself
deleted, replaced, or that has lost its newest commits (its log was removed or cut off, it was restored from an older
copy) does not show that by itself. The witness, a file beside it, holds the database's id and the id of its newest
event. It is written in place after each commit, without a sync: it survives the death of the process, and after a power
cut it may be older than the database, never newer, because commits are synced before.
"""

import os
import re
import sqlite3
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proctor.manager.store.statements import query
from proctor.sdk.files import replace_file

_RECORD = re.compile(r"([0-9a-f]{32}) ([0-9]{20}) ([0-9a-f]{8})\n")


@dataclass(frozen=True)
class Identity:
    """Which database it is, and its newest event; ids of events only grow, also when old ones are removed."""

    id: str
    last_event: int


def read(connection: sqlite3.Connection) -> Identity:
    """The identity of this database."""
    return Identity(connection.execute(query("home.id")).fetchone()[0], last_event(connection))


def last_event(connection: sqlite3.Connection) -> int:
    """The id of the newest event; 0 before the first."""
    newest = connection.execute(query("events.last_id")).fetchone()
    return int(newest[0]) if newest else 0


def accept(connection: sqlite3.Connection, time: float) -> None:
    """A person has said that this is the database of its home: jobs that began before `time` and that it does not know
    may be stopped."""
    connection.execute(query("home.accept"), {"time": time})


def record_deleted(connection: sqlite3.Connection, experiment_id: str, time: float) -> None:
    """An experiment is deleted: jobs of it may be left on machines that are away."""
    connection.execute(query("home.record_deleted"), {"id": experiment_id, "time": time})


def unknown_since(connection: sqlite3.Connection, experiment_id: str) -> float:
    """Until when jobs of an experiment that are not in the store may have begun, for a reason that the store knows: it
    was deleted (and, if it is not there again, forever), or the database was accepted. 0: there is no reason."""
    accepted_at = float(connection.execute(query("home.accepted_at")).fetchone()[0])
    deleted = connection.execute(query("home.deleted_at"), {"id": experiment_id}).fetchone()
    if deleted is None:
        return accepted_at
    is_back = connection.execute(query("experiments.get"), {"id": experiment_id}).fetchone() is not None
    return max(accepted_at, float(deleted[0]) if is_back else float("inf"))


class Witness:
    """Kept by the writer of the database. Made by `open`."""

    def __init__(self, descriptor: int, known: Identity) -> None:
        self._descriptor = descriptor
        self._known = known

    @classmethod
    def open(cls, path: Path, connection: sqlite3.Connection) -> Self:
        """Write down what the database is now; on the disk when this returns. Raises OSError."""
        known = read(connection)
        replace_file(str(path), _encode(known), durable=True)
        return cls(os.open(path, os.O_WRONLY | os.O_CLOEXEC), known)

    def record(self, connection: sqlite3.Connection) -> None:
        """After a commit. Where the disk does not take it, the witness stays older than the database."""
        newest = last_event(connection)
        if newest != self._known.last_event:
            self._known = Identity(self._known.id, newest)
            with suppress(OSError):
                os.pwrite(self._descriptor, _encode(self._known), 0)

    def close(self) -> None:
        """The database is about to be closed."""
        os.close(self._descriptor)


def read_witness(path: Path) -> Identity | None:
    """What was written down; None where there is nothing, or nothing whole (a power cut)."""
    try:
        found = _RECORD.fullmatch(path.read_text(encoding="ascii", errors="replace"))
    except FileNotFoundError:
        return None
    if found is None or _encode(Identity(found[1], int(found[2]))) != found[0].encode():
        return None
    return Identity(found[1], int(found[2]))


def _encode(known: Identity) -> bytes:
    text = f"{known.id} {known.last_event:020d}"
    return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()
