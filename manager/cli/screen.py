"""The coloured pieces of the terminal screens. The only modules that import rich are this one and the live ones."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from proctor.manager.cli.output import Column, Row


def table(rows: Sequence[Row], columns: Sequence[Column], *, title: str | None = None) -> Table:
    """A table that fits the terminal: the last column gives way first."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for index, column in enumerate(columns):
        last = index == len(columns) - 1
        made.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last else None,
            min_width=None if last else min(len(column.title), 8),
        )
    for row in rows:
        made.add_row(*(Text(column.text(row), style=column.style(row) if column.style else "") for column in columns))
    return made
