"""The experiments table."""

import sqlite3
from collections.abc import Collection
from typing import Any

from proctor.manager.actors import MANAGER, Actor
from proctor.manager.lifecycle.experiment_failures import NO_ENDS
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store import database_identity
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import ExperimentRow, bind, get_row, insert_row, move_row, trial_end_columns, update_row
from proctor.manager.store.statements import encode, query, query_with
from proctor.manager.store.tables import events
from proctor.manager.store.tables.trials import TrialPage, decode_cursor, encode_cursor

_TABLE = "experiments"
_ORDER = "-created_at"
_COUNTERS = {"next_sequence_id", "next_parameter_id", "next_position", "metrics_told", "active_seconds"} | {
    *trial_end_columns(NO_ENDS)
}
_LIMITS = {
    "trial_concurrency",
    "max_trial_number",
    "max_experiment_seconds",
    "max_trial_seconds",
    "max_gpu_hours",
    "priority",
    "search_space",
}

_LABELS = {"tags", "archived"}


def insert(connection: sqlite3.Connection, row: ExperimentRow, *, actor: Actor = MANAGER) -> None:
    """Add an experiment, with its event. Raises sqlite3.IntegrityError when the id is taken."""
    insert_row(connection, _TABLE, row)
    _append_status_event(connection, row, row.created_at, actor)


def get(connection: sqlite3.Connection, experiment_id: str) -> ExperimentRow:
    """One experiment. Raises RowNotFound."""
    return get_row(connection, _TABLE, ExperimentRow, experiment_id)


def find_by_prefix(connection: sqlite3.Connection, prefix: str, *, limit: int = 20) -> list[ExperimentRow]:
    """The experiments whose ids begin with `prefix`, by id."""
    rows = connection.execute(query("experiments.find_by_prefix"), {"prefix": prefix, "limit": limit})
    return [ExperimentRow.from_row(row) for row in rows]


def page(
    connection: sqlite3.Connection,
    *,
    statuses: Collection[ExperimentStatus] | None = None,
    name: str | None = None,
    tags: Collection[str] = (),
    archived: bool | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> TrialPage[ExperimentRow]:
    """Experiments, newest first. Raises BadCursor.

    :param tags: only those that have all of these.
    :param archived: False: without those that are archived and have ended; True: only those.
    """
    created_at, last = decode_cursor(cursor, _ORDER, 2) if cursor else (float("inf"), "")
    values = {
        "created_at": created_at,
        "id": last,
        "statuses": None if statuses is None else encode([status.value for status in statuses]),
        "name": name,
        "tags": encode(list(tags)),
        "archived": archived,
        "ended": encode([status.value for status in ExperimentStatus if status.has_ended]),
        "limit": limit + 1,
    }
    rows = [ExperimentRow.from_row(row) for row in connection.execute(query("experiments.page"), values)]
    if len(rows) <= limit:
        return TrialPage(rows)
    newest = rows[limit - 1]
    return TrialPage(rows[:limit], encode_cursor(_ORDER, (newest.created_at, newest.id)))


def ids(connection: sqlite3.Connection) -> set[str]:
    """The id of every experiment there is. For the start of a manager."""
    return {row[0] for row in connection.execute(query("experiments.ids"))}


def folders(connection: sqlite3.Connection) -> dict[str, str]:
    """The folder of every experiment there is, by id, in the order of the ids. For the start of a manager."""
    return dict(connection.execute(query("experiments.folders")))


def active(connection: sqlite3.Connection) -> list[ExperimentRow]:
    """Every experiment that a loop works on (neither STOPPED nor VIEWED), by id."""
    return [ExperimentRow.from_row(row) for row in connection.execute(query("experiments.active"))]


def unmarked(connection: sqlite3.Connection) -> list[ExperimentRow]:
    """The experiments of an earlier version of which it is not decided yet whose place in a checkpointStorage is."""
    return [ExperimentRow.from_row(row) for row in connection.execute(query("experiments.unmarked"))]


def settle_mark(connection: sqlite3.Connection, experiment_id: str) -> None:
    """That is decided for an experiment. Idempotent."""
    connection.execute(query("experiments.settle_mark"), {"id": experiment_id})


def needing_clean_up(connection: sqlite3.Connection) -> list[str]:
    """The ids of the experiments that were stopped and whose platforms have not cleaned up after them yet."""
    return [row[0] for row in connection.execute(query("experiments.needing_clean_up"))]


def end_clean_up(connection: sqlite3.Connection, experiment_id: str) -> None:
    """Its platform has cleaned up after it. Idempotent; does nothing for one that was resumed meanwhile."""
    connection.execute(query("experiments.end_clean_up"), {"id": experiment_id})


def move(
    connection: sqlite3.Connection,
    experiment_id: str,
    *,
    expected: Collection[ExperimentStatus],
    status: ExperimentStatus,
    reason: str,
    time: float,
    actor: Actor = MANAGER,
    **columns: Any,
) -> ExperimentRow:
    """Change the status if it is an expected one, with its event; other columns (error, started_at, …) as given.

    Raises StaleWrite: let it pass, so that nothing else of the step is applied. Raises RowNotFound.
    """
    changes = {"status": status, "reason": reason, **columns}
    row = ExperimentRow.from_row(
        move_row(connection, _TABLE, ExperimentRow, experiment_id, expected=expected, columns=changes)
    )
    _append_status_event(connection, row, time, actor)
    return row


def set_counters(connection: sqlite3.Connection, experiment_id: str, **columns: Any) -> None:
    """Set next_sequence_id, next_parameter_id, next_position, metrics_told, active_seconds, or what is counted of
    trials that have ended. Raises RowNotFound."""
    _require(columns, _COUNTERS)
    update_row(connection, _TABLE, ExperimentRow, experiment_id, columns)


def set_limits(
    connection: sqlite3.Connection, experiment_id: str, *, time: float, actor: Actor = MANAGER, **columns: Any
) -> ExperimentRow:
    """Set limits or the search space, count the revision, with an event. None: no limit. Raises RowNotFound."""
    _require(columns, _LIMITS)
    values = bind(ExperimentRow, columns)
    rows = connection.execute(query_with("experiments.set_limits", values), values | {"id": experiment_id}).fetchall()
    if not rows:
        raise RowNotFound(f"Experiment {experiment_id} is not in the store.")
    row = ExperimentRow.from_row(rows[0])
    data = {**columns, "revision": row.revision}
    events.append(connection, time=time, kind=events.LIMITS, data=data, actor=actor, experiment_id=experiment_id)
    return row


def set_labels(
    connection: sqlite3.Connection, experiment_id: str, *, time: float, actor: Actor = MANAGER, **columns: Any
) -> None:
    """Set tags, archived or both, with an event. Raises RowNotFound."""
    _require(columns, _LABELS)
    update_row(connection, _TABLE, ExperimentRow, experiment_id, columns)
    events.append(connection, time=time, kind=events.LABELS, data=columns, actor=actor, experiment_id=experiment_id)


def delete(connection: sqlite3.Connection, experiment_id: str, *, time: float, actor: Actor = MANAGER) -> None:
    """Delete an experiment with its trials, jobs, inputs and events; one event (of `time`) says that it is gone.

    Raises RowNotFound.
    """
    if connection.execute(query("experiments.delete"), {"id": experiment_id}).rowcount == 0:
        raise RowNotFound(f"Experiment {experiment_id} is not in the store.")
    connection.execute(query("events.delete_of_experiment"), {"experiment_id": experiment_id})
    database_identity.record_deleted(connection, experiment_id, time)
    kind = events.EXPERIMENT_DELETED
    events.append(connection, time=time, kind=kind, data={}, actor=actor, experiment_id=experiment_id)


def _append_status_event(connection: sqlite3.Connection, row: ExperimentRow, time: float, actor: Actor) -> None:
    data = {"status": row.status.value, "reason": row.reason}
    kind = events.EXPERIMENT_STATUS
    events.append(connection, time=time, kind=kind, data=data, actor=actor, experiment_id=row.id)


def _require(columns: Collection[str], allowed: Collection[str]) -> None:
    for name in columns:
        if name not in allowed:
            raise TypeError(f"{name!r} cannot be set here; expected one of {', '.join(sorted(allowed))}")
