"""Tables on a terminal: colored, fitted to its width, and with every reason and command readable whole.

Only this module and `live` draw with rich; a command imports them when there is a terminal.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from proctor.manager.cli.output import Column, TableRow
from proctor.manager.control_characters import clean

GAP = 2
INDENT = 4
LEAST_CUT = 12
"""Cells that are left of a text that is cut."""
READABLE = 24
"""Cells of such a text for which other columns are left out."""
LEAST_BESIDE = 36
"""With so many cells right of the other columns, text continues there; with fewer, below its row."""
UNLIMITED = 100_000
_LINES, _ONE_LINE = str.maketrans("\t", " "), str.maketrans("\n\t", "  ")
_WORDS = re.compile(r"(?:`[^`]*`|\S)+")
_COMMAND = re.compile(r"`([^` ]+ [^`]+)`[.,;:]?")


def show(rows: Sequence[TableRow], columns: Sequence[Column], *, header: bool = True, wide: bool = False) -> None:
    """Print rows on stdout.

    :param wide: nothing is cut, wrapped or left out, however wide the terminal is.
    """
    console = Console(highlight=False, width=UNLIMITED if wide else None)  # rich itself obeys NO_COLOR and TERM=dumb
    found = Listing(rows, columns, header=header)
    console.print(found, crop=False)
    if found.left_out:
        console.print(Text(f"Left out, as the terminal is narrow: {', '.join(found.left_out)}", style="dim"))


class Listing:
    """Rows below each other; a rich renderable.

    If the whole table does not fit, columns that wrap come out of it: their text stands beside the others or below its
    row, broken between words only. A word or a command in backticks that is longer than a line is left to the terminal
    to wrap, so that it can be copied whole.
    """

    def __init__(self, rows: Sequence[TableRow], columns: Sequence[Column], *, header: bool = True) -> None:
        self.left_out: list[str] = []
        """The titles of the columns for which there was no room."""
        self._rows = rows
        self._columns = columns
        self._header = header
        self._texts: dict[Column, list[str]] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._texts = {
            column: [clean(column.text(row)).translate(_LINES if column.wraps else _ONE_LINE) for row in self._rows]
            for column in self._columns
        }
        columns = [column for column in self._columns if not column.wraps]
        wrapping = [column for column in self._columns if column.wraps and (any(self._texts[column]) or not columns)]
        width = options.max_width
        is_whole = self._width([*columns, *wrapping]) <= width
        if is_whole and not any("\n" in text for column in wrapping for text in self._texts[column]):
            yield from _lines(console.render_lines(self._grid([*columns, *wrapping]), options, pad=False))
            return
        self._leave_out(columns, width)
        indent = self._width(columns) + GAP if columns else 0
        is_beside = width - indent >= LEAST_BESIDE
        indent = indent if is_beside else INDENT
        lines: list[list[Segment]] = [[] for _ in range(len(self._rows) + self._header)]
        if columns:
            least = self._width(columns, cut_to=LEAST_CUT)
            lines = console.render_lines(self._grid(columns), options.update_width(max(width, least)), pad=False)
        if self._header:
            titles = " / ".join(column.title for column in wrapping) if is_beside else ""
            yield from _joined(lines.pop(0), indent, Text(titles, style="bold"))
        for number, line in enumerate(lines):
            texts = list(self._wrapped(wrapping, number, width - indent))
            first = texts.pop(0) if is_beside and texts else Text()
            yield from _joined(line, indent, first)
            for text in texts:
                yield Segment(" " * indent)
                yield text

    def _width(self, columns: Sequence[Column], *, cut_to: int | None = None) -> int:
        """The cells that columns need.

        :param cut_to: those that give way are cut to so many.
        """
        widths = []
        for column in columns:
            needed = max(map(cell_len, (column.title, *self._texts[column])))
            widths.append(needed if cut_to is None or not column.gives_way else min(needed, cut_to))
        return sum(widths) + GAP * (len(widths) - 1)

    def _leave_out(self, columns: list[Column], width: int) -> None:
        """Remove columns until the others fit, or only those are left that must not be removed."""
        self.left_out = []
        while self._width(columns, cut_to=READABLE) > width and any(column.left_out for column in columns):
            chosen = max(columns, key=lambda column: column.left_out)
            columns.remove(chosen)
            self.left_out.append(chosen.title)

    def _grid(self, columns: Sequence[Column]) -> Table:
        """Each row in one line."""
        made = Table(box=None, pad_edge=False, show_header=self._header, header_style="bold")
        for column in columns:
            # Rich narrows only columns that may wrap; that their text does not is said of each cell.
            needed = self._width([column])
            made.add_column(
                Text(clean(column.title), no_wrap=True),
                justify="right" if column.right else "left",
                no_wrap=not column.gives_way,
                overflow="ellipsis",
                width=None if column.gives_way else needed,
                min_width=min(needed, LEAST_CUT) if column.gives_way else None,
            )
        for number in range(len(self._rows)):
            made.add_row(*(self._cell(column, number) for column in columns))
        return made

    def _cell(self, column: Column, number: int) -> Text:
        return Text(self._texts[column][number], self._style(column, number), no_wrap=True)

    def _style(self, column: Column, number: int) -> str:
        return column.style(self._rows[number]) if column.style else ""

    def _wrapped(self, columns: Iterable[Column], number: int, width: int) -> Iterator[Text]:
        for column in columns:
            for line in wrap(self._texts[column][number], width):
                yield Text(line, self._style(column, number), no_wrap=True, overflow="ignore")


def wrap(text: str, width: int) -> Iterator[str]:
    """Lines of at most so many cells; a longer word, command in backticks, or indented line is not broken.

    A command that does not fit beside other words stands in a line of its own, and that without backticks.
    """
    for paragraph in text.splitlines():
        if paragraph.startswith(" "):
            yield paragraph
            continue
        line = ""
        words: list[str] = _WORDS.findall(paragraph)
        for word in words:
            longer = f"{line} {word}" if line else word
            command = _COMMAND.fullmatch(word)
            if command and (len(words) == 1 or cell_len(longer) > width):
                yield from filter(None, (line, command[1]))
                line = ""
            elif line and cell_len(longer) > width:
                yield line
                line = word
            else:
                line = longer
        if line or not words:
            yield line


def _lines(lines: Iterable[list[Segment]]) -> Iterator[Segment]:
    for line in lines:
        yield from _stripped(line)
        yield Segment.line()


def _joined(line: list[Segment], beside: int, text: Text) -> Iterator[Segment | Text]:
    """A line of the grid with a text that begins in a column; without one, nothing is right of its last word."""
    if text:
        yield from Segment.adjust_line_length(line, beside)
        yield text
    else:
        yield from _lines([line])


def _stripped(line: list[Segment]) -> list[Segment]:
    """Without the spaces at its end: they would wrap where a line is longer than the terminal."""
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept
