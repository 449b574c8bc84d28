"""Where a run is: its counters, the metrics of a step, and what a model sees of both."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from proctor.sdk.pytorch.config import Settings
from proctor.sdk.pytorch.errors import UnreadableCheckpointError


@dataclass
class TrainingState:
    """The position and the counters of a run; a model sees it and must not change it.

    Both units count alike where they can:

    * `global_epoch` is the number of epochs that have begun: 1 during the first.
    * `global_iteration` is the number of batches, the present one included.
    * `current_iteration` is the number of *steps*. EPOCH: the same as `global_iteration`. ITERATION: the number of
      optimizer windows that are done, the one that the present batch ends included; windows run on over epochs unless
      `flush_at_epoch_end` is set.
    """

    epoch: int = 0  # 0-based index of the epoch that the position is in
    batch: int = 0  # batches of that epoch that are done
    window: int = 0  # batches of the open optimizer window, the present one included; 0 at a boundary
    global_epoch: int = 0
    current_iteration: int = 0
    global_iteration: int = 0
    validation_cycles: int = 0  # validations that are done
    early_stop_count: int = 0  # validations in a row without an improvement
    phase: int = 0  # index of the training data that is in use
    stop_reason: str = ""  # why the run ended, if it was its own decision: a `StopReason`
    best_score: "float | None" = None  # of the metric that judges the run, at the best validation so far
    optimizer_step_now: bool = False  # whether the present batch ends its window: step, then clear the gradients

    def begin_batch(self, ends_window: bool, by_epoch: bool) -> None:
        """Count a batch before it is trained on."""
        self.global_iteration += 1
        self.window += 1
        self.optimizer_step_now = ends_window
        if by_epoch:
            self.current_iteration = self.global_iteration
        elif ends_window:
            self.current_iteration += 1

    def end_batch(self) -> None:
        """Move the position behind the batch."""
        self.batch += 1
        if self.optimizer_step_now:
            self.window = 0
        self.optimizer_step_now = False

    def end_epoch(self) -> None:
        """Move the position to the beginning of the next epoch."""
        self.epoch += 1
        self.batch = 0

    def describe(self) -> str:
        """The position in words."""
        return f"epoch {self.global_epoch}, step {self.current_iteration}, batch {self.global_iteration}"

    def state_dict(self) -> "dict[str, Any]":
        """The state, of plain Python values; no wall time is in it, so that equal runs have equal states."""
        state = asdict(self)
        del state["optimizer_step_now"]
        return state

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Take over what `state_dict` returned; older ones have no `best_score`.

        :raises UnreadableCheckpointError: a counter is missing or unknown.
        """
        expected = {field.name for field in fields(self)} - {"optimizer_step_now"}
        state = {"best_score": None, **state}
        if set(state) != expected:
            raise UnreadableCheckpointError(
                f"a training state must have the counters {sorted(expected)}; found {sorted(state)}. "
                "Was the checkpoint written by another version? See python -m proctor.sdk.pytorch.migrate."
            )
        for name, value in state.items():
            setattr(self, name, value)


class Record(NamedTuple):
    """Metrics of one step, as the history keeps them."""

    step: int  # current_iteration
    iteration: int  # global_iteration
    epoch: int  # global_epoch
    metrics: "dict[str, float]"


@dataclass(frozen=True)
class RunView:
    """What a model sees of its run, as `self.trainer`; none of it may be changed."""

    settings: Settings
    state: TrainingState
    metrics: "dict[str, float]"  # the last value of each metric; on the main rank only
    checkpoint_folder: "Path | None"
