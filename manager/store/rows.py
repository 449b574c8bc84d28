"""Rows of the two databases as frozen dataclasses: fields are the columns, in the tables' order.

JSON columns hold Python objects, statuses and reasons their enums, times Unix seconds. `from_row` reads what
`SELECT *` gives; `to_columns` gives what an INSERT binds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Self

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.json_columns import decode, decode_optional, encode
from proctor.training_services.base import EndReason, TrialJobStatus

Json = Any
JsonObject = dict[str, Any]
SqlValue = str | int | float | None

_READ = "read"  # metadata: how a column's SQL value becomes the field's value
_JSON = "json"  # metadata: the column holds JSON text


def _end_reason(value: str | None) -> EndReason | None:
    return None if value is None else EndReason(value)


def _status(kind: Callable[[str], Any]) -> Any:
    return field(metadata={_READ: kind})


def _json(*, default: Any = ...) -> Any:
    if default is ...:
        return field(metadata={_READ: decode, _JSON: True})
    return field(default=default, metadata={_READ: decode_optional, _JSON: True})


def _reason() -> Any:
    return field(default=None, metadata={_READ: _end_reason})


_readers: dict[type, tuple[tuple[int, Callable[[Any], Any]], ...]] = {}


class Row:
    """What all rows can do."""

    __slots__ = ()

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Self:
        """The row that `SELECT *` gave."""
        readers = _readers.get(cls)
        if readers is None:
            columns = enumerate(fields(cls))  # type: ignore[arg-type]
            readers = tuple((index, item.metadata[_READ]) for index, item in columns if _READ in item.metadata)
            _readers[cls] = readers
        values = list(row)
        for index, read in readers:
            values[index] = read(values[index])
        return cls(*values)

    def to_columns(self) -> dict[str, SqlValue]:
        """The row's columns as SQL values."""
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        return bind(type(self), {name: getattr(self, name) for name in names})


def bind(row_type: type[Row], values: Mapping[str, Any]) -> dict[str, SqlValue]:
    """SQL values for some columns of a row type. Raises TypeError naming a column that it does not have."""
    known = {item.name: item for item in fields(row_type)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise TypeError(f"{row_type.__name__} has no column {unknown[0]!r}; its columns are {', '.join(known)}")
    return {name: _to_sql(value, known[name].metadata) for name, value in values.items()}


def _to_sql(value: Any, metadata: Mapping[str, Any]) -> SqlValue:
    if value is None:
        return None
    if _JSON in metadata:
        return encode(value)
    return value.value if isinstance(value, Enum) else value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ExperimentRow(Row):
    """One experiment. `revision` counts the changes of its limits."""

    id: str
    name: str
    status: ExperimentStatus = _status(ExperimentStatus)
    config: JsonObject = _json()
    search_space: JsonObject = _json()
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


@dataclass(frozen=True, slots=True)
class TrialRow(Row):
    """One trial; parameters are those of its newest job."""

    id: str
    experiment_id: str
    sequence_id: int
    status: TrialStatus = _status(TrialStatus)
    parameter_id: int
    parameters: JsonObject = _json()
    created_at: float
    reason: str = ""
    state: Json = _json(default=None)
    position: int | None = None
    source: str = "algorithm"
    jobs: int = 0
    failures: int = 0
    infrastructure_failures: int = 0
    not_before: float | None = None
    intermediate_count: int = 0
    latest_value: float | None = None
    final_value: float | None = None
    final_data: Json = _json(default=None)
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class TrialJobRow(Row):
    """One attempt to run a trial. `token` fences off every report and change of an older attempt."""

    id: str
    trial_id: str
    experiment_id: str
    number: int
    token: str
    status: TrialJobStatus = _status(TrialJobStatus)
    parameter_id: int
    parameters: JsonObject = _json()
    members: int = 1
    stop_reason: EndReason | None = _reason()
    end_reason: EndReason | None = _reason()
    detail: str = ""
    parent_job: str | None = None
    resumed_from_job: str | None = None
    resumed_from_step: int | None = None
    resume_checkpoint: str | None = None
    placement: JsonObject | None = _json(default=None)
    node_id: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    code_fingerprint: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class InputRow(Row):
    """One thing that an experiment's dispatcher was told."""

    experiment_id: str
    position: int
    kind: str
    payload: JsonObject = _json()


@dataclass(frozen=True, slots=True)
class EventRow(Row):
    """One change, in the order of its id."""

    id: int
    time: float
    experiment_id: str | None
    trial_id: str | None
    job_id: str | None
    kind: str
    data: JsonObject = _json()


@dataclass(frozen=True, slots=True)
class NodeRow(Row):
    """One node of the manager-wide pool."""

    id: str
    kind: str
    status: str
    reason: str = ""
    facts: JsonObject = field(default_factory=dict, metadata={_READ: decode, _JSON: True})
    seen_at: float | None = None


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
    data: Json = _json(default=None)
    time: float = 0.0

    @property
    def reported(self) -> Json:
        """What the trial reported: the number, or the data where it is more than a finite number."""
        return self.value if self.data is None else self.data


@dataclass(frozen=True, slots=True)
class CheckpointRow(Row):
    """One registered checkpoint. `sequence` is the number of points its trial's curve had before it."""

    id: int
    trial_id: str
    job: int
    member: int
    offset: int
    step: int | None
    path: str
    sequence: int
    time: float
