"""The base class of a tuner of your own: what proposes the parameters of each trial.

Name it in the experiment's configuration:

    tuner:
      className: my_tuner.MyTuner      # module.Class
      codeDirectory: .                 # where my_tuner.py is
      classArgs: {rate: 0.1}           # arguments of the constructor

The method names are NNI's, so a tuner written for NNI runs as it is. Two threads call a tuner. One calls
`update_search_space`, `generate_parameters`, `receive_trial_result` and `import_data`, one at a time; the other calls
`trial_end`. While `generate_parameters` waits for something (an event, a lock, a sleep) instead of computing, the other
thread delivers results too, so a tuner may wait there for an earlier trial. An exception ends the experiment with
status ERROR and shows the traceback; `NoMoreTrialError` says that there is nothing left to propose.
"""

import os
from typing import Any

from proctor.sdk.errors import NoMoreTrialError

__all__ = ["NoMoreTrialError", "Tuner"]

CHECKPOINT_DIRECTORY_VARIABLE = "NNI_CHECKPOINT_DIRECTORY"


class Checkpointing:
    """What tuners and assessors share: keeping their own state over a restart of their process."""

    def load_checkpoint(self) -> None:
        """Read what `save_checkpoint` wrote. Called after the first search space, only if something was saved."""

    def save_checkpoint(self) -> None:
        """Write your state below `get_checkpoint_path()`.

        Called, if you override it, whenever results have come and nothing else waits, and before the end. What
        came later is replayed after a restart.
        """

    def get_checkpoint_path(self) -> str:
        """Return the experiment's directory for the state of its algorithms."""
        return os.environ.get(CHECKPOINT_DIRECTORY_VARIABLE, ".")

    def _on_exit(self) -> None:
        """Called once, as the last method, when the experiment or its manager is stopped.

        Every result and every end has been delivered then. An experiment that is DONE keeps its tuner until it is
        stopped.
        """

    def _on_error(self) -> None:
        """Called once after a method has raised."""


class Tuner(Checkpointing):
    """Proposes parameters and learns from final metrics. Override at least `update_search_space`, `generate_parameters`
    (or `generate_multiple_parameters`) and `receive_trial_result`."""

    _accept_customized = False

    def update_search_space(self, search_space: Any) -> None:
        """Take the search space as it stands in the file. Called first, and again whenever the user changes it.

        It may be any JSON value, and no one else checks it: raise if you cannot search it.
        """
        raise NotImplementedError(f"{type(self).__name__}.update_search_space is missing")

    def generate_parameters(self, parameter_id: int, **kwargs: Any) -> Any:
        """Return the parameters of a new trial: a dictionary, as trials expect, or any other JSON value.

        `parameter_id` is never reused. Raise `NoMoreTrialError` if there is nothing to propose now; you will be
        asked again when a result has come. May wait for the result of an earlier trial.
        """
        raise NotImplementedError(f"{type(self).__name__}.generate_parameters is missing")

    def generate_multiple_parameters(self, parameter_id_list: list[int], **kwargs: Any) -> list[Any]:
        """Return one parameter set for each id, in order; a shorter list means there is no more for now.

        Override it to propose several at once. `kwargs["st_callback"]` may be kept and called later, from any of your
        methods, as `st_callback(parameter_id, parameters)`.
        """
        result = []
        for parameter_id in parameter_id_list:
            try:
                result.append(self.generate_parameters(parameter_id, **kwargs))
            except NoMoreTrialError:
                return result
        return result

    def receive_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        """Learn a final metric: a number, or a dictionary with the number under "default", as the trial reported it.

        `kwargs` has `customized` (bool: added by the user) and `trial_job_id`. This is not called for a trial without a
        final metric, except, with `includeIntermediateResults: true` in the configuration, for one that was stopped
        early: with its last intermediate metric.
        """
        raise NotImplementedError(f"{type(self).__name__}.receive_trial_result is missing")

    def receive_pruned(self, parameter_id: int, parameters: Any, value: float, step: int) -> None:
        """Learn the value at the step at which a trial scheduler has paused one of your trials, if you override this.

        It comes again, with a later step, when the trial has run on and is paused again. Its result comes as any other
        trial's does.
        """

    def trial_end(self, parameter_id: int, success: bool, **kwargs: Any) -> None:
        """A trial has ended; its result, if there is one, has been delivered."""

    def import_data(self, data: list[dict[str, Any]]) -> None:
        """Learn imported results, as `{"parameter": {...}, "value": ...}`.

        After a restart, what an earlier process of this experiment proposed comes back this way too.
        """

    def _accept_customized_trials(self, accept: bool = True) -> None:
        """Ask to be notified of trials that the user adds by hand; otherwise you do not see them."""
        self._accept_customized = accept
