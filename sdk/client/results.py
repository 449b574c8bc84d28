"""The outcome of an experiment, read once: its trials, the best one, curves, and what failed.

What `Experiment` returns has the field names of NNI's Python API.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from proctor.sdk.client.flattening import flatten, metric_fields
from proctor.sdk.client.transport import JsonObject
from proctor.sdk.metrics import DEFAULT_KEY, from_json_word
from proctor.sdk.protocol import STDERR_FILE

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client


@dataclass(frozen=True)
class TrialHyperParameters:
    """One set of parameters a trial was given: a dictionary, or any JSON value that a custom tuner proposed."""

    parameters: Any
    parameter_id: int
    parameter_source: str
    parameter_index: int = 0
    """NNI's; a trial has one set of parameters."""


@dataclass(frozen=True)
class TrialMetricData:
    """One report. `timestamp` is in milliseconds, `type` PERIODICAL or FINAL, `data` the number or object."""

    timestamp: int
    trialJobId: str
    parameterId: str
    type: str
    sequence: int
    data: Any


@dataclass(frozen=True)
class TrialResult:
    """The parameters and the final metric of one trial."""

    parameter: Any
    value: Any
    trialJobId: str


@dataclass(frozen=True)
class TrialJob:
    """One trial. Times are in milliseconds."""

    trialJobId: str
    status: str
    sequenceId: int
    hyperParameters: list[TrialHyperParameters]
    logPath: str
    startTime: int | None = None
    endTime: int | None = None
    finalMetricData: list[TrialMetricData] = field(default_factory=list)
    stderrPath: str = ""
    """Of its newest attempt; where the file lies on another machine, it is collected when the trial has ended."""
    reason: str = ""

    @classmethod
    def from_resource(cls, trial: JsonObject) -> "TrialJob":
        """A trial as the REST API gives it."""
        parameters = TrialHyperParameters(trial["parameters"], trial["parameter_id"], trial["source"])
        ended = milliseconds(trial["ended_at"])
        finals = []
        if trial["final_value"] is not None or trial["final_data"] is not None:
            data = trial["final_data"] if trial["final_data"] is not None else trial["final_value"]
            identifier = str(trial["parameter_id"])
            finals.append(TrialMetricData(ended or 0, trial["id"], identifier, "FINAL", 0, numbers(data)))
        return cls(
            trialJobId=trial["id"],
            status=trial["status"],
            sequenceId=trial["sequence_id"],
            hyperParameters=[parameters],
            logPath=trial["directory"],
            startTime=milliseconds(trial["started_at"]),
            endTime=ended,
            finalMetricData=finals,
            stderrPath=f"{trial['directory']}/jobs/{trial['jobs']}/{STDERR_FILE}" if trial["jobs"] else "",
            reason=trial["reason"],
        )


def metric_data(metrics: Iterable[JsonObject], parameter_id: int) -> list[TrialMetricData]:
    """The reports of one trial; records that were lost or could not be read are left out."""
    kinds = {"intermediate": "PERIODICAL", "final": "FINAL"}
    return [
        TrialMetricData(
            timestamp=milliseconds(metric["time"]) or 0,
            trialJobId=metric["trial_id"],
            parameterId=str(parameter_id),
            type=kinds[metric["kind"]],
            sequence=metric["sequence"],
            data=reported(metric),
        )
        for metric in metrics
        if metric["kind"] in kinds
    ]


def reported(metric: JsonObject) -> Any:
    """What a trial reported: an object, or a number that may be NaN or infinite."""
    return numbers(metric["data"] if metric["data"] is not None else metric["value"])


def numbers(value: Any) -> Any:
    """A JSON value in which NaN and the infinities are numbers again."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return from_json_word(value)


def milliseconds(moment: str | None) -> int | None:
    """Unix milliseconds of an RFC 3339 time."""
    if moment is None:
        return None
    return round(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1000)


@dataclass(frozen=True)
class TrialOutcome:
    """One trial. `value` is its final metric (None: it has none), `data` the metric as it was reported."""

    trial_id: str
    sequence_id: int
    status: str
    reason: str
    parameters: Any
    """A dictionary; any JSON value if a custom tuner proposed it."""
    value: float | None
    data: Any
    directory: str
    duration_seconds: float | None
    """How long its jobs ran, one after another; None while it has not ended."""
    gpu_hours: float
    """Of all its jobs."""
    cpu_hours: float | None
    """Processor time of all its jobs; None while one runs, or where that of one is not known."""


class Results:
    """An experiment's trials in the order they were made, as they were when this was made."""

    def __init__(self, client: "Client", experiment_id: str) -> None:
        """Read all trials; curves are read when they are asked for, so `client` should still be open then."""
        self._client = client
        self.experiment = client.experiment(experiment_id)
        self._trials = [_outcome(trial) for trial in client.trials(experiment_id, sort="sequence_id")]

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[TrialOutcome]:
        return iter(self._trials)

    def __getitem__(self, index: int) -> TrialOutcome:
        return self._trials[index]

    def __repr__(self) -> str:
        best = self.best()
        text = "none yet" if best is None else f"trial {best.sequence_id} with {best.value:.6g} ({self.direction})"
        return f"<Results of experiment {self.experiment['id']}: {len(self)} trials, best: {text}>"

    @property
    def direction(self) -> str:
        """Which values are better: "maximize" or "minimize"."""
        return str(self.experiment["objective"]["direction"])

    def best(self) -> TrialOutcome | None:
        """The best trial in the experiment's direction; None while no trial has a final metric."""
        best = self.experiment["best"]
        if best is None:
            return None
        return next((trial for trial in self._trials if trial.trial_id == best["trial_id"]), None)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all trials."""
        return float(self.experiment["usage"]["gpu_hours"])

    @property
    def cpu_hours(self) -> float:
        """Processor time of all jobs of which it is known, in hours."""
        return float(self.experiment["usage"]["cpu_hours"])

    @property
    def errors(self) -> list[TrialOutcome]:
        """The trials that failed or were abandoned; their `reason` says why."""
        return [trial for trial in self._trials if trial.status in ("FAILED", "SYS_CANCELED")]

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """By trial id: its intermediate metrics as (step, number); the step counts reports where none was named."""
        return {trial.trial_id: self.curve(trial.trial_id) for trial in self._trials}

    def curve(self, trial_id: str) -> list[tuple[int, float]]:
        """The visible curve of one trial: the intermediate metrics of its newest job, and before the point at which it
        resumed those of the job whose checkpoint it continues."""
        return [_point(item) for item in self._client.trial_curve(trial_id)]

    def best_so_far(self) -> list[tuple[int, float]]:
        """(sequence id, best value until then) of the trials that ended with a value, in the order they ended."""
        points = self._client.curve(self.experiment["id"])
        return [(point["sequence_id"], cast(float, numbers(point["best"]))) for point in points]

    def to_dataframe(self) -> Any:
        """A pandas DataFrame: one row a trial, parameters as columns named `parameter.<name>`. The final metric is
        `value`; the other keys of a metric that is a dictionary are `value.<key>`.

        Raises ImportError where pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ImportError("to_dataframe needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame([_row(trial) for trial in self._trials])


def _outcome(trial: dict[str, Any]) -> TrialOutcome:
    began, ended = milliseconds(trial["started_at"]), milliseconds(trial["ended_at"])
    by_times = None if began is None or ended is None else max((ended - began) / 1000, 0.0)
    usage = trial["usage"]
    return TrialOutcome(
        trial_id=trial["id"],
        sequence_id=trial["sequence_id"],
        status=trial["status"],
        reason=trial["reason"],
        parameters=numbers(trial["parameters"]),
        value=numbers(trial["final_value"]),
        data=numbers(trial["final_data"]),
        directory=trial["directory"],
        duration_seconds=None if ended is None else trial.get("run_seconds", by_times),
        gpu_hours=usage["gpu_hours"],
        cpu_hours=None if usage["unmeasured_jobs"] else usage["cpu_hours"],
    )


def _point(metric: dict[str, Any]) -> tuple[int, float]:
    value = reported(metric)
    number = value.get(DEFAULT_KEY, float("nan")) if isinstance(value, dict) else value
    return (metric["sequence"] if metric["step"] is None else metric["step"], float(number))


def _row(trial: TrialOutcome) -> dict[str, Any]:
    """One flat row; nested parameters by dotted names, what is no dictionary as `parameter`."""
    names = ("sequence_id", "trial_id", "status", "value", "duration_seconds", "gpu_hours", "cpu_hours")
    row = {name: getattr(trial, name) for name in names}
    reported = {} if trial.data is None else metric_fields(trial.data)
    return {**row, **flatten({"parameter": trial.parameters}), **reported}
