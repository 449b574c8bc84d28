"""What `create` gives to the manager beside the configuration: the caller's environment, and secrets.

Neither may travel over REST or lie in a database, so they go through a file in the home that only its owner can read.
The manager moves it into the experiment's folder; whoever wrote it removes it when the experiment was not taken.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proctor.sdk.file_modes import read_umask

REDACTED = "********"
HELD_PREFIX = "held-"
"""A file in `incoming` with such a name is locked (flock) by the process that wrote it while that needs it."""
_SECRETS = ("password", "ssh_passphrase")
_OF_A_LOGIN = [f"{secret}{ending}" for secret in _SECRETS for ending in ("", "_env", "_prompt")]
_NAMES = ("training_service", "machine_list", "host", "port", "user", *_OF_A_LOGIN)
_OLD_NAMES = {"ip": "host", "username": "user", "passwd": "password", "passphrase": "ssh_passphrase"}
_CANONICAL = {name.replace("_", ""): name for name in _NAMES} | _OLD_NAMES


def write_handover(home: Path, *, secret_values: Mapping[str, str] | None = None, without: Collection[str] = ()) -> str:
    """Write down this process's environment, working directory and interpreter; return the file's name.

    :param secret_values: secrets by path in the configuration, `training_service.machine_list.0.password`.
    :param without: variables that are not for trials: they hold secrets.
    """
    incoming = home / "incoming"
    incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {
        "environment": {name: value for name, value in os.environ.items() if name not in without},
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "path": os.environ.get("PATH", ""),
        "umask": read_umask(),
        "secrets": dict(secret_values or {}),
    }
    name = f"{secrets.token_hex(16)}.json"
    descriptor = os.open(incoming / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(document, file)
    return name


@contextmanager
def held_copy(home: Path, source: Path) -> Iterator[str]:
    """A copy of a file for the manager, which is removed in the end; its name. A process that is killed here lets go of
    the lock, so that the next manager removes the copy."""
    incoming = home / "incoming"
    incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = incoming / f"{HELD_PREFIX}{secrets.token_hex(16)}{source.suffix}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target:
        try:
            fcntl.flock(target, fcntl.LOCK_EX)
            with source.open("rb") as original:
                shutil.copyfileobj(original, target)
            target.flush()
            yield path.name
        finally:
            path.unlink(missing_ok=True)


def discard_handover(home: Path, name: str) -> None:
    """Remove a file that the manager did not take; that it is gone already is fine."""
    (home / "incoming" / name).unlink(missing_ok=True)


def take_secrets(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration with its secrets replaced, and the secrets by their path in it."""
    found: dict[str, str] = {}
    kept = {}
    for key, value in config.items():
        name = canonical_key(key)
        # In NNI's first format the machines stand at the root.
        path = ("training_service", "machine_list") if name == "machine_list" else (name,)
        kept[key] = _take(value, path, found)
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
        inner = (*path, canonical_key(key))
        if inner[-1] in _SECRETS and isinstance(item, str):
            found[".".join(inner)] = item
            kept[key] = REDACTED
        else:
            kept[key] = _take(item, inner, found)
    return kept


def canonical_key(key: object) -> str:
    """The key's name in the canonical configuration, where it belongs to a login; else as it is."""
    return _CANONICAL.get(re.sub(r"[_\-]", "", str(key)).lower(), str(key))
