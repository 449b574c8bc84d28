"""One machine: connected, given a keeper, and again after every loss, for as long as an experiment wants it.

Everything that can go wrong becomes the node's reason and a pause; nothing of it reaches another machine. When the last
experiment has let go, the machine is left without a trace; that is owed until it could be done. Files that were not
collected are owed, too: then its jobs are ended, and its keeper serves once more to bring them here. A machine to which
nothing was ever brought is forgotten at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.nodes.pool import NodeStatus
from proctor.training_services.providers import ProviderContext
from proctor.training_services.remote.bootstrap.node import Archive, NodeConnection, Site
from proctor.training_services.remote.files.transfer import CodeLike, Progress, Transfers
from proctor.training_services.remote.machines.keeper_session import KeeperSession, leave
from proctor.training_services.remote.machines.records import (
    KIND,
    Claim,
    MachineRecord,
    NodeDirectory,
    NodeRecord,
    keeper_folder,
)
from proctor.training_services.remote.machines.uncollected import UncollectedFiles, name_experiments
from proctor.training_services.remote.settings import MachineSettings
from proctor.training_services.ssh.errors import (
    ConnectionEnded,
    HostKeyRefused,
    KeyUnusable,
    LoginRefused,
    RemoteError,
    Unreachable,
)
from proctor.training_services.ssh.route import RouteTrace
from proctor.trial_keeper.linux.backoff import LONGEST_SECONDS, BackOff
from proctor.trial_keeper.linux.tasks import until_first_ends

__all__ = ["REFUSALS", "Connect", "Machine", "MachineContext", "advise", "say_why_kept"]


# ---- means ----------------------------------------------------------------------------------------------------------
# What all machines of a manager share.


class Connect(Protocol):
    """How a machine is connected: `connection.open_connection` with what the manager knows."""

    def __call__(self, claim: Claim, trace: RouteTrace | None, /) -> AbstractAsyncContextManager[NodeConnection]:
        """A connection as an experiment's claim says; raises RemoteError on entering."""


@dataclass(frozen=True)
class MachineContext:
    """How they are reached, and what keeps them out of each other's way."""

    provider: ProviderContext
    connect: Connect
    gate: asyncio.Semaphore  # how many machines may be brought up at once, once they have let us in
    archive: Callable[[], Awaitable[Archive]]
    now: Callable[[], float]
    doors: Mapping[str, asyncio.Lock]  # by node id: whoever brings something there or takes everything away holds it


# ---- reasons --------------------------------------------------------------------------------------------------------
# What people are told of a machine that nobody needs any more and that is still here.

REFUSALS = (LoginRefused, KeyUnusable, HostKeyRefused)
"""It answers and does not let us in: another login may work."""


def say_why_kept(tenancy: MachineRecord, clause: str) -> str:
    """A clause about a machine, after the reason why it is still here; one that is needed has none."""
    if not tenancy.is_released:
        return clause
    if tenancy.owed:
        owed = f"files of {name_experiments(tenancy.owed)} may still be there"
        return f"nobody needs it any more, but {owed}: {clause}"
    return f"nobody needs it any more, but it could not be left without a trace yet: {clause}"


def advise(node_id: str, error: Exception) -> str:
    """What a person can do about a machine that cannot be left because of an error."""
    forget = f"`proctor nodes forget {node_id}` gives up what is there"
    if isinstance(error, REFUSALS):
        return f"`proctor platform clean --config FILE` removes what is there, {forget}"
    return f"if it is gone for good, {forget}"


log = logging.getLogger(__name__)

ARRIVAL_SECONDS = 15.0  # how long jobs may wait for a machine that is being connected for the first time


class Machine:
    """One machine of the manager. `run` is its life."""

    def __init__(self, record: NodeRecord, means: MachineContext) -> None:
        self.node_id = record.node_id
        self._context = means
        self._pool, self._hub = means.provider.pool, means.provider.hub
        self._folder = NodeDirectory(means.provider.nodes_directory, record.node_id)
        self._tenancy = MachineRecord(record, self._folder)
        self._debts = UncollectedFiles(record.node_id, self._tenancy, files=self._hub, pool=self._pool)
        self._backoff = BackOff()
        self._woken = asyncio.Event()  # it is to be tried now
        self._moved = asyncio.Event()  # something else is wanted of it than before
        self._released = asyncio.Event()
        self._dropped = asyncio.Event()  # its life is to end now
        self._is_left = False
        self._cargo: Transfers | None = None
        self._codes: set[str] = set()
        self._is_here = False
        self._arrival: asyncio.TimerHandle | None = None

    # ---- who wants it

    @property
    def settings(self) -> MachineSettings:
        """How it is reached, as the newest claim says."""
        return self._tenancy.claims[-1].machine

    @property
    def address(self) -> str:
        """[user@]host[:port], as written."""
        return self._tenancy.address

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that claim it."""
        return self._tenancy.experiments

    def claim(self, claim: Claim) -> None:
        """An experiment wants it; one that has claimed it already is heard again. Raises OSError."""
        is_new = self._tenancy.is_released or self._arrival is None
        self._tenancy.claim(claim)
        self._is_left = False
        self._dropped.clear()
        self._released.clear()
        self.announce(arriving=is_new)
        self._reconsider()

    def release(self, experiment_id: str, *, owing: bool = False) -> None:
        """An experiment needs it no more; the last one makes it be left.

        :param owing: files of the experiment are still there, and are to be collected before it is left.
        """
        if experiment_id not in self.experiments:
            return
        self._tenancy.release(experiment_id, owing=owing)
        if self.experiments:
            self.announce()
        else:
            self._part()

    def give_up(self) -> None:
        """None of those that wanted it is there any more: leave it, after what it may owe to them was collected."""
        self._tenancy.give_up()
        self._part()

    async def forget(self, experiment_id: str) -> None:
        """An experiment is deleted; it is owed nothing. When this returns nothing more is written to its folder."""
        if any(claim.experiment_id == experiment_id for claim in self._tenancy.owed):
            self._tenancy.settle_with(experiment_id)
            self._reconsider()
            await self._debts.until_idle()

    def drop(self) -> None:
        """Forget it and end its life, for nothing of ours is there, or what is there is given up. Nobody wants it."""
        self._close()
        self._dropped.set()

    def announce(self, *, arriving: bool = False) -> None:
        """Make it known to pool and hub, so that a keeper that runs already may register.

        :param arriving: jobs that are spread shall wait for it a little (`NodePool.add`).
        """
        self._pool.add(self.node_id, KIND, reason="it is being connected", arriving=arriving)
        if arriving:
            self._limit_arrival()
        limit = min(claim.node_timeout_seconds for claim in self._tenancy.claims)
        self._hub.add_node(self.node_id, self._folder.secret(), lost_after_seconds=limit)

    @property
    def is_leaving(self) -> bool:
        """Whether it is connected and everything of ours is being removed, or about to be."""
        return self._is_here and self._tenancy.is_released and not self._tenancy.owed

    def wake(self) -> None:
        """Try it now rather than after its pause."""
        self._woken.set()

    # ---- what experiments bring

    @property
    def connected(self) -> bool:
        """Whether an SSH connection is there, and all that its keeper needs to be started."""
        return self._cargo is not None

    @property
    def codes(self) -> frozenset[str]:
        """The trial code that is unpacked there, by name; as of the last connection, and of what was brought since."""
        return frozenset(self._codes)

    async def ensure_code(self, archive: CodeLike, on_progress: Progress | None = None) -> None:
        """Have trial code unpacked there, at `code/<name>` of the keeper's directory. Brought once, whoever asks.

        :param on_progress: called with (bytes there, bytes in all).
        :raises ServiceUnavailable: it is not connected; says why.
        :raises RemoteError: the copy has failed, or the connection broke; it is continued by the next attempt.
        """
        await self._required_cargo().ensure_code(archive, on_progress)

    async def ensure_folder_copy(self, folder: Path, target: str, on_progress: Progress | None = None) -> None:
        """Have a copy of a local folder there, at `target` relative to the keeper's directory. Raises as `ensure_code`,
        and OSError where the folder cannot be read."""
        await self._required_cargo().ensure_folder(folder, target, on_progress)

    def _required_cargo(self) -> Transfers:
        if self._cargo is None:
            raise ServiceUnavailable(self._pool.obstacle(self.node_id) or f"node {self.node_id} is being connected")
        return self._cargo

    # ---- its life

    async def run(self) -> None:
        """Connect and serve, over and over; returns once nobody wants the machine and it was left or dropped."""
        while not self._is_left:
            await until_first_ends(visit=self._visit_or_pause(), dropped=self._dropped.wait())

    async def _visit_or_pause(self) -> None:
        self._woken.clear()
        self._moved.clear()
        try:
            await self._visit()
        except ConnectionEnded as error:
            rest = "" if self._tenancy.is_released else "; its trials go on"
            await self._pause(NodeStatus.CONNECTING, f"its SSH connection has ended: {error}{rest}", is_away=True)
        except (TrainingServiceError, OSError) as error:
            advice = f"; {advise(self.node_id, error)}" if self._tenancy.is_released else ""
            await self._pause(NodeStatus.FAILED, f"{error}{advice}", is_away=isinstance(error, Unreachable))
        except Exception as error:
            log.exception("node %s", self.node_id, extra={"action": "node.fail", "node_id": self.node_id})
            await self._pause(NodeStatus.FAILED, f"an error of this program: {error!r}; see the manager's log")

    async def _visit(self) -> None:
        """One connection. Returns when nobody wants the machine any more, raises in all other cases."""
        async with AsyncExitStack() as stack:
            connection = await self._connect(stack)
            self._is_here = True
            self._hub.reach(self.node_id)
            stack.callback(self._note_gone)
            door = self._context.doors[self.node_id]
            async with door, self._context.gate:
                site = self._site(await self._context.archive())
                owes = self._tenancy.is_released and await self._debts.exist(connection, site, now=self._context.now)
                visit = await self._bring_up(connection, site) if owes or not self._tenancy.is_released else None
            if visit is not None:
                until = self._until_settled if owes else self._until_released
                await visit.hold(until=until, on_session=self._note_session)
                self._cargo = None
            async with door:
                await self._leave(connection, site)

    async def _connect(self, stack: AsyncExitStack) -> NodeConnection:
        """With the newest way in that works: experiments may have named different keys for the same machine."""
        failure: RemoteError | None = None
        ways = {(claim.machine, claim.login): claim for claim in (*self._tenancy.owed, *self._tenancy.claims)}
        for claim in reversed(ways.values()):
            try:
                return await stack.enter_async_context(self._context.connect(claim, None))
            except REFUSALS as error:
                failure = failure or error
        assert failure is not None
        raise failure

    async def _bring_up(self, connection: NodeConnection, site: Site) -> KeeperSession:
        visit = KeeperSession(
            connection,
            site,
            pool=self._pool,
            secret=self._folder.secret(),
            socket_pointer=self._context.provider.socket_pointer,
        )

        def unlock() -> None:
            self._codes.clear()
            self._codes.update(visit.prepared.codes)
            self._cargo = Transfers(connection, visit.keeper, self._codes)

        await visit.open(
            now=self._context.now,
            tell=lambda clause: self._tell(NodeStatus.CONNECTING, clause),
            enter=self._enter,
            unlock=unlock,
            for_files_only=self._tenancy.is_released,
        )
        return visit

    async def _leave(self, connection: NodeConnection, site: Site) -> None:
        """Raises RemoteError while something is left there."""
        if not self._tenancy.is_released or self._tenancy.owed:
            return
        self._pool.set_status(self.node_id, NodeStatus.CONNECTING, "nobody needs it any more; it is being left")
        left = await leave(connection, site, now=self._context.now)
        if left:
            raise RemoteError(f"something could not be removed there: {left}")
        self._codes.clear()
        if self._tenancy.is_released:  # not claimed again meanwhile
            self._close()
            log.info("node %s was left", self.node_id, extra={"action": "node.leave", "node_id": self.node_id})

    # ---- parts

    def _limit_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
        loop = asyncio.get_running_loop()
        self._arrival = loop.call_later(ARRIVAL_SECONDS, self._pool.end_arrival, self.node_id)

    def _enter(self) -> None:
        """Something is about to be brought there. Raises OSError, and ConnectionEnded where it is forgotten already."""
        if self._is_left:
            raise ConnectionEnded("nobody needs it any more")
        self._tenancy.enter()

    def _part(self) -> None:
        """Nobody wants it any more."""
        if self._tenancy.is_entered:
            self._released.set()
            self._reconsider()
        else:
            self.drop()
            extra = {"action": "node.leave", "node_id": self.node_id}
            log.info("node %s is forgotten: nothing was ever brought there", self.node_id, extra=extra)

    def _close(self) -> None:
        """It is nobody's business any more."""
        try:
            self._tenancy.close()
        except OSError as error:
            extra = {"action": "node.fail", "node_id": self.node_id}
            log.error("the record of node %s cannot be removed: %s", self.node_id, error, extra=extra)
        self._hub.remove_node(self.node_id)
        self._pool.remove(self.node_id)
        if self._arrival is not None:  # what is claimed anew has its own
            self._arrival.cancel()
        self._codes.clear()
        self._is_left = True

    def _reconsider(self) -> None:
        self._moved.set()
        self.wake()

    async def _until_released(self) -> None:
        await self._released.wait()

    async def _until_settled(self) -> None:
        """Collect everything that is owed, or until something else is wanted of the machine."""
        await until_first_ends(collect=self._debts.collect(), moved=self._moved.wait())

    def _note_gone(self) -> None:
        self._is_here = False
        self._cargo = None

    def _note_session(self) -> None:
        if not self._tenancy.is_released:  # what cannot be collected is tried less and less often
            self._backoff.reset()
        log.info("node %s is connected", self.node_id, extra={"action": "node.connect", "node_id": self.node_id})

    async def _pause(self, status: NodeStatus, clause: str, *, is_away: bool = False) -> None:
        """Say what is the matter and wait, unless woken.

        :param is_away: it does not answer, and may be back at any moment. One that answers is not asked more often
            because trials run there: accounts are locked after some failed logins.
        """
        if self._is_left:  # just now
            return
        self._pool.end_arrival(self.node_id)
        hurries = is_away and not self._tenancy.is_released and self._pool.reservations(self.node_id)
        pauses = [claim.longest_pause_seconds for claim in self._tenancy.claims] if hurries else []
        seconds = self._backoff.take(min(pauses, default=LONGEST_SECONDS))
        extra = {"action": "node.fail", "node_id": self.node_id}
        log.warning("node %s: %s; tried again in %.0f s", self.node_id, clause, seconds, extra=extra)
        self._tell(status, f"{clause}; tried again in {seconds:.0f} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._tell(status, f"{clause}; it is being tried again")

    def _tell(self, status: NodeStatus, clause: str) -> None:
        """The node's status for people. One whose trials were given up stays LOST until its keeper is back."""
        if self._is_left:  # just now
            return
        clause = say_why_kept(self._tenancy, clause)
        if self._pool.node(self.node_id).status is NodeStatus.LOST:
            status, clause = NodeStatus.LOST, f"its trials were given up; {clause}"
        self._pool.set_status(self.node_id, status, clause)

    def _site(self, archive: Archive) -> Site:
        key = keeper_folder(self._context.provider.manager_id, self.node_id)
        return Site(self.node_id, key, self.settings.python_path, archive)
