"""Which private keys are offered to a machine, and in which order.

`sshKeyFile`: that key and no other. Else the agent's keys (those that IdentityFile names first, and only those with
IdentitiesOnly), then the files of IdentityFile, or SSH's default names where the user names none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.training_services.ssh.config import Hop, shortened
from proctor.training_services.ssh.errors import KeyUnusable

_DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")

Loader = Callable[[Path, str | None], Sequence[Any]]
"""Reads a private key with a passphrase. Raises OSError, ValueError; the text of the latter begins with MISSING or with
WRONG where it is about the passphrase."""
MISSING = "Passphrase"
WRONG = "Incorrect passphrase"


class KeyLocked(KeyUnusable):
    """A key is all right, but needs a passphrase that was not given. The agent may hold it."""


@dataclass(frozen=True)
class Offer:
    """One key to try."""

    key: Any
    label: str
    """For people: where it comes from."""
    from_agent: bool = False


def explicit_key(path: Path, passphrase: str | None, load: Loader) -> tuple[Offer, ...]:
    """The key that `sshKeyFile` names. Raises KeyUnusable, KeyLocked."""
    label = shortened(path)
    try:
        return tuple(Offer(key, label) for key in load(path, passphrase))
    except FileNotFoundError as error:
        raise KeyUnusable(f"its key {label} does not exist on the manager's machine; correct sshKeyFile") from error
    except OSError as error:
        raise KeyUnusable(f"its key {label} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _unusable(label, error) from error


def found_keys(hop: Hop, passphrase: str | None, load: Loader) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """The keys of IdentityFile, or SSH's default ones, and a clause for each that cannot be used."""
    offers: list[Offer] = []
    notes: list[str] = []
    for path in identity_files(hop):
        try:
            offers.extend(Offer(key, shortened(path)) for key in load(path, passphrase))
        except FileNotFoundError:
            continue
        except OSError as error:
            notes.append(f"{shortened(path)} cannot be read: {error.strerror or error}")
        except ValueError as error:
            notes.append(_note(shortened(path), error))
    return tuple(offers), tuple(notes)


def identity_files(hop: Hop) -> tuple[Path, ...]:
    """Where private keys for this hop may lie."""
    return hop.identity_files or tuple(Path.home() / ".ssh" / name for name in _DEFAULT_NAMES)


def agent_order(agent: Sequence[tuple[Any, bytes]], named: Sequence[bytes], only: bool) -> list[Any]:
    """The agent's keys in the order of use.

    :param agent: its keys, each with its public half.
    :param named: the public halves of the keys that IdentityFile names.
    """
    first = [key for wanted in named for key, public in agent if public == wanted]
    return first if only else first + [key for key, public in agent if public not in named]


def _unusable(label: str, error: ValueError) -> KeyUnusable:
    if str(error).startswith(MISSING):
        return KeyLocked(
            f"its key {label} is protected by a passphrase; give sshPassphrase, sshPassphraseEnv or "
            "sshPassphrasePrompt, or load the key into the SSH agent"
        )
    if str(error).startswith(WRONG):
        return KeyUnusable(f"the passphrase given does not open its key {label}; correct sshPassphrase")
    return KeyUnusable(f"its key {label} is no private key that can be used ({error}); name another sshKeyFile")


def _note(label: str, error: ValueError) -> str:
    if str(error).startswith(MISSING):
        return f"{label} needs a passphrase"
    return f"{label} has another passphrase" if str(error).startswith(WRONG) else f"{label} is unusable ({error})"
