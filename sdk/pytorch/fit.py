"""What is looked at before a run trains its first batch, so that hours later nothing fails that was known by then."""

from contextlib import suppress
from typing import Any

from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.checkpoints.serialization import check_content
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.options import Phase
from proctor.sdk.pytorch.plugins import Override

TYPE_CHECKING = False
if TYPE_CHECKING:
    from proctor.sdk.pytorch.run import Run


def check_run(run: "Run") -> None:
    """Refuse a training that could not be done as it was asked for.

    :raises ConfigurationError: options, data and model do not fit together.
    :raises TypeError: a sampler is none that can be resumed.
    """
    settings = run.settings
    if settings.total_steps == 0:
        raise ConfigurationError("total_steps must be at least 1 to train; found 0. Say how many epochs or iterations.")
    if settings.chkpt_frequency is not None and run.storage is None:
        raise ConfigurationError("chkpt_frequency needs chkpt_root, the folder of the checkpoints.")
    if settings.total_steps == float("inf") and not _has_end(run):
        raise ConfigurationError(
            "total_steps is endless and nothing would stop the run; set early_stop_cycles, or override "
            "should_training_stop in the model or a plug-in."
        )
    _check_data(run)


def check_state(run: "Run") -> None:
    """Refuse a model or a plug-in whose state no checkpoint could hold, as far as there is such a state by now.

    :raises ConfigurationError: the model has parts that nothing would save.
    :raises TypeError: a state holds what could not be loaded again safely; the text says where.
    """
    run.model.check_parts()
    found: dict[str, Any] = {}
    for name, part in (("model", run.model), ("plugins", run.plugins)):
        with suppress(Exception):  # a state that comes with the training is asked for again at the first save
            found[name] = part.state_dict()
    check_content(found, "checkpoint", safe_types=frozenset(run.model.types_for_safe_load()))


def _has_end(run: "Run") -> bool:
    asks = type(run.model).should_training_stop is not Model.should_training_stop
    claimed = run.plugins.claims(Override.SHOULD_TRAINING_STOP) is not None
    return run.settings.early_stop_cycles is not None or asks or claimed or trial.is_in_trial()


def _check_data(run: "Run") -> None:
    """Make every loader that the training will read, which starts no worker."""
    data, frequency = run.datamodule, run.settings.valid_frequency
    if frequency is not None and not data.has(Phase.VALIDATION):
        raise ConfigurationError(
            f"valid_frequency is {frequency} and there is no data to validate on; call set_validation in "
            f"{type(data).__name__}.setup, or leave valid_frequency out."
        )
    if frequency is not None:
        data.open(Phase.VALIDATION)
    for number in reversed(range(max(1, data.train_phases))):  # the first one last: it is the one in use
        data.open(Phase.TRAINING, number)
