"""Observers of a run: logs, TensorBoard, progress bars. They see everything and change nothing.

Observers exist on the main rank only. What an observer must find again after a resume (the name of its file) it
returns from `state_dict`. Only the run itself gets that back: another run that began from a copy of its checkpoint must
not touch what the first one goes on writing.

What an observer writes lies in a file or a folder named after the run, its trial, and its first start. That is made
once, when the run starts for the first time; a resumed run goes back to it. Two runs never share one, even if they
start in the same second or one continues from the other's checkpoint.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from time import localtime, struct_time
from typing import Any

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch.errors import MetricWarning
from proctor.sdk.pytorch.options import Phase, Settings
from proctor.sdk.pytorch.state import Record, TrainingState
from proctor.sdk.pytorch.trial import choose_root
from proctor.sdk.trial import is_in_trial

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_OWNER = "owner"  # the run that the states of its observers belong to; no observer is called so


class Observer:
    """The contract; every method may be left as it is. An exception ends the run."""

    name = ""  # under which the checkpoint keeps `state_dict`; unique among the observers of a run

    def open(self) -> None:
        """Called before anything of the run is set up, so that what fails there is seen."""

    def on_start(self, settings: Settings, state: TrainingState, resumed_from: "Path | None") -> None:
        """Called once, after `load_state_dict` if the run is resumed, before the first batch."""

    def on_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Called when an epoch is entered, also in its middle; `batches` is the length of the whole epoch."""

    def on_batch_end(self, state: TrainingState) -> None:
        """Called after each training batch; as cheap as can be."""

    def on_epoch_end(self, state: TrainingState) -> None:
        """Called after the last batch of an epoch."""

    def on_evaluation_start(self, phase: str, batches: int) -> None:
        """Called before a validation or a test of so many batches."""

    def on_evaluation_batch_end(self) -> None:
        """Called after each batch of it."""

    def on_evaluation_end(self) -> None:
        """Called after it."""

    def on_metrics(self, record: Record) -> None:
        """Called with each record of metrics, once in all incarnations that count."""

    def on_checkpoint(self, path: Path, state: TrainingState) -> None:
        """Called when a checkpoint has been handed over to the storage."""

    def on_end(self, reason: str) -> None:
        """Called when the run has ended or was stopped; not when it failed."""

    def close(self) -> None:
        """Called last, however the run ended, even if `open` was never called."""

    def state_dict(self) -> "dict[str, Any]":
        """Plain values to be kept in the checkpoint."""
        return {}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Take over what `state_dict` returned, before `on_start`."""


class Observers(Observer):
    """All observers of a run, called in their order.

    :param owner: the run, see `identify_run`.
    """

    def __init__(self, observers: "list[Observer]", owner: str = "") -> None:
        self.all = observers
        self._owner = owner

    def open(self) -> None:
        for observer in self.all:
            observer.open()

    def on_start(self, settings: Settings, state: TrainingState, resumed_from: "Path | None") -> None:
        for observer in self.all:
            observer.on_start(settings, state, resumed_from)

    def on_epoch_start(self, state: TrainingState, batches: int) -> None:
        for observer in self.all:
            observer.on_epoch_start(state, batches)

    def on_batch_end(self, state: TrainingState) -> None:
        for observer in self.all:
            observer.on_batch_end(state)

    def on_epoch_end(self, state: TrainingState) -> None:
        for observer in self.all:
            observer.on_epoch_end(state)

    def on_evaluation_start(self, phase: str, batches: int) -> None:
        for observer in self.all:
            observer.on_evaluation_start(phase, batches)

    def on_evaluation_batch_end(self) -> None:
        for observer in self.all:
            observer.on_evaluation_batch_end()

    def on_evaluation_end(self) -> None:
        for observer in self.all:
            observer.on_evaluation_end()

    def on_metrics(self, record: Record) -> None:
        for observer in self.all:
            observer.on_metrics(record)

    def on_checkpoint(self, path: Path, state: TrainingState) -> None:
        for observer in self.all:
            observer.on_checkpoint(path, state)

    def on_end(self, reason: str) -> None:
        for observer in self.all:
            observer.on_end(reason)

    def close(self) -> None:
        with ExitStack() as stack:  # every one is closed, whatever the others raise
            for observer in reversed(self.all):
                stack.callback(observer.close)

    def state_dict(self) -> "dict[str, Any]":
        states = {observer.name: state for observer in self.all if (state := observer.state_dict())}
        return {_OWNER: self._owner, **states} if states else {}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        if state.get(_OWNER) != self._owner:  # another run's, or from before checkpoints named the run
            return
        for observer in self.all:
            if observer.name in state:
                observer.load_state_dict(state[observer.name])


class ExpectedMetric(Observer):
    """Warns a run that the metric that is to judge it does not come, before days pass without a best checkpoint.

    It warns once, after the first validation of this start; in a run without validations, after the first epoch.

    :param metric: `best_metric`.
    :param validates: whether the run has validations.
    """

    name = "best_metric"

    def __init__(self, metric: str, *, validates: bool) -> None:
        self._metric = metric
        self._validates = validates
        self._logged: dict[str, None] = {}  # the names, in their order
        self._phase = ""
        self._has_ended_epoch = False
        self._has_warned = False

    def on_metrics(self, record: Record) -> None:
        """Remember the names."""
        self._logged.update(dict.fromkeys(record.metrics))

    def on_evaluation_start(self, phase: str, batches: int) -> None:
        """Remember what it is; a test judges no run."""
        self._phase = phase

    def on_evaluation_end(self) -> None:
        """Look for the metric after a validation."""
        if self._phase == Phase.VALIDATION.value:
            self._warn_if_missing("validation")

    def on_epoch_end(self, state: TrainingState) -> None:
        """Wait for what is logged between two epochs: a loop of the user's own validates there."""
        self._has_ended_epoch = True

    def on_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Look for the metric after an epoch."""
        self._check_epoch()

    def on_end(self, reason: str) -> None:
        """Look for the metric after the only epoch."""
        self._check_epoch()

    def _check_epoch(self) -> None:
        if self._has_ended_epoch and not self._validates:
            self._warn_if_missing("epoch")

    def _warn_if_missing(self, after: str) -> None:
        if self._has_warned or self._metric in self._logged:
            return
        self._has_warned = True
        logged = ", ".join(repr(name) for name in self._logged) or "nothing"
        warnings.warn(
            MetricWarning(
                f"best_metric is {self._metric!r}, and by the end of the first {after} since this start no metric of "
                f"that name was logged, only {logged}. Without it no checkpoint is among the best, and a trial has no "
                "default metric. Correct the name, or log it."
            ),
            stacklevel=2,
        )


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


def make_file(folder: Path, name: str, suffix: str) -> Path:
    """Make a new empty file and return its path: the name, or the name with the first free number.

    :raises OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for candidate in _candidates(name):
        path = folder / f"{candidate}{suffix}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")


def make_folder(parent: Path, name: str) -> Path:
    """Make a new empty folder and return its path: the name, or the name with the first free number.

    :raises OSError: the parent cannot be made or written to.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for candidate in _candidates(name):
        path = parent / candidate
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")


def _candidates(name: str) -> "Iterator[str]":
    return (name if number == 1 else f"{name}_{number}" for number in count(1))
