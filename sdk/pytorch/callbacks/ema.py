"""Averaged weights, which validations and tests judge."""

from typing import Any

import torch

from proctor.sdk.pytorch.callbacks.base import Plugin
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.distributed.ranks import unwrap
from proctor.sdk.pytorch.distributed.shards import split_as
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.reproducibility.fingerprint import Fact
from proctor.sdk.pytorch.state import TrainingState


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

    def on_training_epoch_start(self, state: TrainingState, batches: int) -> None:
        self._get_network()  # raises before the first batch, not after it

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
            mean = self.average[name] = split_as(mean, found[name])  # one that was loaded is whole
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
