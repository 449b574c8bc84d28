"""The checkpoints table as their retention sees it: which ones are kept, which are to be deleted, what all take.

A deletion is two steps: `delete` says that no job may be given a checkpoint any longer, and `confirm_removal` that its
files are gone. What is between the two is carried out again after a restart.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping

from proctor.manager.lifecycle.checkpoints import Expendability
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import CheckpointRow
from proctor.manager.store.statements import query

_OF_LIVE = json.dumps([Expendability.NEVER, Expendability.OLDER_OF_LIVE])
"""What checkpoints of a trial that has not ended may be."""


def get(connection: sqlite3.Connection, checkpoint_id: int) -> CheckpointRow:
    """One checkpoint, deleted or not. Raises RowNotFound."""
    row = connection.execute(query("checkpoints.get"), {"id": checkpoint_id}).fetchone()
    if row is None:
        raise RowNotFound(f"There is no checkpoint {checkpoint_id}.")
    return CheckpointRow.from_row(row)


def load(connection: sqlite3.Connection, rows: Iterable[CheckpointRow]) -> None:
    """Add the checkpoints of an experiment that was saved elsewhere. Raises sqlite3.IntegrityError for an id that is
    taken."""
    for row in rows:
        columns = row.to_columns()
        connection.execute(query("checkpoints.load"), columns)
        if row.deleted_at is not None:  # as a second step, for the triggers that count
            connection.execute(query("checkpoints.load_deletion"), columns)


def kept(connection: sqlite3.Connection, trial_id: str) -> list[CheckpointRow]:
    """The checkpoints of a trial that were not deleted, in the order of storing."""
    return _select(connection, "checkpoints.kept", trial_id=trial_id)


def undecided(connection: sqlite3.Connection) -> list[str]:
    """The trials of which checkpoints were never decided over, or last when they had not ended."""
    return [trial_id for (trial_id,) in connection.execute(query("checkpoints.undecided"), {"live": _OF_LIVE})]


def set_expendable(connection: sqlite3.Connection, found: Mapping[int, Expendability]) -> None:
    """Store what was decided over checkpoints."""
    values = [{"id": id, "expendable": int(expendable)} for id, expendable in found.items()]
    connection.executemany(query("checkpoints.set_expendable"), values)


def expendable(connection: sqlite3.Connection, rank: Expendability, *, limit: int) -> list[CheckpointRow]:
    """At most `limit` checkpoints that were last decided to be of this rank, oldest first."""
    return _select(connection, "checkpoints.expendable", expendable=int(rank), limit=limit)


def best(connection: sqlite3.Connection, *, maximize: bool) -> int | None:
    """The id of the experiment's best checkpoint that was not deleted."""
    found = connection.execute(query("checkpoints.highest" if maximize else "checkpoints.lowest")).fetchone()
    return None if found is None else int(found[0])


def total_bytes(connection: sqlite3.Connection) -> int:
    """What the checkpoints take together that were not deleted, as far as their sizes are known."""
    return int(connection.execute(query("checkpoints.total_bytes")).fetchone()[0])


def newest_stored(connection: sqlite3.Connection, prefix: str, *, limit: int) -> list[CheckpointRow]:
    """Those of the newest checkpoints that were not deleted, whose manifest is known and whose path begins so, newest
    first."""
    return _select(connection, "checkpoints.newest_stored", prefix=prefix, limit=limit)


def delete(connection: sqlite3.Connection, rows: Iterable[CheckpointRow], *, time: float) -> None:
    """Decide that the files of checkpoints are deleted: from now on no job is given them. Idempotent."""
    connection.executemany(query("checkpoints.delete"), [_place(row, time) for row in rows])


def to_remove(connection: sqlite3.Connection) -> list[CheckpointRow]:
    """The deleted checkpoints whose files may still be there, in the order of storing."""
    return _select(connection, "checkpoints.to_remove")


def confirm_removal(connection: sqlite3.Connection, row: CheckpointRow, *, time: float) -> None:
    """The files of a deleted checkpoint are gone. Idempotent."""
    connection.execute(query("checkpoints.remove"), _place(row, time))


def _place(row: CheckpointRow, time: float) -> dict[str, str | int | float]:
    """All records of one folder are deleted together."""
    return {"trial_id": row.trial_id, "job": row.job, "path": row.path, "time": time}


def _select(connection: sqlite3.Connection, name: str, **values: str | int) -> list[CheckpointRow]:
    return [CheckpointRow.from_row(row) for row in connection.execute(query(name), values)]
