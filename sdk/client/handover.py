"""What `create` gives to the manager beside the configuration: the caller's environment, and secrets.

Neither may travel over REST or lie in a database, so they go through a file in the home that only its owner can read.
The manager moves it into the experiment's folder; whoever wrote it removes it when the experiment was not taken.
"""

import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REDACTED = "********"
_SECRET_KEYS = {"password": "password", "sshpassphrase": "ssh_passphrase"}
_SECTION_KEYS = {"trainingservice": "training_service", "machinelist": "machine_list"}


def write_handover(home: Path, *, secret_values: Mapping[str, str] | None = None) -> str:
    """Write down this process's environment, working directory and interpreter; return the file's name.

    :param secret_values: secrets by path in the configuration, `training_service.machine_list.0.password`.
    """
    incoming = home / "incoming"
    incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "path": os.environ.get("PATH", ""),
        "secrets": dict(secret_values or {}),
    }
    name = f"{secrets.token_hex(16)}.json"
    descriptor = os.open(incoming / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(document, file)
    return name


def discard_handover(home: Path, name: str) -> None:
    """Remove a file that the manager did not take; that it is gone already is fine."""
    (home / "incoming" / name).unlink(missing_ok=True)


def take_secrets(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration with its secrets replaced, and the secrets by their path in it."""
    found: dict[str, str] = {}
    kept = {key: _take(value, (_canonical(key),), found) for key, value in config.items()}
    return kept, found


def _take(value: Any, path: tuple[str, ...], found: dict[str, str]) -> Any:
    if path[0] != "training_service":
        return value
    if isinstance(value, (list, tuple)):
        return [_take(item, (*path, str(index)), found) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        inner = (*path, _canonical(key))
        if inner[-1] in _SECRET_KEYS.values() and isinstance(item, str):
            found[".".join(inner)] = item
            kept[key] = REDACTED
        else:
            kept[key] = _take(item, inner, found)
    return kept


def _canonical(key: object) -> str:
    """The key's name in the canonical configuration, where it leads to a secret; else as it is."""
    plain = re.sub(r"[_\-]", "", str(key)).lower()
    return _SECTION_KEYS.get(plain) or _SECRET_KEYS.get(plain) or str(key)
