"""Messages between the manager and a dispatcher process: one JSON object a line over a private socket pair.

The manager's side of the conversation is the experiment's *input log*: every message that changes what the algorithm
knows carries a `position` in one total order that the store keeps. Requests are inputs too: which trial runs next is
asked, and answered by a new one, by one that is resumed, by one that continues from another's checkpoint, or by none.
So a dispatcher that was killed is brought back by sending it `Initialize`, with the newest state that it has saved, and
then the same inputs again, or those after that state; a `RequestTrialJobs` that had been answered carries the answers,
and the host restores those instead of asking the algorithm again. What it then decides next is what it would have
decided.

Values that JSON has no word for travel as the strings "NaN", "Infinity" and "-Infinity".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, NamedTuple

from proctor.sdk.json_input import clean_value
from proctor.sdk.metrics import encode_value, from_json_word

PROTOCOL_VERSION = 6
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Of a line from a dispatcher; the manager reads no longer ones."""

JsonObject = dict[str, Any]
JsonValue = Any
"""Search spaces and parameters: mappings for built-in tuners, any JSON for a class of the user's."""


@dataclass(frozen=True)
class AlgorithmSpec:
    """Which algorithm to host: a built-in by name, or a user's class by `module.Class` and the folder it is in."""

    name: str | None = None
    class_name: str | None = None
    code_directory: str | None = None
    class_args: JsonObject = field(default_factory=dict)


# ---- to the dispatcher ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Initialize:
    """First message, once. Answered by `Initialized` or `Error`."""

    experiment_id: str
    search_space: JsonValue
    tuner: AlgorithmSpec
    assessor: AlgorithmSpec | None
    seed: int
    checkpoint_directory: str
    direction: str | None = None
    """"maximize" or "minimize", for the built-in algorithms; None, as in the messages of older managers: each has its
    default. A user's class gets its `class_args` and nothing else."""
    scheduler: AlgorithmSpec | None = None
    """Of trials; never beside an assessor."""
    saved: str | None = None
    """The newest state that an earlier dispatcher of the experiment has saved (`StateSaved.state`)."""
    saved_position: int = 0
    """Inputs up to here are part of it."""
    rules: int = 1
    """The version of the rules by which built-in algorithms decide (`catalog.CURRENT_RULES`): the same from the first
    input to the last. 1, as in the messages of older managers, is that of all experiments before versions."""
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class UpdateSearchSpace:
    """The search space has changed; suggestions after this position come from the new one."""

    position: int
    search_space: JsonValue


@dataclass(frozen=True)
class Answer:
    """A decision that was made before: what a restarted host restores instead of asking again."""

    parameter_id: int
    parameters: JsonValue  # None where a trial is resumed
    state: Any = None
    kind: str = "new"
    """"new", or what becomes of a trial that exists: "resume" or "clone"."""
    trial_id: str | None = None  # of "resume" and "clone"
    donor_trial: str | None = None  # of "clone"


@dataclass(frozen=True)
class RequestTrialJobs:
    """Decide for each id, in order, which trial runs next: `NewTrial`, `ResumeTrial`, `CloneTrial`, or none of them
    (`NoMoreTrials`). `answers` holds those that were already given (replay)."""

    position: int
    parameter_ids: list[int]
    answers: list[Answer] = field(default_factory=list)
    can_start: bool = True
    """Whether a new trial is allowed; if not, only one that is paused may be the answer."""


class ReportedMetric(NamedTuple):
    """One intermediate metric. On the wire it is an array in the order of the fields; new fields get a default and are
    added at the end.

    `parameter_id` is the job's. `sequence` counts from 0 within the trial's visible curve; `value` is a number, or
    whatever JSON value the trial reported (a dict has its number under "default"); `step` is the one that the trial
    named, if it did; `seconds` is how long the trial had run by then, by its machine's clock: this job, and along the
    visible curve the jobs before it.
    """

    parameter_id: int
    trial_id: str
    job_number: int
    sequence: int
    value: Any
    step: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ReportMetrics:
    """Intermediate metrics in the order they were stored."""

    position: int
    rows: list[ReportedMetric]


@dataclass(frozen=True)
class TrialRestarted:
    """A trial runs again as another job, with the parameters of this id: its curve continues after `from_sequence` (0 =
    from the start)."""

    position: int
    parameter_id: int
    trial_id: str
    job_number: int
    from_sequence: int = 0


@dataclass(frozen=True)
class TrialEnd:
    """A trial has ended for good. `status` is a trial status; `value` is its result, if it has one: its final metric,
    or what the manager counts as one.

    With `more_follow`, others end with it, whose ends are the next inputs: nothing is requested in between.
    """

    position: int
    parameter_id: int
    trial_id: str
    parameters: JsonValue
    status: str
    has_value: bool = False
    value: Any = None
    customized: bool = False
    more_follow: bool = False


@dataclass(frozen=True)
class ImportData:
    """Results from elsewhere: rows of {"parameter": p, "value": v}."""

    position: int
    rows: list[JsonObject]


@dataclass(frozen=True)
class AddCustomizedTrial:
    """The user has added a trial by hand; its results will come under this parameter id."""

    position: int
    parameter_id: int
    parameters: JsonValue


@dataclass(frozen=True)
class Replayed:
    """All inputs that were in the log when the conversation began have been sent. Only from now on milestones are of
    use, and sent: first those of all trials, then each change."""


@dataclass(frozen=True)
class Ping:
    """Answered by `Pong` with the same nonce, also while an algorithm is busy."""

    nonce: int


@dataclass(frozen=True)
class Terminate:
    """End: call the algorithms' exit hooks and leave."""


ToDispatcher = (
    Initialize
    | UpdateSearchSpace
    | RequestTrialJobs
    | ReportMetrics
    | TrialRestarted
    | TrialEnd
    | ImportData
    | AddCustomizedTrial
    | Replayed
    | Ping
    | Terminate
)

# ---- from the dispatcher --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Initialized:
    """The algorithms are ready. `wants_intermediate`: whether `ReportMetrics` need be sent at all."""

    wants_intermediate: bool
    position: int = 0
    """Inputs up to here are known: from the saved state, if it could be used. The others are to be sent."""
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class NewTrial:
    """One suggestion. `position` is that of the request; `state` the algorithm's opaque state change (JSON)."""

    position: int
    parameter_id: int
    parameters: JsonValue
    state: Any = None
    parent_trial: str | None = None
    """Whose newest checkpoint the trial begins with, if there is one."""
    milestone: int | None = None
    """The step at whose report the trial waits for the verdict of the trial scheduler."""


@dataclass(frozen=True)
class NoMoreTrials:
    """The tuner has nothing more to suggest for these ids (for now: later results may change that)."""

    position: int
    parameter_ids: list[int]
    for_now: bool = False
    """The trial scheduler waits for news of the trials that there are: it is to be asked again at the next input that
    is no request."""


@dataclass(frozen=True)
class KillTrial:
    """The assessor or the trial scheduler wants a trial stopped early; `position` is that of the input that decided it,
    and `job_number` the job whose metric was judged. Idempotent: it concerns that job only, and does nothing once the
    job has ended or was asked to stop; but a trial that is PAUSED since that job ends. A replay may send it again."""

    position: int
    parameter_id: int
    trial_id: str
    job_number: int
    by: str = "assessor"
    """Or "scheduler"."""
    is_full: bool = False
    """The trial has used all that it may: it has succeeded, with its last metric, or a final one that it still reports
    when it is asked to stop."""
    reason: str = ""
    """A clause."""


@dataclass(frozen=True)
class PauseTrial:
    """A running trial is to save and give up its place until it is resumed or cloned; otherwise as `KillTrial`."""

    position: int
    parameter_id: int
    trial_id: str
    job_number: int
    reason: str = ""


@dataclass(frozen=True)
class ResumeTrial:
    """The answer to a request: a trial that is PAUSED, or is being paused, runs again as it is. `parameter_id` is the
    requested id, which is used up by it. It has no effect on a trial that runs, waits or has ended."""

    position: int
    parameter_id: int
    trial_id: str
    state: Any = None
    reason: str = ""
    milestone: int | None = None


@dataclass(frozen=True)
class CloneTrial:
    """The answer to a request: a trial that has not ended continues, as its next job, from the newest checkpoint of
    another one, with these parameters, which get the requested id. A job of it that runs is stopped. Where the donor
    has no checkpoint, the trial is resumed instead."""

    position: int
    parameter_id: int
    trial_id: str
    donor_trial: str
    parameters: JsonValue
    state: Any = None
    reason: str = ""
    milestone: int | None = None


@dataclass(frozen=True)
class Milestone:
    """The step at whose report a trial waits for the next verdict has changed; None: at none. It is derived from the
    inputs and no decision: it is not stored, and sent again after a replay. Idempotent.

    `trial_id` is None for a trial that has not reported: that is the one of `parameter_id`.
    """

    parameter_id: int
    trial_id: str | None
    step: int | None


@dataclass(frozen=True)
class StateSaved:
    """All that later decisions depend on, once the input at `position` is handled. Requests up to that position that
    have no answer will not be answered."""

    position: int
    state: str
    """JSON, which only a dispatcher reads: for the manager it is a text, however large."""


@dataclass(frozen=True)
class SchedulerTables:
    """What people should see of the trial scheduler, in place of what was sent before. It decides nothing, and is sent
    when there is time: never twice the same, and once more before the dispatcher leaves."""

    tables: list[JsonObject]
    """As `TrialScheduler.describe` returns them, checked and cut."""


@dataclass(frozen=True)
class Error:
    """An algorithm raised. `summary` is one sentence; `traceback` the whole of it. The experiment goes to ERROR."""

    summary: str
    traceback: str


@dataclass(frozen=True)
class Pong:
    """The answer to `Ping`."""

    nonce: int


Decision = NewTrial | ResumeTrial | CloneTrial
"""Which trial runs next: the answers to a request but "none"."""

News = Initialized | Decision | NoMoreTrials | PauseTrial | KillTrial | Milestone | StateSaved | SchedulerTables | Error
"""What concerns an experiment."""

FromDispatcher = News | Pong

_TYPES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Initialize, UpdateSearchSpace, RequestTrialJobs, ReportMetrics, TrialRestarted, TrialEnd, ImportData,
        AddCustomizedTrial, Replayed, Ping, Terminate, Initialized, NewTrial, ResumeTrial, CloneTrial, NoMoreTrials,
        PauseTrial, KillTrial, Milestone, StateSaved, SchedulerTables, Error, Pong,
    )
}  # fmt: skip


class ProtocolError(Exception):
    """A line is not a message of this protocol."""


def encode(message: ToDispatcher | FromDispatcher) -> bytes:
    """One line, newline included. Raises ValueError for a NaN or infinity that was not turned into its word."""
    body = {**vars(message), "type": type(message).__name__}
    return json.dumps(body, separators=(",", ":"), allow_nan=False, default=_nested_fields).encode() + b"\n"


def _nested_fields(value: Any) -> JsonObject:
    """A dataclass within a message, as an object. Not `asdict`, which copies every row of a `ReportMetrics` first."""
    if not is_dataclass(value):
        raise TypeError(f"a {type(value).__name__} is not a JSON value")
    return vars(value)


def decode(line: bytes) -> ToDispatcher | FromDispatcher:
    """The message in one line. Raises ProtocolError naming what is wrong."""
    try:
        body = json.loads(line)
        kind = _TYPES[body.pop("type")]
        if kind is Initialize:
            body["tuner"] = AlgorithmSpec(**body["tuner"])
            for kind_of in ("assessor", "scheduler"):
                body[kind_of] = AlgorithmSpec(**body[kind_of]) if body.get(kind_of) else None
        elif kind is RequestTrialJobs:
            body["answers"] = [Answer(**answer) for answer in body["answers"]]
        elif kind in (NewTrial, ResumeTrial, CloneTrial, SchedulerTables, Error):  # what a user's algorithm has made
            body = clean_value(body, "it")
        elif kind is ReportMetrics:
            body["rows"] = [ReportedMetric(*row) for row in body["rows"]]
        message: ToDispatcher | FromDispatcher = kind(**body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"not a dispatcher message ({error}): {line[:200]!r}") from error
    return message


def from_wire(value: Any) -> Any:
    """A metric as the trial reported it: the words for NaN and infinities become floats again."""
    if isinstance(value, Mapping):
        return {key: from_wire(item) for key, item in value.items()}
    return from_json_word(value)


def to_wire(value: Any) -> Any:
    """Plain JSON for anything a tuner may propose, NumPy numbers and arrays included.

    Raises MetricError, a TypeError, if something in it cannot be held by JSON.
    """
    return json.loads(encode_value(value, "the parameters"))
