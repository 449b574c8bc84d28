"""Numbers on the wire. JSON has no word for NaN and the infinities; they travel as strings."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import PlainSerializer, WithJsonSchema

from proctor.sdk.json_input import LATEST_TIME, MAX_DEPTH, clean_text
from proctor.sdk.metrics import JSON_WORDS, to_json_word

PARAMETERS_EXAMPLE = {"lr": 0.003, "hidden": 128}


def json_to_wire(value: Any) -> Any:
    """Any JSON value with every number and text in it as it travels."""
    return _json_to_wire(value, MAX_DEPTH)


def _json_to_wire(value: Any, levels: int) -> Any:
    """Never fails, whatever an older version may have stored."""
    if isinstance(value, float):
        return to_json_word(value)
    if isinstance(value, str):
        return clean_text(value)
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if levels == 0:
        return f"(nested deeper than {MAX_DEPTH} levels)"
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _json_to_wire(item, levels - 1) for key, item in value.items()}
    return [_json_to_wire(item, levels - 1) for item in value]


def utc(seconds: float) -> datetime:
    """The moment of a Unix time; one that no calendar has becomes the nearest that it has."""
    return datetime.fromtimestamp(min(max(0.0, seconds), LATEST_TIME - 1.0), UTC)


def utc_or_none(seconds: float | None) -> datetime | None:
    """The moment of a Unix time that may not have come yet."""
    return None if seconds is None else utc(seconds)


def rfc3339(moment: datetime) -> str:
    """A moment as it travels: UTC with milliseconds and a Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Number = Annotated[
    float,
    PlainSerializer(to_json_word, return_type=float | str, when_used="always"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number"}, {"type": "string", "enum": list(JSON_WORDS)}],
            "description": "A number; NaN and the infinities are words.",
        }
    ),
]
"""A number that may be NaN or infinite."""

Json = Annotated[
    Any,
    PlainSerializer(json_to_wire, when_used="always"),
    WithJsonSchema({"description": "Any JSON value; NaN and the infinities are words."}),
]
"""Any JSON value."""

JsonObject = Annotated[
    dict[str, Any],
    PlainSerializer(json_to_wire, when_used="always"),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]
"""Any JSON object."""

Time = Annotated[
    datetime,
    PlainSerializer(rfc3339, return_type=str, when_used="always"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment, RFC 3339 in UTC with milliseconds."""
