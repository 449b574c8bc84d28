"""Tables as they travel: JSON, and a binary format that is read without parsing every number.

The latter (`application/vnd.proctor.columns`): the four bytes `PCOL`; the length of the header as uint32; the
header, JSON in UTF-8; then a block of data for each column. All numbers are little-endian. Spaces after the header make
the data begin at a multiple of 8 from the start, and bytes of 0 each block.
"""

import json
import math
import sqlite3
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from pydantic import Field

from proctor.manager.api.json_types import Json, json_to_wire, rfc3339, utc
from proctor.manager.api.models import Resource
from proctor.manager.api.table_files import FileFormat, table_to_csv, table_to_parquet, to_double
from proctor.manager.store.trial_table import table
from proctor.manager.store.trial_table.columns import CurveValues
from proctor.manager.store.trial_table.table import TableColumn, TrialTable

MEDIA_TYPE = "application/vnd.proctor.columns"
VERSION = 1
_MAGIC = b"PCOL"
_ROWS_AT_ONCE = 500
"""That are written as JSON in one go: other threads wait for it."""
_NO_INTEGER = -(2**31)
UNSIGNED = (("u8", "B", 2**8), ("u16", "H", 2**16), ("u32", "I", 2**32))
"""Encodings of whole numbers, the smallest first: name, code of the type, and how many numbers it has."""
_MOST_WORDS = 2**16
"""Of a dictionary, unless some are missing, which no other encoding of texts can say."""


class TableHead(Resource):
    """A column of the table."""

    name: str = Field(examples=["parameter.lr"])
    type: Literal["number", "text", "time", "json"]
    """Numbers are finite; one that is not is null."""
    varies: bool
    """Whether two of the rows of this answer differ in it."""


class Table(Resource):
    """Trials by rows, each with a value for every column."""

    columns: list[TableHead]
    rows: list[list[Json]] = Field(examples=[[[17, "Xy7Zw3Qk", "SUCCEEDED", 0.971]]])
    total: int = Field(examples=[10000])
    """How many trials the experiment has."""
    matched: int = Field(examples=[412])
    """How many the filter lets through."""
    revision: int = Field(examples=[31337])
    """The id of the experiment's newest event."""


@dataclass(frozen=True)
class TableQuery:
    """What `get_table` was asked for. `reasons` are those of trials that run, by their ids."""

    experiment_id: str
    now: float
    filter: str | None
    sort: Sequence[str]
    columns: Sequence[str]
    offset: int
    limit: int
    reasons: Mapping[str, str]
    curve_values: CurveValues
    format: Literal["columns"] | FileFormat
    """`columns` is the binary format."""


def read_table(connection: sqlite3.Connection, asked: TableQuery) -> bytes:
    """A table as it travels; run where heavy reads are. Raises QueryRefused."""
    found = table.read(
        connection,
        asked.experiment_id,
        now=asked.now,
        filter=asked.filter,
        sort=asked.sort,
        columns=asked.columns,
        offset=asked.offset,
        limit=asked.limit,
        curve_values=asked.curve_values,
    )
    add_reasons(found, asked.reasons)
    match asked.format:
        case "columns":
            return pack_table(found)
        case "csv":
            return table_to_csv(found)
        case "parquet":
            return table_to_parquet(found)
    return table_to_json(found)


def add_reasons(found: TrialTable, reasons: Mapping[str, str]) -> None:
    """Say in a table of the trials that run what their nodes say of them now."""
    shown = next((column.values for column in found.columns if column.name == "reason"), None)
    if shown is None:
        return
    for place, trial_id in found.running.items():
        if trial_id in reasons:
            shown[place] = reasons[trial_id] or None


def pack_table(table: TrialTable) -> bytes:
    """A table in the binary format."""
    descriptions, blocks, position = [], [], 0
    for column in table.columns:
        encoding, block = _pack_column(column)
        padding = -len(block) % 8
        blocks += [block, bytes(padding)]
        described = {"name": column.name, "type": column.type, "varies": column.varies, "at": position}
        descriptions.append(described | encoding)
        position += len(block) + padding
    header = compact({"version": VERSION, "rows": table.rows, **_counts(table), "columns": descriptions}).encode()
    header += b" " * (-(len(_MAGIC) + 4 + len(header)) % 8)
    return b"".join([_MAGIC, len(header).to_bytes(4, "little"), header, *blocks])


def table_to_json(table: TrialTable) -> bytes:
    """A table as JSON, row by row."""
    columns = [{"name": each.name, "type": each.type, "varies": each.varies} for each in table.columns]
    head = compact({"columns": columns, **_counts(table)})
    values = [list(_wire_values(column)) for column in table.columns]
    rows = zip(*values, strict=True) if values else (() for _ in range(table.rows))
    return f'{head[:-1]},"rows":[{",".join(_json_rows(rows))}]}}'.encode()


def _counts(table: TrialTable) -> dict[str, int]:
    return {"total": table.total, "matched": table.matched, "revision": table.revision}


def _wire_values(column: TableColumn) -> Iterable[Any]:
    if column.type == "time":
        return (None if value is None else rfc3339(utc(value)) for value in column.values)
    return map(json_to_wire, column.values) if column.type == "json" else column.values


def _json_rows(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    batch: list[Sequence[Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS_AT_ONCE:
            yield compact(batch)[1:-1]
            batch = []
    if batch:
        yield compact(batch)[1:-1]


def _pack_column(column: TableColumn) -> tuple[dict[str, Any], bytes]:
    """How a column is encoded, and its data."""
    if column.type in ("number", "time"):
        return _pack_numbers(column.values)
    values = column.values
    if column.type == "json":
        values = [None if value is None else compact(json_to_wire(value)) for value in values]
    words = dict.fromkeys(values)
    has_nulls = None in words
    words.pop(None, None)
    if has_nulls or len(words) < min(len(values) / 2 + 8, _MOST_WORDS):
        return _pack_indexes(values, list(words))
    return _pack_texts(values)


def compact(value: Any) -> str:
    """A value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def _pack_numbers(values: Sequence[Any]) -> tuple[dict[str, Any], bytes]:
    """Whole numbers that fit as i32, the others as f64, of which NaN is null."""
    kinds = set(map(type, values))
    if float not in kinds and all(value is None or _NO_INTEGER < value < -_NO_INTEGER for value in values):
        return {"encoding": "i32"}, to_bytes("i", [_NO_INTEGER if value is None else value for value in values])
    try:
        return {"encoding": "f64"}, to_bytes("d", [math.nan if value is None else value for value in values])
    except OverflowError:  # an integer that no double can hold
        doubles = map(to_double, values)
        return {"encoding": "f64"}, to_bytes("d", [math.nan if value is None else value for value in doubles])


def _pack_indexes(values: Sequence[str | None], words: list[str]) -> tuple[dict[str, Any], bytes]:
    """The places of texts in a list of them; the greatest number of the type is null."""
    name, code, size = next(each for each in UNSIGNED if len(words) < each[2])
    places: dict[str | None, int] = {word: place for place, word in enumerate(words)}
    places[None] = size - 1
    return {"encoding": name, "values": words}, to_bytes(code, [places[value] for value in values])


def _pack_texts(values: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    """Where each text begins, and where the last one ends, then the texts in UTF-8."""
    texts = [value.encode("utf-8", "backslashreplace") for value in values]
    return {"encoding": "text"}, to_bytes("I", [0, *accumulate(map(len, texts))]) + b"".join(texts)


def to_bytes(code: str, values: Sequence[Any]) -> bytes:
    """The numbers of one machine type, little-endian."""
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def from_bytes(code: str, data: bytes) -> Sequence[Any]:
    """The numbers of `to_bytes`."""
    numbers = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
