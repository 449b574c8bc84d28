"""The place of a database's home: one row, and what changes in all tables when the home was moved or copied."""

import json
import os
import secrets
import sqlite3
from dataclasses import dataclass

from proctor.manager.lifecycle.experiment import EXPERIMENT, ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.lifecycle.trial import TRIAL, TrialEvent
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.statements import query
from proctor.manager.store.tables import events, experiments, jobs, trials
from proctor.training_services.base import EndReason, TrialJobStatus

_CUT_OFF = "it runs under the home that this one was copied from"
_PATHS = ("experiments", "jobs", "checkpoint_offers", "trials", "decisions")
"""The statements `home.move_*`: every column that may hold a path below the home."""


@dataclass(frozen=True)
class FileIdentity:
    """The identity of a file, whatever its name: a copy is another file. `born` is Unix time in ns; 0: not known."""

    inode: int
    born: int = 0

    def is_same(self, other: "FileIdentity") -> bool:
        """Return whether both are one file, as far as is known."""
        return self.inode == other.inode and (self.born == other.born or 0 in (self.born, other.born))


@dataclass(frozen=True)
class HomePlace:
    """The absolute path of a home, and the identity of its manager.lock."""

    path: str
    lock: FileIdentity


def read(connection: sqlite3.Connection) -> HomePlace | None:
    """Return what is written down; None if an earlier version has made the database."""
    if not connection.execute(query("home.has_place")).fetchone():
        return None
    path, lock = connection.execute(query("home.place")).fetchone()
    return None if path is None else HomePlace(path, FileIdentity(*map(int, lock.split(":"))))


def record(connection: sqlite3.Connection, place: HomePlace) -> None:
    """Write down where the home is now."""
    lock = f"{place.lock.inode}:{place.lock.born}"
    connection.execute(query("home.set_place"), {"path": place.path, "lock": lock})


def move(connection: sqlite3.Connection, old: str, new: str, *, time: float) -> list[ExperimentRow]:
    """Give every path below the home `old` as it is below `new`. Returns the experiments whose folders are elsewhere,
    each with a notice that names its folder."""
    values = {"old": old, "new": new, "old_text": json_prefix(old), "new_text": json_prefix(new)}
    for name in _PATHS:
        statement = query(f"home.move_{name}")
        connection.execute(statement, values)
    elsewhere = outside(connection, new)
    for row in elsewhere:
        text = f"the home was moved from {old} to {new}; the folder of this experiment, {row.directory}, is outside it"
        events.append(connection, time=time, kind=events.NOTICE, data={"text": text}, experiment_id=row.id)
    return elsewhere


def json_prefix(path: str) -> str:
    """Return how a JSON text spells the beginning of a path below this one."""
    return f"{json.dumps(path)[:-1]}/"


def outside(connection: sqlite3.Connection, home: str) -> list[ExperimentRow]:
    """Return the experiments whose folders are not below the home."""
    found = [key for key, folder in experiments.folders(connection).items() if not folder.startswith(f"{home}/")]
    return [experiments.get(connection, experiment_id) for experiment_id in found]


def detach(connection: sqlite3.Connection, *, time: float) -> None:
    """Make the database of a copied home that of a new one, which owns nothing outside it, nor what a link in it leads
    to. What ran when it was copied is over here, and what was stored in a checkpointStorage is only read. Call it after
    `move`."""
    home = os.path.realpath(connection.execute(query("home.place")).fetchone()[0])
    for experiment_id, folder in experiments.folders(connection).items():
        if not os.path.realpath(folder).startswith(f"{home}/"):
            connection.execute(query("experiments.delete"), {"id": experiment_id})
    for name in ("forget_storages", "forget_marks", "forget_nodes", "forget_clean_ups"):
        connection.execute(query(f"home.{name}"))
    for job, _ in jobs.all_live(connection):
        jobs.move(
            connection,
            job.id,
            token=job.token,
            expected=[job.status],
            status=TrialJobStatus.ENDED,
            time=time,
            end_reason=EndReason.EXPERIMENT_STOPPED,
            detail=_CUT_OFF,
            ended_at=time,
            counted_gpus=0.0,  # how long it ran is not known here
            run_seconds=0.0,
        )
    for experiment in experiments.active(connection):
        if not experiment.status.has_ended:
            _stop(connection, experiment, time)
    connection.execute(query("home.set_id"), {"id": secrets.token_hex(16)})


def _stop(connection: sqlite3.Connection, experiment: ExperimentRow, time: float) -> None:
    for trial in trials.live(connection, experiment.id):
        trials.move(
            connection,
            trial.id,
            expected=[trial.status],
            status=TRIAL.after(f"trial {trial.id}", trial.status, TrialEvent.WAIT),
            paused_by=None,
            reason="waiting: the home was copied; resume the experiment to run it here",
            time=time,
        )
    status = experiment.status
    if status is not ExperimentStatus.STOPPING:
        status = EXPERIMENT.after(f"experiment {experiment.id}", status, ExperimentEvent.STOP)
    experiments.move(
        connection,
        experiment.id,
        expected=[experiment.status],
        status=EXPERIMENT.after(f"experiment {experiment.id}", status, ExperimentEvent.FINISH_STOP),
        reason=f"the home was copied while this experiment was {experiment.status}; resume it to continue it here",
        time=time,
        ended_at=time,
    )
