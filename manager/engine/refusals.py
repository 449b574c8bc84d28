"""Messages of which the store has refused a value: what becomes of them, so that only one trial or request suffers.

The loop takes such messages apart (`parts`) and handles each part alone. Of a part that is refused again `stand_ins`
makes messages that say so without the value.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from proctor.manager.dispatcher import protocol
from proctor.manager.engine import messages as m
from proctor.training_services.base import Exit, StatusChange

_REQUESTS = m.CancelTrial | m.AddTrial | m.ImportRows | m.ChangeLimits | m.Pause | m.Continue | m.Stop


def is_request(message: m.Message) -> bool:
    """Whether a user waits for its answer, and is told that it is refused."""
    return isinstance(message, _REQUESTS)


def parts(message: m.Message) -> Sequence[m.Message]:
    """The same as messages that are each about one job."""
    match message:
        case m.JobsChanged(changes):
            return [m.JobsChanged((change,)) for change in changes]
        case m.MetricsStored(chunks):
            return [m.MetricsStored((chunk,)) for chunk in chunks]
    return [message]


def stand_ins(message: m.Message, why: str, now: float) -> Sequence[m.Message]:
    """What to handle instead of a part that the store refuses.

    :param why: a clause.
    :param now: Unix time.
    """
    match message:
        case protocol.NewTrial(position=position, parameter_id=parameter_id):
            text = f"the parameters that were suggested cannot be stored: {why}"
            return [m.SuggestionRefused(parameter_id, position, text)]
        case m.MetricsStored(((job_id, _),)):
            return [m.MetricsRefused(job_id, f"its final metric cannot be stored: {why}")]
        case m.JobsChanged((change,)):
            text = f"what its platform says of it cannot be stored: {why}"
            short = m.JobsChanged((_without_words(change, text, now),))
            return [short, m.Notice(f"trial job {change.job_id}: {text}")]
        case m.JobRefused(job_id, token, reason):
            return [m.JobRefused(job_id, token, reason, f"the reason cannot be stored: {why}")]
        case protocol.Error() | m.DispatcherFailed():
            return [m.DispatcherFailed(f"the dispatcher has failed; what it says about it cannot be stored: {why}")]
        case _:
            return [m.Notice(f"something was left out that cannot be stored ({type(message).__name__}): {why}")]


def _without_words(change: StatusChange, text: str, now: float) -> StatusChange:
    """Only what the trial's fate depends on. The end of a job remains an end, for the same reason."""
    time = datetime.fromtimestamp(now, UTC)
    if change.exit is None:
        return StatusChange(change.job_id, change.token, change.status, time, detail=text, resumed=change.resumed)
    exit = Exit(change.exit.reason, None, None, 0.0, now, text, change.exit.lost, change.exit.lost_finals)
    return replace(StatusChange(change.job_id, change.token, change.status, time, detail=text), exit=exit)
