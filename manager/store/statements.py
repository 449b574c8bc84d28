"""What the tables share: the named statements of queries.sql, and JSON columns.

A JSON column holds compact ASCII text, in which NaN and the infinities are words as in REST.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from proctor.manager.store.errors import NotJson
from proctor.sdk.metrics import to_json_word

_MARK = "\n-- name: "
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(value: Any) -> str:
    """Return the JSON text of `value`; numbers that JSON has no form for become "NaN", "Infinity", "-Infinity".

    Raises NotJson for something that JSON cannot hold.
    """
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(to_words(value))
    except TypeError as error:
        raise NotJson(str(error)) from error


def decode(text: str) -> Any:
    """Return what `encode` was given; the words stay words."""
    return json.loads(text)


def to_words(value: Any) -> Any:
    """The same value with words in place of NaN and infinities; as `decode` will give it back."""
    if isinstance(value, float):
        return to_json_word(value)
    if isinstance(value, dict):
        return {key: to_words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_words(item) for item in value]
    return value


@cache
def load_queries() -> Mapping[str, str]:
    """Every statement by its name; read once."""
    text = (files("proctor.manager.store") / "queries.sql").read_text("utf-8")
    parts = (part.partition("\n") for part in text.split(_MARK)[1:])
    return {
        name.strip(): "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
        for name, _, body in parts
    }


def query(name: str) -> str:
    """One statement without placeholders. Raises KeyError."""
    return load_queries()[name]


def query_with(name: str, columns: Iterable[str]) -> str:
    """One statement with its {columns}, {values} and {assignments} filled in; every column binds to its own name."""
    return _fill(name, tuple(columns))


@cache
def _fill(name: str, columns: tuple[str, ...]) -> str:
    return load_queries()[name].format(
        columns=", ".join(columns),
        values=", ".join(f":{column}" for column in columns),
        assignments=", ".join(f"{column} = :{column}" for column in columns),
    )
