"""The kinds of values a configuration holds: numbers, durations, GPU indices, paths, with their limits.

Each refuses with a sentence of the form "expected …"; pydantic's own coercions ("1" is 1, 1 is true) are
not wanted in files that people write.
"""

import math
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from proctor.sdk.protocol import MAX_VERDICT_SECONDS

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)\s*(?P<unit>[smhd]?)")
BOOLEAN_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
"""YAML 1.1, which NNI reads, has these words for booleans."""
MOST_CONCURRENT_TRIALS_OF_AN_UPDATE = 1000
MOST_CONCURRENT_TRIALS = 10_000
"""The manager asks its tuner for as many suggestions at once."""
LONGEST_SECONDS = 100 * 365 * 86400.0
"""A hundred years: what clocks and timers can still add to now."""
MOST_CPUS = 1e6
"""Of one trial: no node has as many."""
MOST_PRIORITY = 1000
MOST_HOURS = 1e9
"""Of GPUs: a thousand of them for a hundred years are fewer."""
_OBJECT_NAME = "[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_MEMORY = r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGTP]i|[kMGTP]|(?i:[kmgtp]b))"
_QUANTITIES = frozenset({*"kMGTP", "Ki", "Mi", "Gi", "Ti", "Pi"})
_LARGEST_WHOLE = 2**63 - 1
"""What the database can keep."""


def unexpected(expected: str, *, found: str = "") -> PydanticCustomError:
    """The error a validator raises; the reader of errors completes it by what was found and where.

    :param found: what was found, where the value itself does not say it.
    """
    return PydanticCustomError("unexpected", "expected {expected}", {"expected": expected, "found": found})


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3 is a float in YAML
    if isinstance(value, bool) or not isinstance(value, int):
        raise unexpected("a whole number")
    if not -_LARGEST_WHOLE <= value <= _LARGEST_WHOLE:
        raise unexpected("a whole number of at most 63 bits")
    return value


def _truth(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[value.lower()]
    if not isinstance(value, bool):
        raise unexpected("true or false")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise unexpected("text")
    if "\0" in value:
        raise unexpected("text without the character U+0000")
    return value


def _label(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not _text(value).isprintable():
        raise unexpected("text on one line, without control characters")
    return value


def _login_name(value: Any) -> Any:
    """A host or a user: an argument of ssh, and a part of messages."""
    if not _text(value).isprintable() or " " in value or value.startswith("-"):
        raise unexpected("a name without spaces that does not begin with -")
    return value


def seconds(value: object) -> float:
    """A duration in seconds from `90`, `"90"`, `"90s"`, `"10m"`, `"1.5h"` or `"2d"`; more than zero."""
    found: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if value < sys.float_info.max else math.inf
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        found = float(match["number"]) * _SECONDS[match["unit"]]
    if found is None or not math.isfinite(found) or found <= 0:
        raise unexpected("a duration of more than zero, such as 90, 10m, 1.5h or 2d")
    if found > LONGEST_SECONDS:
        raise unexpected("a duration of at most 100 years (36500d)")
    return found


def _hours(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST_HOURS:
        raise unexpected(f"a number of hours of more than zero, such as 100 or 0.5, and at most {MOST_HOURS:.0f}")
    return float(value)


def _seconds_or_zero(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return 0.0
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())) and float(match["number"]) == 0:
        return 0.0
    try:
        return seconds(value)
    except PydanticCustomError as error:
        found = str((error.context or {}).get("expected", ""))
        raise unexpected(found.replace("of more than zero, such as 90", "of zero or more, such as 0, 90")) from None


def _verdict_timeout(value: object) -> float:
    found = _seconds_or_zero(value)
    if found > MAX_VERDICT_SECONDS:
        raise unexpected("a duration of at most 7 days (7d), such as 10m: a trial keeps its GPUs while it waits")
    return found


def _indices(value: Any) -> Any:
    expected = unexpected('GPU indices that differ, such as 0, "0,1" or [0, 1]')
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")] if value.strip() else []
        if not all(part.isdecimal() for part in parts):
            raise expected
        value = [int(part) for part in parts]
    listed = list(value) if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed)
    if not whole or len(set(listed)) != len(listed):
        raise expected
    return tuple(listed)


def expanded(path: str | Path) -> Path:
    """The path with `~` and `~user` replaced; as it stands where there is no such user, like a shell."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def absolute_path(value: object, info: ValidationInfo) -> Path:
    """The path resolved against the directory of the configuration; `~` is the home of the user."""
    if not isinstance(value, str | Path) or not str(value).strip():
        raise unexpected("a path")
    if "\0" in str(value):
        raise unexpected("a path without the character U+0000")
    path = expanded(value)
    directory = (info.context or {}).get("directory")
    if not path.is_absolute() and directory is None:
        raise unexpected("an absolute path")
    whole = path if directory is None else Path(directory) / path
    # Not resolve(): a link the user made is the name the user knows.
    return Path(*(part for part in whole.parts if part != "."))


def _node_path(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise unexpected("an absolute path on the machine, such as /home/me/code")
    return value


def _storage(value: Any) -> Any:
    """A folder, or a URL for fsspec that holds no credentials."""
    scheme, is_url, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    if not is_url and (not isinstance(value, str) or not re.fullmatch("/+[^/\0].*", value)):
        raise unexpected("an absolute path, or a URL such as s3://bucket/folder")
    if is_url and (":" in rest.partition("/")[0].rpartition("@")[0] or "?" in rest):
        raise unexpected("a URL without credentials and queries; name the variables that hold them under environment")
    if is_url and scheme in {"file", "local"}:
        raise unexpected("an absolute path instead of a file URL")
    if is_url and not (re.fullmatch("[a-z][a-z0-9+.-]*", scheme) and rest.strip("/") and rest.isprintable()):
        raise unexpected("a URL such as s3://bucket/folder")
    return value.rstrip("/")


def _variable_names(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) for name in names
    ):
        raise unexpected("names of environment variables, as in [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]")
    return tuple(dict.fromkeys(names))


def _class_name(value: Any) -> Any:
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise unexpected("module.ClassName")
    return value


def _exit_codes(value: Any) -> Any:
    codes = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(code, int) and not isinstance(code, bool) and 1 <= code <= 255 for code in codes):
        raise unexpected("exit codes from 1 to 255, as in [75, 137]")
    return tuple(dict.fromkeys(codes))


def newest_checkpoints(value: Any) -> Any:
    """How many of the newest checkpoints are kept: a whole number from 1, or "all"."""
    if isinstance(value, str) and value.lower() == "all":
        return "all"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_WHOLE:
        raise unexpected("a number from 1, or all")
    return value


def _objective_metric(value: Any) -> Any:
    if value != "default":
        raise unexpected('default, the key under which trials report what is optimized, as in {"default": accuracy}')
    return value


def _mapping(value: Any) -> Any:
    if not isinstance(value, dict):
        raise unexpected("a mapping")
    return value


def _something(value: Any) -> Any:
    if value is None:
        raise unexpected("a value")
    return value


def _object_name(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > 253 or not re.fullmatch(_OBJECT_NAME, value):
        raise unexpected("the name of an object of Kubernetes: lower-case letters, digits, - and .")
    return value


def _text_mapping(value: Any) -> Any:
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and isinstance(text, str) for key, text in value.items()
    ):
        raise unexpected('a mapping of text to text; quote numbers and booleans, as in "true"')
    return value


def _amount(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_CPUS:
        raise unexpected(f"a number of more than zero, such as 4 or 0.5, and at most {MOST_CPUS:.0f}")
    return float(value)


def _memory_size(value: Any) -> Any:
    """A quantity of Kubernetes, or as NNI writes it: 16gb, "16 GB"."""
    match = re.fullmatch(_MEMORY, value.strip()) if isinstance(value, str) else None
    if match is None or not float(match["number"]):
        raise unexpected("an amount of memory, such as 16Gi or 512Mi")
    unit = match["unit"]
    return f"{match['number']}{unit if unit in _QUANTITIES else unit[0].upper() + 'i'}"


def _manager_url(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(
        r"https://(\[[0-9A-Fa-f:.%]+\]|[^\s/?#@:\[\]]+):[0-9]{1,5}/?", value
    ):
        raise unexpected("a URL such as https://10.0.0.5:8443, with the port of --keeper-listen")
    return value.rstrip("/")


def _duration_schema(bound: str) -> WithJsonSchema:
    """A number from 0, or text with a unit.

    :param bound: the keyword that says whether 0 is one.
    """
    text = {"type": "string", "pattern": r"^\s*(\d+\.?\d*|\.\d+)\s*[smhd]?\s*$"}
    return WithJsonSchema({"anyOf": [{"type": "number", bound: 0}, text]})


Whole = Annotated[int, BeforeValidator(_whole)]
# The limits stand before the validator, so that the JSON Schema shows them.
Count = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Budget = Annotated[int, Field(ge=-1), BeforeValidator(_whole)]
"""How often something may be done; -1: without a limit."""
Positive = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
UserNumber = Annotated[int, Field(ge=1, le=2**31 - 1), BeforeValidator(_whole)]
"""The number of a user or a group on Linux, other than root's."""
Concurrency = Annotated[int, Field(ge=1, le=MOST_CONCURRENT_TRIALS), BeforeValidator(_whole)]
"""trialConcurrency of a new experiment."""
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY), BeforeValidator(_whole)]
TrialNumber = Positive
PortNumber = Annotated[int, Field(ge=1, le=65535), BeforeValidator(_whole)]
Truth = Annotated[bool, BeforeValidator(_truth)]
Text = Annotated[str, BeforeValidator(_text)]
Label = Annotated[str, BeforeValidator(_label)]
LoginName = Annotated[str, BeforeValidator(_login_name)]
NodePath = Annotated[str, BeforeValidator(_node_path)]
"""An absolute path on another machine: kept as it is written."""
StoragePlace = Annotated[str, BeforeValidator(_storage), WithJsonSchema({"type": "string", "minLength": 1})]
"""A folder that all nodes share, or a URL; without a slash at its end."""
VariableNames = Annotated[
    tuple[str, ...],
    BeforeValidator(_variable_names),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
ClassName = Annotated[str, BeforeValidator(_class_name)]
ObjectiveMetric = Annotated[Literal["default"], BeforeValidator(_objective_metric)]
AnyMapping = Annotated[dict[str, Any], BeforeValidator(_mapping)]
TextMapping = Annotated[dict[str, str], BeforeValidator(_text_mapping)]
ObjectName = Annotated[
    str, BeforeValidator(_object_name), WithJsonSchema({"type": "string", "pattern": f"^{_OBJECT_NAME}$"})
]
"""The name of an object of Kubernetes."""
Amount = Annotated[
    float,
    BeforeValidator(_amount),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": MOST_CPUS}),
]
MemorySize = Annotated[str, BeforeValidator(_memory_size)]
"""A quantity of Kubernetes."""
ManagerUrl = Annotated[str, BeforeValidator(_manager_url)]
AnyValue = Annotated[Any, BeforeValidator(_something)]
"""Any JSON value but null."""
AbsolutePath = Annotated[Path, BeforeValidator(absolute_path), WithJsonSchema({"type": "string", "minLength": 1})]
Seconds = Annotated[float, BeforeValidator(seconds), _duration_schema("exclusiveMinimum")]
Hours = Annotated[
    float,
    BeforeValidator(_hours),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": MOST_HOURS}),
]
SecondsOrZero = Annotated[float, BeforeValidator(_seconds_or_zero), _duration_schema("minimum")]
VerdictTimeout = Annotated[float, BeforeValidator(_verdict_timeout), _duration_schema("minimum")]
ExitCodes = Annotated[
    tuple[int, ...],
    BeforeValidator(_exit_codes),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 255}, "uniqueItems": True}),
]
NewestCheckpoints = Annotated[
    int | Literal["all"],
    BeforeValidator(newest_checkpoints),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}]}),
]
GpuIndices = Annotated[
    tuple[int, ...],
    BeforeValidator(_indices),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*(\d+\s*(,\s*\d+\s*)*)?$"},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "uniqueItems": True},
            ]
        }
    ),
]
