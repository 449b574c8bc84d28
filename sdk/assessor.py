"""The base class of an assessor of your own: what stops hopeless trials early.

It is named in the configuration as a tuner is, under `assessor:`. One thread calls all its methods.
"""

from enum import Enum
from typing import Any, Union

from proctor.sdk.tuner import Checkpointing

__all__ = ["AssessResult", "Assessor"]


class AssessResult(Enum):
    """An assessor's judgment of a running trial."""

    Good = True
    """It continues."""
    Bad = False
    """Stop it: it ends as EARLY_STOPPED. A built-in tuner receives its last intermediate metric; a custom one does so
    only with `includeIntermediateResults: true`."""


class Assessor(Checkpointing):
    """Judges trials by their intermediate metrics. Override `assess_trial`."""

    def assess_trial(self, trial_job_id: str, trial_history: list[Any]) -> Union[AssessResult, bool]:
        """Say whether a running trial continues; True means Good.

        `trial_history` has every intermediate metric of the trial so far, as it was reported, the newest last.
        Called once for each new metric.
        """
        raise NotImplementedError(f"{type(self).__name__}.assess_trial is missing")

    def trial_end(self, trial_job_id: str, success: bool) -> None:
        """A trial has ended and will not run again."""
