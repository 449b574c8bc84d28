"""The base of every callback, and all callbacks of a run together.

The user's callbacks are called in every process. They may change batches, and four things only one of them can decide;
it claims them in `overrides`. The trainer's own (the *logs*: log file, TensorBoard, progress) are there on the main
rank only and change nothing.

What a log must find again after a resume (the name of its file) is in the checkpoint, too. Only the run itself gets
that back: another run that began from a copy of its checkpoint must not touch what the first one is still writing. What
it writes is in a file or a folder named after the run, its trial, and its first start. Two runs never share one, even
if they start in the same second or one continues from the other's checkpoint.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from enum import Enum
from itertools import count
from pathlib import Path
from time import localtime, struct_time
from typing import Any

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch.config import Phase, Settings, StopReason
from proctor.sdk.pytorch.errors import ConfigurationError, MetricWarning
from proctor.sdk.pytorch.model import Model, overrides
from proctor.sdk.pytorch.reproducibility.fingerprint import Fact
from proctor.sdk.pytorch.state import Record, TrainingState
from proctor.sdk.pytorch.trial import choose_root
from proctor.sdk.trial import is_in_trial

# The names of a checkpoint's own parts: a callback of such a name would look like one of them.
_PARTS = ("format", "version", "training_state", "model", "amp_scaler", "rng", "averages", "attributes", "history")
_MORE = ("metrics", "plugins", "observers", "settings", "fingerprint", "log_path", "run_path", "loggers", "datamodule")
RESERVED_NAMES = frozenset({*_PARTS, *_MORE})
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_OWNER = "owner"  # the run that the states of its logs belong to; no log is called so


class Override(str, Enum):
    """What one callback at most may claim."""

    TRAINING_BATCH = "training_batch"
    VALIDATION_BATCH = "validation_batch"
    TESTING_BATCH = "testing_batch"
    SHOULD_TRAINING_STOP = "should_training_stop"


class Callback:
    """The contract; every method may be left as it is. An exception ends the run."""

    overrides: "frozenset[Override]" = frozenset()

    @property
    def state_key(self) -> str:
        """Under which a checkpoint keeps `state_dict`; unique among the callbacks of a run."""
        return type(self).__name__

    def setup(self, model: Model) -> None:
        """Called in each process before the data module's and the model's `setup`; the streams are seeded."""

    def on_training_start(self) -> None:
        """Called before the model's `on_training_start`, after `load_state_dict` if the run is resumed."""

    def on_training_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Called when an epoch is entered, also in its middle; `batches` is the length of the whole epoch, 0 for a
        stream, whose length is not known."""

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

    def on_training_epoch_end(self, state: TrainingState) -> None:
        """Called after the model's `on_training_epoch_end`."""

    def on_evaluation_start(self, phase: Phase) -> None:
        """Called before a validation or a test, before the model's `eval` and its own hook."""

    def on_evaluation_batch_end(self, step: int) -> None:
        """Called after each batch of it (counted from 0)."""

    def on_evaluation_end(self, phase: Phase) -> None:
        """Called after it, after the model's own hook."""

    def should_training_stop(self) -> bool:
        """Whether to stop; asked with `Override.SHOULD_TRAINING_STOP` when the model is asked."""
        return False

    def on_metrics(self, record: Record) -> None:
        """Called with the metrics of each `log`, on the main rank, once in all incarnations that count."""

    def on_checkpoint(self, path: Path) -> None:
        """Called on the main rank when a checkpoint has been handed over to the storage."""

    def on_training_end(self) -> None:
        """Called after the model's `on_training_end`; not when the training is interrupted to be continued."""

    def on_fit_end(self, reason: "StopReason | None") -> None:
        """Called when the training has ended or was interrupted, not when it failed; None: a loop of one's own."""

    def on_exception(self, problem: BaseException) -> None:
        """Called when the run fails, before `close`."""

    def close(self) -> None:
        """Called last, however the run ended, even if `setup` was never called."""

    def describe(self) -> "dict[str, Fact]":
        """What of its settings must be the same for an exact resume, by names such as "decay"."""
        return {}

    def state_dict(self) -> "dict[str, Any]":
        """What the checkpoint keeps; taken on the main rank, and on all where the model is split over them (FSDP2)."""
        return {}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Take over what `state_dict` returned."""


def saves_itself(callback: Callback) -> bool:
    """Whether a callback has a state of its own making; of one that has not, plain attributes are saved."""
    return overrides(callback, Callback.state_dict)


class Plugin(Callback):
    """A callback that is known by an id, of which there may be several of one class."""

    def __init__(self, plugin_id: str) -> None:
        self.plugin_id = plugin_id

    @property
    def state_key(self) -> str:
        """The id."""
        return self.plugin_id


class Callbacks:
    """The callbacks of a trainer or of a run, in their order.

    :param own: the user's.
    :param logs: the trainer's, which are called first.
    :param owner: the run, see `identify_run`.
    """

    def __init__(self, own: "Iterable[Callback]" = (), logs: "Iterable[Callback]" = (), owner: str = "") -> None:
        self.own: list[Callback] = []
        self.logs = list(logs)
        self._owner = owner
        self._methods: dict[str, list[Callable[..., Any]]] = {}
        for callback in own:
            self.add(callback)

    def add(self, callback: Callback) -> None:
        """Add one of the user's, or nothing at all if it cannot be added.

        :raises KeyError: another one has its id.
        :raises ConfigurationError: it is no callback, its id is reserved, or another one has claimed one of its
            overrides.
        """
        if not isinstance(callback, Callback):
            raise ConfigurationError(f"a callback must derive from Callback; found {callback!r}.")
        name = callback.state_key
        if name in RESERVED_NAMES:
            raise ConfigurationError(f"the id {name!r} is a part of every checkpoint; give the plug-in another one.")
        if name in [other.state_key for other in self.own]:
            raise KeyError(f"a plug-in with the id {name!r} is registered already; ids are unique in a trainer.")
        for override in callback.overrides:
            if (other := self.claims(override)) is not None:
                raise ConfigurationError(
                    f"plug-in {name!r} claims {override.value}, which plug-in {other.state_key!r} has claimed; one of "
                    "them has to go."
                )
        self.own.append(callback)

    def claims(self, override: Override) -> "Callback | None":
        """The one that has claimed this, if one has."""
        return next((callback for callback in self.own if override in callback.overrides), None)

    def find(self, hook: str) -> "list[Callable[..., Any]]":
        """The methods of those that have one of their own for a hook; the others need not be called."""
        if hook not in self._methods:
            base = getattr(Callback, hook)
            self._methods[hook] = [getattr(one, hook) for one in (*self.logs, *self.own) if overrides(one, base)]
        return self._methods[hook]

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all."""
        for method in self.find(hook):
            method(*arguments)

    def close(self) -> None:
        """Close every one, whatever the others raise; the logs last."""
        with ExitStack() as stack:
            for callback in reversed((*self.own, *self.logs)):
                stack.callback(callback.close)

    def state_dict(self) -> "dict[str, Any]":
        """The states, as a checkpoint has them: of the user's callbacks by id, and of the logs, with the run's name."""
        logs = {log.state_key: state for log in self.logs if (state := log.state_dict())}
        return {
            "plugins": {callback.state_key: callback.state_dict() for callback in self.own},
            "observers": {_OWNER: self._owner, **logs} if logs else {},
        }

    def load_state_dict(self, content: "dict[str, Any]") -> None:
        """Hand the states of a checkpoint out; one that is on one side only is a difference of the fingerprints."""
        logs = content.get("observers") or {}
        is_own = logs.get(_OWNER) == self._owner  # not another run's, or from before checkpoints named the run
        for callbacks, states in ((self.own, content.get("plugins") or {}), (self.logs, logs if is_own else {})):
            for callback in callbacks:
                if callback.state_key in states:
                    callback.load_state_dict(states[callback.state_key])


class ExpectedMetric(Callback):
    """Warns a run that the metric that is to judge it does not come, before days pass without a best checkpoint.

    It warns once, after the first validation of this start; in a run without validations, after the first epoch, with
    what is logged behind it: a loop of the user's own validates there.

    :param metric: `best_metric`.
    :param validates: whether the run has validations.
    """

    def __init__(self, metric: str, *, validates: bool) -> None:
        self._metric = metric
        self._validates = validates
        self._logged: dict[str, float] = {}
        self._has_ended_epoch = self._has_warned = False

    def on_metrics(self, record: Record) -> None:
        self._logged.update(record.metrics)

    def on_evaluation_end(self, phase: Phase) -> None:
        if phase is Phase.VALIDATION:
            self._warn_if_missing("validation")

    def on_training_epoch_end(self, state: TrainingState) -> None:
        self._has_ended_epoch = not self._validates

    def on_training_epoch_start(self, state: TrainingState, batches: int) -> None:
        self.on_fit_end(None)

    def on_fit_end(self, reason: "StopReason | None") -> None:
        if self._has_ended_epoch:
            self._warn_if_missing("epoch")

    def _warn_if_missing(self, after: str) -> None:
        if self._has_warned or self._metric in self._logged:
            return
        self._has_warned = True
        logged = ", ".join(repr(name) for name in self._logged) or "nothing"
        text = (
            f"best_metric is {self._metric!r}, and by the end of the first {after} since this start no metric of that "
            f"name was logged, only {logged}. Without it no checkpoint is among the best, and a trial has no default "
            "metric. Correct the name, or log it."
        )
        warnings.warn(MetricWarning(text), stacklevel=2)


def identify_run(settings: Settings) -> str:
    """Return what all incarnations of a run have in common, and another run that continues from its checkpoint has not.

    In a trial that is the trial, wherever its attempts run and keep their checkpoints; elsewhere it is the real path of
    the checkpoints' folder, so that a copy of the folder is another run.
    """
    if is_in_trial():
        return f"run {settings.run_name} of trial {sdk.get_trial_id()} of experiment {sdk.get_experiment_id()}"
    root = choose_root(settings)
    return "" if root is None else os.path.realpath(root / settings.run_name)


def name_start(run_name: str, start: "struct_time | None" = None) -> str:
    """Return `<run>[_<trial id>]_<Mon><day>_<H>-<M>-<S>`, in English and local time.

    :param start: when the run started; None is now.
    """
    start = localtime() if start is None else start
    trial = f"_{sdk.get_trial_id()}" if is_in_trial() else ""
    clock = "-".join(f"{part:02d}" for part in (start.tm_hour, start.tm_min, start.tm_sec))
    return f"{run_name}{trial}_{_MONTHS[start.tm_mon - 1]}{start.tm_mday:02d}_{clock}"


def make_new(parent: Path, name: str, suffix: "str | None" = None) -> Path:
    """Make a new empty file, or without a suffix a folder, and return its path: with the first number that is free.

    :raises OSError: the parent cannot be made or written to.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = parent / f"{name}{'' if number == 1 else f'_{number}'}{suffix or ''}"
        with suppress(FileExistsError):
            path.mkdir() if suffix is None else path.touch(0o644, exist_ok=False)
            return path
    raise AssertionError("numbers do not end")
