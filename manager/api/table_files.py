"""The table of trials as a file to save: CSV, and Parquet where pyarrow is installed. Its only importer."""

import csv
import importlib.util
import io
import json
from collections.abc import Iterator
from typing import Any, Literal

from proctor.manager.api.json_types import json_to_wire, rfc3339, utc
from proctor.manager.errors import NotInstalled
from proctor.manager.store.trial_table.table import TableColumn, TrialTable

FileFormat = Literal["json", "csv", "parquet"]

MEDIA_TYPES: dict[FileFormat, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
_ADVICE = "a Parquet file is written by pyarrow, which the manager does not have: `pip install pyarrow` where it runs"
_RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r")
_MICROSECONDS = 1_000_000


def file_formats() -> list[FileFormat]:
    """Those that this manager can write."""
    return ["json", "csv", "parquet"] if has_pyarrow() else ["json", "csv"]


def has_pyarrow() -> bool:
    """Whether a Parquet file can be written. pyarrow is not imported for the answer."""
    try:
        return importlib.util.find_spec("pyarrow") is not None
    except ValueError:  # it was imported in a way that failed
        return False


def table_to_csv(table: TrialTable) -> bytes:
    """RFC 4180, with the names of columns first. Numbers are exact, times RFC 3339; what is missing is empty.

    A text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([_harmless(column.name) for column in table.columns])
    columns = [list(_csv_values(column)) for column in table.columns]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode("utf-8", "backslashreplace")


def _csv_values(column: TableColumn) -> Iterator[Any]:
    for value in column.values:
        if value is None:
            yield ""
        elif column.type == "time":
            yield rfc3339(utc(value))
        elif isinstance(value, bool | dict | list):
            yield json.dumps(json_to_wire(value))
        else:
            yield _harmless(value) if isinstance(value, str) else value


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_RUN_BY_SPREADSHEETS) else text


def table_to_parquet(table: TrialTable) -> bytes:
    """Numbers as int64 or double, times as UTC timestamps in microseconds, texts as strings; a column of other or of
    several types has the JSON of its values. Raises NotInstalled."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise NotInstalled(_ADVICE) from error
    arrays = {column.name: _arrow_array(pyarrow, column) for column in table.columns}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), buffer, compression="zstd")
    return buffer.getvalue()


def _arrow_array(pyarrow: Any, column: TableColumn) -> Any:
    values = column.values
    match column.type:
        case "number":
            is_whole = all(value is None or (isinstance(value, int) and abs(value) < 2**63) for value in values)
            return pyarrow.array(
                values if is_whole else list(map(to_double, values)),
                pyarrow.int64() if is_whole else pyarrow.float64(),
            )
        case "time":
            whole = [None if value is None else round(value * _MICROSECONDS) for value in values]
            return pyarrow.array(whole, pyarrow.timestamp("us", tz="UTC"))
        case "json":
            values = [None if value is None else json.dumps(json_to_wire(value)) for value in values]
    return pyarrow.array([_storable(value) for value in values], pyarrow.string())


def to_double(value: int | float | None) -> float | None:
    """As a double; None for an integer that no double can hold."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None


def _storable(text: str | None) -> str | None:
    """Without lone surrogates, which UTF-8 cannot hold."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
