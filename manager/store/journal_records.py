"""Reading the lines of a trial's journal (`proctor.sdk.protocol`) and what a reported value means to the store.

Nothing that a trial writes makes this fail: a line that is no record is told as unreadable.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from proctor.manager.store.json_columns import encode, to_words
from proctor.sdk.json_input import clean_value

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_NOT_JSON = (StopIteration, ValueError, RecursionError)
_LARGEST_INTEGER = 2**63


def read_lines(data: bytes) -> Iterator[tuple[int, Any]]:
    """(byte offset in `data`, record) of every line; the record is None for a line that is not one JSON object.

    `data` ends with a newline. Empty lines are left out.
    """
    if not data.isascii():
        yield from _read_one_by_one(data)
        return
    # In ASCII text characters are bytes, so the scanner's own positions are the offsets.
    text = data.decode("ascii")
    position, size = 0, len(text)
    while position < size:
        try:
            record, end = _scan(text, position)
        except _NOT_JSON:
            record, end = None, -1
        if record.__class__ is dict and text[end] == "\n":
            yield position, record
        else:
            end = text.index("\n", position)
            line = text[position:end]
            if line.strip():
                yield position, parse_line(line)
        position = end + 1


def parse_line(line: str) -> dict[str, Any] | None:
    """The JSON object in one line, or None."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def split_value(reported: Any) -> tuple[float | None, str | None, Any]:
    """What is stored of a reported value: (value, data, as it will be read again).

    `value` is the finite number that stands for it: itself or its "default"; `data` its JSON text, unless it is just
    that number. Raises RefusedValue for something that cannot be kept.
    """
    number = finite_number(reported)
    if number is not None:
        return number, None, number
    value = finite_number(reported.get("default")) if isinstance(reported, dict) else None
    kept = to_words(clean_value(reported))
    return value, encode(kept), kept


def finite_number(value: Any) -> float | None:
    """A number as a float; None for anything else, NaN and infinities included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole_number(value: Any) -> int | None:
    """An integer that SQLite can hold; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        return None
    return value


def _read_one_by_one(data: bytes) -> Iterator[tuple[int, Any]]:
    position = 0
    for line in data.split(b"\n")[:-1]:
        if line.strip():
            yield position, parse_line(line.decode("utf-8", "replace"))
        position += len(line) + 1
