"""JSON columns: compact ASCII text in which NaN and the infinities are the words of the wire."""

import json
import math
from typing import Any

from proctor.manager.store.errors import NotJson

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


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
    """The same value with the words of the wire in place of NaN and infinities; as `decode` will give it back."""
    if isinstance(value, float) and not math.isfinite(value):
        return _WORDS[float.__repr__(float(value))]
    if isinstance(value, dict):
        return {key: to_words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_words(item) for item in value]
    return value
