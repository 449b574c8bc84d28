"""Who may do what: the two tokens of a home, and the host names under which the manager answers.

The tokens that have a name are in `named_tokens`.

A browser on the user's machine can be made to send requests to the loopback by any page it shows (DNS rebinding, forms
to other ports). So every request must name a known host, and one that changes something and is authorized by a cookie
must come from our own page.
"""

import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from proctor.manager.settings import ENV_READONLY_TOKEN_FILE, ENV_TOKEN_FILE, Home, SettingsError, WebSettings
from proctor.sdk.files import link_file, replace_file, sync_file, sync_folder

LEAST_TOKEN_CHARACTERS = 16
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Access(IntEnum):
    """What a token allows."""

    NONE = 0  # nothing
    READ = 1  # look at everything
    FULL = 2  # everything

    @property
    def in_words(self) -> str:
        """As people and REST name it: "full" or "read-only"."""
        return "full" if self is Access.FULL else "read-only"


@dataclass(frozen=True)
class Tokens:
    """The tokens of a home."""

    full: str
    readonly: str

    @classmethod
    def of(cls, home: Home) -> "Tokens":
        """The tokens in the home; made at the first start. Raises OSError."""
        return cls(full=_read_or_make(home.token_file), readonly=_read_or_make(home.readonly_token_file))

    @staticmethod
    def replace(home: Home, web: WebSettings) -> None:
        """Make the tokens in the files that the settings name, if any, those of the home. Only for the holder of its
        lock, and before they are read.

        Raises SettingsError where a file has no token, or both have the same; OSError where the home cannot be written.
        """
        tokens = {
            target: _read_given(Path(path), name)
            for name, path, target in (
                (ENV_TOKEN_FILE, web.token_file, home.token_file),
                (ENV_READONLY_TOKEN_FILE, web.readonly_token_file, home.readonly_token_file),
            )
            if path
        }
        if len(set(tokens.values())) < len(tokens):
            raise SettingsError(f"{ENV_TOKEN_FILE} and {ENV_READONLY_TOKEN_FILE}: expected two tokens, found the same")
        for target, token in tokens.items():
            replace_file(str(target), f"{token}\n".encode(), durable=True)

    @property
    def cookie_name(self) -> str:
        """Cookies know no ports: managers beside each other must not overwrite each other's."""
        return f"proctor-{sha256(self.full.encode()).hexdigest()[:12]}"

    def cookie(self, access: Access) -> str:
        """What a browser keeps instead of the token that allows `access`: derived from it, and of no use elsewhere."""
        return cookie_of(self.full if access is Access.FULL else self.readonly)

    def access(self, token: str | None) -> Access:
        """What `token` allows, found out in constant time."""
        return _first_equal(token, {Access.FULL: self.full, Access.READ: self.readonly})

    def cookie_access(self, value: str | None) -> Access:
        """What the value of a cookie allows, found out in constant time."""
        return _first_equal(value, {access: self.cookie(access) for access in (Access.FULL, Access.READ)})


def cookie_of(token: str) -> str:
    """The value of the cookie that takes a token's place in a browser."""
    return hmac.digest(token.encode(), b"proctor: cookie of the page", sha256).hex()


def _read_given(path: Path, name: str) -> str:
    """The token in a file that a setting names."""
    try:
        token = path.read_text(errors="replace").strip()
    except OSError as error:
        raise SettingsError(f"{name}: expected a file with a token, found {path}: {error.strerror}") from error
    if not token.isascii() or not token.isprintable() or " " in token or len(token) < LEAST_TOKEN_CHARACTERS:
        raise SettingsError(
            f"{name}: {path} should hold a token of at least {LEAST_TOKEN_CHARACTERS} ASCII characters without spaces"
        )
    return token


def _first_equal(given: str | None, known: Mapping[Access, str]) -> Access:
    encoded = (given or "").encode()
    equal = [access for access, text in known.items() if hmac.compare_digest(encoded, text.encode())]
    return equal[0] if equal else Access.NONE


def _read_or_make(path: Path) -> str:
    """The token in the file. The first caller makes it: two starts at once agree on one."""
    with suppress(FileNotFoundError):
        if not path.stat().st_size:
            path.unlink()
    if not path.exists():
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            sync_file(file.fileno())
        try:
            link_file(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        sync_folder(str(path.parent))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    token = path.read_text(errors="replace").strip()
    if len(token) < LEAST_TOKEN_CHARACTERS:
        raise OSError(
            f"{path} should hold a token of at least {LEAST_TOKEN_CHARACTERS} characters; delete it and a new one "
            "is made"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address or name."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The host of a Host header, without port and brackets."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class HostGuard:
    """Knows the names under which the manager answers."""

    def __init__(self, *, bound: str, allowed: Iterable[str] = ()) -> None:
        """`bound`: the address it listens on; `allowed`: names beside those of the loopback, "*" for any."""
        self._allowed = {name.lower().rstrip(".") for name in allowed}
        self._addresses_allowed = not is_loopback(bound)
        self._allowed.add(bound.strip("[]").lower())

    def allows(self, header: str) -> bool:
        """Whether a request with this Host header may be answered.

        Where other machines may come, so may any bare address: rebinding needs a name.
        """
        name = _host_name(header)
        if not name:
            return False
        if "*" in self._allowed or name in self._allowed or is_loopback(name):
            return True
        return self._addresses_allowed and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def comes_from_our_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a request was made by a page of this very origin (host and port)."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
