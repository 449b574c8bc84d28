"""Numbers that JSON has no word for, on their way to and from algorithms."""

import json
from collections.abc import Mapping
from typing import Any

from proctor.sdk.metrics import decode_number, encode_value


def from_wire(value: Any) -> Any:
    """Return a metric as the trial reported it: the words for NaN and infinities become floats again."""
    if isinstance(value, Mapping):
        return {key: from_wire(item) for key, item in value.items()}
    return decode_number(value)


def to_wire(value: Any) -> Any:
    """Return plain JSON for anything a tuner may propose, NumPy numbers and arrays included.

    Raises MetricError, a TypeError, if something in it cannot be held by JSON.
    """
    return json.loads(encode_value(value, "the parameters"))
