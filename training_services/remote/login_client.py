"""Answers the SSH library's questions while it logs in to one server, and notes what happens to the connection."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from proctor.training_services.remote import failures
from proctor.training_services.remote.host_keys import REVOKED, KnownKey
from proctor.training_services.remote.login import LoginAttempt

_INTERACTIVE = "keyboard-interactive"


class LoginClient:
    """The callbacks of one connection; their names and arguments are the library's."""

    def __init__(
        self, attempt: LoginAttempt, known: Sequence[KnownKey], *, trust: bool, keep_alive_seconds: float
    ) -> None:
        """:param trust: take the key of a host of which nothing is known."""
        self.attempt = attempt
        self.known = known
        self.offered: str | None = None
        """The host key it showed, where that is not known."""
        self.trusted: str | None = None
        """The same, where it was taken nevertheless."""
        self.ended = asyncio.Event()
        self.why = "the connection was closed"
        self.on_connected: Callable[[], None] = lambda: None
        """Called when the port has answered."""
        self._keep_alive_seconds = keep_alive_seconds
        self._trust = trust and not any(item.marker == REVOKED or item.exact for item in known)
        self._ssh: Any = None

    @property
    def connected(self) -> bool:
        """Whether something answered at the port."""
        return self._ssh is not None

    @property
    def greeting(self) -> str:
        """How the server introduced itself; empty: not yet."""
        return str(self._ssh.get_extra_info("server_version", "")) if self.connected else ""

    @property
    def host_key(self) -> str:
        """The host key that was verified, as in known_hosts; empty: none yet."""
        key = self._ssh.get_server_host_key() if self.connected else None
        return "" if key is None else exported(key)

    def connection_made(self, conn: Any) -> None:
        """The port answers."""
        self._ssh = conn
        self.on_connected()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.why = failures.end_clause(exc, keep_alive_seconds=self._keep_alive_seconds)
        self.ended.set()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        """The host's key is none of the known ones."""
        self.offered = exported(key)
        self.trusted = self.offered if self._trust else None
        return self._trust

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        """The host's certificate is signed by nobody known."""
        return False

    def begin_auth(self, username: str) -> None:
        """The host key is all right; now it wants to know who we are."""
        self.attempt.reached = True

    def public_key_auth_requested(self) -> Any:
        """The next key."""
        return self.attempt.next_key()

    def password_auth_requested(self) -> str | None:
        """The password."""
        return self.attempt.password("password")

    def kbdint_auth_requested(self) -> str | None:
        """Whether to be asked questions."""
        return "" if self.attempt.opens(_INTERACTIVE) else None

    def kbdint_challenge_received(self, name: str, instructions: str, lang: str, prompts: Any) -> list[str] | None:
        """Questions; one that is not shown while it is typed is taken for the password's, in whatever language."""
        if not prompts:
            return []  # only a message
        if len(prompts) > 1 or prompts[0][1]:
            return None
        password = self.attempt.password(_INTERACTIVE)
        return None if password is None else [password]


def exported(key: Any) -> str:
    """A key of the library as it stands in known_hosts, without its comment."""
    kind, blob = key.export_public_key("openssh").decode().split()[:2]
    return f"{kind} {blob}"
