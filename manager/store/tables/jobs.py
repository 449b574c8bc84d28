"""The trial_jobs table. Every change is fenced by the job's token."""

import json
import sqlite3
from collections.abc import Collection
from typing import Any

from proctor.manager.store.rows import TrialJobRow, get_row, insert_row, move_row, update_row
from proctor.manager.store.statements import query
from proctor.manager.store.tables import events
from proctor.training_services.base import TrialJobStatus

_TABLE = "jobs"


def insert(connection: sqlite3.Connection, row: TrialJobRow) -> None:
    """Add a job. No event: its trial's event tells of it. Raises sqlite3.IntegrityError when its number is taken."""
    insert_row(connection, _TABLE, row)


def get(connection: sqlite3.Connection, job_id: str) -> TrialJobRow:
    """One job. Raises RowNotFound."""
    return get_row(connection, _TABLE, TrialJobRow, job_id)


def exists(connection: sqlite3.Connection, job_id: str) -> bool:
    """Whether there is, or was, a job of this id, whatever its token."""
    return connection.execute(query("jobs.get"), {"id": job_id}).fetchone() is not None


def parameter_ids(connection: sqlite3.Connection, job_ids: Collection[str]) -> dict[str, int]:
    """The parameter ids of these jobs, by job id; those that are not there are left out."""
    rows = connection.execute(query("jobs.parameter_ids"), {"ids": json.dumps(list(job_ids))})
    return dict(rows.fetchall())


def of_trial(connection: sqlite3.Connection, trial_id: str) -> list[TrialJobRow]:
    """A trial's jobs, by number."""
    rows = connection.execute(query("jobs.of_trial"), {"trial_id": trial_id})
    return [TrialJobRow.from_row(row) for row in rows]


def live(connection: sqlite3.Connection, experiment_id: str) -> list[TrialJobRow]:
    """The experiment's jobs that have not ended, by trial and number."""
    rows = connection.execute(query("jobs.live"), {"experiment_id": experiment_id})
    return [TrialJobRow.from_row(row) for row in rows]


def nodes(connection: sqlite3.Connection, experiment_id: str) -> list[str]:
    """The nodes on which jobs of the experiment have run, or may have."""
    return [row[0] for row in connection.execute(query("jobs.nodes"), {"experiment_id": experiment_id})]


def all_live(connection: sqlite3.Connection) -> list[tuple[TrialJobRow, int]]:
    """The jobs of all experiments that have not ended, with the sequence ids of their trials. For the start of a
    manager."""
    return [(TrialJobRow.from_row(row[:-1]), row[-1]) for row in connection.execute(query("jobs.all_live"))]


def move(
    connection: sqlite3.Connection,
    job_id: str,
    *,
    token: str,
    expected: Collection[TrialJobStatus],
    status: TrialJobStatus,
    time: float,
    **columns: Any,
) -> TrialJobRow:
    """Change the status if it is an expected one and the token is the job's, with its event; other columns as given.

    Raises StaleWrite: let it pass, so that nothing else of the step is applied. Raises RowNotFound.
    """
    changes = {"status": status, **columns}
    row = move_row(connection, _TABLE, TrialJobRow, job_id, expected=expected, columns=changes, token=token)
    end_reason = row.end_reason.value if row.end_reason else None
    events.append(
        connection,
        time=time,
        kind=events.JOB_STATUS,
        data={"status": row.status.value, "detail": row.detail, "end_reason": end_reason},
        experiment_id=row.experiment_id,
        trial_id=row.trial_id,
        job_id=row.id,
    )
    return row


def update(connection: sqlite3.Connection, job_id: str, *, token: str, **columns: Any) -> None:
    """Change columns that need no event. Raises StaleWrite for an old token, RowNotFound; TypeError for the status."""
    if "status" in columns:
        raise TypeError("a trial job's status is changed by move()")
    update_row(connection, _TABLE, TrialJobRow, job_id, columns, token)
