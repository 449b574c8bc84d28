"""Sessions with keepers: who may connect for each, and what it is sent.

A keeper is known by an id: the one of its node, or `job_keeper_id` of the trial job that it was started for.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from proctor.training_services.errors import ServiceUnavailable, UnknownNode, UnknownSession
from proctor.training_services.keepers.file_requests import CommandQueue, FileRequests
from proctor.training_services.keepers.presence import KeeperPresence
from proctor.trial_keeper.protocol import Registration

__all__ = ["derive_secret", "is_job_keeper", "job_keeper_id"]

_JOB_PREFIX = "job:"


def job_keeper_id(job_id: str) -> str:
    """The id of the keeper that was started for one trial job. No node has such an id."""
    return _JOB_PREFIX + job_id


def is_job_keeper(keeper_id: str) -> bool:
    """Whether a keeper was started for one trial job."""
    return keeper_id.startswith(_JOB_PREFIX)


def derive_secret(key: bytes, job_id: str, token: str) -> str:
    """The secret of a trial job's keeper (hex HMAC-SHA256). Nothing of it is stored: the next manager derives it
    again."""
    return hmac.new(key, f"job keeper\n{job_id}\n{token}".encode(), hashlib.sha256).hexdigest()


class RegisteredKeeper:
    """One registration of one keeper: the commands for it, and the questions about files that are put to it.

    `place` is what it is called, after "the keeper of". `held_up` says which of its jobs are stuck, or stand still, as
    far as their experiments know (`ReportHeader.stopped` and `waiting`). `refused` are the jobs of other keepers that
    it has reported on.
    """

    def __init__(self, place: str, registration: Registration) -> None:
        self.id = secrets.token_hex(16)
        self.place = place
        self.jobs = {job.job_id: job for job in registration.jobs}
        self.held_up: dict[str, str] = {}
        self.refused: set[str] = set()
        self.commands = CommandQueue()
        self.files = FileRequests(place, self.commands, registration)

    def close(self) -> None:
        """A newer session has taken its place; a waiting poll is answered at once, a question about files fails."""
        self.commands.close()
        self.files.close()


@dataclass(slots=True)
class _Keeper:
    """The secret of one keeper, where its presence is kept, and the session with it."""

    secret: str
    presence: KeeperPresence
    session: RegisteredKeeper | None = None


class KeeperSessions:
    """The keepers that are accepted, and at most one session with each.

    :param nodes: knows also of nodes whose keepers are not accepted why.
    """

    def __init__(self, nodes: KeeperPresence) -> None:
        self._nodes = nodes
        self._keepers: dict[str, _Keeper] = {}

    def add(self, keeper_id: str, secret: str, presence: KeeperPresence) -> None:
        """Accept a keeper with this secret."""
        known = self._keepers.setdefault(keeper_id, _Keeper(secret, presence))
        known.secret, known.presence = secret, presence

    def remove(self, keeper_id: str) -> None:
        """Refuse a keeper from now on. Does nothing for an unknown one."""
        self.end(keeper_id)
        self._keepers.pop(keeper_id, None)

    def secret(self, keeper_id: str) -> str:
        """A keeper's secret. Raises UnknownNode."""
        return self._keeper(keeper_id).secret

    def is_secret(self, keeper_id: str, bearer: str) -> bool:
        """Whether `bearer` is this keeper's secret; False for an unknown one."""
        keeper = self._keepers.get(keeper_id)
        return keeper is not None and hmac.compare_digest(keeper.secret.encode(), bearer.encode())

    def place(self, keeper_id: str) -> str:
        """What a keeper is called, after "the keeper of"."""
        return self._presence(keeper_id).place(keeper_id)

    def begin(self, keeper_id: str, registration: Registration) -> RegisteredKeeper:
        """A new session; the one before is over. Raises UnknownNode, KeeperReplaced."""
        keeper = self._keeper(keeper_id)
        keeper.presence.admit(keeper_id, registration)
        self.end(keeper_id)
        keeper.session = RegisteredKeeper(keeper.presence.place(keeper_id), registration)
        return keeper.session

    def end(self, keeper_id: str) -> None:
        """End its session, if it has one."""
        keeper = self._keepers.get(keeper_id)
        if keeper is not None and keeper.session is not None:
            keeper.session.close()
            keeper.session = None

    def close(self) -> None:
        """End all sessions."""
        for keeper_id in self._keepers:
            self.end(keeper_id)

    def all(self) -> list[RegisteredKeeper]:
        """The sessions there are."""
        return [keeper.session for keeper in self._keepers.values() if keeper.session is not None]

    def by_keeper(self) -> list[tuple[str, RegisteredKeeper]]:
        """The sessions there are, with the ids of their keepers."""
        return [(id, keeper.session) for id, keeper in self._keepers.items() if keeper.session is not None]

    def find(self, keeper_id: str) -> RegisteredKeeper | None:
        """The session with a keeper, if there is one."""
        keeper = self._keepers.get(keeper_id)
        return None if keeper is None else keeper.session

    def require(self, keeper_id: str, session_id: str) -> RegisteredKeeper:
        """The session with a keeper, if it is this one. Raises UnknownNode, UnknownSession."""
        session = self._keeper(keeper_id).session
        if session is None or session.id != session_id:
            place = self.place(keeper_id)
            raise UnknownSession(f"the session of the keeper of {place} is not known; it must register again")
        return session

    def files(self, keeper_id: str) -> FileRequests:
        """Where to ask a keeper for files. Raises ServiceUnavailable with the reason while it is away."""
        session = self.find(keeper_id)
        absence = self._presence(keeper_id).absence(keeper_id)
        if session is None or absence:
            place = self.place(keeper_id)
            raise ServiceUnavailable(absence or f"the keeper of {place} has not reconnected yet; try again")
        return session.files

    def _presence(self, keeper_id: str) -> KeeperPresence:
        keeper = self._keepers.get(keeper_id)
        return self._nodes if keeper is None else keeper.presence

    def _keeper(self, keeper_id: str) -> _Keeper:
        try:
            return self._keepers[keeper_id]
        except KeyError:
            raise UnknownNode(f"there is no node {keeper_id} here") from None
