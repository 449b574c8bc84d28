"""Nested parameters and metrics as columns: what each value is called in a table."""

from typing import Any

from proctor.sdk.metrics import DEFAULT_KEY


def metric_fields(reported: Any) -> dict[str, Any]:
    """A metric as it was reported: its number as `value`, the other keys of a dictionary as `value.<key>`."""
    if not isinstance(reported, dict):
        return {"value": reported}
    others = {key: item for key, item in reported.items() if key != DEFAULT_KEY}
    return {"value": reported.get(DEFAULT_KEY), **flatten(others, "value")}


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level: `{"a": {"b": 1}}` is `{"<prefix>.a.b": 1}`. The branch of a nested choice has the
    name of the choice: `{"model": {"_name": "mlp", "lr": 0.1}}` is `{"model": "mlp", "model.lr": 0.1}`."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, dict) and item:
            inner = dict(item)
            if "_name" in inner:
                flat[name] = inner.pop("_name")
            flat.update(flatten(inner, name))
        else:
            flat[name] = item
    return flat
