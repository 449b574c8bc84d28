"""How a metric travels: as JSON text, written by hand because every report pays for it.

`NaN` and the infinities have no JSON form; they travel as the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
NumPy, torch and similar scalars are recognized by their `item` method, so that neither library is imported here.
"""

from proctor.sdk.errors import MetricError, notice_once
from proctor.sdk.quick_json import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_KEY = "default"

_LARGEST_INTEGER = 2**63
_MAXIMUM_DEPTH = 32
_NAME_OF = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_INFINITY = float("inf")
_NUMBER_OF = {name: float(text) for text, name in _NAME_OF.items()}
JSON_WORDS = tuple(_NUMBER_OF)


def encode_metric(value: object) -> str:
    """Return the JSON text of a metric: a number, or a dictionary whose `default` is the number to optimize.

    :raises MetricError: the value is neither; the text names the key and the type.
    """
    if type(value) is float or type(value) is int:
        return _number_text(value)
    if not isinstance(value, dict):
        return _number_text(_require_number(value, "the metric"))
    if DEFAULT_KEY in value:
        value = {**value, DEFAULT_KEY: _require_number(value[DEFAULT_KEY], f"the metric's key {DEFAULT_KEY!r}")}
    return encode_value(value, "the metric")


def encode_value(value: "Any", where: str = "the value", depth: int = 0) -> str:
    """Return the JSON text of anything JSON can hold, scalars and arrays of NumPy and torch included.

    :param where: what to call the value in an error.
    :raises MetricError: something in it cannot be held by JSON.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return _number_text(value)
    if isinstance(value, str):
        return quote(value)
    if depth >= _MAXIMUM_DEPTH:
        raise MetricError(f"{where} is nested deeper than {_MAXIMUM_DEPTH} levels; does it contain itself?")
    if isinstance(value, dict):
        return _encode_items(value, where, depth + 1)
    if isinstance(value, (list, tuple)):
        items = (encode_value(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value))
        return f"[{','.join(items)}]"
    return encode_value(_to_python(value, where), where, depth + 1)


def to_json_word(value: "Any") -> "Any":
    """The word for a number that is not finite; everything else as it is."""
    if not isinstance(value, float) or float.__abs__(value) < _INFINITY:
        return value
    return _NAME_OF[float.__repr__(value)]


def from_json_word(value: "Any") -> "Any":
    """The float for one of the three words; everything else as it is."""
    return _NUMBER_OF.get(value, value) if isinstance(value, str) else value


def _encode_items(value: "dict[Any, Any]", where: str, depth: int) -> str:
    parts = []
    for key, item in value.items():
        if not isinstance(key, (str, int, float)):
            raise MetricError(f"a key of {where} must be text; found {key!r} of type {_name_type(key)}")
        parts.append(f"{quote(str(key))}:{encode_value(item, f'{where}[{key!r}]', depth)}")
    return "{" + ",".join(parts) + "}"


def _number_text(value: "int | float") -> str:
    if isinstance(value, int):
        if -_LARGEST_INTEGER < value < _LARGEST_INTEGER:
            return int.__repr__(value)
        value = _to_float(value)
    text = float.__repr__(value)
    return f'"{_NAME_OF[text]}"' if text in _NAME_OF else text


def _require_number(value: "Any", where: str) -> "int | float":
    found = value if isinstance(value, (int, float)) else _unwrap(value)
    if found is None:
        expected = "a number" if DEFAULT_KEY in where else f"a number or a dictionary with {DEFAULT_KEY!r}"
        raise MetricError(
            f"{where} must be {expected}; found {_name_type(value)}. Report float(...) of what is to be optimized."
        )
    return int(found) if isinstance(found, bool) else found


def _to_python(value: "Any", where: str) -> "Any":
    """A scalar as a number, an array as nested lists."""
    found = _unwrap(value)
    if found is None and hasattr(value, "tolist"):
        found = value.tolist()
    if found is None:
        raise MetricError(
            f"{where} must be something JSON can hold (number, text, list, dictionary); "
            f"found {_name_type(value)}. Leave it out or convert it first."
        )
    return found


def _unwrap(value: "Any") -> "int | float | None":
    """The Python number in a NumPy or torch scalar, a one-element array, a Decimal or a Fraction; else None."""
    found = value
    if hasattr(value, "item"):
        try:
            found = value.item()
        except (TypeError, ValueError, RuntimeError):  # more than one element
            return None
    if isinstance(found, (int, float)):
        return found
    if not hasattr(found, "__float__"):
        return None
    try:
        return _to_float(found)
    except (TypeError, ValueError, RuntimeError):
        return None


def _to_float(value: "Any") -> float:
    try:
        return float(value)
    except OverflowError:
        notice_once("overflow", "an integer beyond 1.8e308 was reported: it is stored as Infinity or -Infinity")
        return float("inf") if value > 0 else float("-inf")


def _name_type(value: "Any") -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    shape = getattr(value, "shape", None)
    return name if shape is None else f"{name} of shape {tuple(shape)}"
