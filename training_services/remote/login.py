"""One attempt to log in: what is offered to the server, in which order, and what to say when it takes nothing of it."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from proctor.training_services.remote.errors import LoginRefused
from proctor.training_services.remote.keys import Offer
from proctor.training_services.remote.ssh_config import Hop

_MOST_AT_ONCE = 8  # sshd drops logins at random from the tenth on (MaxStartups 10:30:100)
_MOST_KEYS_BESIDE_A_PASSWORD = 3  # sshd ends the connection at the sixth attempt (MaxAuthTries)
_PAUSES_SECONDS = (0.3, 0.6, 1.2, 2.4, 4.0)
_Gates = WeakValueDictionary[str, asyncio.Semaphore]
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gates] = WeakKeyDictionary()


def gate(hop: Hop) -> asyncio.Semaphore:
    """Lets a few logins at a time through to one server, whoever wants them: a jump host or a machine that is many
    nodes sees them all. A server that does not answer holds up nobody else's."""
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


_GIVE = "start the SSH agent, name sshKeyFile or give a password"


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
