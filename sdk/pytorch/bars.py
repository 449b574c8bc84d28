"""What draws a bar: tqdm, rich, or plain lines, whichever is there. None starts a thread: loaders fork."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol, TextIO


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


_STAYING = ("epochs", "iterations")  # the bar of the whole run stays on the screen
