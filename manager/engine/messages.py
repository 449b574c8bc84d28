"""What can reach an experiment's loop: from its service, its dispatcher, its own timers and its user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.manager.dispatcher.protocol import Error, Initialized, KillTrial, NewTrial, NoMoreTrials
from proctor.manager.store.metrics import StoredChunk
from proctor.training_services.base import EndReason, StatusChange


@dataclass(frozen=True)
class JobsChanged:
    """The service has seen jobs move."""

    changes: Sequence[StatusChange]


@dataclass(frozen=True)
class MetricsStored:
    """Journal chunks of live jobs are committed in the metrics database."""

    chunks: Sequence[tuple[str, StoredChunk]]  # by job id, in the order they were stored


@dataclass(frozen=True)
class JobRefused:
    """The service would not take a job."""

    job_id: str
    token: str
    reason: EndReason
    detail: str


@dataclass(frozen=True)
class SuggestionRefused:
    """The store refuses the parameters of a suggestion."""

    parameter_id: int
    position: int
    why: str


@dataclass(frozen=True)
class MetricsRefused:
    """The store refuses what a job has reported."""

    job_id: str
    why: str


@dataclass(frozen=True)
class HeldUp:
    """The service cannot do at the moment what it was asked to do with a job; it is asked again."""

    job_id: str
    token: str
    reason: str = ""  # of the trial; "": it stays
    notice: str = ""


@dataclass(frozen=True)
class Notice:
    """Something that the user should know of the experiment."""

    text: str


@dataclass(frozen=True)
class DispatcherRestarted:
    """The dispatcher had died and is being started again."""

    epitaph: str


@dataclass(frozen=True)
class DispatcherSilent:
    """The dispatcher has not answered for long, but computes."""

    trouble: str


@dataclass(frozen=True)
class DispatcherFailed:
    """The dispatcher cannot be kept alive."""

    summary: str


@dataclass(frozen=True)
class DispatcherLeft:
    """There is no dispatcher any more."""


@dataclass(frozen=True)
class Wake:
    """Something outside has changed (capacity, a deadline): look again."""


# ---- the user's wishes; each is answered when it is committed ---------------------------------------------------


@dataclass(frozen=True)
class CancelTrial:
    """End a trial by the user's wish."""

    trial_id: str


@dataclass(frozen=True)
class AddTrial:
    """Run a trial with these parameters, which no tuner has suggested."""

    parameters: Any
    source: str = "customized"


@dataclass(frozen=True)
class ImportRows:
    """Tell the tuner of results from elsewhere: rows of {"parameter", "value"}."""

    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ChangeLimits:
    """New values of columns of the experiment's row: limits, search space."""

    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Create no new trials."""


@dataclass(frozen=True)
class Continue:
    """Create trials again."""


@dataclass(frozen=True)
class Stop:
    """Stop the experiment: its jobs end, its waiting trials are kept for a resume."""


Message = (
    JobsChanged
    | MetricsStored
    | JobRefused
    | SuggestionRefused
    | MetricsRefused
    | HeldUp
    | Notice
    | DispatcherRestarted
    | DispatcherSilent
    | DispatcherFailed
    | DispatcherLeft
    | Wake
    | CancelTrial
    | AddTrial
    | ImportRows
    | ChangeLimits
    | Pause
    | Continue
    | Stop
    | Initialized
    | NewTrial
    | NoMoreTrials
    | KillTrial
    | Error
)
