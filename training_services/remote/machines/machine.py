"""One machine: connected, given a keeper, and again after every loss, for as long as an experiment uses it.

Every failure becomes the node's reason and a pause; none of it affects another machine. When the last experiment has
released the machine, everything of this manager is removed from it, as soon as it can be reached. Where files are there
that were not collected, its jobs are ended and the files stay, until a user has them collected: for that time their
experiment uses the machine again. A machine to which nothing was ever copied is forgotten at once.

`MachineState` names the steps of this life, `_NEXT` what may follow each, and `Machine._change` makes every change.
Which experiments use the machine is in its record, not in its state.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.files.code import CodeArchive
from proctor.training_services.files.paths import ExperimentPaths
from proctor.training_services.keepers.archive import ArchiveBuilder
from proctor.training_services.nodes.pool import NodeStatus
from proctor.training_services.providers import FileCollection, ProviderContext
from proctor.training_services.remote.bootstrap.node import Site, open_contact, require_usable
from proctor.training_services.remote.files.collection import collect_and_remove, name_files, read_left
from proctor.training_services.remote.files.transfer import Transfers
from proctor.training_services.remote.machines.keeper_session import KeeperSession, end_remote_jobs, remove_keeper
from proctor.training_services.remote.machines.records import KIND, Claim, NodeDirectory, NodeRecord, keeper_folder
from proctor.training_services.ssh.base import NodeConnection, ProgressCallback
from proctor.training_services.ssh.errors import (
    ConnectionEnded,
    HostKeyRefused,
    KeyUnusable,
    LoginRefused,
    RemoteError,
    Unreachable,
)
from proctor.training_services.ssh.route import RouteTrace
from proctor.training_services.ssh.settings import MachineSettings
from proctor.trial_keeper.linux.backoff import LONGEST_SECONDS, BackOff
from proctor.trial_keeper.linux.tasks import until_first_ends

__all__ = ["REFUSALS", "Connect", "Machine", "MachineContext"]

log = logging.getLogger(__name__)

ARRIVAL_SECONDS = 15.0  # how long jobs may wait for a machine that is being connected for the first time
REFUSALS = (LoginRefused, KeyUnusable, HostKeyRefused)
"""It answers and refuses the login: another login may work."""

Connect = Callable[[Claim, RouteTrace | None], AbstractAsyncContextManager[NodeConnection]]
"""`ssh.connection.open_connection` with what the manager knows; raises RemoteError on entering."""


@dataclass(frozen=True)
class MachineContext:
    """What all machines of a manager share: how they are connected, and the locks between them."""

    provider: ProviderContext
    connect: Connect
    gate: asyncio.Semaphore  # how many keepers may be installed at once, after the login
    archives: ArchiveBuilder
    now: Callable[[], float]
    locks: Mapping[str, asyncio.Lock]  # by node id: held while something is installed there or everything is removed


class MachineState(StrEnum):
    """A step in the life of a machine."""

    CONNECTING = "CONNECTING"  # without a connection: the next one is being opened, or the last one closed
    PROBING = "PROBING"  # logged in: what the machine has is being asked
    INSTALLING = "INSTALLING"  # the keeper is being copied there and prepared
    SERVING = "SERVING"  # the keeper is started and watched; files can be copied there
    CLEANING = "CLEANING"  # released: its jobs are being ended, and everything of this manager removed
    PAUSED = "PAUSED"  # the last attempt has failed, the next one comes after a pause
    RELEASED = "RELEASED"  # its jobs are ended, files that were not collected are there; waits to be claimed or woken
    CLEANED = "CLEANED"  # forgotten: nothing of this manager is there
    DROPPED = "DROPPED"  # forgotten: nothing was ever there, or what is there is abandoned

    @property
    def has_connection(self) -> bool:
        """Whether an SSH connection to it is in use."""
        return self in {self.PROBING, self.INSTALLING, self.SERVING, self.CLEANING}

    @property
    def is_forgotten(self) -> bool:
        """Whether it no longer has a record, and is in neither pool nor hub, unless it was claimed again since."""
        return self in {self.CLEANED, self.DROPPED}


_NEXT: Mapping[MachineState, set[MachineState]] = {
    MachineState.CONNECTING: {MachineState.PROBING, MachineState.PAUSED},
    MachineState.PROBING: {MachineState.INSTALLING, MachineState.CLEANING, MachineState.CONNECTING},
    MachineState.INSTALLING: {MachineState.SERVING, MachineState.CONNECTING},
    MachineState.SERVING: {MachineState.CLEANING, MachineState.CONNECTING},
    MachineState.CLEANING: {MachineState.RELEASED, MachineState.CLEANED, MachineState.CONNECTING},
    MachineState.PAUSED: {MachineState.CONNECTING},
    MachineState.RELEASED: {MachineState.CONNECTING, MachineState.PAUSED},
    MachineState.CLEANED: {MachineState.CONNECTING},
    MachineState.DROPPED: {MachineState.CONNECTING},
}
"""What may follow each state; besides, DROPPED may follow all of them."""


class Machine:
    """One machine of the manager. `run` is its life."""

    def __init__(self, record: NodeRecord, context: MachineContext) -> None:
        self.node_id = record.node_id
        self._context = context
        self._pool, self._hub = context.provider.pool, context.provider.hub
        self._folder = NodeDirectory(context.provider.nodes_directory, record.node_id)
        self._record = record
        self._state = MachineState.CONNECTING
        self._entered = {state: asyncio.Event() for state in MachineState}  # set while it is in that state
        self._woken = asyncio.Event()  # asked to be tried at once, whatever becomes of the attempt under way
        self._backoff = BackOff()
        self._problem = ""  # of the last attempt; "" once it has succeeded
        self._transfers: Transfers | None = None  # while SERVING
        self._codes: set[str] = set()
        self._arrival: asyncio.TimerHandle | None = None

    # ---- claims

    @property
    def settings(self) -> MachineSettings:
        """How it is connected, from the newest claim."""
        return self._record.claims[-1].machine

    @property
    def address(self) -> str:
        """[user@]host[:port], as written."""
        return self._record.address

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that claim it."""
        return self._record.experiments

    @property
    def uncollected(self) -> tuple[Claim, ...]:
        """See `NodeRecord.uncollected`."""
        return self._record.uncollected

    def has_claim(self, experiment_id: str) -> bool:
        """Whether an experiment claims it, or has released it and may have files there."""
        return experiment_id in {*self.experiments, *(claim.experiment_id for claim in self.uncollected)}

    def claim(self, claim: Claim) -> None:
        """An experiment uses it; a further claim of the same experiment replaces the first. Raises OSError."""
        is_unused = not self.experiments
        is_new = is_unused or self._arrival is None
        self._save(self._record.claimed(claim))
        if is_unused:
            self._pool.remove(self.node_id)  # its status was that of a released one
        self.announce(arriving=is_new)
        self.wake()

    def release(self, *experiments: str, uncollected: str = "") -> None:
        """Experiments no longer use it; when the last one has released it, it is cleaned.

        :param uncollected: as in `Claim`: files of theirs may be there, and stay. "" for an experiment that has
            released it before: they are collected, or no longer needed.
        """
        record = self._record.released(*experiments, uncollected=uncollected if self._record.installed else "")
        try:
            self._save(record)
        except OSError as error:  # it is released nevertheless: after a restart no experiment claims it
            extra = {"action": "node.fail", "node_id": self.node_id}
            log.error("the record of node %s cannot be written: %s", self.node_id, error, extra=extra)
            self._record = record
        if self.experiments:
            self.announce()
        elif self._record.installed:
            if self._state is MachineState.SERVING:
                self._change(MachineState.CLEANING)
            self.wake()
        else:
            self.drop()
            extra = {"action": "node.remove", "node_id": self.node_id}
            log.info("node %s is forgotten: nothing was ever copied there", self.node_id, extra=extra)

    def drop(self) -> None:
        """Forget it and end `run`: nothing of this manager is there, or what is there is abandoned. No experiment must
        use it."""
        self._forget(MachineState.DROPPED)

    def announce(self, *, arriving: bool = False) -> None:
        """Make it known to pool and hub, so that a keeper that runs already may register.

        :param arriving: jobs that are spread wait for it a little (`NodePool.add`).
        """
        self._pool.add(self.node_id, KIND, reason="it is being connected", arriving=arriving)
        if arriving:
            if self._arrival is not None:
                self._arrival.cancel()
            loop = asyncio.get_running_loop()
            self._arrival = loop.call_later(ARRIVAL_SECONDS, self._pool.end_arrival, self.node_id)
        limit = min(claim.node_timeout_seconds for claim in self._record.users or self._record.claims)
        self._hub.add_node(self.node_id, self._folder.secret(), lost_after_seconds=limit)

    @property
    def is_cleaning(self) -> bool:
        """Whether it is connected and everything of this manager is being removed, or about to be."""
        return self._state.has_connection and not self.experiments

    def wake(self) -> None:
        """Try it now rather than after its pause."""
        self._woken.set()
        if self._state in {MachineState.PAUSED, MachineState.RELEASED}:
            self._change(MachineState.CONNECTING)

    # ---- copies to it

    @property
    def connected(self) -> bool:
        """Whether an SSH connection is open and its keeper is prepared, so that files can be copied to it."""
        return self._state is MachineState.SERVING

    @property
    def codes(self) -> frozenset[str]:
        """The names of the trial code that is unpacked there, as of the last connection and what was copied since."""
        return frozenset(self._codes)

    async def ensure_code(self, archive: CodeArchive, on_progress: ProgressCallback | None = None) -> None:
        """Have trial code unpacked there, at `code/<name>` of the keeper's directory. Concurrent calls copy it once.

        :raises ServiceUnavailable: it is not connected; says why.
        :raises RemoteError: the copy has failed, or the connection broke; the next call continues it.
        """
        await self._required_transfers().ensure_code(archive, on_progress)

    async def ensure_folder_copy(self, folder: Path, target: str, on_progress: ProgressCallback | None = None) -> None:
        """Have a copy of a local folder there, at `target` relative to the keeper's directory. Raises as `ensure_code`,
        and OSError where the folder cannot be read."""
        await self._required_transfers().ensure_folder(folder, target, on_progress)

    def forget_copies(self) -> None:
        """Look again, with the next job, whether what was copied there is still there. Idempotent."""
        if self._transfers is not None:
            self._transfers.forget()

    def _required_transfers(self) -> Transfers:
        if self._transfers is None:
            raise ServiceUnavailable(self._pool.obstacle(self.node_id) or f"node {self.node_id} is being connected")
        return self._transfers

    # ---- files from it

    async def leave(self, experiment_id: str) -> None:
        """Collect the files of an experiment whose jobs have ended, then release the machine. While it is away, or
        where they cannot be collected, they stay there."""
        while self._record.installed and self._pool.node(self.node_id).arriving:
            await self._pool.wait_changed()
        await self._collect(self._claim_of(experiment_id), FileCollection(experiment_id))

    async def collect(self, progress: FileCollection) -> None:
        """Collect the files of an experiment that has released it; connects it if it is not connected. `progress` says
        what was in the way; then the files stay there."""
        claim = self._claim_of(progress.experiment_id)
        try:
            self.claim(replace(claim, released=False))
            failed = self._entered[MachineState.PAUSED]
            await until_first_ends(connected=self._pool.wait_connected(self.node_id), failed=failed.wait())
            await self._collect(claim, progress)
        except Exception as error:
            log.exception("node %s", self.node_id, extra={"action": "files.collect", "node_id": self.node_id})
            progress.problem = f"{error!r}; see the manager's log"
        finally:
            if claim.experiment_id in self.experiments:
                self.release(claim.experiment_id, uncollected=claim.uncollected)

    async def _collect(self, claim: Claim, progress: FileCollection) -> None:
        """Collect the files if the machine is connected, and release it."""
        paths = ExperimentPaths(claim.experiment_id, claim.experiment_directory)
        extra = {"action": "files.collect", "node_id": self.node_id, "experiment_id": claim.experiment_id}
        try:
            if self._record.installed:
                if absence := self._pool.absence(self.node_id):
                    known = await asyncio.to_thread(read_left, paths, self.node_id)
                    away = f"the machine is unreachable: {self._problem or absence}"
                    raise ServiceUnavailable(f"{away}; known are {name_files(known)}" if known else away)
                await collect_and_remove(self._hub, self.node_id, paths, progress)
        except (TrainingServiceError, OSError) as error:
            progress.problem = str(error)
            text = "files of experiment %s stay on node %s: %s"
            log.warning(text, claim.experiment_id, self.node_id, error, extra=extra)
        self.release(claim.experiment_id, uncollected=progress.problem)

    async def remove_files(self, experiment_id: str) -> None:
        """Remove what an experiment that is deleted has there, while others use the machine. What cannot be removed
        goes when the machine is cleaned."""
        with suppress(TrainingServiceError):
            await self._hub.remove_folder(self.node_id, ExperimentPaths(experiment_id, Path()).folder)

    def _claim_of(self, experiment_id: str) -> Claim:
        return next(claim for claim in self._record.claims if claim.experiment_id == experiment_id)

    # ---- its life

    async def run(self) -> None:
        """Connect and serve, over and over; returns once the machine was released and cleaned, or dropped."""
        while self.experiments or not self._state.is_forgotten:
            self._woken.clear()
            self._change(MachineState.CONNECTING)
            dropped = self._entered[MachineState.DROPPED]
            await until_first_ends(serve=self._reconnect(), dropped=dropped.wait())

    def _change(self, state: MachineState) -> None:
        """The one place where the state changes. Raises ConnectionEnded where `run` would continue with a machine that
        was forgotten meanwhile."""
        if state is self._state:
            return
        is_allowed = state is MachineState.DROPPED or state in _NEXT[self._state]
        if self._state.is_forgotten and not is_allowed:
            raise ConnectionEnded("no experiment uses it")
        assert is_allowed, f"node {self.node_id}: {self._state} cannot become {state}"
        self._entered[self._state].clear()
        self._entered[state].set()
        self._state = state
        if state is not MachineState.SERVING:
            self._transfers = None

    async def _reconnect(self) -> None:
        """Connect and serve until the connection ends; then show why, and pause."""
        try:
            await self._serve()
            if self._state is MachineState.RELEASED:
                await self._woken.wait()
        except ConnectionEnded as error:
            rest = "; its trials keep running" if self.experiments else ""
            await self._pause(NodeStatus.CONNECTING, f"its SSH connection has ended: {error}{rest}", is_away=True)
        except (TrainingServiceError, OSError) as error:
            advice = "" if self.experiments else f"; {advise(self.node_id, error)}"
            await self._pause(NodeStatus.FAILED, f"{error}{advice}", is_away=isinstance(error, Unreachable))
        except Exception as error:
            log.exception("node %s", self.node_id, extra={"action": "node.fail", "node_id": self.node_id})
            await self._pause(NodeStatus.FAILED, f"internal error: {error!r}; see the manager's log")

    async def _serve(self) -> None:
        """One connection. Returns when the machine was released and cleaned, as far as no files must stay there; raises
        in all other cases."""
        async with AsyncExitStack() as stack:
            connection = await self._connect(stack)
            self._change(MachineState.PROBING)
            stack.callback(self._on_disconnected)
            self._hub.reach(self.node_id)
            lock = self._context.locks[self.node_id]
            async with lock, self._context.gate:
                key = keeper_folder(self._context.provider.manager_id, self.node_id)
                site = Site(self.node_id, key, self.settings.python_path, await self._context.archives.get())
                session = await self._start_keeper(connection, site) if self.experiments else None
            if session is not None and self.experiments:
                released = self._entered[MachineState.CLEANING]
                await session.hold(until=released, on_registered=self._on_registered)
            async with lock:
                await self._clean(connection, site)

    async def _connect(self, stack: AsyncExitStack) -> NodeConnection:
        """With the newest claim whose login works: experiments may have named different keys for the same machine."""
        failure: RemoteError | None = None
        logins = {(claim.machine, claim.login): claim for claim in self._record.claims}
        for claim in reversed(logins.values()):
            try:
                return await stack.enter_async_context(self._context.connect(claim, None))
            except REFUSALS as error:
                failure = failure or error
        assert failure is not None
        raise failure

    async def _start_keeper(self, connection: NodeConnection, site: Site) -> KeeperSession:
        """Install the keeper, end its jobs where only files are wanted of the machine, and start it. One Python there
        runs all commands of this."""
        for_files_only = not self._record.users
        async with open_contact(connection, site.key, python_path=site.python_path, now=self._context.now) as contact:
            if not for_files_only:
                require_usable(contact.facts)
            self._change(MachineState.INSTALLING)
            self._save(replace(self._record, installed=True))  # on the disk before anything is there
            if site.archive.name not in contact.facts.archives:
                self._set_status(NodeStatus.CONNECTING, "the keeper is being copied there")
            keeper = await contact.install_keeper(site.archive)
            if for_files_only:
                self._set_status(NodeStatus.CONNECTING, "its trials are being stopped")
                await keeper.end_jobs()
            self._set_status(NodeStatus.CONNECTING, "its keeper is being started")
            session = await KeeperSession.open(
                connection, site, keeper, context=self._context.provider, secret=self._folder.secret()
            )
            self._codes.clear()
            self._codes.update(session.prepared.codes)
            self._change(MachineState.SERVING)
            self._transfers = Transfers(connection, session.keeper, self._codes)
            await session.start(keeper)
        return session

    async def _clean(self, connection: NodeConnection, site: Site) -> None:
        """End all trials on a machine that is released, and remove everything, unless files must stay there. Raises
        RemoteError while something is left that must not be."""
        if self.experiments:
            return
        self._change(MachineState.CLEANING)
        clause = "released: no experiment uses this node; removing files"
        self._pool.set_status(self.node_id, NodeStatus.CONNECTING, clause)
        folders = {claim.experiment_id: claim.experiment_directory for claim in self.uncollected}
        if folders:
            there = await end_remote_jobs(connection, site, now=self._context.now)
            gone = [name for name in folders if there is not None and name not in there]
            gone += [name for name, folder in folders.items() if await asyncio.to_thread(self._was_deleted, folder)]
            self._record = self._record.released(*gone)  # written when it changes next, or found again
        if self.uncollected and not self.experiments:
            self._change(MachineState.RELEASED)
            self._hub.remove_node(self.node_id)
            clause = f"{name_experiments(self.uncollected)} has files here that were not collected"
            advice = f"`proctor nodes collect {self.node_id}` fetches them"
            self._pool.set_status(self.node_id, NodeStatus.RELEASED, f"{clause}; {advice}")
        elif not self.experiments:
            if left := await remove_keeper(connection, site, now=self._context.now):
                raise RemoteError(f"something could not be removed there: {left}")
            self._codes.clear()
            if not self.experiments:  # not claimed again meanwhile
                self._forget(MachineState.CLEANED)
                extra = {"action": "node.remove", "node_id": self.node_id}
                log.info("node %s is released and cleaned", self.node_id, extra=extra)

    # ---- parts

    def _was_deleted(self, folder: Path) -> bool:
        """Whether the experiment with this folder was deleted while its claim could not be changed. A folder outside
        the home may only be away with its disk."""
        home = self._context.provider.nodes_directory.parent
        return folder.is_relative_to(home) and not os.path.lexists(folder)

    def _save(self, record: NodeRecord) -> None:
        """Its claims have changed. Raises OSError, and then they have not."""
        if record != self._record or not self._folder.path.exists():
            self._folder.write(record)
            self._record = record

    def _forget(self, state: MachineState) -> None:
        """Delete its record, and remove it from pool and hub."""
        self._change(state)
        everyone = (claim.experiment_id for claim in self._record.claims)
        self._record = replace(self._record.released(*everyone), installed=False)
        try:
            self._folder.remove()
        except OSError as error:
            extra = {"action": "node.fail", "node_id": self.node_id}
            log.error("the record of node %s cannot be removed: %s", self.node_id, error, extra=extra)
        self._hub.remove_node(self.node_id)
        self._pool.remove(self.node_id)
        if self._arrival is not None:  # a new claim sets its own
            self._arrival.cancel()
        self._codes.clear()

    def _on_disconnected(self) -> None:
        if self._state.has_connection:
            self._change(MachineState.CONNECTING)

    def _on_registered(self) -> None:
        self._backoff.reset()
        self._problem = ""
        log.info("node %s is connected", self.node_id, extra={"action": "node.connect", "node_id": self.node_id})

    async def _pause(self, status: NodeStatus, clause: str, *, is_away: bool = False) -> None:
        """Report the problem and wait, unless woken.

        :param is_away: it does not answer, and may be back at any moment. One that answers is not connected more often
            because trials run there: accounts are locked after some failed logins.
        """
        if self._state.is_forgotten:  # just now
            return
        self._problem = clause
        self._change(MachineState.PAUSED)
        self._pool.end_arrival(self.node_id)
        retries_soon = is_away and self._pool.reservations(self.node_id)
        pauses = [claim.longest_pause_seconds for claim in self._record.users] if retries_soon else []
        seconds = self._backoff.take(min(pauses, default=LONGEST_SECONDS))
        extra = {"action": "node.fail", "node_id": self.node_id}
        log.warning("node %s: %s; tried again in %.0f s", self.node_id, clause, seconds, extra=extra)
        self._set_status(status, f"{clause}; tried again in {seconds:.0f} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._set_status(status, f"{clause}; it is being tried again")

    def _set_status(self, status: NodeStatus, clause: str) -> None:
        """Show the node's status. One whose trials were abandoned stays LOST until its keeper is back."""
        if self._state.is_forgotten:  # just now
            return
        if not self.experiments:
            may_have_files = f"files of {name_experiments(self.uncollected)} may still be there"
            left = may_have_files if self.uncollected else "its files could not be removed yet"
            clause = f"released, but {left}: {clause}"
        if self._pool.node(self.node_id).status is NodeStatus.LOST:
            status, clause = NodeStatus.LOST, f"its trials were abandoned; {clause}"
        self._pool.set_status(self.node_id, status, clause)


def name_experiments(claims: Iterable[Claim]) -> str:
    """For people: "experiment a, b"."""
    return "experiment " + ", ".join(claim.experiment_id for claim in claims)


def advise(node_id: str, error: Exception) -> str:
    """What a user can do about a released machine that cannot be cleaned because of an error."""
    forget = f"`proctor nodes forget {node_id}` abandons what is there"
    if isinstance(error, REFUSALS):
        return f"`proctor platform clean FILE` removes what is there, {forget}"
    return f"if it will not come back, {forget}"
