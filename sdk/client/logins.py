"""Passwords and passphrases that a configuration names instead of holding them.

`passwordEnv: NAME` is read from the environment, `passwordPrompt: true` is asked for on the terminal, both once, when
the experiment is created; the same with `sshPassphrase`. What is found goes to the manager with the handed-over file.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proctor.sdk.client.handover import canonical_key

_KINDS = {"password": ("password", "passwordEnv"), "ssh_passphrase": ("passphrase", "sshPassphraseEnv")}
"""By the secret's name in the configuration: what people call it, and the key that names a variable."""

Ask = Callable[[str], str]


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


def find_secrets(
    config: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ, ask: Ask | None = None
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
