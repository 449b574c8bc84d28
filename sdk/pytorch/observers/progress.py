"""Progress on standard error: bars on a terminal, lines elsewhere; never in the log file.

There are bars for epochs and an epoch's batches, one for iterations, one for an evaluation. They are drawn by tqdm or,
without it, by rich; without both there are lines on a terminal, too. None of them starts a thread, because loaders
fork.

Lines are for logs: at the end of an epoch, at most one every few seconds, within a long epoch every half minute, and
ever fewer as the run goes on; one says how it has ended.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TextIO

from proctor.sdk.pytorch.observers.base import Observer
from proctor.sdk.pytorch.options import Phase, Settings
from proctor.sdk.pytorch.state import Record, TrainingState
from proctor.sdk.trial import is_in_trial

_STAYING = ("epochs", "iterations")  # the bar of the whole run stays on the screen
REDRAW_SECONDS = 0.1
EPOCH_SECONDS = 5.0  # between two lines, at the ends of epochs
WITHIN_SECONDS = 30.0  # elsewhere
GROWTH = 0.01  # or this share of the time that the run has taken, so that a long run's log stays short
SHOWN_METRICS = 6


class Bar(Protocol):
    """One bar."""

    def move(self, place: int) -> None:
        """Draw the bar at a place, counted from 0."""

    def close(self) -> None:
        """End it; it is not moved afterwards."""


BarFactory = Callable[[str, int | None, int], Bar]  # its title, its length if it has one, and where it begins


def choose_progress(settings: Settings, stream: "TextIO | None") -> "Observer | None":
    """Return what shows a run's progress; None if it is not wanted, or if this is a trial and it is not asked for.

    :param stream: standard error, if there is one.
    """
    wanted = settings.enable_progress_bar
    if stream is None or wanted is False or (wanted is None and is_in_trial()):
        return None
    bars = find_bars(stream) if stream.isatty() else None
    return ProgressLines(settings, stream) if bars is None else Progress(bars)


def find_bars(terminal: TextIO) -> "BarFactory | None":
    """Return what draws bars on this terminal, if it is installed."""
    if find_spec("tqdm") is not None:
        return lambda title, total, start: TqdmBar(title, total, start=start, terminal=terminal)
    if find_spec("rich") is not None:
        drawing = RichDrawing(terminal)
        return drawing.make_bar
    return None


class TqdmBar:
    """A bar of tqdm."""

    def __init__(self, title: str, total: "int | None", *, start: int, terminal: TextIO) -> None:
        from tqdm import tqdm

        class WithoutThread(tqdm):
            """Without the thread that redraws bars which do not move."""

            monitor_interval = 0

        self._bar = WithoutThread(
            desc=title, total=total, initial=start, file=terminal, leave=title in _STAYING, dynamic_ncols=True
        )

    def move(self, place: int) -> None:
        """Draw it there."""
        self._bar.n = place
        self._bar.refresh()

    def close(self) -> None:
        """Leave it or take it away."""
        self._bar.close()


class RichDrawing:
    """The bars of rich, which are drawn together."""

    def __init__(self, terminal: TextIO) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(file=terminal), auto_refresh=False)
        self._open = 0

    def make_bar(self, title: str, total: "int | None", start: int) -> "RichBar":
        """Add a bar; the first one begins the drawing."""
        if self._open == 0:
            self._progress.start()
        self._open += 1
        return RichBar(
            self, self._progress, title=title, task=self._progress.add_task(title, total=total, completed=start)
        )

    def end_one(self) -> None:
        """The last one ends the drawing."""
        self._open -= 1
        self._progress.refresh()
        if self._open == 0:
            self._progress.stop()


class RichBar:
    """One of them."""

    def __init__(self, drawing: RichDrawing, progress: Any, *, title: str, task: Any) -> None:
        self._drawing = drawing
        self._progress = progress
        self._title = title
        self._task = task

    def move(self, place: int) -> None:
        """Draw it there."""
        self._progress.update(self._task, completed=place)
        self._progress.refresh()

    def close(self) -> None:
        """Leave it or take it away."""
        if self._title not in _STAYING:
            self._progress.remove_task(self._task)
        self._drawing.end_one()


class Progress(Observer):
    """Moves the bars, at most once every `REDRAW_SECONDS`: a small model's step is shorter than a drawing.

    :param make_bar: draws.
    :param clock: seconds, for the time between two drawings.
    """

    name = "progress"

    def __init__(self, make_bar: BarFactory, clock: Callable[[], float] = monotonic) -> None:
        self._make_bar = make_bar
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


class ProgressLines(Observer):
    """Lines with the position, the speed and the newest metrics.

    :param clock: seconds.
    """

    name = "progress"

    def __init__(self, settings: Settings, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._settings = settings
        self._stream = stream
        self._clock = clock
        self._began = self._written = clock()
        self._written_batches = 0  # that were done then
        self._due_within = self._began + WITHIN_SECONDS
        self._state = TrainingState()
        self._length = 0  # of the epoch, in batches
        self._evaluation = ""
        self._evaluated = self._to_evaluate = 0
        self._metrics: dict[str, float] = {}

    def on_start(self, settings: Settings, state: TrainingState, resumed_from: "Path | None") -> None:
        """Count the batches of this start."""
        self._state, self._written_batches = state, state.global_iteration

    def on_epoch_start(self, state: TrainingState, batches: int) -> None:
        """Write a line about the epoch before, which is validated by now, if it is time for one."""
        if state.batch == 0 and state.epoch > 0 and self._clock() - self._written >= self._wait(EPOCH_SECONDS):
            self._write(self._describe_position())
        self._length = batches

    def on_batch_end(self, state: TrainingState) -> None:
        """Write a line within an epoch if there has long been none."""
        if self._clock() >= self._due_within:
            self._write(self._describe_position())

    def on_evaluation_start(self, phase: str, batches: int) -> None:
        """Remember what is gone through."""
        self._evaluation, self._evaluated, self._to_evaluate = phase, 0, batches

    def on_evaluation_batch_end(self) -> None:
        """Write a line within an evaluation if there has long been none."""
        self._evaluated += 1
        if self._clock() >= self._due_within:
            self._write(f"{self._evaluation}, batch {self._evaluated} of {self._to_evaluate}")

    def on_evaluation_end(self) -> None:
        """Write what a test came to."""
        if self._evaluation == Phase.TESTING.value:
            self._write(f"tested, {_count(self._evaluated, 'batch', 'batches')}")

    def on_metrics(self, record: Record) -> None:
        """Remember the newest."""
        self._metrics.update(record.metrics)

    def on_end(self, reason: str) -> None:
        """Write how the run has ended."""
        seconds = self._clock() - self._began
        self._write(f"{reason}: {self._describe_position()}, in {seconds:.0f} s")

    def _describe_position(self) -> str:
        state, settings = self._state, self._settings
        total = "" if math.isinf(settings.total_steps) else f" of {settings.total_steps:.0f}"
        if not settings.is_by_epoch:
            return f"step {state.current_iteration}{total}"
        if state.batch == 0:
            return f"epoch {state.epoch}{total}"
        return f"epoch {state.epoch + 1}{total}, batch {state.batch} of {self._length}"

    def _wait(self, seconds: float) -> float:
        return max(seconds, GROWTH * (self._clock() - self._began))

    def _write(self, text: str) -> None:
        now, batches = self._clock(), self._state.global_iteration
        if batches > self._written_batches and now > self._written:
            text += f", {(batches - self._written_batches) / (now - self._written):.3g} batches/s"
        shown = list(self._metrics.items())[:SHOWN_METRICS]
        if shown:
            text += "; " + ", ".join(f"{name} {value:.4g}" for name, value in shown)
        with suppress(OSError, ValueError):  # a full disk, or a stream that was closed, is no reason to end a run
            self._stream.write(f"proctor: run {self._settings.run_name}: {text}\n")
            self._stream.flush()
        self._written, self._written_batches = now, batches
        self._due_within = now + self._wait(WITHIN_SECONDS)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
