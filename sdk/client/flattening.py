"""Nested parameters and metrics as columns: what each value is called in a table."""

from collections.abc import Mapping
from typing import Any

from proctor.sdk.metrics import DEFAULT_KEY


def metric_fields(reported: Any) -> dict[str, Any]:
    """A metric as it was reported: its number as `value`, the other keys of a dictionary as `value.<key>`."""
    if not isinstance(reported, dict):
        return {"value": reported}
    others = {key: item for key, item in reported.items() if key != DEFAULT_KEY}
    return {"value": reported.get(DEFAULT_KEY), **flatten(others, "value")}


def change_flat(value: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings with some values changed, which are named as `flatten` names them. Another branch of a
    nested choice begins empty: what is in it must be among the changes, too.

    :raises KeyError: there is no value of a name.
    """
    changed, new_branches = dict(value), set[str]()
    # A choice before what is in its branch.
    for name in sorted(changes, key=lambda name: (name not in changed, len(name))):
        if not _change(changed, "", name, changes[name], new_branches):
            raise KeyError(name)
    return changed


def _change(value: dict[str, Any], prefix: str, name: str, new: Any, new_branches: set[str]) -> bool:
    """Whether there is a value of this name in a mapping that is itself found at `prefix`; then it is changed."""
    if name in value:
        before = value[name]
        if not (isinstance(before, Mapping) and "_name" in before and isinstance(new, str)):
            value[name] = new
        elif new != before["_name"]:
            value[name] = {"_name": new}
            new_branches.add(f"{prefix}{name}.")
        return True
    for key, item in value.items():
        if name.startswith(f"{key}.") and isinstance(item, Mapping):
            inner = dict(item)
            if _change(inner, f"{prefix}{key}.", name[len(key) + 1 :], new, new_branches):
                value[key] = inner
                return True
    if prefix in new_branches:
        value[name] = new
    return prefix in new_branches


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
