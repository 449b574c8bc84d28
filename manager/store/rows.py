"""Rows of the two databases as frozen dataclasses: fields are the columns, in the tables' order.

JSON columns hold Python objects, statuses and reasons their enums, times Unix seconds. `from_row` reads what
`SELECT *` gives; `to_columns` gives what an INSERT binds. How a column is converted follows from its field's type.

A change is guarded: one statement that names what it expects to find (`move_row`). No row changed means stale, and that
raises.
"""

import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

from proctor.manager.lifecycle.experiment_failures import TrialEnds
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind, PausedBy
from proctor.manager.store.errors import RowNotFound, StaleWrite
from proctor.manager.store.statements import decode, encode, query, query_with
from proctor.sdk.json_input import clean_text
from proctor.training_services.base import EndReason, TrialJobStatus

SqlValue = str | int | float | None

_JSON = "JSON"
JsonObject = Annotated[dict[str, Any], _JSON]
JsonTexts = Annotated[list[str], _JSON]
JsonValue = Annotated[Any, _JSON]  # None is SQL's NULL
JsonWhole = Annotated[Any, _JSON, "null"]  # None is JSON's null, in columns that are never NULL


def trial_end_columns(ends: TrialEnds) -> dict[str, Any]:
    """The columns of an experiment's row that hold these counts."""
    return {
        "ended_trials": ends.ended,
        "failed_trials": ends.failed,
        "alike_failures": ends.alike,
        "failure_cause": ends.cause,
        "trials_without_final": ends.without_final,
    }


class Row:
    """What all rows can do."""

    __slots__ = ()

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Self:
        """The row that `SELECT *` gave."""
        values = list(row)
        for index, read in _readers[cls]:
            value = values[index]
            if value is not None:
                values[index] = read(value)
        return cls(*values)

    def to_columns(self) -> dict[str, SqlValue]:
        """The row's columns as SQL values."""
        return bind(type(self), {name: getattr(self, name) for name in _columns[type(self)]})


R = TypeVar("R", bound=Row)


def bind(row_type: type[Row], values: Mapping[str, Any]) -> dict[str, SqlValue]:
    """SQL values for some columns of a row type. Raises TypeError naming a column that it does not have."""
    columns = _columns[row_type]
    for name in values:
        if name not in columns:
            raise TypeError(f"{row_type.__name__} has no column {name!r}; its columns are {', '.join(columns)}")
    return {name: _to_sql(value, columns[name]) for name, value in values.items()}


def _to_sql(value: Any, read: Callable[[Any], Any] | None) -> SqlValue:
    if read is _decode_whole:
        return encode(value)
    if isinstance(value, str) and read is None:
        return clean_text(value)
    if value is None or read is None:
        return value  # type: ignore[no-any-return]
    return encode(value) if read is decode else str(value.value)


def _decode_whole(text: str) -> Any:
    return decode(text)


def _choose_reader(hint: Any) -> Callable[[Any], Any] | None:
    if get_origin(hint) is Annotated and _JSON in hint.__metadata__:
        return _decode_whole if "null" in hint.__metadata__ else decode
    for candidate in (hint, *get_args(hint)):
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            return candidate
        if get_origin(candidate) is Annotated:
            return decode
    return None


@dataclass(frozen=True, slots=True)
class ExperimentRow(Row):
    """One experiment. `revision` counts the changes of its limits."""

    id: str
    name: str
    status: ExperimentStatus
    config: JsonObject
    search_space: JsonWhole
    directory: str
    seed: int
    created_at: float
    trial_concurrency: int
    max_trial_number: int | None = None
    max_experiment_seconds: float | None = None
    max_trial_seconds: float | None = None
    reason: str = ""
    error: str = ""
    next_sequence_id: int = 0
    next_parameter_id: int = 0
    next_position: int = 1
    metrics_told: int = 0
    active_seconds: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    revision: int = 1
    clean_up_owed: int = 0  # 1: it was stopped, and its platform has not cleaned up after it yet
    resumes: int = 0
    ended_trials: int = 0
    failed_trials: int = 0
    alike_failures: int = 0
    failure_cause: str = ""
    trials_without_final: int = 0
    max_gpu_hours: float | None = None
    priority: int = 0
    tags: JsonTexts = field(default_factory=list)
    archived: int = 0  # 1: it is not listed once it has ended
    rules: int = 1  # the version of the rules by which built-in algorithms decide; 1: before there were versions

    @property
    def trial_ends(self) -> TrialEnds:
        """What is counted of the trials that have ended."""
        return TrialEnds(
            ended=self.ended_trials,
            failed=self.failed_trials,
            alike=self.alike_failures,
            cause=self.failure_cause,
            without_final=self.trials_without_final,
        )

    @property
    def max_failed_trials(self) -> int | None:
        """How many failed trials end the experiment; experiments of earlier versions do not say."""
        found = self.config.get("max_failed_trials")
        return None if found is None else int(found)

    @property
    def report_from(self) -> int:
        """The rank whose metrics and checkpoints are the trial's; experiments of earlier versions do not name it."""
        return int(self.config.get("report_from", 0))


@dataclass(frozen=True, slots=True)
class TrialRow(Row):
    """One trial; parameters are those of its newest job."""

    id: str
    experiment_id: str
    sequence_id: int
    status: TrialStatus
    parameter_id: int
    parameters: JsonWhole
    created_at: float
    reason: str = ""
    state: JsonValue = None
    position: int | None = None
    source: str = "algorithm"
    jobs: int = 0
    failures: int = 0
    infrastructure_failures: int = 0
    not_before: float | None = None
    intermediate_count: int = 0
    latest_value: float | None = None
    final_value: float | None = None
    final_data: JsonValue = None
    started_at: float | None = None
    ended_at: float | None = None
    fruitless_jobs: int = 0
    """How many of its newest jobs have ended without a report or a checkpoint."""
    origin_trial: str | None = None
    """The trial that it was cloned or retried from."""
    origin_job: str | None = None
    """The job whose checkpoint it begins with, if it does."""
    origin_checkpoint: str | None = None
    paused_by: PausedBy | None = None
    """Who has paused it or is pausing it; None: it is not paused."""


@dataclass(frozen=True, slots=True)
class TrialJobRow(Row):
    """One attempt to run a trial. `token` fences off every report and change of an older attempt."""

    id: str
    trial_id: str
    experiment_id: str
    number: int
    token: str
    status: TrialJobStatus
    parameter_id: int
    parameters: JsonWhole
    members: int = 1
    stop_reason: EndReason | None = None
    end_reason: EndReason | None = None
    detail: str = ""
    parent_job: str | None = None
    resumed_from_job: str | None = None
    resumed_from_step: int | None = None
    resume_checkpoint: str | None = None
    placement: JsonObject | None = None
    node_id: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    code_fingerprint: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    start_reason: str = ""
    resume_node_id: str | None = None
    stop_position: int | None = None
    save_until: float | None = None
    """Unix time until which the trial may save in a soft stop."""
    resumes: int = 0
    """How often its experiment had been resumed when it was submitted."""
    counted_gpus: float = 0.0
    """How many GPUs it counts as; a share of one that n trials may share counts 1/n."""
    cpu_seconds: float | None = None
    """Processor time of all its processes, once it has ended; None where it is not known."""
    checkpoints: JsonValue = None
    """What its service was offered to continue from, in order (`CheckpointOffer`)."""
    stopped_by: str | None = None
    """Who has asked for its stop, as `Actor.to_text` gives it; None where its end has another cause."""
    run_seconds: float | None = None
    """How long it has run, once it has ended, by a clock that nothing sets; None where that is not known."""
    verdict_seconds: float = 0.0
    """For how many of them it waited for verdicts of its trial scheduler."""
    start_moment: str | None = None
    """When it began, as `Clock.moment` has it; None where that is not known."""
    runs_since: float | None = None
    """The same by `Clock.steady` of the manager that runs; how long a running job has run is counted from it."""

    @property
    def seconds(self) -> float:
        """How long a job ran that has ended; by its machine's clock where nothing else tells. The store's triggers and
        queries count the same."""
        if self.started_at is None or self.ended_at is None:
            return 0.0
        return max(self.ended_at - self.started_at, 0.0) if self.run_seconds is None else self.run_seconds

    def seconds_until(self, now: float) -> float | None:
        """Return how long a job has run that runs; None before it begins.

        :param now: `Clock.steady`.
        """
        began = self.started_at if self.runs_since is None else self.runs_since
        return None if began is None else max(now - began, 0.0)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds of a job that has ended."""
        return self.counted_gpus * self.seconds

    @property
    def keeper_node(self) -> str | None:
        """The node that the manager has placed the job on, whose keeper reports it. None: its training service places
        by itself, and `node_id` is what that calls the machine."""
        return None if self.placement is None else self.node_id


@dataclass(frozen=True, slots=True)
class InputRow(Row):
    """One input of an experiment's dispatcher."""

    experiment_id: str
    position: int
    kind: str
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class DecisionRow(Row):
    """What an algorithm has decided of a trial that exists, in answer to the request for `parameter_id`."""

    experiment_id: str
    parameter_id: int
    position: int
    kind: DecisionKind
    trial_id: str
    decided_at: float
    parameters: JsonValue = None
    state: JsonValue = None
    donor_trial: str | None = None
    donor_job: str | None = None
    donor_checkpoint: str | None = None
    donor_node: str | None = None
    donor_sequence: int | None = None
    job: int | None = None
    """Number of the job that began with it; 0: it came too late for its trial; None: it is to be carried out."""
    reason: str = ""
    """The algorithm's, as a clause."""

    @property
    def is_clone(self) -> bool:
        """Whether the trial continues from a checkpoint of another one."""
        return self.donor_job is not None


@dataclass(frozen=True, slots=True)
class EventRow(Row):
    """One change, in the order of its id."""

    id: int
    time: float
    experiment_id: str | None
    trial_id: str | None
    job_id: str | None
    kind: str
    data: JsonObject
    actor: str | None = None
    """Who has caused it, as `Actor.to_text` writes it; None: it is older than version 18."""


@dataclass(frozen=True, slots=True)
class NodeRow(Row):
    """One node of the manager-wide pool."""

    id: str
    kind: str
    status: str
    reason: str = ""
    facts: JsonObject = field(default_factory=dict)
    seen_at: float | None = None
    hold: str = ""


@dataclass(frozen=True, slots=True)
class SavedViewRow(Row):
    """The address of one of an experiment's pages under a name. `saved_by` is the name of a token."""

    experiment_id: str
    name: str
    page: str
    query: str
    saved_at: float
    saved_by: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerTablesRow(Row):
    """What people see of an experiment's trial scheduler: tables, in which trials have their numbers."""

    experiment_id: str
    tables: JsonValue
    updated_at: float


@dataclass(frozen=True, slots=True)
class MetricRow(Row):
    """One record of a journal. `sequence` is an intermediate metric's place in its trial's curve."""

    id: int
    trial_id: str
    job: int
    member: int
    offset: int
    kind: str
    sequence: int
    step: int | None
    value: float | None
    data: JsonValue = None
    time: float = 0.0
    seconds: float | None = None
    """How long its job had run, by a clock that nothing sets, without its waits for verdicts; None: not known."""

    @property
    def reported(self) -> Any:
        """What the trial reported: the number, or the data where it is more than a finite number."""
        return self.value if self.data is None else self.data


@dataclass(frozen=True, slots=True)
class CheckpointRow(Row):
    """One registered checkpoint. `path` is relative to its job's directory; `sequence` is the number of points that its
    trial's curve had before it. `with_metric`: 1 when the last of them was reported together with it, 0 when none was,
    None when its record does not say so. `bytes` is the size of its files, `manifest` the SHA-256 of its manifest; None
    in records of earlier versions. `value` is that of the metric reported with it or last before it. `deleted_at`: when
    it was decided to delete its files; `removed_at`: when they were gone from its node. `expendable`: an
    `Expendability`, None before it was decided over."""

    id: int
    trial_id: str
    job: int
    member: int
    offset: int
    step: int | None
    path: str
    sequence: int
    time: float
    with_metric: int | None = None
    bytes: int | None = None
    manifest: str | None = None
    deleted_at: float | None = None
    value: float | None = None
    expendable: int | None = None
    removed_at: float | None = None


_ROW_TYPES: tuple[type[Row], ...] = (
    ExperimentRow, TrialRow, TrialJobRow, InputRow, DecisionRow, EventRow, NodeRow, SavedViewRow,
    SchedulerTablesRow, MetricRow, CheckpointRow,
)  # fmt: skip

# Of every row type, every column with how its SQL value is read (None: as it is).
_columns: dict[type[Row], dict[str, Callable[[Any], Any] | None]] = {
    row_type: {name: _choose_reader(hint) for name, hint in get_type_hints(row_type, include_extras=True).items()}
    for row_type in _ROW_TYPES
}
_readers: dict[type[Row], tuple[tuple[int, Callable[[Any], Any]], ...]] = {
    row_type: tuple((index, read) for index, read in enumerate(columns.values()) if read is not None)
    for row_type, columns in _columns.items()
}


# ---- guarded changes ------------------------------------------------------------------------------------------------


def insert_row(connection: sqlite3.Connection, table: str, row: Row) -> None:
    """Insert a whole row. Raises sqlite3.IntegrityError when its id is taken."""
    columns = row.to_columns()
    connection.execute(query_with(f"{table}.insert", columns), columns)


def get_row(connection: sqlite3.Connection, table: str, row_type: type[R], row_id: str) -> R:
    """Raises RowNotFound."""
    found = connection.execute(query(f"{table}.get"), {"id": row_id}).fetchone()
    if found is None:
        raise _not_found(table, row_id)
    return row_type.from_row(found)


def move_row(
    connection: sqlite3.Connection,
    table: str,
    row_type: type[R],
    row_id: str,
    *,
    expected: Collection[Enum],
    columns: Mapping[str, Any],
    token: str | None = None,
) -> tuple[Any, ...]:
    """Change `columns` if the row's status is an expected one (and its token is `token`); what the statement returns of
    the new row.

    Raises StaleWrite or RowNotFound.
    """
    values: dict[str, SqlValue] = bind(row_type, columns)
    statement = query_with(f"{table}.move", values)
    values |= {"id": row_id, "expected": encode([status.value for status in expected]), "fencing_token": token}
    rows = connection.execute(statement, values).fetchall()
    if not rows:
        raise _stale(connection, table, row_type, row_id, expected, token)
    return tuple(rows[0])


def update_row(
    connection: sqlite3.Connection,
    table: str,
    row_type: type[R],
    row_id: str,
    columns: Mapping[str, Any],
    token: str | None = None,
) -> None:
    """Change columns that are no status and need no event. Raises RowNotFound, or StaleWrite for an old token."""
    if not columns:
        return
    values = bind(row_type, columns)
    statement = query_with(f"{table}.update", values)
    if connection.execute(statement, values | {"id": row_id, "fencing_token": token}).rowcount == 0:
        raise _stale(connection, table, row_type, row_id, (), token)


def _stale(
    connection: sqlite3.Connection,
    table: str,
    row_type: type[R],
    row_id: str,
    expected: Collection[Enum],
    token: str | None,
) -> RowNotFound | StaleWrite:
    found = connection.execute(query(f"{table}.get"), {"id": row_id}).fetchone()
    if found is None:
        return _not_found(table, row_id)
    row: Any = row_type.from_row(found)
    if token is not None and row.token != token:
        return StaleWrite(f"{_name(table, row_id)} has another fencing token: this is about an older attempt.")
    wanted = " or ".join(status.value for status in expected)
    return StaleWrite(f"{_name(table, row_id)} was expected to be {wanted}; it is {row.status.value}.")


def _not_found(table: str, row_id: str) -> RowNotFound:
    return RowNotFound(f"{_name(table, row_id)} is not in the store.")


def _name(table: str, row_id: str) -> str:
    return {"experiments": "Experiment", "trials": "Trial", "jobs": "Trial job"}.get(table, table) + f" {row_id}"
