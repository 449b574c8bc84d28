"""Progress on a terminal: bars for epochs and an epoch's batches, one for iterations, one for an evaluation.

Bars are drawn by tqdm or, without it, by rich; without both, an epoch and an evaluation are a line each. Nothing is
drawn if standard error is no terminal, and nothing of it ever is in the log file.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from proctor.sdk.pytorch.bars import Bar, BarFactory, find_bars
from proctor.sdk.pytorch.observing import Observer
from proctor.sdk.pytorch.settings import Settings
from proctor.sdk.pytorch.state import TrainingState

REDRAW_SECONDS = 0.1


class Progress(Observer):
    """Moves the bars, at most once every `REDRAW_SECONDS`: a small model's step is shorter than a drawing.

    :param make_bar: draws; None chooses what is installed.
    :param clock: seconds, for the time between two drawings.
    """

    name = "progress"

    def __init__(self, make_bar: "BarFactory | None" = None, clock: Callable[[], float] = monotonic) -> None:
        self._make_bar = find_bars(sys.stderr) if make_bar is None else make_bar
        self._clock = clock
        self._drawn_at = -math.inf
        self._by_epoch = True
        self._whole: Bar | None = None  # epochs or iterations
        self._epoch: Bar | None = None  # the batches of one epoch
        self._evaluation: Bar | None = None
        self._evaluated = 0

    def on_start(self, settings: Settings, state: TrainingState, resumed_from: "Path | None") -> None:
        """Draw the bar of the whole run, at the place where it goes on."""
        self._by_epoch = settings.is_by_epoch
        total = None if math.isinf(settings.total_steps) else int(settings.total_steps)
        if self._by_epoch:
            self._whole = self._make_bar("epochs", total, state.epoch)
        else:
            self._whole = self._make_bar("iterations", total, state.current_iteration)

    def on_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Draw the bar of an epoch, at the place where it is entered."""
        if self._by_epoch:
            self._epoch = _replace(self._epoch, self._make_bar(f"epoch {state.global_epoch}", batches, state.batch))

    def on_batch_end(self, state: TrainingState) -> None:
        """Move the bar that counts batches or iterations."""
        if not self._is_due():
            return
        if self._epoch is not None:
            self._epoch.move(state.batch)
        elif self._whole is not None:
            self._whole.move(state.current_iteration)

    def on_epoch_end(self, state: TrainingState) -> None:
        """Complete an epoch's bar and count the epoch."""
        if not self._by_epoch or self._whole is None:
            return
        if self._epoch is not None:
            self._epoch.move(state.batch)
        self._epoch = _replace(self._epoch, None)
        self._whole.move(state.epoch + 1)

    def on_evaluation_start(self, phase: str, batches: int) -> None:
        """Draw the bar of a validation or a test."""
        self._evaluated = 0
        self._evaluation = _replace(self._evaluation, self._make_bar(phase, batches, 0))

    def on_evaluation_batch_end(self) -> None:
        """Move it."""
        self._evaluated += 1
        if self._evaluation is not None and self._is_due():
            self._evaluation.move(self._evaluated)

    def on_evaluation_end(self) -> None:
        """Complete it and take it away."""
        if self._evaluation is not None:
            self._evaluation.move(self._evaluated)
        self._evaluation = _replace(self._evaluation, None)

    def on_checkpoint(self, path: Path, state: TrainingState) -> None:
        """Bring the bar up to date: a run may be about to end."""
        if not self._by_epoch and self._whole is not None:
            self._whole.move(state.current_iteration)

    def close(self) -> None:
        """End all bars."""
        self._evaluation = _replace(self._evaluation, None)
        self._epoch = _replace(self._epoch, None)
        self._whole = _replace(self._whole, None)

    def _is_due(self) -> bool:
        now = self._clock()
        if now - self._drawn_at < REDRAW_SECONDS:
            return False
        self._drawn_at = now
        return True


def _replace(old: "Bar | None", new: "Bar | None") -> "Bar | None":
    if old is not None:
        old.close()
    return new
