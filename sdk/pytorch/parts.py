"""What a run of a loop of one's own is made of: its parts, its data, the options that are left to it, its saves."""

from collections.abc import Callable, Iterable
from typing import Any

from proctor.sdk.pytorch.data import DataModule
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.loaders import DataLoaderParams
from proctor.sdk.pytorch.model import Model, has_state
from proctor.sdk.pytorch.run import Run

Parts = Callable[[], "dict[str, Any]"]

_DECIDED_BY_THE_LOOP = {
    "train_unit": "it counts batches",
    "total_steps": "the run ends where the loop does",
    "valid_frequency": "the loop says when to validate",
    "early_stop_cycles": "the loop says when to stop",
    "print_frequency": "the loop says when to log",
    "accumulation_steps": "the loop says when to step the optimizer; save only where no gradients wait",
    "flush_at_epoch_end": "the loop says when to step the optimizer",
    "processes": "no process is started; run the script under torchrun, with a process group of yours",
    "backend": "the process group is yours",
    "group_timeout_seconds": "the process group is yours",
    "train_exceptions": "every exception passes as it is",
    "test_exceptions": "nothing is tested",
}


def refuse_decided(options: "Iterable[str]") -> None:
    """Refuse options that would be without effect.

    :raises ConfigurationError: one of them is decided by the loop itself.
    """
    if found := [name for name in options if name in _DECIDED_BY_THE_LOOP]:
        reasons = "; ".join(f"{name} ({_DECIDED_BY_THE_LOOP[name]})" for name in found)
        raise ConfigurationError(f"open_run has no option {reasons}. A loop of your own decides that: leave it out.")


class OpenRun(Run):
    """A run whose loop is the caller's; it knows where it was saved last."""

    saved_at = 0  # batches that were done at the newest checkpoint

    def save(self) -> None:
        super().save()
        self.saved_at = self.state.global_iteration


class PartsModel(Model):
    """The parts as attributes, which a model saves and restores."""

    def __init__(self, make_parts: Parts) -> None:
        self._make_parts = make_parts

    def setup(self) -> None:
        """:raises ConfigurationError: a part would be in no checkpoint, or has a name that the run itself uses."""
        for name, part in self._make_parts().items():
            if hasattr(self, name):
                raise ConfigurationError(f"run.model.{name} is the run's own; give the part {name!r} another name.")
            if not has_state(part):
                raise ConfigurationError(
                    f"a part must have state_dict and load_state_dict, or no checkpoint would hold it; found {name!r}, "
                    f"of type {type(part).__name__}. Put what changes into an object with these two methods, and keep "
                    "what does not out of the parts."
                )
            setattr(self, name, part)


class OneDataset(DataModule):
    """The one dataset that is trained on."""

    def __init__(self, dataset: Any, params: "DataLoaderParams | None") -> None:
        self._dataset = dataset
        self._params = params

    def setup(self) -> None:
        self.add_train_phase(self._dataset, self._params)
