"""What is trained: the base class whose callbacks a run calls, in this order.

    setup, load_state_dict (when resuming), on_training_start, train
      on_training_epoch_start
        on_training_batch_start, train_step, on_training_batch_end      for each batch
        should_training_stop
      on_training_epoch_end
        eval, on_validation_start                                       when a validation is due
          on_validation_batch_start, valid_step, on_validation_batch_end
        on_validation_end, train, have_metrics_improved, should_training_stop
      (the checkpoint)
    on_training_end

`test` calls setup, load_state_dict (or load_for_testing), eval, on_testing_start, then for each batch
on_testing_batch_start, test_step, on_testing_batch_end, and at the end on_testing_end.

A model is refused if it has parts that no checkpoint would hold: networks in a list, bare parameters, optimizers in a
dictionary, and random generators wherever they are. What is only another name for something that is saved is not such a
part: `list(network.parameters())`, a layer of a network, a list of optimizers that are attributes too.
"""

import random
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from proctor.sdk.pytorch.averages import Averages
from proctor.sdk.pytorch.data.loaders import move_to
from proctor.sdk.pytorch.determinism.fingerprint import Fact
from proctor.sdk.pytorch.determinism.seeding import DefaultNumpyRNG, get_default_numpy_rng
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.options import Phase
from proctor.sdk.pytorch.state import TrainingState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from proctor.sdk.pytorch.data.module import DataModule
    from proctor.sdk.pytorch.distributed.processes import HandoverQueue
    from proctor.sdk.pytorch.ranks import Ranks

_PARTS = (torch.nn.Parameter, torch.nn.Module, Optimizer, LRScheduler)
_OWN_PARTS = ("amp_scaler", "averages")  # what the checkpoint keeps beside the model's own state
_GIVEN = (*_OWN_PARTS, "device", "ranks", "queue", "datamodule", "_log")  # by the trainer


class Model:
    """The base of every model; only `train_step` must be written.

    Attributes that have `state_dict` and `load_state_dict` (networks, optimizers, schedulers) are saved by themselves.
    The trainer fills in `device`, `ranks`, `queue` and `datamodule` before `setup`; what is put into `queue` is in
    `Trainer.queue` afterwards, from whichever process.
    """

    device: Any = None
    ranks: "Ranks"
    queue: "HandoverQueue"
    datamodule: "DataModule"
    amp_scaler: Any = None
    averages: Averages
    _amp_dtype: Any = None
    _log: "Callable[[Mapping[str, Any]], None] | None" = None

    # -- set-up and state ---------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Make networks, optimizers, schedulers, on `self.device`; the streams are seeded by then."""

    def state_dict(self) -> "dict[str, Any]":
        """What a checkpoint keeps: by default, each attribute that has a state, under its name."""
        return {name: part.state_dict() for name, part in self._stateful_parts()}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Take over what `state_dict` returned.

        :raises ConfigurationError: `setup` made other parts than those of the checkpoint.
        """
        parts = dict(self._stateful_parts())
        if set(parts) != set(state):
            raise ConfigurationError(
                f"{type(self).__name__}.setup makes {sorted(parts)}, the checkpoint holds {sorted(state)}; resume with "
                "the model that was saved, or override load_state_dict."
            )
        for name, part in parts.items():
            part.load_state_dict(state[name])

    def types_for_safe_load(self) -> "Sequence[Any]":
        """Further types that `state_dict` may hold; everything else than tensors and plain values is refused."""
        return ()

    def load_for_testing(self) -> None:
        """Load weights for `test` when the run has no checkpoint."""

    def train(self) -> None:
        """Put every network into training mode."""
        for part in self._networks():
            part.train()

    def eval(self) -> None:
        """Put every network into evaluation mode."""
        for part in self._networks():
            part.eval()

    def batch_to_device(self, batch: Any, phase: Phase) -> Any:
        """Return the batch with its tensors on `self.device`."""
        return move_to(batch, self.device)

    # -- training -----------------------------------------------------------------------------------------------------

    def on_training_start(self) -> None:
        """Called once a process before the first batch, also when resuming."""

    def on_training_epoch_start(self, epoch: int) -> None:
        """Called before an epoch (counted from 0); not again when resuming inside it."""

    def on_training_batch_start(self, state: TrainingState) -> None:
        """Called before each batch, with the batch counted."""

    def train_step(self, batch: Any, state: TrainingState) -> None:
        """Train on a batch: forward, backward and, if `state.optimizer_step_now`, the optimizer's step."""
        raise NotImplementedError(f"{type(self).__name__} must have train_step(batch, state)")

    def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
        """Called after each batch; `should_log` is true every `print_frequency`.

        As it is here, it logs what `average` was given since it last did.
        """
        if should_log:
            self.log(self.read_averages())

    def on_training_epoch_end(self, epoch: int) -> None:
        """Called right after the last batch of an epoch, before a validation and the checkpoint."""

    def on_training_end(self) -> None:
        """Called when the training ends, after its last checkpoint; not when it is interrupted to be continued.

        A run that is killed in here is finished already: what must not be lost belongs behind `fit`, which gives a
        finished run's model its weights back.
        """

    def should_advance_dataset_phase(self, state: TrainingState) -> bool:
        """Whether to go on to the data of the next phase; asked before each epoch or, by ITERATION, each window."""
        return False

    def should_training_stop(self) -> bool:
        """Whether to stop; asked after each batch and each validation. The window is finished and a checkpoint made."""
        return False

    def should_save_checkpoint(self) -> bool:
        """Whether the checkpoint that is due is made; one that a stop needs is always made."""
        return True

    def append_metadata_to_chkpt_name(self) -> "str | None":
        """What to append to the checkpoint's name, such as "acc_0.98", if anything; the trainer adds the underscore."""
        return ""

    # -- validation and testing ---------------------------------------------------------------------------------------

    def on_validation_start(self, validation_cycle: int) -> None:
        """Called before a validation (counted from 0)."""

    def on_validation_batch_start(self, step: int) -> None:
        """Called before each batch of a validation (counted from 0)."""

    def valid_step(self, batch: Any, step: int) -> None:
        """Judge a batch; no gradients are recorded."""

    def on_validation_batch_end(self, step: int) -> None:
        """Called after each batch of a validation."""

    def on_validation_end(self, validation_cycle: int) -> None:
        """Called after a validation."""

    def have_metrics_improved(self) -> bool:
        """Whether the last validation was better than those before; False counts towards `early_stop_cycles`.

        Unless it is overridden, `best_metric` judges the validations.
        """
        return True

    def on_testing_start(self) -> None:
        """Called before a test."""

    def on_testing_batch_start(self, step: int) -> None:
        """Called before each batch of a test (counted from 0)."""

    def test_step(self, batch: Any, step: int) -> None:
        """Test a batch; no gradients are recorded."""

    def on_testing_batch_end(self, step: int) -> None:
        """Called after each batch of a test."""

    def on_testing_end(self) -> None:
        """Called after a test."""

    # -- what a model may call ----------------------------------------------------------------------------------------

    def log(self, metrics: "Mapping[str, Any]") -> None:
        """Record metrics of the present step: in the run's history, the logs, and the trial's reports.

        Each value is a number or a tensor of one element. Only the main rank's are kept.

        :raises ConfigurationError: the run has not begun yet, or is over: in `setup`, or after `fit`.
        """
        if self._log is not None:
            self._log(metrics)

    def average(self, values: "Mapping[str, Any]", weight: float = 1.0) -> None:
        """Add values of this batch to running means; unlike `log`, it does not wait for the device.

        :param weight: such as the samples of the batch. The names must be the same on all ranks.
        """
        self.averages.add(values, weight)

    def read_averages(self) -> "dict[str, float]":
        """Return the means over all ranks since the last reading, and begin anew (collective)."""
        return self.averages.read(self.ranks, self.device)

    def create_scaler(self, dtype: Any = torch.float16) -> Any:
        """Turn on mixed precision and return the gradient scaler (one that does nothing unless for float16).

        :raises ValueError: on the CPU, a type other than bfloat16.
        """
        kind = torch.device(self.device or "cpu").type
        if kind == "cpu" and dtype is not torch.bfloat16:
            raise ConfigurationError(f"on the CPU mixed precision works with torch.bfloat16 only; found {dtype}.")
        self._amp_dtype = dtype
        self.amp_scaler = torch.amp.GradScaler(kind, enabled=dtype is torch.float16)
        return self.amp_scaler

    def autocast(self) -> "AbstractContextManager[Any]":
        """The context for a forward pass: mixed precision if `create_scaler` turned it on."""
        kind = torch.device(self.device or "cpu").type
        context: AbstractContextManager[Any] = torch.autocast(
            kind, dtype=self._amp_dtype, enabled=self._amp_dtype is not None
        )
        return context

    def clip_gradients(self, parameters: Any, optimizer: Any, max_norm: float) -> Any:
        """Clip the gradients to a norm, unscaled before if need be, and return the norm that they had."""
        if self.amp_scaler is not None:
            self.amp_scaler.unscale_(optimizer)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    # -- what the trainer calls ---------------------------------------------------------------------------------------

    def check_parts(self) -> None:
        """Find what looks like a part of the model and would be in no checkpoint.

        :raises ConfigurationError: an attribute is such a part; a model with a `state_dict` of its own knows better.
        """
        if type(self).state_dict is not Model.state_dict:
            return
        attributes = {name: value for name, value in vars(self).items() if name not in _GIVEN}
        saved = {name for name, _ in self._stateful_parts()}
        if (name := find_generator(attributes, saved)) is not None:
            raise ConfigurationError(
                f"{type(self).__name__}.{name} holds a random generator that no checkpoint would hold. Draw from the "
                "trainer's streams (torch, random, get_default_numpy_rng()), make the generator where it is used, or "
                "override state_dict and load_state_dict."
            )
        if (name := find_unsaved(attributes, saved)) is not None:
            raise ConfigurationError(
                f"{type(self).__name__}.{name} holds parameters, networks or optimizers that no checkpoint would hold: "
                "only attributes that have state_dict and load_state_dict are saved. Make it an attribute of its own "
                "or part of a network (nn.ModuleList, nn.ModuleDict, nn.ParameterList), or override state_dict and "
                "load_state_dict."
            )

    def describe_precision(self) -> "dict[str, Fact]":
        """Return the facts of mixed precision, for the fingerprint of a run."""
        scaler = self.amp_scaler
        return {
            "mixed precision": None if self._amp_dtype is None else str(self._amp_dtype),
            "gradient scaler": None if scaler is None else f"enabled={scaler.is_enabled()}",
        }

    def _stateful_parts(self) -> "list[tuple[str, Any]]":
        return [(name, part) for name, part in vars(self).items() if name not in _OWN_PARTS and has_state(part)]

    def _networks(self) -> "list[torch.nn.Module]":
        return [part for part in vars(self).values() if isinstance(part, torch.nn.Module)]


def find_unsaved(attributes: "Mapping[str, Any]", saved: "Set[str]") -> "str | None":
    """Return the first attribute with a part that has state and is in none of the attributes that are saved.

    :param attributes: by name, those that are saved included.
    """
    known: set[int] = set()
    for name in saved:
        known.update(_identify(attributes[name]))
    for name, value in attributes.items():
        if name not in saved and any(not _identify(part) <= known for part in _find(_PARTS, value, set())):
            return name
    return None


def find_generator(attributes: "Mapping[str, Any]", saved: "Set[str]") -> "str | None":
    """Return the first attribute with a random generator that is neither saved nor one of the trainer's streams.

    :param attributes: by name, those that are saved included.
    """
    kinds, streams = _generator_kinds(), _stream_ids()
    for name, value in attributes.items():
        if name not in saved and any(id(found) not in streams for found in _find(kinds, value, set())):
            return name
    return None


def _generator_kinds() -> "tuple[type, ...]":
    kinds: tuple[type, ...] = (torch.Generator, random.Random, DefaultNumpyRNG)
    if (numpy := sys.modules.get("numpy.random")) is not None:  # none of its generators exists before
        kinds += (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return kinds


def _stream_ids() -> "set[int]":
    """The generators whose states every checkpoint has, under whichever name a model knows them."""
    found: list[Any] = [torch.default_generator, random._inst]
    if torch.cuda.is_initialized():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    with suppress(RuntimeError):  # there is no NumPy
        stream = get_default_numpy_rng()
        found += [stream, stream.generator, stream.generator.bit_generator]
    return {id(stream) for stream in found}


def _find(kinds: "tuple[type, ...]", value: Any, seen: "set[int]") -> "Iterator[Any]":
    """What of these kinds a value is or holds, in lists, tuples and dictionaries however deep."""
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
        seen.add(id(value))  # a list may hold itself
        for item in value.values() if isinstance(value, dict) else value:
            yield from _find(kinds, item, seen)


def _identify(part: Any) -> "set[int]":
    """The objects whose values a part saves; none for a network without state, such as a loss."""
    if isinstance(part, torch.nn.Module):
        return {id(tensor) for tensor in [*part.parameters(), *part.buffers()]}
    return {id(part)}


def refuse_metrics(metrics: "Mapping[str, Any]") -> None:
    """What `log` does outside a run's steps: a resumed run would measure those rows again, at no step of its own.

    :raises ConfigurationError: always.
    """
    raise ConfigurationError(
        f"log records metrics of a step of a run, and none is under way; found {sorted(metrics)}. A run begins after "
        "setup and load_state_dict and ends with fit: log in on_training_start or a later hook."
    )


def has_state(part: Any) -> bool:
    """Whether a checkpoint can hold it."""
    if isinstance(part, type) or not hasattr(part, "state_dict"):
        return False
    return callable(part.state_dict) and callable(getattr(part, "load_state_dict", None))
