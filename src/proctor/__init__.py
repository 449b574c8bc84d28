"""Proctor: hyperparameter experiments on the GPUs you own.

These are the calls of a trial. `proctor.Experiment`, the control side, is loaded when it is first named, so that a
trial never pays for it.
"""

from proctor.sdk.channel import StopRequest
from proctor.sdk.errors import CheckpointError, MetricError, NoMoreTrialError, ProctorError
from proctor.sdk.trial import (
    get_checkpoint,
    get_current_parameter,
    get_experiment_id,
    get_next_parameter,
    get_sequence_id,
    get_trial_id,
    report,
    report_final_result,
    report_intermediate_result,
    should_stop,
    stop_request,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from proctor.sdk.client.experiment import Experiment as Experiment

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "MetricError",
    "NoMoreTrialError",
    "ProctorError",
    "StopRequest",
    "get_checkpoint",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_sequence_id",
    "get_trial_id",
    "report",
    "report_final_result",
    "report_intermediate_result",
    "should_stop",
    "stop_request",
]


def __getattr__(name: str) -> object:
    if name != "Experiment":
        raise AttributeError(f"module 'proctor' has no attribute {name!r}")
    try:
        from proctor.sdk.client.experiment import Experiment
    except ModuleNotFoundError as error:
        raise ImportError(
            f"proctor.Experiment starts and controls experiments and needs the whole package ({error}); inside a "
            "trial only the trial's own calls are there. Install proctor in the environment that runs this script."
        ) from error
    return Experiment
