"""Plug-ins: named additions to a run that keep a state of their own in the checkpoints.

A plug-in may observe the run and change batches. Four things only one plug-in can decide; it claims them in
`overrides`. One comes with the trainer: `EMA`.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

from proctor.sdk.pytorch.distributed.ranks import unwrap
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.options import Phase
from proctor.sdk.pytorch.reproducibility.fingerprint import Fact
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

    def on_training_batch_end(self, state: TrainingState) -> None:
        """Called after the model's `on_training_batch_end`; with `state.optimizer_step_now` the step has been made."""

    def on_evaluation_start(self, phase: Phase) -> None:
        """Called before a validation or a test, before the model's `eval` and its own hook."""

    def on_evaluation_end(self, phase: Phase) -> None:
        """Called after it, after the model's own hook."""

    def should_training_stop(self) -> bool:
        """Whether to stop; asked with `Override.SHOULD_TRAINING_STOP` when the model is asked."""
        return False

    def close(self) -> None:
        """Called last, however the run ended."""

    def describe(self) -> "dict[str, Fact]":
        """What of its settings must be the same for an exact resume, by names such as "decay"."""
        return {}

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


class EMA(Plugin):
    """Keeps an exponential moving average of a network's weights and buffers, which validations and tests use.

    After each optimizer step `average = decay * average + (1 - decay) * weights`, beginning with the weights after the
    first step, as `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn` does. Averaging the iterates is due
    to Polyak and Juditsky (Acceleration of Stochastic Approximation by Averaging, 1992); in this form it is the teacher
    of Tarvainen and Valpola (Mean teachers are better role models, 2017). What holds no floating-point numbers, such as
    a count of batches, is taken over as it is. Training itself is not changed by it.

    The average is in the checkpoints, `content["plugins"]["ema"]["average"]`, by the names of the network's
    `state_dict`.

    :param decay: from 0 to less than 1; the average reaches back about `1 / (1 - decay)` steps.
    :param network: the name of the model's attribute.
    """

    def __init__(self, decay: float = 0.999, network: str = "network", plugin_id: str = "ema") -> None:
        super().__init__(plugin_id)
        if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
            raise ConfigurationError(f"decay must be a number from 0 to less than 1, such as 0.999; found {decay!r}.")
        self.decay = decay
        self.network = network
        self.average: dict[str, torch.Tensor] = {}  # empty before the first step
        self._model: Model | None = None
        self._is_swapped = False

    def setup(self, model: Model) -> None:
        self._model, self.average, self._is_swapped = model, {}, False

    def on_training_batch_end(self, state: TrainingState) -> None:
        """Take the weights into the average if they have just changed."""
        if not state.optimizer_step_now:
            return
        now = self._find_tensors()
        if not self.average:
            self.average = {name: tensor.detach().clone() for name, tensor in now.items()}
            return
        means, tensors = [], []
        with torch.no_grad():
            for name, tensor in now.items():
                if tensor.is_floating_point() or tensor.is_complex():
                    means.append(self.average[name])
                    tensors.append(tensor)
                else:
                    self.average[name].copy_(tensor)
            if means:
                torch._foreach_lerp_(means, tensors, 1 - self.decay)

    def on_evaluation_start(self, phase: Phase) -> None:
        """Put the average into the network (collective)."""
        if not self.average or self._model is None:
            return
        for name, tensor in self._find_tensors().items():
            if not isinstance(tensor, torch.nn.Parameter):  # each rank has its own; the main rank's is in checkpoints
                self._model.ranks.broadcast_tensor(self.average[name])
        self._swap()

    def on_evaluation_end(self, phase: Phase) -> None:
        """Give the network its own weights back."""
        if self._is_swapped:
            self._swap()

    def close(self) -> None:
        """Give the network its weights back if an evaluation failed."""
        if self._is_swapped:
            self._swap()
        self._model = None

    def describe(self) -> "dict[str, Fact]":
        return {"decay": self.decay, "network": self.network}

    def state_dict(self) -> "dict[str, Any]":
        return {"average": self.average}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.average = dict(state["average"])

    def _swap(self) -> None:
        """Exchange the values of the network and the average; which tensors they are stays as it is."""
        with torch.no_grad():
            for name, tensor in self._find_tensors().items():
                before = tensor.detach().clone()
                tensor.copy_(self.average[name])
                self.average[name].copy_(before)
        self._is_swapped = not self._is_swapped

    def _find_tensors(self) -> "dict[str, torch.Tensor]":
        """The network's parameters and persistent buffers, by name; the average has the same, on the same devices.

        A tensor of several names, as tied weights are, has the first.

        :raises ConfigurationError: the average is one of other tensors.
        """
        found: dict[str, torch.Tensor] = {}
        known: set[int] = set()
        for name, value in self._get_network().state_dict(keep_vars=True).items():
            if isinstance(value, torch.Tensor) and id(value) not in known:
                known.add(id(value))
                found[name] = value
        if self.average and {name: tensor.shape for name, tensor in self.average.items()} != {
            name: tensor.shape for name, tensor in found.items()
        }:
            raise ConfigurationError(
                f"the plug-in {self.plugin_id} has the average of other tensors than {self.network} has now; make the "
                "network in setup as it is later."
            )
        for name, mean in self.average.items():
            if mean.device != found[name].device:  # one that was loaded from a checkpoint of another device
                self.average[name] = mean.to(found[name].device)
        return found

    def _get_network(self) -> torch.nn.Module:
        network = getattr(self._model, self.network, None)
        if not isinstance(network, torch.nn.Module):
            raise ConfigurationError(
                f"the plug-in {self.plugin_id} averages the model's {self.network!r}, which must be a network "
                f"(nn.Module); found {network!r}. Say which with EMA(network=…)."
            )
        return unwrap(network)
