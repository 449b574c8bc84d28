"""What must hold when an experiment is over, whatever was killed on the way.

`Ending` is read from the databases and files of a home whose processes have all ended; each `check_…` raises
AssertionError with what is wrong.
"""

import fcntl
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.harness import EXPERIMENT_ID

from proctor.manager.store.tables import metrics
from proctor.sdk.protocol import EXIT_FILE, STDOUT_FILE
from proctor.training_services.files.collection import NOTE_SUFFIX

TERMINAL = {"SUCCEEDED", "FAILED", "EARLY_STOPPED", "USER_CANCELED", "SYS_CANCELED"}
TEMPORARY = ("*.new", "*.tmp", ".unfinished*", ".probe*", "*-wal", "*-shm", "*-journal", "*.unreadable")


@dataclass(frozen=True)
class Ledger:
    """What one job says of itself."""

    processes: list[tuple[int, int]]
    """(pid, start time), one for each time that a process began."""
    ended: list[tuple[int, int]]
    done: list[tuple[str, float]]
    """(kind, value) of every report whose call had returned."""
    tried: list[tuple[str, float]]
    """The same of every report that was begun."""

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        """The ledger of a job."""
        entries: dict[str, list[Any]] = {"begin": [], "end": [], "done": [], "try": []}
        for line in path.read_text().splitlines():
            kind, *rest = json.loads(line)
            entries[kind].append(tuple(rest))
        return cls(entries["begin"], entries["end"], entries["done"], entries["try"])


@dataclass(frozen=True)
class Ending:
    """All that is left of an experiment."""

    home: Path
    experiment: dict[str, Any]
    experiments: list[dict[str, Any]]
    """All of the home."""
    trials: dict[str, dict[str, Any]]
    jobs: dict[str, dict[str, Any]]
    events: list[dict[str, Any]]
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The stored records of each job by its id, by their places in its journal."""
    checkpoints: dict[str, list[int]] = field(default_factory=dict)
    """The places of the records of its checkpoints."""
    offsets: dict[str, int] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """That of the experiment."""
        return Path(self.experiment["directory"])

    @classmethod
    def read(cls, home: Path, ledgers: Path, experiment_id: str = EXPERIMENT_ID) -> "Ending":
        """Read a home that no process uses any more. In it, every ledger is that of a job."""
        control = home / "control.db"
        experiments = _rows(control, "SELECT * FROM experiments")
        [experiment] = [row for row in experiments if row["id"] == experiment_id]
        [every_job] = _rows(control, "SELECT json_group_array(id) AS ids FROM trial_jobs")
        unknown = set(os.listdir(ledgers)) - set(json.loads(every_job["ids"]))
        assert not unknown, f"unknown jobs ran: {unknown}"

        def ours(table: str, order: str) -> list[dict[str, Any]]:
            statement = f"SELECT * FROM {table} WHERE experiment_id = ? ORDER BY {order}"
            return _rows(control, statement, experiment_id)

        ending = cls(
            home,
            experiment,
            experiments,
            trials={row["id"]: row for row in ours("trials", "sequence_id")},
            jobs={row["id"]: row for row in ours("trial_jobs", "trial_id, number")},
            events=ours("events", "id"),
        )
        database = ending.folder / "metrics.db"
        for row in _rows(database, "SELECT * FROM metrics ORDER BY trial_id, job, member, offset, id"):
            ending.metrics.setdefault(f"{row['trial_id']}.{row['job']}", []).append(row)
        for row in _rows(database, "SELECT * FROM checkpoints ORDER BY id"):
            ending.checkpoints.setdefault(f"{row['trial_id']}.{row['job']}", []).append(row["offset"])
        for row in _rows(database, "SELECT * FROM journals"):
            ending.offsets[f"{row['trial_id']}.{row['job']}"] = row["offset"]
        for path in ledgers.iterdir():
            if path.name in ending.jobs:
                ending.ledgers[path.name] = Ledger.read(path)
        return ending

    def jobs_of(self, trial_id: str) -> list[dict[str, Any]]:
        """A trial's jobs in the order of their numbers."""
        return [job for job in self.jobs.values() if job["trial_id"] == trial_id]

    def outcome(self) -> list[tuple[Any, ...]]:
        """What two runs of the same experiment must have in common, by parameter id: parameters, status, result, and
        the values of each trial's newest job."""
        found = []
        for trial in sorted(self.trials.values(), key=lambda row: row["parameter_id"]):
            stored = self.metrics.get(f"{trial['id']}.{trial['jobs']}", [])
            result = (trial["final_value"], trial["final_data"], trial["latest_value"], trial["intermediate_count"])
            values = [row["value"] for row in stored]
            found.append((json.loads(trial["parameters"]), trial["status"], *result, values))
        return found


def check(ending: Ending, *, trials: int, killed: Collection[str] = ()) -> None:
    """Everything.

    :param trials: how many trials the experiment has.
    :param killed: the jobs whose trial or reaper may have been killed.
    """
    check_list(ending, trials)
    check_ended_once(ending)
    check_restarts(ending, killed)
    check_processes(ending)
    check_values(ending)
    check_nothing_left(ending)


def check_work(ending: Ending, *, last: float) -> None:
    """That of jobs which continue each other: each ran once, all that they reported is stored, and nothing is left.

    :param last: the last value of each trial's curve.
    """
    check_processes(ending)
    check_reports(ending)
    check_curves(ending, last=last)
    check_nothing_left(ending)


def check_list(ending: Ending, trials: int) -> None:
    """The experiment is there, is over, and has as many trials as it should, numbered without a gap."""
    assert ending.experiment["status"] in ("DONE", "STOPPED"), ending.experiment
    inside = ending.home / "experiments"
    folders = [Path(row["directory"]) for row in ending.experiments]
    assert sorted(inside.iterdir()) == sorted(path for path in folders if path.is_relative_to(inside))
    assert [row["sequence_id"] for row in ending.trials.values()] == list(range(trials))
    assert len({row["parameter_id"] for row in ending.trials.values()}) == trials


def check_ended_once(ending: Ending) -> None:
    """Every trial and every job has one event that says that it ended, and nothing after it."""
    ends = Counter(trial for trial, status in _status_events(ending, "trial.status", "trial_id") if status in TERMINAL)
    assert ends == Counter(ending.trials.keys()), f"ends of trials: {ends}"
    last = dict(_status_events(ending, "trial.status", "trial_id"))
    assert last == {key: row["status"] for key, row in ending.trials.items()}
    ends = Counter(job for job, status in _status_events(ending, "job.status", "job_id") if status == "ENDED")
    assert ends == Counter(ending.jobs.keys()), f"ends of jobs: {ends}"


def check_restarts(ending: Ending, killed: Collection[str]) -> None:
    """A trial has one job, and one more for each of its jobs that was killed before its final metric was reported;
    every end has its reason."""
    for trial_id, trial in ending.trials.items():
        jobs = ending.jobs_of(trial_id)
        assert [job["number"] for job in jobs] == list(range(1, trial["jobs"] + 1))
        for job in jobs[:-1]:
            assert job["id"] in killed, f"{job['id']} was run again although it was not killed: {job}"
            assert job["end_reason"] in ("SIGNALED", "EXIT_UNKNOWN"), job
            assert not list(_finals(ending, job["id"])), f"{job['id']} was run again though its final metric is stored"
        if jobs[-1]["end_reason"] in ("SIGNALED", "EXIT_UNKNOWN"):
            assert jobs[-1]["id"] in killed, jobs[-1]
            assert list(_finals(ending, jobs[-1]["id"])), f"{jobs[-1]} ended its trial without a final metric"
        else:
            assert jobs[-1]["end_reason"] in ("EXITED_OK", "EARLY_STOPPED"), jobs[-1]
        stopped = jobs[-1]["end_reason"] == "EARLY_STOPPED"
        assert trial["status"] == ("EARLY_STOPPED" if stopped else "SUCCEEDED"), trial


def check_processes(ending: Ending) -> None:
    """Each job was one process, the one that the manager names, from its beginning to its end."""
    for job_id, job in ending.jobs.items():
        ledger = ending.ledgers.get(job_id)
        if ledger is None:
            assert job["end_reason"] != "EXITED_OK", f"{job_id} ended well, and never began"
            continue
        assert len(ledger.processes) == 1, f"{job_id} was started {len(ledger.processes)} times"
        assert job["pid"] in (ledger.processes[0][0], None), f"{job_id}: {job['pid']} and {ledger.processes}"
        if job["end_reason"] == "EXITED_OK":
            assert ledger.ended == ledger.processes, job_id


def check_values(ending: Ending) -> None:
    """What the jobs have reported is stored (`check_reports`), and of it each trial shows what its newest job has
    reported."""
    check_reports(ending)
    for trial in ending.trials.values():
        finals = [row["value"] for job in ending.jobs_of(trial["id"]) for row in _finals(ending, job["id"])]
        assert trial["final_value"] == (finals[0] if finals else None), f"{trial['id']}: of {finals} shown is {trial}"
        newest = [row for row in ending.metrics.get(f"{trial['id']}.{trial['jobs']}", []) if row["kind"] != "final"]
        assert trial["intermediate_count"] == len(newest), f"{trial['id']}: {newest}, shown {trial}"
        assert trial["latest_value"] == (newest[-1]["value"] if newest else None), f"{trial['id']}: {trial}"


def check_reports(ending: Ending) -> None:
    """What a job says it has reported is stored once, in order; and is at the place in the journal where it stands."""
    for job_id, ledger in ending.ledgers.items():
        rows = ending.metrics.get(job_id, [])
        values = [(row["kind"], row["value"]) for row in rows]
        assert values[: len(ledger.done)] == ledger.done, f"{job_id} reported {ledger.done}, stored is {values}"
        assert values in (ledger.done, ledger.tried), f"{job_id} tried {ledger.tried}, stored is {values}"
        assert [row["id"] for row in rows] == sorted(row["id"] for row in rows), f"{job_id}: stored out of order"
        _check_journal(ending, job_id)


def check_curves(ending: Ending, *, last: float) -> None:
    """The curve of each trial counts up by one to `last`, without a gap and nothing twice: from what the job of its
    first point says it began with, which is 1 in a trial that began with no other trial's checkpoint. Each point is
    one that the job which it names says it reported."""
    with closing(sqlite3.connect(ending.folder / "metrics.db")) as connection:
        for trial_id, trial in ending.trials.items():
            points = [(point.job, point.value) for point in metrics.curve(connection, trial_id)]
            said = {
                job["number"]: [value for kind, value in ledger.tried if kind == "intermediate"]
                for job in ending.jobs_of(trial_id)
                if (ledger := ending.ledgers.get(job["id"])) is not None
            }
            what = f"the curve of {trial} is {points}; its jobs reported {said}"
            if not points:
                assert trial["origin_job"] is not None, what  # its donor had nothing left to do
                continue
            first = said[points[0][0]][0]
            assert [value for _, value in points] == [first + place for place in range(len(points))], what
            assert points[-1][1] == last, what
            assert first == 1.0 or trial["origin_job"] is not None, what
            assert all(value in said[job] for job, value in points), what
            assert trial["intermediate_count"] == len(points), what


def check_continued(ending: Ending, may_die: Collection[str]) -> None:
    """Every trial has succeeded; each of its jobs but the last was paused, which at least one was, or may have been
    killed."""
    reasons = set()
    for trial_id, trial in ending.trials.items():
        assert trial["status"] == "SUCCEEDED", trial
        *others, last = ending.jobs_of(trial_id)
        for job in others:
            assert job["end_reason"] == "PAUSED" or job["id"] in may_die, job
        assert last["end_reason"] == "EXITED_OK" or trial["final_value"] is not None, last
        reasons |= {job["end_reason"] for job in others}
    assert "PAUSED" in reasons, "nothing was paused"


def check_nothing_left(ending: Ending, *, but: Set[str] = frozenset()) -> None:
    """No lock is held, no temporary file and no half of anything is left.

    :param but: names of files that may be left.
    """
    unbegun = {
        job_id
        for job_id, job in ending.jobs.items()
        if job["stop_reason"] is not None and job["pid"] is None and job_id not in ending.ledgers
    }
    rooms = set(_rooms_of_unwritten_launches(ending, unbegun))
    for pattern in TEMPORARY:
        paths = {*ending.home.rglob(pattern), *ending.folder.rglob(pattern)} - rooms
        found = {path for path in paths if path.name not in but}
        assert not found, f"left behind: {sorted(found)}"
    locks = [ending.home / "manager.lock", ending.home / "nodes/local/keeper.lock"]
    for path in locks:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not (ending.home / "manager.json").exists()
    for folder in ("incoming", "nodes/local/jobs"):
        assert not (names := os.listdir(ending.home / folder)), f"left behind in {folder}: {names}"
    stays = {"socket", "endpoint", "port"}  # the pointers, for keepers that wait, and the port to come back on
    assert set(os.listdir(ending.home / "run")) <= stays, os.listdir(ending.home / "run")
    assert not Path((ending.home / "run" / "socket").read_text()).exists()
    numbers = Counter(job["trial_id"] for job in ending.jobs.values())
    assert numbers == {key: row["jobs"] for key, row in ending.trials.items()}, "each job of a trial is stored"
    files = (ending.folder / "trials").glob("*/jobs/*")
    folders = {path.with_name(path.name.removesuffix(NOTE_SUFFIX)) for path in files}
    wanted = {_folder_of(ending, job_id) for job_id in ending.jobs}
    assert folders <= wanted, f"folders without a job: {folders - wanted}"
    missing = wanted - folders - {_folder_of(ending, job_id) for job_id in unbegun}
    assert not missing, f"jobs without a folder: {missing}"


def _rooms_of_unwritten_launches(ending: Ending, unbegun: Collection[str]) -> Iterator[Path]:
    """The room for the ends of jobs that were stopped before a keeper had written their launch down.

    A keeper makes the folder of a job, with that room in it, before it writes the launch down. If it is killed between
    the two and the job is stopped before the next keeper registers, that one never hears of the job. Nothing is lost:
    no process of the job began. 68 KiB (this file, and the reserve) stay allocated until the experiment is deleted. To
    give them back, each launch would have to be written down twice.
    """
    for job_id in unbegun:
        folder = _folder_of(ending, job_id)
        if not (folder / STDOUT_FILE).exists() and not (folder / EXIT_FILE).exists():
            yield folder / f"{EXIT_FILE}.new"


def _folder_of(ending: Ending, job_id: str) -> Path:
    trial_id, _, number = job_id.rpartition(".")
    return ending.folder / "trials" / f"{ending.trials[trial_id]['sequence_id']}-{trial_id}" / "jobs" / number


def _check_journal(ending: Ending, job_id: str) -> None:
    """The journal's file and what is stored of it are the same."""
    data, place, places = (_folder_of(ending, job_id) / "journal").read_bytes(), 0, []
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n"):
            places.append(place)
        place += len(line)
    stored = [row["offset"] for row in ending.metrics.get(job_id, [])]
    assert sorted([*stored, *ending.checkpoints.get(job_id, [])]) == places, job_id
    assert ending.offsets.get(job_id, 0) == data.rfind(b"\n") + 1, job_id


def _finals(ending: Ending, job_id: str) -> Iterator[dict[str, Any]]:
    return (row for row in ending.metrics.get(job_id, []) if row["kind"] == "final")


def _status_events(ending: Ending, kind: str, owner: str) -> Iterator[tuple[str, str]]:
    return ((row[owner], json.loads(row["data"])["status"]) for row in ending.events if row["kind"] == kind)


def _rows(path: Path, statement: str, *values: object) -> list[dict[str, Any]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(statement, values)]
    finally:
        connection.close()
