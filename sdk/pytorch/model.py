"""What is trained: the base class whose callbacks a run calls, in this order.

    setup, load_state_dict (when resuming), on_training_start, train
    on_parameters_changed                                               when resuming with other parameters
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
dictionary or in an object of the user's that has no `state_dict`. What is only another name for something that is saved
is not such a part: `list(network.parameters())`, a layer of a network, a list of optimizers that are attributes too.
Refused at a save are parts that no resumed run would have: those that `setup` and `on_training_start` make, copies of
their networks, and no others, can take over a state; and names that have got each other's objects.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune
from torch.optim import Optimizer

from proctor.sdk.pytorch.checkpoints.walk import STATEFUL, Walk, has_state
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.data.loaders import move_to
from proctor.sdk.pytorch.distributed.ranks import Ranks, unwrap
from proctor.sdk.pytorch.distributed.shards import holds_split, make_whole, split_as, splitting
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.fingerprint import Fact
from proctor.sdk.pytorch.state import RunView, TrainingState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from proctor.sdk.pytorch.data.module import DataModule
    from proctor.sdk.pytorch.distributed.processes import HandoverQueue
    from proctor.sdk.pytorch.setup_options import SetupOptions

_KEPT = ("amp_scaler", "averages", "_log", "_parts", "_options")
GIVEN = (*_KEPT, "device", "ranks", "queue", "datamodule", "trainer", "tensorboard", "transient")
"""Attributes that the trainer sets, or that are its own."""
_COPIES = "copies of networks"  # in a model's state, if there are some; no attribute can be called so
_SPLITTING_KINDS = frozenset({"FullyShardedDataParallel", "ZeroRedundancyOptimizer"})


class Averages:
    """Weighted means by name, of what this rank has added since the last reading.

    Sums stay on the device: adding to them waits for nothing and asks nothing of other ranks. Reading adds up over the
    ranks and waits for the device once, for all names together.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._weights: dict[str, float] = {}

    def add(self, values: "Mapping[str, Any]", weight: float = 1.0) -> None:
        """Add numbers or tensors of one element, each `weight` times (such as the samples of the batch)."""
        for name, value in values.items():
            tensor = make_whole(value.detach()) if isinstance(value, torch.Tensor) else torch.tensor(float(value))
            share = tensor.double().reshape(()) * weight
            before = self._sums.get(name)
            self._sums[name] = share if before is None else before.to(share.device) + share
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def read(self, ranks: Ranks, device: "torch.device | str" = "cpu") -> "dict[str, float]":
        """Return the means over all ranks, which have all added to the same names, and start over (collective).

        :param device: where the ranks exchange them.
        """
        if not self._sums:
            return {}
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name].to(device) for name in names])
        weights = torch.tensor([self._weights[name] for name in names], dtype=sums.dtype, device=device)
        total_sums, total_weights = ranks.sum(torch.stack([sums, weights])).tolist()
        self._sums, self._weights = {}, {}
        return {name: total_sums[place] / total_weights[place] for place, name in enumerate(names)}

    def state_dict(self) -> "dict[str, Any]":
        """What this rank has added; it is this rank's alone."""
        return {"sums": {name: tensor.cpu() for name, tensor in self._sums.items()}, "weights": dict(self._weights)}

    def load_state_dict(self, state: "Mapping[str, Any]") -> None:
        """Take over what `state_dict` returned."""
        self._sums, self._weights = dict(state["sums"]), dict(state["weights"])


class ModelTools:
    """What a model may call; these are no hooks."""

    device: Any = None
    ranks: "Ranks"
    averages: Averages
    amp_scaler: Any = None
    _amp_dtype: Any = None
    _log: "Callable[[Mapping[str, Any]], None] | None" = None

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
        """Return the means over all ranks since the last reading, and start over (collective)."""
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
        return make_whole(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def describe_precision(self) -> "dict[str, Fact]":
        """Return the facts of mixed precision, for the fingerprint of a run."""
        scaler = self.amp_scaler
        return {
            "mixed precision": None if self._amp_dtype is None else str(self._amp_dtype),
            "gradient scaler": None if scaler is None else f"enabled={scaler.is_enabled()}",
        }


class Model(ModelTools):
    """The base of every model; only `train_step` must be written. Its methods are what the trainer calls.

    Attributes that have `state_dict` and `load_state_dict` (networks, optimizers, schedulers) are saved by themselves,
    and so is what changes of the others while training, as far as it is plain values; see `attributes`. `transient`
    names attributes on which nothing depends after a checkpoint, such as caches: they are not saved.

    The trainer fills in `device`, `ranks`, `queue`, `datamodule` and `trainer` before `setup`; what is put into `queue`
    is in `Trainer.queue` afterwards, from whichever process. `tensorboard` is PyTorch's `SummaryWriter`, for images,
    graphs and hyper-parameters, from `on_training_start` on; None on other ranks and if TensorBoard is off.
    """

    queue: "HandoverQueue"
    datamodule: "DataModule"
    trainer: RunView
    tensorboard: Any = None
    transient: "Sequence[str]" = ()
    kept_by_trainer = GIVEN
    _parts: "Parts | None" = None
    _options: "SetupOptions | None" = None

    # -- set-up and state ---------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Make networks, optimizers, schedulers, on `self.device`; the streams are seeded by then."""

    def state_dict(self) -> "dict[str, Any]":
        """What a checkpoint keeps: by default, each attribute that has a state, under its name."""
        return (self._parts or Parts(self)).take()

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Take over what `state_dict` returned; what `on_training_start` is still to make gets its state after it.

        :raises ConfigurationError: other parts have been made than those of the checkpoint.
        """
        (self._parts or Parts(self)).load(state)

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

    def on_parameters_changed(self, before: Any, now: Any) -> None:
        """Called once a process before the first batch, when a trial continues from a checkpoint of a trial with other
        parameters, as a clone does. Everything has been restored by then: this is the place to change some of it.

        As it is here, optimizers and schedulers take over what `setup` gives them now and did not give them then. A
        learning rate that a scheduler has changed since keeps its share of the one that it began with.

        :param before: the parameters with which the checkpoint was saved.
        """
        if self._options is not None:
            self._options.take_over()

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
        """Whether to continue to the data of the next phase; asked before each epoch or, by ITERATION, each window."""
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

    def _networks(self) -> "list[torch.nn.Module]":
        return [part for part in vars(self).values() if isinstance(part, torch.nn.Module)]


class Parts:
    """A model's attributes with a state of their own, from the start of a run to its end.

    What `setup` and `on_training_start` make, a resumed run makes again and gives the states of a checkpoint to, by
    their names. So these, of the same structure and bound to the same objects, are what every save must find.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        # Until every part that is to be made is there: the states of all, and the parts that were given theirs.
        self._pending: dict[str, Any] | None = None
        self._loaded: dict[str, Any] = {}
        self._started: dict[str, Any] | None = None  # the structures of the parts that were there as training began
        self._bound: dict[_Key, _Key] = {}  # what these consist of, and which of it is the same
        self._copies: dict[str, list[Any]] = {}  # what `_find_copies` returned before the checkpoint
        self.is_used = False  # whether the checkpoint holds what `take` returns

    def __reduce__(self) -> "tuple[type[Parts], tuple[Model]]":
        """A copy of the model is at no run's start."""
        return Parts, (self._model,)

    def find(self) -> "dict[str, Any]":
        """The parts that there are now, by name."""
        return {
            name: part
            for name, part in vars(self._model).items()
            if name not in GIVEN and has_state(part) and not isinstance(part, TrainingState)  # that is the trainer's
        }

    def take(self) -> "dict[str, Any]":
        """The states of the parts that a resumed run will have, by name."""
        self.is_used = True
        copies = self._find_copies()
        names = self.find() if self._started is None else {*self._started, *copies}
        states = {name: part.state_dict() for name, part in self.find().items() if name in names}
        return {**states, _COPIES: copies} if copies else states

    def load(self, state: "Mapping[str, Any]") -> None:
        """Give the parts their states, and those that are still to be made by `finish_loading`."""
        self._pending = {name: own for name, own in state.items() if name != _COPIES}
        self._copies = dict(state.get(_COPIES) or {})
        self._loaded = {name: part for name, part in self.find().items() if name in state}
        for name, part in self._loaded.items():
            self._give(part, state[name])

    def finish_loading(self, *, may_lack: bool = False) -> None:
        """Give parts that were made since `load` their states, or find that some are missing.

        :param may_lack: `on_training_start`, which may make some, is not called.
        :raises ConfigurationError: other parts have been made than those of the checkpoint.
        """
        state = self._pending
        if state is None:
            return
        self._make_copies()
        parts = self.find()
        lacking = [name for name in state.keys() - parts.keys() if state[name] and not may_lack]
        surplus = [name for name in parts.keys() - state.keys() if parts[name].state_dict()]
        if lacking or surplus:
            raise ConfigurationError(
                f"{type(self._model).__name__} makes {sorted(parts)} in setup and on_training_start, the checkpoint "
                f"holds {sorted(state)}; resume with the model that was saved, or override load_state_dict."
            )
        with splitting(parts.values()):
            for name, part in parts.items():
                if name in state and part is not self._loaded.get(name):
                    self._give(part, state[name])
        self._pending, self._loaded = None, {}

    def _make_copies(self) -> None:
        """Make the copies of networks that training made; the checkpoint has their states."""
        parts = self.find()
        for name, (source, is_inner) in self._copies.items():
            if name not in parts and isinstance(whole := parts.get(source), torch.nn.Module):
                setattr(self._model, name, deepcopy(unwrap(whole) if is_inner else whole))

    def _find_copies(self) -> "dict[str, list[Any]]":
        """By name, the networks that were made since training began as copies of one that was there: the name of that,
        and whether they are copies of the network in its replica."""
        parts, started = self.find(), self._started or {}
        known = {key for name, part in parts.items() if name in started for key in _identify(part)}
        found = {}
        for name, part in parts.items() if self._started is not None else ():
            if name in started or not isinstance(part, torch.nn.Module) or _identify(part) <= known:
                continue
            for source in started:
                whole = parts.get(source)
                inner = unwrap(whole) if isinstance(whole, torch.nn.Module) else whole
                if (is_inner := is_copy(part, inner)) or is_copy(part, whole):
                    found[name] = [source, is_inner and inner is not whole]
                    break
        return found

    def _give(self, part: Any, state: Any) -> None:
        """Give a part its state; networks and optimizers split what is split over the ranks by themselves."""
        if isinstance(part, torch.nn.Module):
            _prune_as(part, state)
        elif not isinstance(part, Optimizer) and any(map(holds_split, vars(self._model).values())):
            state = split_as(state, part.state_dict())
        part.load_state_dict(state)

    def note(self) -> None:
        """Remember the parts: training is about to begin."""
        parts = {name: part for name, part in self.find().items() if name not in self._copies}
        self._started = {name: _describe_structure(part) for name, part in parts.items()}
        self._bound = _find_bound(parts)

    def check(self, held: "Iterable[tuple[str, Any]]") -> None:
        """Refuse what looks like a part and would be in no checkpoint, or could not be given back.

        :param held: the parts that the attributes are or hold, each with the name of the attribute.
        :raises ConfigurationError: an attribute is such a part; a model with a `state_dict` of its own knows better.
        """
        if (problem := next(self._find_problems(held), None)) is not None:
            model = type(self._model).__name__
            raise ConfigurationError(f"{model}.{problem}, or override state_dict and load_state_dict.")

    def _find_problems(self, held: "Iterable[tuple[str, Any]]") -> "Iterator[str]":
        """Each begins with the name of an attribute."""
        model, saved = self._model, self.find()
        if self._started is not None and self.is_used:
            yield from self._find_changes(self._started, saved)
            saved = {name: part for name, part in saved.items() if name in {*self._started, *self._find_copies()}}
        if type(model).state_dict is not Model.state_dict:
            return
        for name, part in saved.items():
            if isinstance(part, torch.nn.Module) and any(map(is_lazy, (*part.parameters(), *part.buffers()))):
                yield (
                    f"{name} has layers whose sizes the first batch decides, such as LazyLinear, and no resumed run "
                    "could load their state before that. Pass a batch of zeros through the network in setup, before "
                    "the optimizer is made"
                )
            if (kind := _find_split_kind(part)) is not None:
                yield (
                    f"{name} is or holds a {kind}, of whose state each rank has a part of its own, and a checkpoint "
                    "would hold the main rank's alone. Split the network with torch.distributed.fsdp.fully_shard "
                    "(FSDP2), whose tensors a checkpoint holds whole, and give its parameters to an ordinary optimizer"
                )
        if (holder := _find_unsaved(saved.values(), held)) is not None:
            yield (
                f"{holder} holds parameters, networks or optimizers that no checkpoint would hold: only attributes "
                "that have state_dict and load_state_dict are saved. Make it an attribute of its own or part of a "
                "network (nn.ModuleList, nn.ModuleDict, nn.ParameterList), give the object that holds it both methods, "
                "name the attribute in transient if it never changes"
            )

    def _find_changes(self, started: "Mapping[str, Any]", parts: "Mapping[str, Any]") -> "Iterator[str]":
        """What is not as a start makes it."""
        known = {key for name, part in parts.items() if name in started for key in _identify(part)}
        copies = self._find_copies()
        for name, part in parts.items():
            if name not in {*started, *copies} and part.state_dict() and not (_identify(part) <= known):
                yield (
                    f"{name} was made after training had begun, so a resumed run has nothing to load its state into. "
                    "Make it in setup or on_training_start, even if it is used later"
                )
        for name, before in started.items():
            now = _describe_structure(parts[name]) if name in parts else None
            if now != before:
                what = "has another structure than when training began" if name in parts else "is no longer there"
                yield (
                    f"{name} {what}, so a resumed run could not load its state. Make it in setup as it is later "
                    "(freeze layers with requires_grad_, put all parameters into the optimizer from the start, make "
                    "parametrizations there, too)"
                )
        bound = _find_bound({name: parts[name] for name in started if name in parts})
        changed = [key for key, first in self._bound.items() if bound.get(key, first) != first]
        for key in sorted(changed, key=lambda key: not isinstance(parts[key[0]], Optimizer)):
            (was, _), (now, _) = self._bound[key], bound[key]
            name = was if isinstance(parts[key[0]], Optimizer) else key[0]
            yield (
                f"{name} was bound to another object after training had begun, and it or the one before is that of "
                f"{type(self._model).__name__}.{now if was == name else was}, so a resumed run would load the "
                "states into the wrong objects. Keep the names as they are and save which one is in use as a plain "
                "attribute (such as an index), copy values with load_state_dict"
            )


def is_copy(part: torch.nn.Module, other: Any) -> bool:
    """Whether a network is of the class of another one, and has a state of the same names and shapes."""
    if type(part) is not type(other):
        return False
    shapes = [{name: getattr(item, "shape", None) for name, item in one.state_dict().items()} for one in (part, other)]
    return bool(shapes[0]) and shapes[0] == shapes[1]


def _describe_structure(part: Any) -> Any:
    """What must be the same for a state to fit; None for a network without state, such as a loss."""
    if isinstance(part, Optimizer):
        return type(part), tuple(len(group["params"]) for group in part.param_groups)
    if not isinstance(part, torch.nn.Module):
        return type(part), None  # its state may be empty at times
    state = part.state_dict()
    pruned = _find_pruned(state)
    return (type(part), {str(name).removesuffix("_orig") for name in state if name not in pruned}) if state else None


def _find_pruned(state: "Mapping[str, Any]") -> "set[str]":
    """The names of the masks of torch.nn.utils.prune; a start prunes as the checkpoint has it."""
    return {
        name for name in map(str, state) if name.endswith("_mask") and name.removesuffix("_mask") + "_orig" in state
    }


def _prune_as(network: torch.nn.Module, state: "Mapping[str, Any]") -> None:
    """Have pruned in a network what is pruned in a state, with the same parameters, and nothing else."""
    before, after = _find_pruned(network.state_dict()), _find_pruned(state)
    for name in before ^ after:
        path, _, key = name.removesuffix("_mask").rpartition(".")
        module = network.get_submodule(path)
        if name in after:
            prune.custom_from_mask(module, key, state[name].to(getattr(module, key).device))
        else:
            prune.remove(module, key)


_Key = tuple[str, Any]
"""The name of a part, and which of the objects it is that the part consists of."""


def _find_bound(parts: "Mapping[str, Any]") -> "dict[_Key, _Key]":
    """Return for each object that parts consist of, or work on, where it is met first."""
    first: dict[int, _Key] = {}
    found = {}
    for name, part in sorted(parts.items(), key=lambda item: isinstance(item[1], Optimizer)):
        worked_on = (
            [one for group in part.param_groups for one in group["params"]] if isinstance(part, Optimizer) else ()
        )
        for key, thing in (*_list_objects(part), *enumerate(worked_on)):
            found[name, key] = first.setdefault(id(thing), (name, key))
    return found


def _list_objects(part: Any) -> "list[tuple[Any, Any]]":
    """What a part consists of, by names; a parameter that is pruned has the name that it had before."""
    if not isinstance(part, torch.nn.Module):
        return [("", part)]
    parameters = [(name.removesuffix("_orig"), one) for name, one in part.named_parameters()]
    return [*part.named_modules(), *parameters, *part.named_buffers()]


def _identify(part: Any) -> "set[int]":
    """The objects whose values a part saves; none for a network without state."""
    return {id(thing) for _, thing in _list_objects(part) if not isinstance(thing, torch.nn.Module)}


def _find_split_kind(part: Any) -> "str | None":
    """Return the class that splits a part's state over the ranks in a form of its own; None if there is none."""
    things = part.modules() if isinstance(part, torch.nn.Module) else [part]
    kinds = [kind for thing in things for kind in type(thing).__mro__ if kind.__name__ in _SPLITTING_KINDS]
    return next((kind.__name__ for kind in kinds if kind.__module__.startswith("torch.distributed.")), None)


def _find_unsaved(parts: "Collection[Any]", held: "Iterable[tuple[str, Any]]") -> "str | None":
    """Return the first attribute with a part that has state and is in none of the parts that are saved.

    :param held: the parts that the attributes are or hold.
    """
    own = {str(number): part for number, part in enumerate(parts) if not isinstance(part, STATEFUL)}
    parts = [*parts, *(part for _, part in Walk(own).parts)] if own else parts
    known = {key for part in parts for key in _identify(part)}
    return next((name for name, part in held if not _identify(part) <= known), None)


def overrides(part: Any, method: "Callable[..., Any]") -> bool:
    """Whether a model, a data module or a plug-in has a method of its own in place of the base class's."""
    own = getattr(part, method.__name__)
    return getattr(own, "__func__", own) is not method
