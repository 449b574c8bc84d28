"""The events table: every change in one order, from which the stream of changes resumes by id."""

import sqlite3
from typing import Any

from proctor.manager.store.json_columns import encode
from proctor.manager.store.queries import query
from proctor.manager.store.rows import EventRow

EXPERIMENT_STATUS = "experiment.status"  # {"status", "reason"}
EXPERIMENT_DELETED = "experiment.deleted"  # {}
TRIAL_STATUS = "trial.status"  # {"status", "reason", "sequence_id"}
JOB_STATUS = "job.status"  # {"status", "detail", "end_reason"}
LIMITS = "limits"  # the columns that were changed, and {"revision"}
METRICS = "metrics"  # written by the engine
NOTICE = "notice"  # {"text"}
NODE = "node"


def append(
    connection: sqlite3.Connection,
    *,
    time: float,
    kind: str,
    data: dict[str, Any],
    experiment_id: str | None = None,
    trial_id: str | None = None,
    job_id: str | None = None,
) -> int:
    """Add an event; return its id. Ids only grow and are never used again."""
    values = {"time": time, "kind": kind, "data": encode(data)}
    owners = {"experiment_id": experiment_id, "trial_id": trial_id, "job_id": job_id}
    event_id = connection.execute(query("events.append"), values | owners).lastrowid
    assert event_id is not None
    return event_id


def after(
    connection: sqlite3.Connection, event_id: int, *, experiment_id: str | None = None, limit: int
) -> list[EventRow]:
    """At most `limit` events with a greater id, in order; of one experiment if named."""
    name = "events.after" if experiment_id is None else "events.after_of_experiment"
    values = {"id": event_id, "experiment_id": experiment_id, "limit": limit}
    return [EventRow.from_row(row) for row in connection.execute(query(name), values)]


def notices(connection: sqlite3.Connection, experiment_id: str, *, limit: int = 20) -> list[str]:
    """The texts of an experiment's newest notices, oldest first; one that was given repeatedly once."""
    values = {"experiment_id": experiment_id, "limit": limit}
    rows = [EventRow.from_row(row) for row in connection.execute(query("events.notices"), values)]
    return list(dict.fromkeys(str(row.data["text"]) for row in reversed(rows)))


def first_id(connection: sqlite3.Connection) -> int:
    """Id of the oldest event that is kept; `last_id + 1` when none is. Who asks for events after an id below
    `first_id - 1` may have missed some."""
    row = connection.execute(query("events.first_id")).fetchone()
    return last_id(connection) + 1 if row is None else int(row[0])


def last_id(connection: sqlite3.Connection) -> int:
    """Id of the newest event that there ever was; 0 if there was none."""
    row = connection.execute(query("events.last_id")).fetchone()
    return 0 if row is None else int(row[0])


def prune(connection: sqlite3.Connection, keep: int, *, limit: int = 10_000) -> int:
    """Delete events older than the newest `keep` ids, at most `limit` at a time (so that no commit takes long).
    Returns how many were deleted; call again while that is `limit`."""
    values = {"last": last_id(connection) - keep, "limit": limit}
    return connection.execute(query("events.prune"), values).rowcount
