"""Passwords and passphrases for machines: looked up here, once, and handed to the manager beside the configuration."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proctor.manager.cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client


@dataclass(frozen=True)
class Logins:
    """What a configuration needs to get into its machines."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By path in the canonical configuration."""
    variables: frozenset[str] = frozenset()
    """The environment variables they came from: not for trials."""


def find_logins(config: Mapping[str, Any], inline: Mapping[str, str] | None = None) -> Logins:
    """Look in the environment and ask on the terminal, as the canonical configuration says. Raises CommandError.

    :param inline: secrets that stood in the configuration itself.
    """
    from proctor.sdk.client.credentials import MissingSecret, find_secrets, secret_variables

    try:
        named = find_secrets(config)
    except MissingSecret as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    return Logins({**(inline or {}), **named}, frozenset(secret_variables(config)))


@contextmanager
def handed_over(client: "Client", logins: Logins) -> Iterator[str]:
    """The name of a file with this shell's environment and the logins; gone afterwards if the manager left it."""
    from proctor.sdk.client.credentials import discard_handover, write_handover

    name = write_handover(client.home, secret_values=logins.secrets, without=logins.variables)
    try:
        yield name
    finally:
        discard_handover(client.home, name)
