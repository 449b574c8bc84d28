"""What `create` gives to the manager beside the configuration: the caller's environment, and secrets.

Neither may travel over REST or be stored in a database, so they go through a file in the home that only its owner can
read. The manager moves it into the experiment's folder; the process that wrote it removes it when the manager did not.

A configuration may name its secrets instead of holding them: `passwordEnv: NAME` is read from the environment,
`passwordPrompt: true` is asked for on the terminal, both once, when the experiment is created; the same holds for
`sshPassphrase`. `checkpointStorage` names the variables that its trials need.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.sdk.files import lock_file
from proctor.sdk.process_limits import read_umask

REDACTED = "********"
HELD_PREFIX = "held-"
"""A file in `incoming` with such a name is locked (flock) by the process that wrote it while that needs it."""
STORAGE_SECRETS = "checkpoint_storage.environment"
"""Below it the variables of the experiment's checkpointStorage are kept."""
_SECRETS = ("password", "ssh_passphrase")
_OF_A_LOGIN = [f"{secret}{ending}" for secret in _SECRETS for ending in ("", "_env", "_prompt")]
_NAMES = ("training_service", "machine_list", "host", "port", "user", "checkpoint_storage", "environment", *_OF_A_LOGIN)
_OLD_NAMES = {"ip": "host", "username": "user", "passwd": "password", "passphrase": "ssh_passphrase"}
_CANONICAL = {name.replace("_", ""): name for name in _NAMES} | _OLD_NAMES
_KINDS = {"password": ("password", "passwordEnv"), "ssh_passphrase": ("passphrase", "sshPassphraseEnv")}
"""By the secret's name in the configuration: what people call it, and the key that names a variable."""

AskSecret = Callable[[str], str]


def write_caller_environment(
    home: Path, *, secret_values: Mapping[str, str] | None = None, without: Collection[str] = ()
) -> str:
    """Save this process's environment, working directory and interpreter; return the file's name.

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
    path = incoming / f"{os.urandom(16).hex()}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(document, file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path.name


@contextmanager
def caller_environment(
    home: Path, *, secret_values: Mapping[str, str] | None = None, without: Collection[str] = ()
) -> Iterator[str]:
    """The name of a file as `write_caller_environment` makes it; removed afterwards if the manager did not take it."""
    name = write_caller_environment(home, secret_values=secret_values, without=without)
    try:
        yield name
    finally:
        (home / "incoming" / name).unlink(missing_ok=True)


@contextmanager
def held_copy(home: Path, source: Path) -> Iterator[str]:
    """A copy of a file for the manager, which is removed in the end; its name. A process that is killed here
    releases the lock, so that the next manager removes the copy."""
    incoming = home / "incoming"
    incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = incoming / f"{HELD_PREFIX}{os.urandom(16).hex()}{source.suffix}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target:
        try:
            lock_file(target.fileno(), waits=True)
            with source.open("rb") as original:
                shutil.copyfileobj(original, target)
            target.flush()
            yield path.name
        finally:
            path.unlink(missing_ok=True)


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


class MissingSecret(ValueError):
    """A password or passphrase that was promised is not there. The text names the machine and what to do."""


@dataclass(frozen=True)
class WantedSecret:
    """A secret that has to be found before an experiment can begin."""

    path: str  # in the canonical configuration: "training_service.machine_list.0.password"
    label: str  # for people: "password of bob@gpu-1"
    variable: str | None  # the environment variable that holds it; None: a person is asked
    key: str  # the key that would name a variable


def wanted_secrets(config: Mapping[str, Any]) -> Iterator[WantedSecret]:
    """What a configuration names, in the order of its machines. Its keys may be spelled in any way."""
    service = _member(config, "training_service")
    machines = _member(service, "machine_list") if isinstance(service, Mapping) else None
    for index, machine in enumerate(machines if isinstance(machines, (list, tuple)) else ()):
        if not isinstance(machine, Mapping):
            continue
        for name, (word, key) in _KINDS.items():
            variable = _member(machine, f"{name}_env")
            if variable or _is_true(_member(machine, f"{name}_prompt")):
                path = f"training_service.machine_list.{index}.{name}"
                label = f"{word} of {_address(machine)}"
                yield WantedSecret(path, label, str(variable) if variable else None, key)
    storage = _member(config, "checkpoint_storage")
    names = _member(storage, "environment") if isinstance(storage, Mapping) else None
    for name in (names,) if isinstance(names, str) else names if isinstance(names, (list, tuple)) else ():
        if isinstance(name, str):
            yield WantedSecret(f"{STORAGE_SECRETS}.{name}", f"{name} of checkpointStorage", name, "environment")


def find_secrets(
    config: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ, ask: AskSecret | None = None
) -> dict[str, str]:
    """The secrets that a configuration names, by their path. Raises MissingSecret.

    :param ask: gets a prompt and returns what was typed; by default the terminal, without echo. An empty answer means
        the one before.
    """
    found: dict[str, str] = {}
    typed = ""
    for wanted in wanted_secrets(config):
        if wanted.variable is not None:
            found[wanted.path] = _from_environment(wanted, environment)
            continue
        hint = " (Enter: the same again)" if typed else ""
        prompt = f"{wanted.label[:1].upper()}{wanted.label[1:]}{hint}: "
        typed = (_ask_on_terminal(wanted, prompt) if ask is None else ask(prompt)) or typed
        if not typed:
            raise MissingSecret(f"the {wanted.label} was not given")
        found[wanted.path] = typed
    return found


def secret_variables(config: Mapping[str, Any]) -> set[str]:
    """The environment variables that hold secrets: they are not for trials."""
    return {wanted.variable for wanted in wanted_secrets(config) if wanted.variable is not None}


def _from_environment(wanted: WantedSecret, environment: Mapping[str, str]) -> str:
    value = environment.get(wanted.variable or "", "")
    if not value:
        state = "empty" if wanted.variable in environment else "not set"
        raise MissingSecret(
            f"the {wanted.label} is expected in the environment variable {wanted.variable}, which is {state}"
        )
    return value


def _ask_on_terminal(wanted: WantedSecret, prompt: str) -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        raise MissingSecret(
            f"the {wanted.label} must be asked for, and there is no terminal: use one, or name an environment variable "
            f"that holds it by {wanted.key}"
        )
    from getpass import getpass

    return getpass(prompt, stream=sys.stderr)


def _member(section: Mapping[str, Any], name: str) -> Any:
    return next((value for key, value in section.items() if canonical_key(key) == name), None)


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on"))


def _address(machine: Mapping[str, Any]) -> str:
    user, port = _member(machine, "user"), _member(machine, "port")
    return (f"{user}@" if user else "") + str(_member(machine, "host")) + (f":{port}" if port else "")
