"""Progress on standard error: bars on a terminal, lines elsewhere; never in the log file.

There are bars for epochs and an epoch's batches, one for iterations, one for an evaluation. They are drawn by tqdm;
without it, and on one of 0 columns, there are lines on a terminal, too. No thread is started, because loaders fork.

Lines are for logs: at the end of an epoch, at most one every few seconds, within a long epoch every half minute, and
ever fewer as the run continues; one says how it has ended.
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from time import monotonic
from typing import Any, TextIO

from proctor.sdk.pytorch.callbacks.base import Callback
from proctor.sdk.pytorch.config import Phase, Settings, StopReason
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.state import Record, TrainingState
from proctor.sdk.trial import is_in_trial

_STAYING = ("epochs", "iterations")  # the bar of the whole run stays on the screen
REDRAW_SECONDS = 0.1
EPOCH_SECONDS = 5.0  # between two lines, at the ends of epochs
WITHIN_SECONDS = 30.0  # elsewhere
GROWTH = 0.01  # or this share of the time that the run has taken, so that a long run's log stays short
SHOWN_METRICS = 6

BarFactory = Callable[[str, int | None, int], Any]  # its title, its length if it has one, and where it begins


def choose_progress(settings: Settings, stream: "TextIO | None") -> "Callback | None":
    """Return what shows a run's progress; None if it is not wanted, or if this is a trial and it is not asked for.

    :param stream: standard error, if there is one.
    """
    wanted = settings.enable_progress_bar
    if stream is None or wanted is False or (wanted is None and is_in_trial()):
        return None
    if stream.isatty() and _has_width(stream) and find_spec("tqdm") is not None:
        return Progress(partial(make_bar, stream))
    return ProgressLines(settings, stream)


def _has_width(terminal: TextIO) -> bool:
    """Whether a bar has room; a program may have made a terminal of 0 columns, on which tqdm draws nothing."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(terminal.fileno()).columns > 0
    return True


def make_bar(terminal: TextIO, title: str, total: "int | None", place: int) -> Any:
    """Return a bar of tqdm's, which draws itself at most once every `REDRAW_SECONDS`.

    :param place: where it begins, counted from 0; its method `move` takes it to another.
    """
    from tqdm import tqdm

    class Bar(tqdm):
        """Without the thread that redraws bars which do not move."""

        monitor_interval = 0

        def move(self, place: int) -> None:
            self.update(place - self.n)

    options = {"mininterval": REDRAW_SECONDS, "miniters": 1, "dynamic_ncols": True}
    return Bar(desc=title, total=total, initial=place, file=terminal, leave=title in _STAYING, **options)


class Progress(Callback):
    """Moves the bars.

    :param make_bar: draws; a bar has `move(place)`, which costs little, and `close()`.
    """

    def __init__(self, make_bar: BarFactory) -> None:
        self._make_bar = make_bar
        self._bars: dict[str, Any] = {}  # "run", "epoch", "evaluation"

    def setup(self, model: Model) -> None:
        self._model = model

    def on_training_start(self) -> None:
        """Draw the bar of the whole run, at the place where it continues."""
        run = self._model.trainer
        self._by_epoch = run.settings.is_by_epoch
        total = None if math.isinf(run.settings.total_steps) else int(run.settings.total_steps)
        title, place = ("epochs", run.state.epoch) if self._by_epoch else ("iterations", run.state.current_iteration)
        self._bars["run"] = self._make_bar(title, total, place)

    def on_training_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Draw the bar of an epoch, at the place where it is entered."""
        if self._by_epoch:
            self._bars["epoch"] = self._make_bar(f"epoch {state.global_epoch}", batches, state.batch)

    def on_training_batch_end(self, state: TrainingState) -> None:
        """Move the bar that counts batches or iterations."""
        if self._by_epoch:
            self._bars["epoch"].move(state.batch + 1)
        else:
            self._bars["run"].move(state.current_iteration)

    def on_training_epoch_end(self, state: TrainingState) -> None:
        """Take an epoch's bar away and count the epoch."""
        if self._by_epoch:
            self._bars.pop("epoch").close()
            self._bars["run"].move(state.epoch + 1)

    def on_evaluation_start(self, phase: Phase) -> None:
        """Draw the bar of a validation or a test."""
        self._bars["evaluation"] = self._make_bar(phase.value, len(self._model.datamodule.open(phase)), 0)

    def on_evaluation_batch_end(self, step: int) -> None:
        """Move it."""
        self._bars["evaluation"].move(step + 1)

    def on_evaluation_end(self, phase: Phase) -> None:
        """Take it away."""
        self._bars.pop("evaluation").close()

    def close(self) -> None:
        """End all bars, the last one first."""
        while self._bars:
            self._bars.popitem()[1].close()


class ProgressLines(Callback):
    """Lines with the position, the speed and the newest metrics.

    :param clock: seconds.
    """

    def __init__(self, settings: Settings, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._settings = settings
        self._stream = stream
        self._clock = clock
        self._began = self._written = clock()
        self._written_batches = 0  # that were done then
        self._due_within = self._began + WITHIN_SECONDS
        self._state = TrainingState()
        self._length = 0  # of the epoch, in batches
        self._evaluated = 0
        self._evaluation = ""
        self._metrics: dict[str, float] = {}

    def setup(self, model: Model) -> None:
        self._model = model

    def on_training_start(self) -> None:
        """Count the batches of this start, and the time since the last line, from here."""
        self._state = self._model.trainer.state
        self._written, self._written_batches = self._clock(), self._state.global_iteration
        self._due_within = self._written + WITHIN_SECONDS

    def on_training_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Write a line about the epoch before, which is validated by now, if it is time for one."""
        if state.batch == 0 and state.epoch > 0 and self._clock() - self._written >= self._wait(EPOCH_SECONDS):
            self._write(self._describe_position(state.batch))
        self._length = batches

    def on_training_batch_end(self, state: TrainingState) -> None:
        """Write a line within an epoch if there has long been none."""
        if self._clock() >= self._due_within:
            self._write(self._describe_position(state.batch + 1))

    def on_evaluation_start(self, phase: Phase) -> None:
        """Remember what is gone through."""
        self._evaluated, self._evaluation = 0, phase.value

    def on_evaluation_batch_end(self, step: int) -> None:
        """Write a line within an evaluation if there has long been none."""
        self._evaluated = step + 1
        if self._clock() >= self._due_within:
            batches = len(self._model.datamodule.open(Phase(self._evaluation)))
            self._write(f"{self._evaluation}, batch {self._evaluated} of {batches}")

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

    def _describe_position(self, batch: int) -> str:
        state, settings = self._state, self._settings
        total = "" if math.isinf(settings.total_steps) else f" of {settings.total_steps:.0f}"
        if not settings.is_by_epoch:
            return f"step {state.current_iteration}{total}"
        if batch == 0:
            return f"epoch {state.epoch}{total}"
        return f"epoch {state.epoch + 1}{total}, batch {batch} of {self._length}"

    def _wait(self, seconds: float) -> float:
        return max(seconds, GROWTH * (self._clock() - self._began))

    def _write(self, text: str) -> None:
        now, batches = self._clock(), self._state.global_iteration
        if batches > self._written_batches and now > self._written:
            text += f", {(batches - self._written_batches) / (now - self._written):.3g} batches/s"
        if self._metrics:
            shown = list(self._metrics.items())[:SHOWN_METRICS]
            text += "; " + ", ".join(f"{name} {value:.4g}" for name, value in shown)
        with suppress(OSError, ValueError):  # a full disk, or a stream that was closed, is no reason to end a run
            self._stream.write(f"proctor: run {self._settings.run_name}: {text}\n")
            self._stream.flush()
        self._written, self._written_batches = now, batches
        self._due_within = now + self._wait(WITHIN_SECONDS)
