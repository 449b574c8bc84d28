"""What the loop does on a user's command. Each raises before it changes anything when it cannot be done."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.engine.loop import starts, transitions, tuning
from proctor.manager.engine.loop.messages import AddTrial, ChangeLimits, ImportRows
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.manager.errors import Conflict
from proctor.manager.lifecycle.experiment import EXPERIMENT, ExperimentEvent, spent_limit
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import experiments
from proctor.training_services.base import EndReason

_WITHOUT_NEW_TRIALS = {
    ExperimentStatus.PAUSED,
    ExperimentStatus.NO_MORE_TRIAL,
    ExperimentStatus.TUNER_NO_MORE_TRIAL,
}

_KEPT = (None, EndReason.PAUSED, EndReason.PREEMPTED)
"""Why a job may be being stopped whose trial can be paused."""


def cancel_trial(state: ExperimentState, turn: Turn, trial_id: str) -> None:
    """End a live trial. One that saves because the experiment is being stopped is signaled at once; that it was stopped
    remains the reason."""
    trial = state.trials.get(trial_id)
    if trial is None:
        raise Conflict(f"trial {trial_id} has ended already, there is nothing to kill")
    if trial.job is None:
        transitions.end_trial(state, turn, trial, TrialStatus.USER_CANCELED, f"canceled by {turn.actor.in_words}")
    else:
        transitions.end_saving(turn, trial)
        transitions.request_stop(state, turn, trial, EndReason.USER_CANCELED, f"canceled by {turn.actor.in_words}")


def pause_trial(state: ExperimentState, turn: Turn, trial_id: str, *, save_seconds: float) -> None:
    """Keep a trial without a place until a user resumes it. One that runs may save first; one that is paused already is
    from now on the user's.

    :param save_seconds: how long it may save before it is signaled.
    """
    trial = state.trials.get(trial_id)
    if trial is None:
        raise Conflict(f"trial {trial_id} has ended already; only a live trial can be paused")
    if trial.job is not None and trial.job.stop_reason not in _KEPT:
        raise Conflict(f"trial {trial_id} is being stopped already ({trial.job.detail})")
    transitions.pause_trial(state, turn, trial, PausedBy.USER, f"paused by {turn.actor.in_words}", save_seconds)


def resume_trial(state: ExperimentState, turn: Turn, trial_id: str) -> None:
    """Have a trial that a user has paused, alone or with its experiment, run again, from its newest checkpoint."""
    _require_active(state, "resume trials")
    trial = state.trials.get(trial_id)
    if trial is None or trial.row.status is not TrialStatus.PAUSED:
        if trial is not None and trial.job is not None and trial.job.stop_reason is EndReason.PAUSED:
            raise Conflict(f"trial {trial_id} is still being paused ({trial.row.reason}); resume it when it is PAUSED")
        status = "no longer PAUSED" if trial is None else trial.row.status
        raise Conflict(f"trial {trial_id} is {status}; only a PAUSED trial can be resumed")
    if trial.row.paused_by is PausedBy.SCHEDULER:
        raise Conflict(
            f"trial {trial_id} is paused by its trial scheduler, which decides when it runs again; clone the trial to "
            "continue from its checkpoint now"
        )
    _resume(state, turn, trial)


def _resume(state: ExperimentState, turn: Turn, trial: LiveTrial) -> None:
    held = state.row.status is ExperimentStatus.PAUSED
    transitions.end_pause(
        turn, trial, "the experiment is paused; resume it, too" if held else f"resumed by {turn.actor.in_words}"
    )


def add_trial(state: ExperimentState, turn: Turn, command: AddTrial) -> TrialRow:
    """A trial with the user's own parameters; the tuner is notified of it and of its result."""
    _require_active(state, "take a trial")
    origin = command.origin
    if origin is not None and origin.checkpoint is not None and origin.checkpoint_id in turn.deleted:
        what = origin.checkpoint.name("")
        raise Conflict(f"{what} has just been deleted (keepCheckpoints, checkpointQuotaMb); try again")
    (parameter_id,) = state.take_parameter_ids(1)
    message = protocol.AddCustomizedTrial(state.take_position(), parameter_id, command.parameters)
    turn.send_input(message, starts.message_payload(message))
    trial = starts.create_trial(
        state,
        turn,
        parameter_id=parameter_id,
        parameters=command.parameters,
        source=command.source,
        origin_trial=None if origin is None else origin.trial.id,
        checkpoint=None if origin is None else origin.checkpoint,
    )
    if command.outside:
        text = f"trial {trial.row.sequence_id} runs with parameters outside of the search space: {command.outside}"
        turn.add_notice(text, trial_id=trial.row.id)
    return trial.row


def import_rows(state: ExperimentState, turn: Turn, command: ImportRows) -> None:
    """Give the tuner imported results."""
    _require_active(state, "import results")
    message = protocol.ImportData(state.take_position(), [dict(row) for row in command.rows])
    turn.send_input(message, starts.message_payload(message))
    turn.add_event("import", {"rows": len(command.rows)})


def change_limits(state: ExperimentState, turn: Turn, command: ChangeLimits) -> Mapping[str, Any]:
    """New limits or a new search space; returns the columns that really changed."""
    changed = {name: value for name, value in command.columns.items() if getattr(state.row, name) != value}
    if not changed:
        return changed
    experiment_id, actor = state.row.id, turn.actor
    state.row = replace(state.row, revision=state.row.revision + 1, **changed)
    turn.write(lambda c: experiments.set_limits(c, experiment_id, time=turn.now, actor=actor, **changed))
    if "search_space" in changed:
        message = protocol.UpdateSearchSpace(state.take_position(), changed["search_space"])
        turn.send_input(message, {"search_space": changed["search_space"]})
        state.exhausted = False
    if "max_trial_seconds" in changed:
        turn.update |= {trial.row.id: trial for trial in state.by_job.values()}
    _update_spent_limit(state, turn)
    return changed


def _update_spent_limit(state: ExperimentState, turn: Turn) -> None:
    """Where a limit was raised and another one is spent, that one is why no trials are created now."""
    row = state.row
    limit = spent_limit(state.progress(turn.monotonic))
    if limit and limit != row.reason and row.status in (ExperimentStatus.NO_MORE_TRIAL, ExperimentStatus.DONE):
        state.row = replace(row, reason=limit)
        turn.write(
            lambda c: experiments.move(
                c, row.id, expected=(row.status,), status=row.status, reason=limit, time=turn.now
            )
        )


def pause(state: ExperimentState, turn: Turn, *, trials_save_seconds: float | None = None) -> None:
    """Stop starting new trials; running trials finish, unless they are to be paused, too.

    :param trials_save_seconds: pause the live trials, too; how long each may save before it is signaled.
    """
    if trials_save_seconds is None or state.row.status not in _WITHOUT_NEW_TRIALS:
        _allowed(state, ExperimentEvent.PAUSE, "paused")
        tuning.move_experiment(state, turn, ExperimentEvent.PAUSE, f"paused by {turn.actor.in_words}")
    if trials_save_seconds is not None:
        for trial in list(state.trials.values()):
            detail = "paused with its experiment"
            transitions.pause_trial(state, turn, trial, PausedBy.EXPERIMENT, detail, trials_save_seconds)


def proceed(state: ExperimentState, turn: Turn, *, with_trials: bool = False) -> None:
    """Create trials again.

    :param with_trials: resume those that were paused with it, too.
    """
    if not with_trials or state.row.status is ExperimentStatus.PAUSED:
        _allowed(state, ExperimentEvent.CONTINUE, "resumed")
        tuning.move_experiment(state, turn, ExperimentEvent.CONTINUE, "")
    if with_trials:
        _require_active(state, "resume trials")
        for trial in [each for each in state.trials.values() if each.row.paused_by is PausedBy.EXPERIMENT]:
            if trial.job is None:
                _resume(state, turn, trial)
            else:  # it runs again when its job has ended
                transitions.set_paused_by(turn, trial, None)


def stop(state: ExperimentState, turn: Turn, *, save_seconds: float) -> None:
    """Stop: jobs end, waiting trials are kept for a resume. Asked again, trials that save are signaled at once.

    :param save_seconds: how long a running trial may save before it is signaled.
    """
    if state.row.status is ExperimentStatus.STOPPING:
        for trial in state.by_job.values():
            transitions.end_saving(turn, trial)
        return
    _allowed(state, ExperimentEvent.STOP, "stopped")
    tuning.move_experiment(state, turn, ExperimentEvent.STOP, f"stopped by {turn.actor.in_words}")
    for trial in list(state.trials.values()):
        if trial.job is not None:
            detail = "the experiment was stopped"
            transitions.stop_softly(state, turn, trial, EndReason.EXPERIMENT_STOPPED, detail, save_seconds)
        else:
            transitions.set_reason(turn, trial, transitions.WAITS_FOR_RESUME)


def _allowed(state: ExperimentState, event: ExperimentEvent, done: str) -> None:
    if not EXPERIMENT.allows(state.row.status, event):
        raise Conflict(f"experiment {state.row.id} cannot be {done} while {state.row.status}")


def _require_active(state: ExperimentState, verb: str) -> None:
    if not state.row.status.is_active or state.row.status in {ExperimentStatus.STOPPING, ExperimentStatus.ERROR}:
        raise Conflict(f"experiment {state.row.id} is {state.row.status} and cannot {verb}; resume it first")
