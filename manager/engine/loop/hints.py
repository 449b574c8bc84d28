"""What a trial scheduler cannot do with a trial, said once for each experiment: which trial, which key, and the rule
that holds then.

Once means once while the experiment's loop runs; after a restart of the manager it may be said again.
"""

from collections.abc import Mapping
from typing import Any

from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.sdk.metrics import DEFAULT_KEY, from_json_word
from proctor.sdk.scheduler import TIME_TOTAL, TRAINING_ITERATION

_KNOWN_TIMES = {None, TRAINING_ITERATION, TIME_TOTAL}


def on_metric(state: ExperimentState, turn: Turn, trial: LiveTrial, reported: Any) -> None:
    """An intermediate metric has come."""
    if not state.has_scheduler:
        return
    number = trial.row.sequence_id
    time_attr = state.scheduler_arguments.get("time_attr")
    if time_attr not in _KNOWN_TIMES and not (isinstance(reported, Mapping) and _is_number(reported.get(time_attr))):
        text = (
            f"trial {number} has reported no number under {time_attr!r}, the time_attr of its trial scheduler: such a "
            "metric is not judged, and the trial keeps running"
        )
        _say_once(state, turn, trial, "time", text)


def on_wall_clock(state: ExperimentState, turn: Turn, trial: LiveTrial) -> None:
    """Metrics have come that do not say how long their trial had run."""
    if not state.has_scheduler or state.scheduler_arguments.get("time_attr") != TIME_TOTAL:
        return
    text = (
        f"trial {trial.row.sequence_id} reports by a proctor or a keeper of an earlier version: its {TIME_TOTAL} is "
        "counted by its machine's clock, and is wrong if that is set while the trial runs"
    )
    _say_once(state, turn, trial, "clock", text)


def on_success(state: ExperimentState, turn: Turn, trial: LiveTrial) -> None:
    """A trial has succeeded."""
    if not state.has_scheduler:
        return
    number, reported = trial.row.sequence_id, trial.latest
    if not trial.row.intermediate_count:
        text = (
            f"trial {number} has ended without an intermediate metric: its trial scheduler could not judge it before "
            "its end; call report() or report_intermediate_result() as it trains"
        )
        _say_once(state, turn, trial, "intermediate", text)
    elif not _is_number(reported.get(DEFAULT_KEY) if isinstance(reported, Mapping) else reported):
        text = (
            f"trial {number} has ended, and its last metric has no number{_under(reported)}: its trial scheduler does "
            "not judge such metrics"
        )
        _say_once(state, turn, trial, "number", text)


def on_pause(state: ExperimentState, turn: Turn, trial: LiveTrial) -> None:
    """A trial has given up its place to its trial scheduler."""
    if not trial.has_checkpoints:
        text = (
            f"trial {trial.row.sequence_id} is paused and has saved no checkpoint: when its trial scheduler resumes "
            "it, it begins from the start, and no trial can continue from it; report(…, checkpoint=…) saves one"
        )
        _say_once(state, turn, trial, "checkpoint", text)


def on_missing_donor(state: ExperimentState, turn: Turn, trial_id: str) -> None:
    """A trial was to continue from another one, which has no checkpoint that can be read."""
    trial = state.trials.get(trial_id)
    if trial is not None:
        text = (
            f"trial {trial.row.sequence_id} was to continue from another trial, which has no checkpoint that can be "
            "read: it continues from its own; report(…, checkpoint=…) saves one"
        )
        _say_once(state, turn, trial, "donor", text)


def _say_once(state: ExperimentState, turn: Turn, trial: LiveTrial, what: str, text: str) -> None:
    if what not in state.hints:
        state.hints.add(what)
        turn.add_notice(text, trial_id=trial.row.id)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or one of the words for those that JSON has not."""
    return isinstance(from_json_word(value), (int, float))


def _under(reported: Any) -> str:
    if not isinstance(reported, Mapping):
        return ""
    keys = ", ".join(sorted(map(str, reported))[:5])
    return f" under {DEFAULT_KEY!r} (it has {keys})" if keys else f" under {DEFAULT_KEY!r}"
