"""The trial_jobs table. Every change is fenced by the job's token."""

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from proctor.manager.actors import MANAGER, Actor
from proctor.manager.store.rows import TrialJobRow, get_row, insert_row, move_row, update_row
from proctor.manager.store.statements import query
from proctor.manager.store.tables import events
from proctor.training_services.base import TrialJobStatus

_TABLE = "jobs"


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What some jobs have used. A job that runs has its GPU-seconds up to now; its processor time is known when it has
    ended."""

    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    unmeasured_jobs: int = 0
    """How many of them have run, and their processor time is not known: `cpu_seconds` is without theirs."""
    run_seconds: float | None = None
    """Of the jobs of one trial: how long they ran, one after another; None: none has begun."""

    def __add__(self, other: "JobUsage") -> "JobUsage":
        return JobUsage(
            self.gpu_seconds + other.gpu_seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.unmeasured_jobs + other.unmeasured_jobs,
        )


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


def damaged_checkpoints(connection: sqlite3.Connection, trial_id: str) -> set[str]:
    """The paths of the checkpoints that a trial's jobs have found to be damaged."""
    rows = connection.execute(query("jobs.damaged_checkpoints"), {"trial_id": trial_id})
    return {path for (path,) in rows}


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


@dataclass(frozen=True, slots=True)
class JobsOnNode:
    """Jobs that ran on a node in a stretch of time, with the numbers of their trials. `complete_since`: of those that
    have ended, all are here that ended at this time or later (Unix time); None: all."""

    jobs: list[tuple[TrialJobRow, int]]
    complete_since: float | None


def on_node(connection: sqlite3.Connection, node_id: str, *, since: float, until: float, limit: int) -> JobsOnNode:
    """The jobs of all experiments that ran on a node between two times (Unix time), those that still run first, then
    the newest ends. At most `limit` of either."""
    values = {"node_id": node_id, "since": since, "until": until, "limit": limit}
    live = connection.execute(query("jobs.live_on_node"), values).fetchall()
    ended = connection.execute(query("jobs.ended_on_node"), values | {"limit": limit + 1}).fetchall()
    rows = [(TrialJobRow.from_row(row[:-1]), int(row[-1])) for row in [*live, *ended[:limit]]]
    return JobsOnNode(rows, rows[-1][0].ended_at if len(ended) > limit else None)


def move(
    connection: sqlite3.Connection,
    job_id: str,
    *,
    token: str,
    expected: Collection[TrialJobStatus],
    status: TrialJobStatus,
    time: float,
    actor: Actor = MANAGER,
    **columns: Any,
) -> None:
    """Change the status if it is an expected one and the token is the job's, with its event; other columns as given.

    Raises StaleWrite: let it pass, so that nothing else of the step is applied. Raises RowNotFound.
    """
    changes = {"status": status, **columns}
    experiment_id, trial_id, detail, end_reason = move_row(
        connection, _TABLE, TrialJobRow, job_id, expected=expected, columns=changes, token=token
    )
    node = {"node_id": columns["node_id"]} if columns.get("node_id") else {}
    events.append(
        connection,
        time=time,
        kind=events.JOB_STATUS,
        data={"status": status.value, "detail": detail, "end_reason": end_reason, **node},
        actor=actor,
        experiment_id=experiment_id,
        trial_id=trial_id,
        job_id=job_id,
    )


def update(connection: sqlite3.Connection, job_id: str, *, token: str, **columns: Any) -> None:
    """Change columns that need no event. Raises StaleWrite for an old token, RowNotFound; TypeError for the status."""
    if "status" in columns:
        raise TypeError("a trial job's status is changed by move()")
    update_row(connection, _TABLE, TrialJobRow, job_id, columns, token)


# ---- what jobs have used --------------------------------------------------------------------------------------------
# The sums of ended jobs are kept by triggers, so that reading them costs the same however many there are.


def usage_of_experiment(connection: sqlite3.Connection, experiment_id: str, *, now: float) -> JobUsage:
    """What all jobs of an experiment have used.

    :param now: Unix time by the steady clock of the manager, here and below.
    """
    values = {"experiment_id": experiment_id, "now": now}
    return _usage(*connection.execute(query("usage.of_experiment"), values).fetchone())


def usage_of_trial(connection: sqlite3.Connection, trial_id: str, *, now: float) -> JobUsage:
    """What all jobs of a trial have used."""
    return _usage(*connection.execute(query("usage.of_trial"), {"trial_id": trial_id, "now": now}).fetchone())


def usage_by_experiment_and_node(connection: sqlite3.Connection, *, now: float) -> dict[tuple[str, str], JobUsage]:
    """What each experiment has used on each node ("" where its platform did not name it)."""
    rows = connection.execute(query("usage.by_experiment_and_node"), {"now": now})
    return {(experiment_id, node_id): _usage(*sums) for experiment_id, node_id, *sums in rows}


def usage_by_node(connection: sqlite3.Connection, *, now: float) -> dict[str, JobUsage]:
    """What has been used on each node, by all experiments of this home that were not deleted."""
    sums: dict[str, JobUsage] = {}
    for (_, node_id), usage in usage_by_experiment_and_node(connection, now=now).items():
        sums[node_id] = sums.get(node_id, JobUsage()) + usage
    return sums


def gpu_seconds_of_ended(connection: sqlite3.Connection, experiment_id: str) -> float:
    """GPU-seconds of those jobs of an experiment that have ended."""
    return float(connection.execute(query("usage.of_ended_jobs"), {"experiment_id": experiment_id}).fetchone()[0])


def recent_gpu_jobs(connection: sqlite3.Connection, experiment_id: str) -> list[tuple[float, float, float]]:
    """(start, end, GPUs that it counts as) of the jobs with GPUs that ended in the hour before the newest end."""
    return connection.execute(query("usage.recent_jobs"), {"experiment_id": experiment_id}).fetchall()


def run_before(connection: sqlite3.Connection, trial_ids: Collection[str]) -> dict[str, float]:
    """How long the jobs of these trials ran that have ended, without their waits for verdicts, by trial id."""
    return dict(connection.execute(query("usage.run_before"), {"trial_ids": json.dumps(list(trial_ids))}).fetchall())


def _usage(
    gpu_seconds: float, cpu_seconds: float, unmeasured_jobs: float, run_seconds: float | None = None
) -> JobUsage:
    return JobUsage(gpu_seconds, cpu_seconds, int(unmeasured_jobs), run_seconds)
