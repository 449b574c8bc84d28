"""One run in one process: what it is made of, and what its loop, its checkpoints and its end ask of it.

At the end is what is said of a run that continues: from where, and what was asked for now and is not as it was. What
changes a run's bits is in the fingerprint, which is compared and warned of. Here is the rest: options that may well
differ, learning rates, which a resumed optimizer has from its checkpoint, whatever `setup` gives it, and the parameters
of its trial, which may be others in a clone.
"""

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.callbacks.base import Callbacks, Override
from proctor.sdk.pytorch.checkpoints.attributes import TrackedAttributes
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.history import History
from proctor.sdk.pytorch.checkpoints.pointer import Retention
from proctor.sdk.pytorch.config import Settings, StopReason
from proctor.sdk.pytorch.data.loaders import EpochLoader
from proctor.sdk.pytorch.data.module import DataModule
from proctor.sdk.pytorch.data.streams import StreamLoader
from proctor.sdk.pytorch.distributed.processes import HandoverQueue
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.distributed.shards import is_split
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.model import Model, Parts, overrides
from proctor.sdk.pytorch.setup_options import Rates, SetupOptions, is_clone, read_rates
from proctor.sdk.pytorch.state import Record, RunView, TrainingState
from proctor.sdk.trial import is_in_trial

LOGGER = logging.getLogger("proctor.sdk.pytorch")
_MAY_DIFFER = (
    *("total_steps", "valid_frequency", "chkpt_frequency", "print_frequency", "early_stop_cycles", "best_metric"),
    *("best_mode", "keep_last", "keep_best"),
)
_WATCHED_PARAMETERS = 8  # of a network, to find one whose gradient is not zero
_RATES, _OPTIONS, _PARAMETERS = "learning rates", "options of setup", "parameters of the trial"


@dataclass(frozen=True)
class Place:
    """Where a process of a run works: its device, who the others are, and the way back to the caller."""

    device: Any
    ranks: Ranks
    queue: HandoverQueue = field(default_factory=HandoverQueue)


@dataclass(frozen=True)
class Outcome:
    """What `fit` and `test` return; a failure is never among it, failures raise."""

    reason: "StopReason | None"  # None for a test
    state: TrainingState
    metrics: "dict[str, float]"  # the last value of each metric
    checkpoint: "Path | None"  # the newest one; of a test the one that was tested
    resumed_from: "Path | None" = None


class GradientWatch:
    """Notices that gradients are added up over a checkpoint, which holds none.

    Gradients that are there at a save may be cleared before the next backward pass. So that pass is watched: just
    before its gradient is added to one that was there, the two are two halves of a sum.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._gap = ""
        self._has_told = False

    def find_gaps(self) -> "list[str]":
        """What was noticed, once."""
        is_new, self._has_told = bool(self._gap) and not self._has_told, bool(self._gap)
        return [self._gap] if is_new else []

    def watch(self, model: Model) -> None:
        """Watch one parameter of each network with a gradient, until the next backward pass or save."""
        self._stop()
        for part in () if self._gap else vars(model).values():
            parameters = part.parameters() if isinstance(part, torch.nn.Module) else ()
            waiting = (one for one in parameters if one.requires_grad and one.grad is not None and not is_split(one))
            if (found := next(filter(_has_gradient, islice(waiting, _WATCHED_PARAMETERS)), None)) is not None:
                self._handles.append(found.register_hook(partial(self._look, type(model).__name__, found)))

    def _look(self, model: str, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Called by autograd before it adds a gradient."""
        if self._handles and parameter.grad is not None and _has_gradient(parameter):
            self._gap = (
                f"{model} adds gradients up over a checkpoint, which holds none; step the optimizer and clear the "
                "gradients where a checkpoint may be made: set accumulation_steps, and go by state.optimizer_step_now"
            )
        self._stop()

    def _stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _has_gradient(parameter: torch.nn.Parameter) -> bool:
    return parameter.grad is not None and bool(parameter.grad.any())


class Run:
    """The parts of a run, as the loop, the snapshots and the evaluation see them; made on all ranks (collective)."""

    def __init__(
        self, settings: Settings, model: Model, *, datamodule: DataModule, callbacks: Callbacks, place: Place
    ) -> None:
        self.settings = settings
        self.model = model
        self.datamodule = datamodule
        self.callbacks = callbacks
        self.device = place.device
        self.ranks = place.ranks
        self.queue = place.queue
        self.state = TrainingState()
        self.storage = _make_storage(settings, model, place.ranks)
        self.history = self.storage.history if self.storage and place.ranks.is_main else History(None)
        self.attributes = TrackedAttributes(model)
        self.parts = Parts(model)
        self.gradients = GradientWatch()
        self.metrics: dict[str, float] = {}  # the last value of each metric; always this very object
        self.view = RunView(settings, self.state, self.metrics, self.storage.path if self.storage else None)
        self.gaps: list[str] = []  # what the switches of the kernels leave open
        self.resumed_from: Path | None = None
        self.reports = is_in_trial()  # whether metrics are reported to a trial's tuner
        self.has_saved = False  # since this start
        self.changes: list[str] = []  # what is not as it was before a resume
        self.rates: Rates = {}  # the learning rates that the run began with
        self.options = SetupOptions(model)
        self.parameters = trial.read_parameters()  # None outside a trial
        self.parameters_before: Any = None  # those of the checkpoint, if they are others
        self._judged_at = -1  # the batch at which the metric that judges the run was logged last
        self._claimed = callbacks.claims(Override.SHOULD_TRAINING_STOP)

    def log(self, metrics: "Mapping[str, Any]") -> None:
        """Record metrics of the present step, on the main rank.

        :raises ConfigurationError: one is split over the ranks, on all ranks alike.
        """
        if split := [name for name, value in metrics.items() if is_split(value)]:
            raise ConfigurationError(
                f"metric {split[0]!r} is a tensor that is split over the ranks (DTensor), and only the main rank "
                "records metrics: log value.full_tensor(), which every rank must call."
            )
        if not self.ranks.is_main:
            return
        state, best = self.state, self.settings.best_metric
        values = {name: _to_number(name, value) for name, value in metrics.items()}
        record = Record(state.current_iteration, state.global_iteration, state.global_epoch, values)
        self.metrics.update(values)
        if best in values:
            self._judged_at = state.global_iteration
        self.history.append(values, step=record.step, iteration=record.iteration, epoch=record.epoch)
        self.callbacks.call("on_metrics", record)
        if self.reports:
            trial.report_values(values, default=best, step=record.step)

    def has_new_best(self) -> bool:
        """Whether the metric that judges the run, as it was just logged, makes this point one to keep (collective)."""
        if self.storage is None or not self.settings.keep_best:
            return False
        score = self.score()
        is_best = self.ranks.is_main and score is not None and self.storage.is_among_best(score)
        return bool(self.ranks.broadcast(is_best))

    def score(self) -> "float | None":
        """The value of the metric that judges the run, if it was logged at this very batch; on the main rank."""
        is_new = self._judged_at == self.state.global_iteration
        return self.metrics[self.settings.best_metric or ""] if is_new else None

    def has_improved(self) -> "bool | None":
        """Whether the last validation was better than those before, as the model says or else the metric that judges
        the run; None if that was not logged with it (collective)."""
        own = bool(self.model.have_metrics_improved())
        if self.settings.best_metric is None or overrides(self.model, Model.have_metrics_improved):
            return bool(self.ranks.broadcast(own))
        score = self.ranks.broadcast(self.score())
        if score is None:
            return None
        best = self.state.best_score
        is_max = self.settings.best_mode == "max"
        is_better = math.isfinite(score) and (best is None or (score > best if is_max else score < best))
        if is_better:
            self.state.best_score = score
        return is_better

    def wants_stop(self) -> bool:
        """Whether the model or the callback that claimed the question wants the training to stop."""
        return self.model.should_training_stop() or (self._claimed is not None and self._claimed.should_training_stop())

    def read(self, loader: "EpochLoader | StreamLoader") -> "Iterator[Any]":
        """Return the batches of a loader, to be read at once: no thread stores a checkpoint when workers are forked."""
        if self.storage is not None and loader.will_fork:
            self.storage.settle()
        return iter(loader)

    def finish(self, reason: "StopReason | None") -> Outcome:
        """Wait until everything is stored and return the outcome, on all ranks alike (collective)."""
        newest = self.resumed_from
        if self.storage is not None and self.ranks.is_main:
            self.storage.wait()
            if reason is not None:
                newest = next((self.storage.path / entry.name for entry in self.storage.entries()), None)
        newest, metrics = self.ranks.broadcast((newest, dict(self.metrics)))
        return Outcome(reason, self.state, metrics, newest, self.resumed_from)


def _to_number(name: str, value: Any) -> float:
    try:
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ValueError("of several")
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError) as problem:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise ConfigurationError(
            f"metric {name!r} must be a number or a tensor of one element; found {found}. Give each value a name."
        ) from problem


def _make_storage(settings: Settings, model: Model, ranks: Ranks) -> "CheckpointFolder | None":
    """The main rank decides for all whether there is one; another machine's own place for it may be another."""
    own = trial.choose_root(settings)
    root = ranks.broadcast(own)
    if root is None:
        return None
    return CheckpointFolder(
        own or root,
        settings.run_name,
        retention=Retention(settings.keep_last, settings.keep_best, settings.best_mode),
        in_background=settings.background_writes,
        safe_types=model.types_for_safe_load(),
        registrar=trial.Registrar() if is_in_trial() else None,
    )


def describe_settings(run: Run) -> "dict[str, Any]":
    """Return what a checkpoint keeps to be compared."""
    own = {_RATES: run.rates, _OPTIONS: run.options.to_save(), _PARAMETERS: run.parameters}
    return {**{name: getattr(run.settings, name) for name in _MAY_DIFFER}, **own}


def compare_parameters(run: Run, saved: "Mapping[str, Any]") -> None:
    """Note that the run's trial has other parameters than the checkpoint's trial, if that is known.

    :param saved: what `describe_settings` returned then.
    """
    before = saved.get(_PARAMETERS)
    if is_clone(before, run.parameters):
        run.parameters_before = before
    run.options.before = dict(saved.get(_OPTIONS) or {})


def describe_new_parameters(run: Run) -> "Iterator[str]":
    """A clause for each parameter that is not as in the checkpoint."""
    before, now = run.parameters_before, run.parameters
    if not isinstance(before, dict) or not isinstance(now, dict):
        yield f"the parameters were {before!r}, are {now!r}"
        return
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{name} was {before.get(name)!r}, is {now.get(name)!r}"


def compare_settings(run: Run, saved: "Mapping[str, Any]", now: Rates) -> None:
    """Note what is not as it was in a run whose model was given the checkpoint's state.

    :param saved: what `describe_settings` returned then; a checkpoint of before has the rates of its optimizers.
    :param now: the rates that `setup` gives.
    """
    before = saved.get(_RATES) or read_rates(run.model)
    run.changes = list(_find_changes(run.settings, saved))
    if run.parameters_before is None:
        run.rates = {**now, **before}
        run.changes += _find_kept_rates(before, now)
    else:
        run.changes += [f"the trial has other parameters: {', '.join(describe_new_parameters(run))}"]
    if any(name in saved and saved[name] != getattr(run.settings, name) for name in ("best_metric", "best_mode")):
        run.state.best_score = None  # of another judge


def adopt_parameters(run: Run) -> None:
    """Have the model take over what its trial's parameters change in what the checkpoint has restored."""
    if run.parameters_before is None:
        return
    run.model._options = run.options
    run.model.on_parameters_changed(run.parameters_before, run.parameters)
    run.options.before = {}
    if run.options.changes and run.ranks.is_main:
        _say(f"run {run.settings.run_name} has other parameters; {'; '.join(run.options.changes)}")


def _find_changes(settings: Settings, saved: "Mapping[str, Any]") -> "Iterator[str]":
    for name in _MAY_DIFFER:
        if name in saved and saved[name] != (value := getattr(settings, name)):
            yield f"{name} was {saved[name]!r}, is {value!r}"


def _find_kept_rates(before: Rates, now: Rates) -> "Iterator[str]":
    for name in sorted(set(before) & set(now)):
        if before[name] != now[name]:
            was, is_now = (", ".join(f"{rate:g}" for rate in rates[name]) for rates in (before, now))
            text = f"the learning rate of {name} continues at {was} although setup gives {is_now}"
            yield f"{text} (set it in on_training_start)"


def announce(run: Run, end: "StopReason | None" = None) -> None:
    """Say that a run continues, or has ended already: in the log, and on standard error unless that goes there."""
    place = f"{run.resumed_from}, {run.state.describe()}"
    text = f"run {run.settings.run_name} continues from {place}"
    if end is not None:
        text = f"run {run.settings.run_name} has ended already ({end.value}), nothing is done: {place}"
    _say("; ".join([text, *run.changes]))


def _say(text: str) -> None:
    LOGGER.info(text)
    if not (LOGGER.isEnabledFor(logging.INFO) and _has_terminal(LOGGER)):
        print(f"proctor: {text}", file=sys.stderr, flush=True)


def _has_terminal(logger: "logging.Logger | None") -> bool:
    while logger is not None:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout):
                return True
        logger = logger.parent if logger.propagate else None
    return False
