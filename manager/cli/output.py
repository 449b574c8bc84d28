"""Data on stdout: as a table for people, or as the REST API's own JSON, as YAML or as CSV for programs.

Everything that the command line writes goes through here or `screen`: what others have written is cleaned of what a
terminal would obey.
"""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, TypeVar

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import OneOf
from proctor.manager.control_characters import clean, clean_json, is_clean

TableRow = dict[str, Any]
"""What a line of a table shows: a resource as the manager answers it, most often."""
F = TypeVar("F", bound=Callable[..., Any])


class Format(StrEnum):
    """How a command prints what it has read."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@dataclass(frozen=True)
class Column:
    """One column of a table: its title, the text of a row, and optionally the color of that text.

    Where the terminal is too narrow, columns with `gives_way` are cut, and those with `wraps`, which come last,
    continue in further lines, by whole words. The others (ids, statuses, numbers) are shown whole; those with
    `left_out` are left out if there is still no room, the greatest number first.
    """

    title: str
    text: Callable[[TableRow], str]
    style: Callable[[TableRow], str] | None = None
    right: bool = False
    gives_way: bool = False
    wraps: bool = False
    left_out: int = 0


FIELDS = (
    Column("", lambda line: line["name"]),
    Column("", lambda line: line["text"], lambda line: line["style"], wraps=True),
)
"""The lines that one object is shown in."""


class CleanFile:
    """A file to which only clean text is written; for what writes by itself."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write the text cleaned."""
        return self._file.write(clean(text))

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        return self._file.isatty()


def echo(text: str = "", *, err: bool = False) -> None:
    """Write a line."""
    click.echo(clean(text), err=err)


def confirm(question: str) -> bool:
    """Ask for a yes. Raises click.Abort on Ctrl-C, and CommandError where there is neither a terminal nor an answer."""
    try:
        return click.confirm(clean(question), err=True)
    except click.Abort as error:
        if sys.stdin.isatty() or not isinstance(error.__context__, EOFError):
            raise
        echo(err=True)  # the question has no end of line
        raise CommandError("not confirmed: there is no terminal to ask on; use -y", ExitCode.USAGE) from None


def json_text(value: Any) -> str:
    """JSON for people and programs."""
    return clean_json(json.dumps(value, indent=2, ensure_ascii=False))


def output_option(function: F) -> F:
    """Adds `-o/--output` to a command that reads."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=OneOf([item.value for item in Format]),
        default=Format.TABLE.value,
        show_default=True,
        help="How to print it.",
    )(function)


def shows_a_screen(stream: IO[str]) -> bool:
    """Whether what is written can be overwritten: a terminal, and not one that only prints lines."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def print_list(
    rows: Iterable[TableRow], columns: Sequence[Column], output: str, *, empty: str, wide: bool = False
) -> None:
    """Print rows. JSON and YAML are a list of the API's objects; CSV has every field, nested ones with dotted names.

    :param empty: the message on stderr when there are no rows, for the format of people.
    :param wide: as for `print_table`.
    """
    found = list(rows)
    if output != Format.TABLE:
        _print_data(found, found, output)
    elif found:
        print_table(found, columns, wide=wide)
    else:
        echo(empty, err=True)


def print_one(row: TableRow, columns: Sequence[Column], output: str) -> None:
    """Print one object: as it is, or one line a field."""
    if output != Format.TABLE:
        _print_data(row, [row], output)
        return
    lines = [
        {"name": column.title, "text": text.rstrip(), "style": column.style(row) if column.style else ""}
        for column in columns
        if (text := column.text(row))
    ]
    if sys.stdout.isatty():
        from proctor.manager.cli.screen import show

        show(lines, FIELDS, header=False)
        return
    width = max(len(column.title) for column in columns)
    for line in lines:
        echo(f"{line['name']:<{width}}  " + line["text"].replace("\n", "\n" + " " * (width + 2)))


def _print_data(value: Any, rows: Sequence[TableRow], output: str) -> None:
    if output == Format.JSON:
        echo(json_text(value))
    elif output == Format.YAML:
        print_documents([value])
    else:
        write_csv(rows, sys.stdout)


def print_documents(values: Sequence[Any]) -> None:
    """Print values as YAML, each as a document of its own."""
    from ruamel.yaml import YAML

    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.width = 10_000  # no value is broken over lines
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.allow_unicode = is_clean(json.dumps(values, ensure_ascii=False))  # else everything is written out
    for index, value in enumerate(values):
        if index:
            echo("---")
        writer.dump(value, sys.stdout)


def write_csv(rows: Sequence[TableRow], file: Any) -> None:
    """Every field of every row, nested objects as columns with dotted names, lists as JSON.

    Exact in a file or a pipe; a terminal gets it cleaned.
    """
    from proctor.sdk.client.flattening import flatten

    file = CleanFile(file) if file.isatty() else file
    flat = [flatten(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    fields = list(dict.fromkeys(name.partition(".")[0] for name in names))
    names.sort(key=lambda name: fields.index(name.partition(".")[0]))  # those of one field stand together
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for row in flat:
        writer.writerow({name: json.dumps(item) if isinstance(item, list) else item for name, item in row.items()})


def print_table(rows: Sequence[TableRow], columns: Sequence[Column], *, wide: bool = False) -> None:
    """A table: colored and fitted to the terminal, or plain columns of full width where there is none.

    :param wide: on a terminal, too, in full width.
    """
    if sys.stdout.isatty():
        from proctor.manager.cli.screen import show

        show(rows, columns, wide=wide)
        return
    from rich.cells import cell_len

    texts = [[clean(text).replace("\n", " ") for text in line] for line in _texts(rows, columns)]
    widths = [max(cell_len(line[index]) for line in texts) for index in range(len(columns))]
    for line in texts:
        cells = []
        for text, width, column in zip(line, widths, columns, strict=True):
            space = " " * (width - cell_len(text))
            cells.append(space + text if column.right else text + space)
        echo("  ".join(cells).rstrip())


def _texts(rows: Sequence[TableRow], columns: Sequence[Column]) -> Iterator[list[str]]:
    """The titles, then the cells of each row. Only the last one may be empty: programs count words."""
    yield [column.title for column in columns]
    for row in rows:
        *texts, last = (column.text(row) for column in columns)
        yield [*(text or "-" for text in texts), last]
