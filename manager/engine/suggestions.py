"""What the loop makes of a dispatcher's words, and how it asks for more."""

import logging
from dataclasses import replace
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.engine import trials as trial_moves
from proctor.manager.engine.messages import SuggestionRefused
from proctor.manager.engine.state import ExperimentState
from proctor.manager.engine.step import Step
from proctor.manager.lifecycle.experiment import (
    EXPERIMENT,
    ExperimentEvent,
    Progress,
    next_event,
    wanted_suggestions,
)
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store import experiments
from proctor.training_services.base import EndReason


def on_new_trial(state: ExperimentState, step: Step, message: protocol.NewTrial) -> None:
    """A suggestion has come. One that was not asked for, or that came before, is ignored."""
    if message.parameter_id not in state.requested | state.declined:
        return
    state.requested.discard(message.parameter_id)
    state.declined.discard(message.parameter_id)
    trial_moves.create_trial(
        state,
        step,
        parameter_id=message.parameter_id,
        parameters=message.parameters,
        source="algorithm",
        position=message.position,
        algorithm_state=message.state,
    )


def on_refused(state: ExperimentState, step: Step, message: SuggestionRefused) -> None:
    """A suggestion whose parameters the store refuses is a trial that has failed."""
    if message.parameter_id not in state.requested | state.declined:
        return
    state.requested.discard(message.parameter_id)
    state.declined.discard(message.parameter_id)
    trial = trial_moves.create_trial(
        state,
        step,
        parameter_id=message.parameter_id,
        parameters=None,
        source="algorithm",
        position=message.position,
    )
    trial_moves.end_trial(state, step, trial, TrialStatus.FAILED, message.why, cause=message.why)


def on_no_more(state: ExperimentState, message: protocol.NoMoreTrials) -> None:
    """The tuner has nothing more for these ids."""
    answered = state.requested & set(message.parameter_ids)
    state.requested -= answered
    state.declined |= answered
    state.exhausted = state.exhausted or bool(answered)


def on_kill(state: ExperimentState, step: Step, message: protocol.KillTrial) -> None:
    """The assessor wants a trial stopped early. The decision is for the job whose metric was judged: it is ignored when
    that job is not the trial's live one, or was asked to stop already (a restarted dispatcher decides again)."""
    trial = state.trials.get(message.trial_id)
    if trial is None or trial.job is None or trial.job.number != message.job_number:
        return
    detail = "stopped early by the assessor"
    trial_moves.request_stop(state, step, trial, EndReason.EARLY_STOPPED, detail, position=message.position)


def move_experiment(
    state: ExperimentState,
    step: Step,
    event: ExperimentEvent,
    reason: str,
    *,
    monotonic: float,
    error: str | None = None,
) -> None:
    """Take the experiment through one transition of its lifecycle."""
    row = state.row
    status = EXPERIMENT.after(f"experiment {row.id}", row.status, event)
    _run_stopwatch(state, status, monotonic)
    begins = status is ExperimentStatus.RUNNING and row.started_at is None
    started_at = step.now if begins else row.started_at
    over = {ExperimentStatus.DONE, ExperimentStatus.STOPPED, ExperimentStatus.ERROR}
    ended_at = step.now if status in over else None
    expected = (row.status,)
    step.say(
        f"experiment {row.id} is {status}" + (f": {reason}" if reason else ""),
        action=f"experiment.{status.lower()}",
        level=logging.ERROR if status is ExperimentStatus.ERROR else logging.INFO,
    )
    changes: dict[str, Any] = {"error": error} if error is not None else {}
    if status is ExperimentStatus.INITIALIZED:
        changes["error"] = ""
    if status is ExperimentStatus.STOPPED:
        changes["clean_up_owed"] = 1
    state.row = replace(state.row, status=status, reason=reason, started_at=started_at, ended_at=ended_at, **changes)
    step.write(
        lambda c: experiments.move(
            c,
            row.id,
            expected=expected,
            status=status,
            reason=reason,
            time=step.now,
            started_at=started_at,
            ended_at=ended_at,
            **changes,
        )
    )


def _run_stopwatch(state: ExperimentState, status: ExperimentStatus, monotonic: float) -> None:
    if state.active_since is not None:
        state.row = replace(state.row, active_seconds=state.active_seconds(monotonic))
    state.active_since = monotonic if status.counts_time else None


def advance(state: ExperimentState, step: Step, monotonic: float) -> Progress:
    """Let the experiment take the moves it makes by itself; returns where it stands then."""
    progress = state.progress(monotonic)
    while (move := next_event(progress)) is not None:
        move_experiment(state, step, move[0], move[1], monotonic=monotonic)
        progress = state.progress(monotonic)
    return progress


def request(state: ExperimentState, step: Step, monotonic: float) -> None:
    """Ask for as many suggestions as there are free places and the limits allow."""
    count = wanted_suggestions(state.progress(monotonic), state.row.trial_concurrency)
    if count == 0:
        return
    ids = state.take_parameter_ids(count)
    state.requested.update(ids)
    message = protocol.RequestTrialJobs(state.take_position(), ids)
    step.tell(message, {"parameter_ids": ids})
