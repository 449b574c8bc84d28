"""A model that learns nothing and writes down everything: which hook was called when, with which batch."""

from collections.abc import Callable
from typing import Any

from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, Phase, TrainingState

Line = tuple[Any, ...]
HOOKS = (
    *("setup", "train", "eval"),
    *("on_training_start", "on_training_epoch_start", "on_training_batch_start"),
    *("on_training_epoch_end", "on_training_end"),
    *("on_validation_start", "on_validation_batch_start", "on_validation_batch_end", "on_validation_end"),
    *("load_for_testing", "on_testing_start", "on_testing_batch_start", "on_testing_batch_end", "on_testing_end"),
)
"""Those that `RecordingModel` only writes down: their names and what they are called with, of a state the batch."""


class RangeData(DataModule):
    """The numbers from 0, as training data of one or more phases, validation data and test data."""

    def __init__(self, *lengths: int, valid: int = 2, **params: Any) -> None:
        self.lengths = lengths or (5,)
        self.valid = valid
        self.params = DataLoaderParams(**params)
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self) -> None:
        self.calls.append("setup")
        for number, length in enumerate(self.lengths):
            self.add_train_phase(range(100 * number, 100 * number + length), self.params)
        self.set_validation(range(self.valid))
        self.set_testing(range(self.valid))

    def teardown(self) -> None:
        self.calls.append("teardown")


class RecordingModel(Model):
    """Writes down hooks and batches.

    :param stop_after: the number of batches after which it wants the training to stop.
    :param improves: what it answers after each validation, in turn; then True.
    """

    transient = ("lines", "batches", "counters", "logged")  # of this start alone

    def __init__(
        self,
        *,
        stop_after: "int | None" = None,
        improves: "tuple[bool, ...]" = (),
        advance_at: "int | None" = None,
        on_batch: "Callable[[TrainingState], None] | None" = None,
    ) -> None:
        self.lines: list[Line] = []
        self.batches: list[list[int]] = []
        self.counters: list[tuple[int, int, int, bool]] = []
        self.logged: list[int] = []
        self.stop_after = stop_after
        self.improves = list(improves)
        self.advance_at = advance_at
        self.on_batch = on_batch or (lambda state: None)
        self.done = 0

    @property
    def hooks(self) -> "list[str]":
        """The names of the hooks that were called."""
        return [line[0] for line in self.lines]

    def state_dict(self) -> "dict[str, Any]":
        return {"done": self.done}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.lines.append(("load_state_dict",))
        self.done = state["done"]

    def batch_to_device(self, batch: Any, phase: Phase) -> Any:
        self.lines.append(("batch_to_device", phase.value))
        return super().batch_to_device(batch, phase)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.lines.append(("train_step", state.global_iteration))
        self.batches.append(batch.tolist())
        self.counters.append(
            (state.global_epoch, state.current_iteration, state.global_iteration, state.optimizer_step_now)
        )
        self.on_batch(state)

    def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
        self.lines.append(("on_training_batch_end", state.global_iteration))
        self.done = state.global_iteration
        if should_log:
            self.logged.append(state.global_iteration)

    def should_advance_dataset_phase(self, state: TrainingState) -> bool:
        return self.advance_at is not None and state.global_iteration >= self.advance_at

    def should_training_stop(self) -> bool:
        return self.stop_after is not None and self.done >= self.stop_after

    def have_metrics_improved(self) -> bool:
        self.lines.append(("have_metrics_improved",))
        return self.improves.pop(0) if self.improves else True

    def append_metadata_to_chkpt_name(self) -> str:
        self.lines.append(("checkpoint",))
        return ""

    def valid_step(self, batch: Any, step: int) -> None:
        self.lines.append(("valid_step", step))

    def test_step(self, batch: Any, step: int) -> None:
        self.lines.append(("test_step", step))


def _write_down(name: str) -> "Callable[..., None]":
    def hook(self: RecordingModel, *arguments: Any) -> None:
        self.lines.append((name, *(getattr(argument, "global_iteration", argument) for argument in arguments)))

    return hook


for _name in HOOKS:
    setattr(RecordingModel, _name, _write_down(_name))
