"""The manager's end of the keeper protocol (`proctor.trial_keeper.protocol`), free of any web framework.

Keepers call `hello`, `register`, `poll` and `report` through the manager's routes; training services call `expect`,
`send` and `attach`. The hub knows of every job that is not known to have ended whose it is, and gives what keepers say
about it to that experiment's `HubClient`.

After a restart of the manager keepers may come back before the experiments do. Until `ready` is called no job is
called unknown: what is said about it is simply not acknowledged, and its keeper says it again.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import EndReason, Exit, StatusChange, TrialJobStatus
from proctor.training_services.errors import UnknownNode, UnknownSession
from proctor.training_services.keeper_reports import (
    HubClient,
    Parcel,
    acknowledgements,
    ended,
    split_body,
    started,
)
from proctor.training_services.keeper_sessions import ExpectedJob, Order, Session
from proctor.training_services.nodes import NodePool, NodeStatus
from proctor.trial_keeper.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    CommandBatch,
    CommandPoll,
    JobReport,
    Launch,
    Registration,
    RegistrationAnswer,
    ReportAnswer,
    ReportHeader,
    Shutdown,
    Update,
    manager_proof,
)

__all__ = ["HubClient", "KeeperHub"]

log = logging.getLogger(__name__)

LONGEST_POLL_SECONDS = 60.0


@dataclass(slots=True)
class _Keeper:
    """What the hub knows of one node's keeper."""

    node_id: str
    secret: str
    lost_after_seconds: float | None
    session: Session | None = None
    missed: int = 0  # heartbeats in a row without a word
    timer: asyncio.TimerHandle | None = None


class KeeperHub:
    """Speaks with the keepers of all nodes for all experiments.

    :param pool: told of every node's devices and status.
    :param heartbeat_seconds: how often a keeper speaks when it has nothing to say.
    :param silent_after: a node is SILENT after so many heartbeats without a word.
    :param ready_patience_seconds: how long a registration waits for `ready`.
    :param now: Unix time, for records.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        heartbeat_seconds: float = 5.0,
        silent_after: int = 3,
        ready_patience_seconds: float = 20.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._heartbeat_seconds = heartbeat_seconds
        self._silent_after = silent_after
        self._ready_patience_seconds = ready_patience_seconds
        self._now = now
        self._ready = asyncio.Event()
        self._keepers: dict[str, _Keeper] = {}
        self._clients: dict[str, HubClient] = {}
        self._jobs: dict[str, ExpectedJob] = {}
        self._by_node: dict[str, dict[str, ExpectedJob]] = {}

    def ready(self) -> None:
        """Every experiment is reattached: from now on a job that nobody expects is unknown and gets stopped."""
        self._ready.set()
        for keeper in self._keepers.values():
            if keeper.session is not None:
                for job in self._unknown(keeper.session.jobs.values()):
                    keeper.session.push(Cancel(job.job_id, job.token))

    def close(self) -> None:
        """Stop watching nodes; polls that wait are answered."""
        for keeper in self._keepers.values():
            if keeper.timer is not None:
                keeper.timer.cancel()
            if keeper.session is not None:
                keeper.session.close()

    # ---- for keepers

    def add_node(self, node_id: str, secret: str, *, lost_after_seconds: float | None = None) -> None:
        """Let a keeper with this secret speak for this node.

        :param lost_after_seconds: give up the node's jobs after so much silence while the manager was awake; None:
            never (the manager's own machine).
        """
        known = self._keepers.get(node_id)
        if known is None:
            self._keepers[node_id] = _Keeper(node_id, secret, lost_after_seconds)
        else:
            known.secret, known.lost_after_seconds = secret, lost_after_seconds

    def remove_node(self, node_id: str) -> None:
        """Listen to this node's keeper no more."""
        keeper = self._keepers.pop(node_id, None)
        if keeper is not None:
            if keeper.timer is not None:
                keeper.timer.cancel()
            if keeper.session is not None:
                keeper.session.close()

    def hello(self, node_id: str, nonce: str) -> str:
        """Prove to a keeper that this manager knows its secret. Raises UnknownNode."""
        return manager_proof(self._keeper(node_id).secret, nonce)

    def authenticate(self, node_id: str, bearer: str) -> bool:
        """Whether `bearer` is this node's secret; False for an unknown node."""
        keeper = self._keepers.get(node_id)
        return keeper is not None and hmac.compare_digest(keeper.secret.encode(), bearer.encode())

    async def register(self, node_id: str, registration: Registration) -> RegistrationAnswer:
        """Begin a session; the one before is over. Raises UnknownNode."""
        keeper = self._keeper(node_id)
        await self._wait_until_ready()
        session = Session(registration)
        if keeper.session is not None:
            keeper.session.close()
        keeper.session = session
        self._connect(keeper, registration)
        unknown = self._unknown(registration.jobs) if self._ready.is_set() else []
        known = {job.job_id: job for job in registration.jobs if job not in unknown}
        for job in list(self._by_node.get(node_id, {}).values()):
            self._resume(job, known.get(job.job_id), session)
        stored = {job_id: dict(self._jobs[job_id].stored) for job_id in known if job_id in self._jobs}
        return RegistrationAnswer(
            session=session.id,
            offsets=stored,
            unknown=[job.job_id for job in unknown],
            heartbeat_seconds=self._heartbeat_seconds,
        )

    async def poll(self, node_id: str, poll: CommandPoll) -> CommandBatch:
        """The commands after the keeper's cursor, as soon as there are any. Raises UnknownNode, UnknownSession."""
        session = self._session(node_id, poll.session)
        commands = await session.after(poll.cursor, min(poll.wait_seconds, LONGEST_POLL_SECONDS))
        if session.is_closed:
            raise UnknownSession(f"the session of node {node_id}'s keeper is over; it must register again")
        for command in commands:
            job = self._jobs.get(command.order.get("job_id", ""))
            if job is not None and command.type == Launch.__name__:
                job.handed_over = True
        if commands:
            failpoint("hub.commands.handed_over")
        return CommandBatch(commands)

    async def report(self, node_id: str, header: ReportHeader, body: bytes | memoryview) -> ReportAnswer:
        """Give what a keeper says to whom it concerns; the answer names what is committed.

        Raises UnknownNode, UnknownSession, MalformedReport.
        """
        session = self._session(node_id, header.session)
        self._hear(node_id, header)
        fenced: set[str] = set()
        parcels = self._sort(node_id, header, body, fenced)
        await _deliver(parcels)
        failpoint("hub.report.taken")
        for parcel in parcels:
            fenced |= parcel.refused
            for (job_id, member), offset in parcel.stored.items():
                if (job := self._jobs.get(job_id)) is not None:
                    job.stored[str(member)] = offset
            for job_id in (*parcel.refused, *parcel.ended):
                session.jobs.pop(job_id, None)
                self.forget(job_id)
        return ReportAnswer(
            acknowledged=[item for parcel in parcels for item in acknowledgements(parcel)],
            ended=[job_id for parcel in parcels for job_id in parcel.ended],
            fenced=sorted(fenced),
        )

    # ---- for training services

    def attach(self, experiment_id: str, client: HubClient) -> None:
        """Give what keepers say about this experiment's jobs to `client` from now on."""
        self._clients[experiment_id] = client

    def detach(self, experiment_id: str, client: HubClient | None = None) -> None:
        """Give it to nobody; it is not acknowledged and stays with the keepers. Detaching one that was replaced
        does nothing."""
        if client is None or self._clients.get(experiment_id) is client:
            self._clients.pop(experiment_id, None)

    def expect(self, job_id: str, token: str, experiment_id: str) -> None:
        """Say whose a job is, before its launch is sent. Twice is once."""
        known = self._jobs.get(job_id)
        if known is None or known.token != token:
            self._jobs[job_id] = ExpectedJob(job_id, token, experiment_id)

    def send(self, node_id: str, order: Order) -> None:
        """Order something of a node's keeper. It is remembered with the expected job, so that a keeper that comes
        back is ordered again; while there is no keeper it waits. Raises UnknownNode."""
        session = self._keeper(node_id).session
        if isinstance(order, Shutdown):
            if session is not None:
                session.push(order)
            return
        job = self._jobs.get(order.job_id)
        if job is None or job.token != order.token or not self._remember(job, node_id, order, session):
            return
        if session is not None:
            session.push(order)

    def adopt(self, node_id: str, launch: Launch) -> None:
        """A job that was sent to a node before the manager was restarted: go on with it, and launch it (again) only
        if its keeper does not have it."""
        job = self._jobs[launch.job_id]
        job.handed_over = True
        self._place(job, node_id)
        job.launch = launch
        keeper = self._keepers.get(node_id)
        if keeper is not None and keeper.session is not None:
            self._resume(job, keeper.session.jobs.get(job.job_id), keeper.session)

    def forget(self, job_id: str) -> None:
        """A job's end is stored, or nobody cares for it any more: its keeper will be told to stop and forget it."""
        job = self._jobs.pop(job_id, None)
        if job is not None and job.node_id is not None:
            self._by_node.get(job.node_id, {}).pop(job_id, None)

    # ---- jobs

    def _remember(self, job: ExpectedJob, node_id: str, order: Order, session: Session | None) -> bool:
        """Keep an order with its job; whether the keeper must be told."""
        match order:
            case Launch():
                self._place(job, node_id)
                job.launch = order
                return session is None or order.job_id not in session.jobs
            case Update():
                job.update = order
                if job.launch is not None:
                    job.launch = replace(job.launch, max_duration_seconds=order.max_duration_seconds)
            case Cancel():
                job.cancel = order
                if not job.handed_over:
                    if session is not None:
                        session.withdraw(job.job_id)
                    self._end(job, EndReason.CANCELED, "stopped before it was started")
                    return False
        return True

    def _place(self, job: ExpectedJob, node_id: str) -> None:
        job.node_id = node_id
        self._by_node.setdefault(node_id, {})[job.job_id] = job

    def _resume(self, job: ExpectedJob, found: JobReport | None, session: Session) -> None:
        """Order again what a keeper that has just registered still has to do about a job."""
        if found is not None:
            job.handed_over = True
            job.started = job.started or found.pid is not None
            if found.exit is None:
                for order in (job.update, job.cancel):
                    if order is not None:
                        session.push(order)
        elif job.started:
            self._end(job, EndReason.EXIT_UNKNOWN, f"the keeper of node {job.node_id} no longer knows this job")
        elif job.cancel is not None:
            self._end(job, EndReason.CANCELED, "stopped before it was started")
        elif job.launch is not None:
            session.push(job.launch)

    def _end(self, job: ExpectedJob, reason: EndReason, detail: str) -> None:
        """Tell the job's experiment of an end that no keeper will report."""
        now = self._now()
        client = self._clients.get(job.experiment_id)
        self.forget(job.job_id)
        if client is None:
            log.warning("trial job %s ended (%s: %s), its experiment is not attached", job.job_id, reason, detail)
            return
        client.note_change(
            StatusChange(
                job.job_id,
                job.token,
                TrialJobStatus.ENDED,
                datetime.fromtimestamp(now, UTC),
                detail=detail,
                node_id=job.node_id,
                exit=Exit(reason=reason, code=None, signal=None, started_at=now, ended_at=now, detail=detail),
            )
        )

    # ---- reports

    def _sort(self, node_id: str, header: ReportHeader, body: bytes | memoryview, fenced: set[str]) -> list[Parcel]:
        """A report by experiment. Jobs that nobody expects go into `fenced`; those of experiments that are not
        attached are left out."""
        parcels: dict[str, Parcel] = {}
        for chunk in split_body(header, body):
            if (parcel := self._parcel(parcels, chunk.job_id, chunk.token, fenced)) is not None:
                parcel.chunks.append(chunk)
        for start in header.starts:
            if (parcel := self._parcel(parcels, start.job_id, start.token, fenced)) is not None:
                self._jobs[start.job_id].started = True
                parcel.starts.append(started(start, node_id))
        for end in header.ends:
            if (parcel := self._parcel(parcels, end.job_id, end.token, fenced)) is not None:
                parcel.ends.append(ended(end, node_id))
        return list(parcels.values())

    def _parcel(self, parcels: dict[str, Parcel], job_id: str, token: str, fenced: set[str]) -> Parcel | None:
        job = self._jobs.get(job_id)
        if job is None or job.token != token:
            if self._ready.is_set():
                fenced.add(job_id)
            return None
        parcel = parcels.get(job.experiment_id)
        if parcel is None:
            client = self._clients.get(job.experiment_id)
            if client is None:
                return None
            parcel = parcels[job.experiment_id] = Parcel(client)
        return parcel

    def _unknown(self, jobs: Iterable[JobReport]) -> list[JobReport]:
        return [job for job in jobs if job.job_id not in self._jobs or self._jobs[job.job_id].token != job.token]

    # ---- keepers

    def _keeper(self, node_id: str) -> _Keeper:
        try:
            return self._keepers[node_id]
        except KeyError:
            raise UnknownNode(f"there is no node {node_id} here") from None

    def _session(self, node_id: str, session_id: str) -> Session:
        session = self._keeper(node_id).session
        if session is None or session.id != session_id:
            raise UnknownSession(f"the session of node {node_id}'s keeper is not known; it must register again")
        return session

    async def _wait_until_ready(self) -> None:
        if not self._ready.is_set():
            try:
                async with asyncio.timeout(self._ready_patience_seconds):
                    await self._ready.wait()
            except TimeoutError:
                log.warning("a keeper registered while the experiments are still being reattached")

    def _connect(self, keeper: _Keeper, registration: Registration) -> None:
        if registration.protocol_version != PROTOCOL_VERSION:
            log.warning(
                "the keeper of node %s speaks version %s of the protocol, this manager version %s",
                keeper.node_id,
                registration.protocol_version,
                PROTOCOL_VERSION,
            )
        keeper.missed = 0
        self._pool.connect(
            keeper.node_id,
            registration.devices,
            driver_note=registration.driver_note,
            hostname=registration.hostname,
            version=registration.version,
            seen_at=self._now(),
        )
        if keeper.timer is None:
            self._watch(keeper)

    def _hear(self, node_id: str, header: ReportHeader) -> None:
        keeper = self._keepers[node_id]
        if keeper.missed >= self._silent_after:
            self._pool.set_status(node_id, NodeStatus.CONNECTED)
        keeper.missed = 0
        self._pool.hear(
            node_id,
            self._now(),
            devices=header.devices,
            disk_free_mb=header.disk_free_mb,
            notes=header.notes or None,
        )

    def _watch(self, keeper: _Keeper) -> None:
        """Count heartbeats. Ticks are counted, not seconds: a manager that slept does not hold it against a node."""
        keeper.timer = asyncio.get_running_loop().call_later(self._heartbeat_seconds, self._tick, keeper)

    def _tick(self, keeper: _Keeper) -> None:
        keeper.missed += 1
        silence = keeper.missed * self._heartbeat_seconds
        if keeper.lost_after_seconds is not None and silence >= keeper.lost_after_seconds:
            self._lose(keeper, silence)
            return
        if keeper.missed == self._silent_after:
            self._pool.set_status(
                keeper.node_id, NodeStatus.SILENT, f"no word from its keeper for {silence:g} s; its trials go on"
            )
        self._watch(keeper)

    def _lose(self, keeper: _Keeper, silence: float) -> None:
        """Give a node up with its jobs; should its keeper come back, it is told to stop them."""
        keeper.timer = None
        if keeper.session is not None:
            keeper.session.close()
            keeper.session = None
        reason = f"no word from its keeper for {silence:g} s"
        self._pool.set_status(keeper.node_id, NodeStatus.LOST, f"{reason}; its trials were given up")
        for job in list(self._by_node.get(keeper.node_id, {}).values()):
            self._end(job, EndReason.NODE_LOST, f"node {keeper.node_id}: {reason}")


async def _deliver(parcels: list[Parcel]) -> None:
    """Each experiment gets its parcel at the same time; none waits for another's listeners longer than the report."""
    if len(parcels) == 1:
        await parcels[0].deliver()
        return
    async with asyncio.TaskGroup() as group:
        for parcel in parcels:
            group.create_task(parcel.deliver(), name="deliver a keeper's report")
