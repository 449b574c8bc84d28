"""Progress on standard error, never in the log file: where a run is, how fast it is, and its newest metrics.

On a terminal that is one line with a bar, which is redrawn in its place. Elsewhere, and on a terminal of 0 columns, it
is lines for a log: at the end of an epoch, at most one every few seconds, within a long epoch every half minute, and
ever fewer as the run continues. One says how the run has ended. No thread is started, because loaders fork.
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import TextIO

from proctor.sdk.pytorch.callbacks.base import Callback
from proctor.sdk.pytorch.config import Phase, Settings, StopReason
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.state import Record, TrainingState
from proctor.sdk.trial import is_in_trial

REDRAW_SECONDS = 0.1
EPOCH_SECONDS = 5.0  # between two lines, at the ends of epochs
WITHIN_SECONDS = 30.0  # elsewhere
GROWTH = 0.01  # or this share of the time that the run has taken, so that a long run's log stays short
SHOWN_METRICS = 6
_BAR_LENGTH = 10
_USUAL_COLUMNS = 80


def choose_progress(settings: Settings, stream: "TextIO | None") -> "Callback | None":
    """Return what shows a run's progress; None if it is not wanted, or if this is a trial and it is not asked for.

    :param stream: standard error, if there is one.
    """
    wanted = settings.enable_progress_bar
    if stream is None or wanted is False or (wanted is None and is_in_trial()):
        return None
    return Progress(settings, stream)


def _find_columns(stream: TextIO) -> int:
    """How wide a terminal is; 0 elsewhere, and on one that a program has made without a width."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    return _USUAL_COLUMNS


class Progress(Callback):
    """Writes the position, the speed and the newest metrics.

    :param clock: seconds.
    """

    def __init__(self, settings: Settings, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._settings = settings
        self._stream = stream
        self._clock = clock
        self._redraws = _find_columns(stream) > 0
        self._began = clock()
        self._state = TrainingState()
        self._length = 0  # of the epoch, in batches
        self._evaluated = 0
        self._evaluation = ""
        self._title = f"proctor: run {settings.run_name}: "
        self._is_open = False  # whether the terminal has a line that is to be redrawn
        self._metrics: dict[str, float] = {}
        self._begin()

    def setup(self, model: Model) -> None:
        self._model = model

    def on_training_start(self) -> None:
        """Count the batches of this start, and the time since the last line, from here."""
        self._state = self._model.trainer.state
        self._begin()

    def on_training_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Write a line about the epoch before, which is validated by now, if it is time for one."""
        is_next = state.batch == 0 and state.epoch > 0
        if is_next and not self._redraws and self._clock() - self._since >= self._wait(EPOCH_SECONDS):
            self._write(self._describe_position(state.batch))
        self._length = batches

    def on_training_batch_end(self, state: TrainingState) -> None:
        """Redraw the line, or write one within an epoch if there has long been none."""
        if self._clock() >= self._due:
            self._write(self._describe_position(state.batch + 1), done=self._find_share(state.batch + 1))

    def on_evaluation_start(self, phase: Phase) -> None:
        """Count what is gone through."""
        self._evaluated = 0
        batches = len(self._model.datamodule.open(phase))
        self._evaluation = f"{phase.value}, batch {{}}{f' of {batches}' if batches else ''}"

    def on_evaluation_batch_end(self, step: int) -> None:
        """The same within an evaluation."""
        self._evaluated = step + 1
        if self._clock() >= self._due:
            self._write(self._evaluation.format(self._evaluated), done=self._find_share(self._state.batch))

    def on_evaluation_end(self, phase: Phase) -> None:
        """Write what a test came to."""
        if phase is Phase.TESTING:
            self._write(f"tested, {self._evaluated} {'batch' if self._evaluated == 1 else 'batches'}")

    def on_metrics(self, record: Record) -> None:
        """Remember the newest."""
        self._metrics.update(record.metrics)

    def on_fit_end(self, reason: "StopReason | None") -> None:
        """Write how the run has ended."""
        seconds, end = self._clock() - self._began, "left" if reason is None else reason.value
        self._write(f"{end}: {self._describe_position(self._state.batch)}, in {seconds:.0f} s")

    def close(self) -> None:
        """Leave the line that was redrawn last."""
        if self._is_open:
            self._put("\n")

    def _begin(self) -> None:
        """Count time and batches from now."""
        self._since = self._clock()
        self._batches = self._state.global_iteration
        self._share = self._find_share(self._state.batch)
        self._due = self._since + self._wait(WITHIN_SECONDS)

    def _find_share(self, batch: int) -> float:
        """How much of the run is done; 0 where it has no end."""
        state, settings = self._state, self._settings
        done = state.epoch + batch / (self._length or math.inf) if settings.is_by_epoch else state.current_iteration
        return done / (settings.total_steps or math.inf)

    def _describe_position(self, batch: int) -> str:
        state, settings = self._state, self._settings
        total = "" if math.isinf(settings.total_steps) else f" of {settings.total_steps:.0f}"
        if not settings.is_by_epoch:
            return f"step {state.current_iteration}{total}"
        if batch == 0:
            return f"epoch {state.epoch}{total}"
        return f"epoch {state.epoch + 1}{total}, batch {batch}{f' of {self._length}' if self._length else ''}"

    def _wait(self, seconds: float) -> float:
        return REDRAW_SECONDS if self._redraws else max(seconds, GROWTH * (self._clock() - self._began))

    def _write(self, text: str, *, done: "float | None" = None) -> None:
        """Write a line.

        :param done: the share of the run that is done, for a line that a terminal redraws; None for one that stays.
        """
        now, batches = self._clock(), self._state.global_iteration
        if batches > self._batches and now > self._since:
            text += f", {(batches - self._batches) / (now - self._since):.3g} batches/s"
        if self._metrics:
            shown = list(self._metrics.items())[:SHOWN_METRICS]
            text += "; " + ", ".join(f"{name} {value:.4g}" for name, value in shown)
        if self._redraws:
            self._redraw(text, done, now - self._since)
        else:
            self._put(f"{self._title}{text}\n")
            self._since, self._batches = now, batches
        self._due = now + self._wait(WITHIN_SECONDS)

    def _redraw(self, text: str, done: "float | None", seconds: float) -> None:
        self._is_open = done is not None
        if done is None:
            self._put(f"\r{self._title}{text}\x1b[K\n")
            return
        line = f"{self._settings.run_name}: "
        if done > self._share:
            left = timedelta(seconds=round(seconds * (1 - done) / (done - self._share)))
            line += f"[{'#' * int(done * _BAR_LENGTH):-<{_BAR_LENGTH}}] {left} left, "
        self._put(f"\r{(line + text)[: _find_columns(self._stream) - 1]}\x1b[K")

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a full disk, or a stream that was closed, is no reason to end a run
            self._stream.write(text)
            self._stream.flush()
