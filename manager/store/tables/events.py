"""The events table: every change in one order, from which the stream of changes resumes by id. Old ones go."""

import sqlite3
from collections.abc import Collection
from typing import Any

from proctor.manager.actors import MANAGER, Actor
from proctor.manager.store.rows import EventRow
from proctor.manager.store.statements import encode, query

EXPERIMENT_STATUS = "experiment.status"  # {"status", "reason"}
EXPERIMENT_DELETED = "experiment.deleted"  # {}
TRIAL_STATUS = "trial.status"  # {"status", "reason", "sequence_id"}
JOB_STATUS = "job.status"  # {"status", "detail", "end_reason"}
LIMITS = "limits"  # the columns that were changed, and {"revision"}
LABELS = "labels"  # those of {"tags", "archived"} that were changed
VIEW = "view"  # {"name", "page"}: a view was saved; "page" is null: it was deleted
METRICS = "metrics"  # written by the engine
NOTICE = "notice"  # {"text"}
NODE = "node"  # {"node_id", "status", "reason", "hold"}, and {"request"}: what a user has requested of it

KEPT_NOTICES = 1_000
"""Of each experiment, however old: people are shown the newest ones, and what was noticed once is not repeated."""


def append(
    connection: sqlite3.Connection,
    *,
    time: float,
    kind: str,
    data: dict[str, Any],
    actor: Actor = MANAGER,
    experiment_id: str | None = None,
    trial_id: str | None = None,
    job_id: str | None = None,
) -> int:
    """Add an event that `actor` has caused; return its id. Ids only grow and are never used again."""
    values = {"time": time, "kind": kind, "data": encode(data), "actor": actor.to_text()}
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


def before(
    connection: sqlite3.Connection,
    experiment_id: str,
    event_id: int,
    *,
    kinds: Collection[str] | None = None,
    text: str = "",
    limit: int,
) -> list[tuple[EventRow, int | None]]:
    """At most `limit` events of an experiment with a smaller id, the newest first, each with the number of its trial.

    :param kinds: only of these kinds; None: of all.
    :param text: only those whose data contain this, upper or lower case (of ASCII).
    """
    values = {
        "experiment_id": experiment_id,
        "id": event_id,
        "kinds": None if kinds is None else encode(sorted(kinds)),
        "text": encode(text)[1:-1].lower(),
        "limit": limit,
    }
    rows = connection.execute(query("events.before"), values)
    return [(EventRow.from_row(row[:-1]), row[-1]) for row in rows]


def notices(connection: sqlite3.Connection, experiment_id: str, *, limit: int = 20) -> list[str]:
    """The texts of an experiment's newest notices, oldest first; one that was given repeatedly once."""
    values = {"experiment_id": experiment_id, "limit": limit}
    rows = [EventRow.from_row(row) for row in connection.execute(query("events.notices"), values)]
    return list(dict.fromkeys(str(row.data["text"]) for row in reversed(rows)))


def pruned_to(connection: sqlite3.Connection) -> int:
    """The events up to this id may be gone; 0: all there ever were are there, but those of deleted experiments. Who
    asks for events after a smaller id may have missed some."""
    return int(connection.execute(query("events.pruned_to")).fetchone()[0])


def last_id(connection: sqlite3.Connection) -> int:
    """Id of the newest event that there ever was; 0 if there was none."""
    row = connection.execute(query("events.last_id")).fetchone()
    return 0 if row is None else int(row[0])


def revision(connection: sqlite3.Connection, experiment_id: str) -> int:
    """The id of an experiment's newest event: another one after every change. 0: it has none any more."""
    return int(connection.execute(query("events.revision"), {"experiment_id": experiment_id}).fetchone()[0])


def prune(connection: sqlite3.Connection, keep: int, *, limit: int) -> bool:
    """Let the next `limit` ids go of those that are older than the newest `keep`; each experiment's newest
    KEPT_NOTICES notices stay. Returns whether there are more to go: then call again."""
    old = last_id(connection) - keep
    begin = pruned_to(connection)
    end = min(begin + limit, old)
    if end <= begin:
        return False
    stretch = {"begin": begin, "end": end}
    connection.execute(query("events.prune_notices"), stretch | {"keep": KEPT_NOTICES})
    connection.execute(query("events.prune"), stretch)
    connection.execute(query("events.set_pruned_to"), {"id": end})
    return end < old
