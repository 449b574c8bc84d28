"""Reads what people write: YAML files and durations."""

from pathlib import Path
from typing import Any


def read_document(path: Path) -> Any:
    """What a YAML (1.2) or JSON file holds. Raises ValueError where it is neither."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (1.2) or JSON file. Raises ValueError where it holds something else."""
    found = read_document(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a mapping of keys, found {type(found).__name__}")
    return found


def read_duration(value: str | float | None) -> float | None:
    """Seconds of `90`, `90s`, `10m`, `1.5h` or `2d`. Raises ValueError."""
    if value is None or isinstance(value, (int, float)):
        return value
    number, unit = (value[:-1], value[-1]) if value and value[-1] in "smhd" else (value, "s")
    try:
        seconds = float(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"expected a duration such as 90s, 10m, 1.5h or 2d, found {value!r}")
    return seconds
