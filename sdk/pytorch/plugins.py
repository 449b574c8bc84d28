"""Plug-ins: named additions to a run that keep a state of their own in the checkpoints.

A plug-in may observe the run and change batches. Four things only one plug-in can decide; it claims them in
`overrides`.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.state import TrainingState

# The names of a checkpoint's own parts: a plug-in of such a name would look like one of them.
RESERVED_NAMES = frozenset(
    {
        "format",
        "version",
        "metrics",
        "averages",
        "attributes",
        "training_state",
        "model",
        "amp_scaler",
        "rng",
        "history",
        "fingerprint",
        "plugins",
        "observers",
        "settings",
    }
    | {"log_path", "run_path", "loggers", "datamodule"}
)


class Override(str, Enum):
    """What one plug-in at most may claim."""

    TRAINING_BATCH = "training_batch"
    VALIDATION_BATCH = "validation_batch"
    TESTING_BATCH = "testing_batch"
    SHOULD_TRAINING_STOP = "should_training_stop"


class Plugin:
    """The base of every plug-in."""

    overrides: "frozenset[Override]" = frozenset()

    def __init__(self, plugin_id: str) -> None:
        self.plugin_id = plugin_id

    def setup(self, model: Model) -> None:
        """Called in each process before the data module's and the model's `setup`; the streams are seeded."""

    def on_training_start(self) -> None:
        """Called before the model's `on_training_start`."""

    def on_training_end(self) -> None:
        """Called after the model's `on_training_end`."""

    def process_training_batch(self, batch: Any, state: TrainingState) -> Any:
        """Return the batch to train on; with `Override.TRAINING_BATCH` the model's `batch_to_device` is not called."""
        return batch

    def process_validation_batch(self, batch: Any, step: int) -> Any:
        """Return the batch to validate; with `Override.VALIDATION_BATCH` in place of `batch_to_device`."""
        return batch

    def process_testing_batch(self, batch: Any, step: int) -> Any:
        """Return the batch to test; with `Override.TESTING_BATCH` in place of `batch_to_device`."""
        return batch

    def should_training_stop(self) -> bool:
        """Whether to stop; asked with `Override.SHOULD_TRAINING_STOP` when the model is asked."""
        return False

    def close(self) -> None:
        """Called last, however the run ended."""

    def state_dict(self) -> "dict[str, Any]":
        """What the checkpoint keeps under the plug-in's id."""
        return {}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Take over what `state_dict` returned."""


class Plugins:
    """The plug-ins of a trainer by id, in the order of their registration."""

    def __init__(self) -> None:
        self._by_id: dict[str, Plugin] = {}
        self._claimed: dict[Override, Plugin] = {}

    def __iter__(self) -> "Iterator[Plugin]":
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def register(self, plugin: Plugin) -> None:
        """Add a plug-in, or nothing at all if it cannot be added.

        :raises KeyError: another one has its id.
        :raises ConfigurationError: its id is reserved, or another one has claimed one of its overrides.
        """
        name = plugin.plugin_id
        if name in RESERVED_NAMES:
            raise ConfigurationError(f"the id {name!r} is a part of every checkpoint; give the plug-in another one.")
        if name in self._by_id:
            raise KeyError(f"a plug-in with the id {name!r} is registered already; ids are unique in a trainer.")
        for override in plugin.overrides:
            if override in self._claimed:
                raise ConfigurationError(
                    f"plug-in {name!r} claims {override.value}, which plug-in "
                    f"{self._claimed[override].plugin_id!r} has claimed; one of them has to go."
                )
        self._by_id[name] = plugin
        self._claimed.update(dict.fromkeys(plugin.overrides, plugin))

    def claims(self, override: Override) -> "Plugin | None":
        """The plug-in that has claimed this, if one has."""
        return self._claimed.get(override)

    def state_dict(self) -> "dict[str, Any]":
        """The states of all plug-ins by id."""
        return {name: plugin.state_dict() for name, plugin in self._by_id.items()}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Hand the states out; a plug-in that is on one side only is a difference of the fingerprints."""
        for name, plugin in self._by_id.items():
            if name in state:
                plugin.load_state_dict(state[name])
