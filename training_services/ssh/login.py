"""One login to one SSH server: what is offered to it and in which order, the callbacks of the SSH library, and the
reasons of failures in words.
"""

import asyncio
import errno
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from proctor.training_services.ssh.config import Hop
from proctor.training_services.ssh.errors import LoginRefused, RemoteError, Unreachable
from proctor.training_services.ssh.host_keys import REVOKED, KnownKey
from proctor.training_services.ssh.keys import Offer

_MOST_AT_ONCE = 8  # sshd drops logins at random from the tenth on (MaxStartups 10:30:100)
_MOST_KEYS_BESIDE_A_PASSWORD = 3  # sshd ends the connection at the sixth attempt (MaxAuthTries)
_PAUSES_SECONDS = (0.3, 0.6, 1.2, 2.4, 4.0)
_Gates = WeakValueDictionary[str, asyncio.Semaphore]
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gates] = WeakKeyDictionary()
_GIVE = "start the SSH agent, name sshKeyFile or give a password"
_INTERACTIVE = "keyboard-interactive"
_LOST = "Connection lost"  # what the library says of a connection that ended without a reason
_ADVICE = {
    errno.ECONNREFUSED: "check the port and that sshd runs there",
    errno.EHOSTUNREACH: "check the network, or that the machine is on",
    errno.ENETUNREACH: "check the network of the manager's machine",
}


def gate(hop: Hop) -> asyncio.Semaphore:
    """Limits the concurrent logins to one server, of all callers: a jump host or a machine that is many
    nodes sees them all. A server that does not answer delays no login to another one."""
    gates = _gates.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return gates.setdefault(hop.place, asyncio.Semaphore(_MOST_AT_ONCE))


def pauses() -> Iterator[float]:
    """Seconds to wait before each further try where a server has hung up before it said who it is."""
    return (pause * random.uniform(0.5, 1.5) for pause in _PAUSES_SECONDS)


class LoginAttempt:
    """What one login has to offer and what became of it. Holds secrets; never printed."""

    def __init__(
        self,
        hop: Hop,
        offers: Sequence[Offer],
        *,
        password: str | None,
        notes: Sequence[str] = (),
        absent: Sequence[str] = (),
    ) -> None:
        """
        :param notes: clauses about what was to be offered and could not be.
        :param absent: clauses about what is simply not there; worth saying where nothing was offered.
        """
        most = _MOST_KEYS_BESIDE_A_PASSWORD if password is not None else len(offers)
        self._hop = hop
        self._left = list(offers[:most])
        self._tried: list[Offer] = []
        self._password = password
        self._asked: set[str] = set()
        self._opened: set[str] = set()
        self._notes = list(notes)
        self._absent = list(absent)
        self.reached = False

    def next_key(self) -> Any | None:
        """The next key to try; None: no more."""
        self.reached = True
        if not self._left:
            return None
        self._tried.append(self._left.pop(0))
        return self._tried[-1].key

    def opens(self, way: str) -> bool:
        """Whether to begin this way of giving a password; a server that then asks for none is not asked again."""
        if self._password is None or way in self._opened:
            return False
        self._opened.add(way)
        return True

    def password(self, way: str) -> str | None:
        """The password, once for each way ("password", "keyboard-interactive")."""
        if self._password is None or way in self._asked:
            return None
        self._asked.add(way)
        return self._password

    @property
    def success(self) -> str:
        """How it got in, for people."""
        if self._asked:
            way = "the password"
        elif self._tried:
            way = f"a key of {self._tried[-1].label}" if self._tried[-1].from_agent else self._tried[-1].label
        else:
            way = "nothing asked for"
        return f"as {self._hop.user} with {way}"

    def refusal(self, said: str = "") -> LoginRefused:
        """Why it did not get in.

        :param said: what the server said; empty: only no.
        """
        head = f"login as {self._hop.user} was refused" + (f" ({said})" if said else "")
        if not self._tried and self._password is None:
            return LoginRefused("; ".join([head, " and ".join([*self._notes, *self._absent]), _GIVE]))
        parts = [head, f"tried {self._list_tried()}", *self._notes]
        if self._password is not None and not self._asked:
            parts.append("its SSH server did not ask for the password")
        return LoginRefused("; ".join([*parts, self._advice()]))

    def _list_tried(self) -> str:
        tried = dict.fromkeys(offer.label for offer in self._tried if not offer.from_agent)
        number = sum(offer.from_agent for offer in self._tried)
        agent = [f"the SSH agent ({number} {'key' if number == 1 else 'keys'})"] if number else []
        password = ["the password"] if self._asked else []
        return _listed([*agent, *tried, *password]) or "nothing"

    def _advice(self) -> str:
        if self._asked:
            return "correct the password or the user"
        return "give a password or another sshKeyFile, or correct the user"


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


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
        self.why = end_clause(exc, keep_alive_seconds=self._keep_alive_seconds)
        self.ended.set()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        """The host's key is none of the known ones."""
        self.offered = exported(key)
        self.trusted = self.offered if self._trust else None
        return self._trust

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        """The host's certificate is signed by no known authority."""
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


if TYPE_CHECKING:
    pass


def unknown_name(hop: Hop, error: socket.gaierror) -> Unreachable:
    """The name has no address."""
    said = error.strerror or "no address"
    return Unreachable(f"the name {hop.host} is not known here ({said}); correct host, or HostName in ~/.ssh/config")


def no_answer(hop: Hop, error: OSError) -> Unreachable:
    """No connection to the port."""
    advice = _ADVICE.get(error.errno or 0, "check host, port and network")
    said = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    return Unreachable(f"its SSH server at {hop.place} does not answer ({said.lower()}); {advice}")


def timed_out(hop: Hop, seconds: float, *, connected: bool) -> Unreachable:
    """Nothing came in time."""
    if connected:
        return Unreachable(
            f"its SSH server at {hop.place} takes connections but the login did not end within {seconds:g} s; "
            "it is overloaded or hangs"
        )
    return Unreachable(
        f"its SSH server at {hop.place} does not answer (timed out after {seconds:g} s); check host, port and firewall"
    )


class HungUp(Unreachable):
    """The server ended the connection before it said who it is. A further try may help."""


def login_failed(hop: Hop, error: Exception, client: "LoginClient") -> RemoteError:
    """Connecting or logging in has failed with an error of the SSH library or of the system."""
    said = (str(getattr(error, "reason", "")) or str(error) or type(error).__name__).rstrip(".")
    lost = isinstance(error, OSError) or said == _LOST
    if isinstance(error, OSError) and not client.connected:
        return no_answer(hop, error)
    if not client.greeting and hop.by_command:
        return Unreachable(f"the ProxyCommand for {hop.place} ended before an SSH server answered; try it by hand")
    if not client.greeting:
        return hung_up(hop) if lost else broken_off(hop, said)
    if client.attempt.reached and not lost:
        return client.attempt.refusal(said)
    return broken_off(hop, said)


def hung_up(hop: Hop) -> HungUp:
    """The server ended the connection before it said who it is."""
    return HungUp(
        f"its SSH server at {hop.place} hangs up at once; it lets in no more logins at a time (MaxStartups), bars this "
        "address, or is no SSH server"
    )


def broken_off(hop: Hop, said: str) -> Unreachable:
    """The server ended the connection during the handshake or the login."""
    return Unreachable(f"its SSH server at {hop.place} broke off the login ({said})")


def no_passage(hop: Hop, said: str) -> Unreachable:
    """A jump host cannot get there."""
    return Unreachable(f"its SSH server at {hop.place} cannot be reached from its jump host ({said})")


def at_jump(hop: Hop, error: RemoteError) -> RemoteError:
    """The same failure, told of a jump host."""
    error.args = (f"at its jump host {hop.address}: {error}",)
    return error


def end_clause(error: Exception | None, *, keep_alive_seconds: float) -> str:
    """Why a connection that stood has ended."""
    if error is None:
        return "the connection was closed"
    said = str(error)
    if "keepalive" in said.lower():
        return f"nothing was heard from it for {3 * keep_alive_seconds:g} s"
    if said == _LOST:
        return "its SSH server hung up"
    if isinstance(error, OSError):
        return f"the connection broke ({said or type(error).__name__})"
    return f"its SSH server ended the connection ({said})"
