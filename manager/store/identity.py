"""Which control database this is, and what it has deleted: what tells a job that nobody knows from a lost database."""

import sqlite3
from dataclasses import dataclass

from proctor.manager.store.queries import query


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


def note_deleted(connection: sqlite3.Connection, experiment_id: str, time: float) -> None:
    """An experiment is deleted: jobs of it may be left on machines that are away."""
    connection.execute(query("home.note_deleted"), {"id": experiment_id, "time": time})


def unknown_since(connection: sqlite3.Connection, experiment_id: str) -> float:
    """Until when jobs of an experiment that are not in the store may have begun, for a reason that the store knows: it
    was deleted (and, if it is not there again, for ever), or the database was accepted. 0: there is no reason."""
    accepted_at = float(connection.execute(query("home.accepted_at")).fetchone()[0])
    deleted = connection.execute(query("home.deleted_at"), {"id": experiment_id}).fetchone()
    if deleted is None:
        return accepted_at
    is_back = connection.execute(query("experiments.get"), {"id": experiment_id}).fetchone() is not None
    return max(accepted_at, float(deleted[0]) if is_back else float("inf"))
