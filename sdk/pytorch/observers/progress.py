"""Progress on a terminal: bars for epochs and an epoch's batches, one for iterations, one for an evaluation.

Bars are drawn by tqdm or, without it, by rich; without both, an epoch and an evaluation are a line each. None of them
starts a thread, because loaders fork. Nothing is drawn if standard error is no terminal, or written to the log file.
"""

import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TextIO

from proctor.sdk.pytorch.observers.base import Observer
from proctor.sdk.pytorch.options import Settings
from proctor.sdk.pytorch.state import TrainingState

_STAYING = ("epochs", "iterations")  # the bar of the whole run stays on the screen
REDRAW_SECONDS = 0.1


class Bar(Protocol):
    """One bar."""

    def move(self, place: int) -> None:
        """Draw the bar at a place, counted from 0."""

    def close(self) -> None:
        """End it; it is not moved afterwards."""


BarFactory = Callable[[str, int | None, int], Bar]  # its title, its length if it has one, and where it begins


def find_bars(terminal: TextIO) -> BarFactory:
    """Return what draws bars on this terminal; on what is no terminal nothing is drawn."""
    if not terminal.isatty():
        return NoBar
    if find_spec("tqdm") is not None:
        return lambda title, total, start: TqdmBar(title, total, start=start, terminal=terminal)
    if find_spec("rich") is not None:
        drawing = RichDrawing(terminal)
        return drawing.make_bar
    return lambda title, total, start: Line(title, total, start=start, terminal=terminal)


class NoBar:
    """Nothing to be seen."""

    def __init__(self, title: str, total: "int | None", start: int) -> None:
        pass

    def move(self, place: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Line:
    """A line when a bar would go away, saying how far it came."""

    def __init__(self, title: str, total: "int | None", *, start: int, terminal: TextIO) -> None:
        self._title = title
        self._length = "" if total is None else f" of {total}"
        self._place = start
        self._terminal = terminal

    def move(self, place: int) -> None:
        """Remember the place."""
        self._place = place

    def close(self) -> None:
        """Write the line."""
        self._terminal.write(f"{self._title}: {self._place}{self._length}\n")


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
