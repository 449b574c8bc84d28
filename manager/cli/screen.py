"""The colored pieces of the terminal screens. The only modules that import rich are this one and the live ones."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from proctor.manager.cli.output import Column, TableRow
from proctor.manager.control_characters import clean


def table(rows: Sequence[TableRow], columns: Sequence[Column], *, title: str | None = None) -> Table:
    """A table that fits the terminal: columns that give way are cut, columns that wrap get more lines."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for column in columns:
        # Rich narrows only columns that may wrap; that their text does not wrap is set on each cell.
        made.add_column(
            Text(column.title, no_wrap=True),
            justify="right" if column.right else "left",
            no_wrap=not (column.gives_way or column.wraps),
            overflow="fold" if column.wraps else "ellipsis",
            min_width=min(len(column.title), 4) if column.gives_way else None,
        )
    for row in rows:
        made.add_row(*(_cell(column, row) for column in columns))
    return made


def _cell(column: Column, row: TableRow) -> Text:
    style = column.style(row) if column.style else ""
    text = clean(column.text(row)).replace("\n", " ")
    return Text(text, style=style) if column.wraps else Text(text, style=style, no_wrap=True, overflow="ellipsis")
