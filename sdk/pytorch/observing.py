"""Those who look on at a run: logs, TensorBoard, progress bars. They see everything and change nothing.

Observers exist on the main rank only. What an observer must find again after a resume (the name of its file) it
returns from `state_dict`. Only the run itself is given that back: what another run goes on writing, one that began from
a copy of its checkpoint must not touch.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.sdk.pytorch.settings import Settings
from proctor.sdk.pytorch.state import TrainingState

_OWNER = "owner"  # the run that the states of its observers belong to; no observer is called so


@dataclass(frozen=True)
class Record:
    """Metrics of one step, as the history keeps them."""

    step: int  # current_iteration
    iteration: int  # global_iteration
    epoch: int  # global_epoch
    metrics: "dict[str, float]"


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
        """Called last, however the run ended, also where `open` was not come to."""

    def state_dict(self) -> "dict[str, Any]":
        """Plain values to be kept in the checkpoint."""
        return {}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Take over what `state_dict` returned, before `on_start`."""


class Observers(Observer):
    """All observers of a run, called in their order.

    :param owner: the run, see `places.identify_run`.
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
        states = {observer.name: observer.state_dict() for observer in self.all}
        return {_OWNER: self._owner, **states} if any(states.values()) else states

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        if state.get(_OWNER) != self._owner:  # another run's, or from before checkpoints said whose
            return
        for observer in self.all:
            if observer.name in state:
                observer.load_state_dict(state[observer.name])


def make_observers(settings: Settings, *, is_main: bool) -> Observers:
    """Return the observers that the options ask for; none on the other ranks. What is not asked for is not imported.

    :raises ConfigurationError: an option needs a package that is not installed.
    """
    from proctor.sdk.pytorch.places import identify_run  # which knows trials, which know this module's records

    found: list[Observer] = []
    if is_main and settings.enable_file_logging and settings.log_path is not None:
        from proctor.sdk.pytorch.logs import FileLog

        found.append(FileLog(settings.run_name, settings.log_path))
    if is_main and settings.enable_tensorboard and settings.run_path is not None:
        from proctor.sdk.pytorch.tensorboard import TensorBoardRun

        found.append(TensorBoardRun(settings.run_name, settings.run_path))
    if is_main and settings.enable_progress_bar:
        from proctor.sdk.pytorch.progress import Progress

        found.append(Progress())
    if is_main and settings.best_metric is not None:
        from proctor.sdk.pytorch.expecting import ExpectedMetric

        found.append(ExpectedMetric(settings.best_metric, validates=settings.valid_frequency is not None))
    return Observers(found, identify_run(settings))
