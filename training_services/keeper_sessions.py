"""Who may speak for each node, and the registration of its keeper with the commands that it has not taken yet."""

import asyncio
import hmac
import secrets
from collections import deque
from dataclasses import dataclass

from proctor.training_services.errors import ServiceUnavailable, UnknownNode, UnknownSession
from proctor.training_services.file_requests import FileOrder, FileRequests
from proctor.training_services.nodes import NodePool
from proctor.trial_keeper.protocol import Cancel, Command, Launch, Registration, Shutdown, Update, to_json

Order = Launch | Cancel | Update | Shutdown


class Session:
    """One registration of one keeper: numbered commands, kept until the keeper says that it has taken them.

    `files` are the questions about files that are put to it. `stopped` says which of its jobs are stuck, as far as
    their experiments know (`ReportHeader.stopped`). `refused` are the jobs of other nodes that it has spoken of.
    """

    def __init__(self, node_id: str, registration: Registration) -> None:
        self.id = secrets.token_hex(16)
        self.jobs = {job.job_id: job for job in registration.jobs}
        self.stopped: dict[str, str] = {}
        self.refused: set[str] = set()
        self.is_closed = False
        self._commands: deque[Command] = deque()
        self._number = 0
        self._wake = asyncio.Event()
        self.files = FileRequests(node_id, push=self.push, withdraw=self._withdraw_request)

    def push(self, order: Order | FileOrder) -> None:
        """Add an order; a waiting poll is answered at once."""
        self._number += 1
        self._commands.append(Command(self._number, type(order).__name__, to_json(order)))
        self._wake.set()

    def withdraw(self, job_id: str) -> None:
        """Take back the orders for a job that were not handed over."""
        self._commands = deque(command for command in self._commands if command.order.get("job_id") != job_id)

    def _withdraw_request(self, request: str) -> None:
        self._commands = deque(command for command in self._commands if command.order.get("request") != request)

    def close(self) -> None:
        """A newer session has taken its place; a waiting poll is answered at once, a question about files fails."""
        self.is_closed = True
        self.files.close()
        self._wake.set()

    async def after(self, cursor: int, wait_seconds: float) -> list[Command]:
        """The commands after `cursor`, once there are any; those up to it are dropped. Empty when the wait is over."""
        while self._commands and self._commands[0].number <= cursor:
            self._commands.popleft()
        if not self._commands and not self.is_closed:
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return []
        return list(self._commands)


@dataclass(slots=True)
class _Keeper:
    """Who may speak for one node, and how it is being spoken with."""

    secret: str
    session: Session | None = None


class KeeperSessions:
    """The nodes whose keepers are listened to, and at most one session with each."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool
        self._keepers: dict[str, _Keeper] = {}

    def add_node(self, node_id: str, secret: str) -> None:
        """Let a keeper with this secret speak for this node."""
        self._keepers.setdefault(node_id, _Keeper(secret)).secret = secret

    def remove_node(self, node_id: str) -> None:
        """Listen to its keeper no more; an unknown node is no error."""
        self.end(node_id)
        self._keepers.pop(node_id, None)

    def secret(self, node_id: str) -> str:
        """A node's secret. Raises UnknownNode."""
        return self._keeper(node_id).secret

    def is_secret(self, node_id: str, bearer: str) -> bool:
        """Whether `bearer` is this node's secret; False for an unknown node."""
        keeper = self._keepers.get(node_id)
        return keeper is not None and hmac.compare_digest(keeper.secret.encode(), bearer.encode())

    def begin(self, node_id: str, registration: Registration) -> Session:
        """A new session; the one before is over. Raises UnknownNode."""
        keeper = self._keeper(node_id)
        self.end(node_id)
        keeper.session = Session(node_id, registration)
        return keeper.session

    def end(self, node_id: str) -> None:
        """Its session is over; a node without one is no error."""
        keeper = self._keepers.get(node_id)
        if keeper is not None and keeper.session is not None:
            keeper.session.close()
            keeper.session = None

    def close(self) -> None:
        """End all sessions."""
        for node_id in self._keepers:
            self.end(node_id)

    def all(self) -> list[Session]:
        """The sessions there are."""
        return [keeper.session for keeper in self._keepers.values() if keeper.session is not None]

    def by_node(self) -> list[tuple[str, Session]]:
        """The sessions there are, with their nodes."""
        return [(id, keeper.session) for id, keeper in self._keepers.items() if keeper.session is not None]

    def find(self, node_id: str) -> Session | None:
        """The session with a node's keeper, if there is one."""
        keeper = self._keepers.get(node_id)
        return None if keeper is None else keeper.session

    def require(self, node_id: str, session_id: str) -> Session:
        """The session with a node's keeper, if it is this one. Raises UnknownNode, UnknownSession."""
        session = self._keeper(node_id).session
        if session is None or session.id != session_id:
            raise UnknownSession(f"the session of node {node_id}'s keeper is not known; it must register again")
        return session

    def files(self, node_id: str) -> FileRequests:
        """Where to ask a node's keeper for files. Raises ServiceUnavailable with the reason while it is away."""
        session = self.find(node_id)
        absence = self._pool.absence(node_id)
        if session is None or absence:
            raise ServiceUnavailable(absence or f"the keeper of node {node_id} has not come back yet; try again")
        return session.files

    def _keeper(self, node_id: str) -> _Keeper:
        try:
            return self._keepers[node_id]
        except KeyError:
            raise UnknownNode(f"there is no node {node_id} here") from None
