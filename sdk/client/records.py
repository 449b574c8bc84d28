"""What `Experiment` returns, with the field names of NNI's Python API."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class TrialHyperParameters:
    """One set of parameters a trial was given: a dictionary, or any JSON value that a tuner of the user's proposed."""

    parameters: Any
    parameter_id: int
    parameter_source: str


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
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def milliseconds(moment: str | None) -> int | None:
    """Unix milliseconds of an RFC 3339 time."""
    if moment is None:
        return None
    return round(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1000)
