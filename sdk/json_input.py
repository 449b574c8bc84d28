"""The gate for JSON that comes from outside: a trial, a keeper, a tuner, a REST client, an archive, a file.

JSON can carry what nothing behind the gate can: text with lone surrogates (what Python makes of a file name that is
not UTF-8) cannot be encoded as UTF-8, a value with hundreds of levels overflows serializers, and an integer of a
thousand digits fits no column. Such text is cleaned and such values are refused here, so that no other module has to
think of them. Standard library only: the trial keeper uses it too.
"""

import json
from typing import Any

MAX_DEPTH = 100
"""Levels of lists and objects in one value. pydantic serializes about 250, Python's own parser reads about 1,000."""
MAX_INTEGER_BITS = 1024
"""A tuner may well use 64-bit seeds. All but the very largest of these integers convert to a float."""
LATEST_TIME = 253_402_128_000.0
"""Unix time of 9999-12-30: the first moment that is not accepted. Every time zone can show a date before it."""


class RefusedValue(ValueError):
    """A value that is valid JSON but cannot be kept."""


def clean_text(text: str) -> str:
    """`text` as it can be encoded in UTF-8: a lone surrogate becomes its escape, such as \\udce9."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clean_value(value: Any, where: str = "the value") -> Any:
    """A parsed JSON value with clean text.

    :param where: what to call the value in an error.
    :raises RefusedValue: it is nested too deeply, or has an integer that is too large.
    """
    return _clean(value, where, MAX_DEPTH)


def parse_json(data: str | bytes, where: str = "the value") -> Any:
    """Parse one JSON document and clean it.

    :raises RefusedValue: as `clean_value`.
    :raises ValueError: it is not JSON.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise RefusedValue(f"{where} is nested deeper than {MAX_DEPTH} levels") from None
    return clean_value(value, where)


def _clean(value: Any, where: str, levels: int) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise RefusedValue(f"{where} has an integer of {value.bit_length()} bits; at most {MAX_INTEGER_BITS} fit")
        return value
    if not isinstance(value, dict | list | tuple):
        return value
    if levels == 0:
        raise RefusedValue(f"{where} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {clean_text(key): _clean(item, where, levels - 1) for key, item in value.items()}
    return [_clean(item, where, levels - 1) for item in value]
