"""The manager's end of the keeper protocol (`proctor.trial_keeper.protocol`), free of any web framework.

Keepers call `hello`, `register`, `poll`, `report` and `answer` through the manager's routes; training services call
`expect`, `send` and `attach`, and request files. The hub knows the experiment of every job that is not known to have
ended, and delivers what keepers report about it to that experiment's `HubClient`.

After a restart of the manager keepers may register before the experiments are loaded. Until `mark_reattached` is called
no job is unknown: reports about it are simply not acknowledged, and its keeper sends them again. After that the manager
is asked about each unexpected job whether it may be stopped: one that is not in its database continues, because the
database may have lost it.

A keeper is known by an id: the one of its node, or for the keeper of a single job `job_keeper_id`. It reports on the
jobs that were sent to it, and on no others: what it reports on another keeper's job is neither stored nor acknowledged.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import EndReason, SoftStop
from proctor.training_services.errors import ManagerLeaving, SubmissionRefused, UnknownSession
from proctor.training_services.keepers.file_requests import FileRequests, KeeperFiles
from proctor.training_services.keepers.heartbeats import HeartbeatMonitor
from proctor.training_services.keepers.jobs import ExpectedJob, ExpectedJobs, MayBeStopped, UnknownJobs
from proctor.training_services.keepers.launches import write_cancel
from proctor.training_services.keepers.presence import KeeperPresence, NodePresence
from proctor.training_services.keepers.reports import (
    ExperimentReport,
    HubClient,
    abandoned,
    deliver_all,
    ended,
    held_up,
    split_body,
    started,
)
from proctor.training_services.keepers.sessions import (
    KeeperSessions,
    RegisteredKeeper,
    derive_secret,
    is_job_keeper,
    job_keeper_id,
)
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.protocol import (
    Cancel,
    Chunk,
    CommandBatch,
    CommandPoll,
    ContentRequest,
    End,
    FileAnswer,
    JobReport,
    KeeperCommand,
    Launch,
    RefusedCommand,
    Registration,
    RegistrationAnswer,
    ReportAnswer,
    ReportHeader,
    Shutdown,
    Start,
    manager_proof,
    why_unreadable,
)

__all__ = ["HubClient", "KeeperHub"]

log = logging.getLogger(__name__)

LONGEST_POLL_SECONDS = 60.0
PAUSE_SECONDS_PER_NODE = 0.002
LONGEST_PAUSE_SECONDS = 0.5


class KeeperHub(KeeperFiles):
    """Serves the keepers of all nodes and jobs for all experiments.

    :param pool: gets every node's devices and status.
    :param key: the secrets of the keepers of single jobs are derived from it; None: a random one.
    :param heartbeat_seconds: how often a keeper reports when it has nothing to report.
    :param silent_after: a node is SILENT after so many missed heartbeats.
    :param reattach_patience_seconds: how long a registration waits for `mark_reattached`.
    :param now: Unix time, for records.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        key: bytes | None = None,
        heartbeat_seconds: float = 5.0,
        silent_after: int = 3,
        reattach_patience_seconds: float = 20.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._reattach_patience_seconds = reattach_patience_seconds
        self._now = now
        self._reattached = asyncio.Event()
        self._unknown_jobs = UnknownJobs()
        self._is_closed = False
        self._key = key or secrets.token_bytes(32)
        self._nodes = NodePresence(pool)
        self._sessions = KeeperSessions(self._nodes)
        self._clients: dict[str, HubClient] = {}
        self._jobs = ExpectedJobs()
        self._heartbeats = HeartbeatMonitor(
            pool, heartbeat_seconds=heartbeat_seconds, silent_after=silent_after, now=now, on_lost=self._abandon_jobs
        )

    async def mark_reattached(self, may_be_stopped: MayBeStopped | None = None) -> None:
        """Every experiment that can be loaded is reattached, and the jobs of the others are expected: from now on an
        unexpected job is unknown and is stopped.

        May be called again when `may_be_stopped` knows what it did not know before.

        :param may_be_stopped: asked before that; None: each may be.
        """
        self._unknown_jobs.may_be_stopped = may_be_stopped
        self._reattached.set()
        for keeper_id, session in self._sessions.by_keeper():
            unknown = await self._removable(keeper_id, self._jobs.unexpected(session.jobs.values()))
            for job in self._jobs.unexpected(session.jobs.values()):
                if job.job_id in unknown:
                    session.commands.push(Cancel(job.job_id, job.token))

    def unknown_jobs(self) -> list[tuple[str, JobReport]]:
        """The unexpected jobs that must not be stopped, with the keepers or platforms that have them."""
        return self._unknown_jobs.all()

    async def removable_jobs(self, platform: str, jobs: Sequence[JobReport], *, experiment_id: str) -> set[str]:
        """Which of the jobs that a platform has may be removed there by an experiment's service: those that are not
        expected with their tokens and that the database explains, but none of another experiment that is held. Those
        that it does not explain are `unknown_jobs` from now on. Waits for `mark_reattached`."""
        await self._reattached.wait()
        self._unknown_jobs.forget(platform)
        held = self._unknown_jobs.held - {experiment_id}
        found = await self._removable(platform, self._jobs.unexpected(jobs))
        return found - {job.job_id for job in jobs if job.experiment_id in held}

    def hold(self, experiment_id: str) -> None:
        """What platforms have of an experiment's jobs is removed by its own service alone, which collects their files
        first. Idempotent."""
        self._unknown_jobs.held.add(experiment_id)

    def release(self, experiment_id: str) -> None:
        """An experiment has been cleaned up, or deleted. Idempotent."""
        self._unknown_jobs.held.discard(experiment_id)

    async def wait_until_reattached(self) -> None:
        """Wait for `mark_reattached`."""
        await self._reattached.wait()

    def close(self) -> None:
        """Refuse keepers from now on, waiting polls included; stop watching nodes."""
        self._is_closed = True
        self._heartbeats.close()
        self._sessions.close()

    # ---- for keepers

    def add_node(self, node_id: str, secret: str, *, lost_after_seconds: float | None = None) -> None:
        """Accept a keeper with this secret for this node.

        :param lost_after_seconds: abandon the node's jobs after so much silence while the manager was awake; None:
            never (the manager's own machine).
        """
        self._heartbeats.limit(node_id, lost_after_seconds)
        self._sessions.add(node_id, secret, self._nodes)

    def reach(self, node_id: str) -> None:
        """The login to a node's machine has succeeded; its keeper will register soon, unless it cannot. Its jobs are
        not abandoned before it had the time to."""
        self._heartbeats.reach(node_id)

    def remove_node(self, node_id: str) -> None:
        """Refuse this node's keeper from now on."""
        self._heartbeats.stop(node_id)
        self._sessions.remove(node_id)

    def add_job_keeper(self, job_id: str, token: str, presence: KeeperPresence) -> str:
        """Accept the keeper of one trial job; returns its secret, the same at each call and in each manager of the
        home. Its jobs are never abandoned because of its silence."""
        keeper_id, secret = job_keeper_id(job_id), derive_secret(self._key, job_id, token)
        self._heartbeats.watch(keeper_id, presence)
        self._sessions.add(keeper_id, secret, presence)
        return secret

    def remove_job_keeper(self, job_id: str) -> None:
        """Refuse the keeper of a trial job from now on. Does nothing for an unknown one."""
        keeper_id = job_keeper_id(job_id)
        self._heartbeats.stop(keeper_id)
        self._sessions.remove(keeper_id)

    def hello(self, keeper_id: str, nonce: str) -> str:
        """Prove to a keeper that this manager knows its secret. Raises UnknownNode."""
        return manager_proof(self._sessions.secret(keeper_id), nonce)

    def authenticate(self, keeper_id: str, bearer: str) -> bool:
        """Whether `bearer` is this keeper's secret; False for an unknown keeper."""
        return self._sessions.is_secret(keeper_id, bearer)

    async def register(self, keeper_id: str, registration: Registration) -> RegistrationAnswer:
        """Begin a session; the one before is over. Raises UnknownNode, KeeperReplaced, ManagerLeaving."""
        try:
            async with asyncio.timeout(self._reattach_patience_seconds):
                await self._reattached.wait()
        except TimeoutError:
            log.warning("a keeper registered while the experiments are still being reattached")
        self._require_open()
        session = self._sessions.begin(keeper_id, registration)
        self._unknown_jobs.forget(keeper_id)
        unknown = await self._removable(keeper_id, self._jobs.unexpected(registration.jobs))
        for job in self._jobs.on_node(keeper_id):
            self._resume(job, session.jobs.get(job.job_id), session)
        # Last, because it may wake an experiment that then submits at once.
        self._heartbeats.connect(keeper_id, registration)
        return RegistrationAnswer(
            session=session.id,
            offsets={
                report.job_id: dict(known.stored)
                for report in registration.jobs
                if (known := self._jobs.find(report.job_id, report.token)) and known.node_id in {None, keeper_id}
            },
            unknown=sorted(unknown),
            heartbeat_seconds=self._heartbeat_seconds,
        )

    async def poll(self, keeper_id: str, poll: CommandPoll) -> CommandBatch:
        """The commands after the keeper's cursor, as soon as there are any. Raises UnknownNode, UnknownSession."""
        session = self._session(keeper_id, poll.session)
        commands = await session.commands.after(poll.cursor, min(poll.wait_seconds, LONGEST_POLL_SECONDS))
        self._require_open()
        if session.commands.is_closed:
            raise UnknownSession(
                f"the session of the keeper of {self._sessions.place(keeper_id)} is over; it must register again"
            )
        for command in commands:
            job = self._jobs.known(command.order.get("job_id", ""))
            if job is not None and command.type == Launch.__name__:
                job.handed_over = True
                session.jobs.setdefault(job.job_id, JobReport(job.job_id, job.token, None, 0.0))
        if commands:
            failpoint("hub.commands.handed_over")
        return CommandBatch(commands)

    async def report(self, keeper_id: str, header: ReportHeader, body: bytes | memoryview) -> ReportAnswer:
        """Deliver a keeper's report to the experiments it concerns; the answer says what is committed.

        Raises UnknownNode, UnknownSession, MalformedReport.
        """
        session = self._session(keeper_id, header.session)
        unexpected: dict[str, JobReport] = {}
        reports = self._sort(keeper_id, session, header, body, unexpected)
        self._heartbeats.record(keeper_id, header)
        fenced = await self._removable(keeper_id, list(unexpected.values()))
        await deliver_all(reports)
        failpoint("hub.report.taken")
        for report in reports:
            fenced |= report.refused
            self._record_stored(report, session)
        self._report_held_up(keeper_id, session, {**header.waiting, **header.stopped})
        for refused in header.refused:
            self._take_refusal(keeper_id, session, refused)
        return ReportAnswer(
            acknowledged=[item for report in reports for item in report.acknowledgements()],
            ended=[job_id for report in reports for job_id in report.ended],
            fenced=sorted(fenced),
            # 100 nodes whose trials report continuously send five reports a second each; a single node does not wait
            pause_seconds=min(PAUSE_SECONDS_PER_NODE * (len(self._sessions.all()) - 1), LONGEST_PAUSE_SECONDS),
        )

    def _report_held_up(self, keeper_id: str, session: RegisteredKeeper, held_up_jobs: Mapping[str, str]) -> None:
        """Report to the experiments which of their jobs are stuck because a process of their keeper is suspended, or
        stand still until their trial scheduler has decided, and which continue again."""
        for job_id in session.held_up.keys() | held_up_jobs.keys():
            job, clause = self._jobs.known(job_id), held_up_jobs.get(job_id, "")
            if not job_id or clause == session.held_up.get(job_id, ""):
                continue
            if job is not None and self._is_of_another(job, keeper_id, session):
                continue
            client = None if job is None else self._clients.get(job.experiment_id)
            if job is None or client is None:
                session.held_up.pop(job_id, None)  # reported again next time, if it is still so
                continue
            client.queue_change(held_up(job, keeper_id, session.place, clause, now=self._now()))
            session.held_up[job_id] = clause
        session.held_up = {job_id: clause for job_id, clause in session.held_up.items() if clause}

    def _take_refusal(self, keeper_id: str, session: RegisteredKeeper, refused: RefusedCommand) -> None:
        """A keeper cannot read a command: a launch ends its job, for anything else its experiment is notified."""
        job = self._jobs.find(refused.job_id, refused.token)
        if job is None or self._is_of_another(job, keeper_id, session):
            return
        clause = f"the keeper of {session.place} has refused its {refused.type}: {refused.reason}"
        extra = {"action": "command.refuse", "job_id": job.job_id, "node_id": keeper_id}
        log.error("job %s: %s", job.job_id, clause, extra=extra)
        if refused.type == Launch.__name__ and not job.started:
            session.jobs.pop(job.job_id, None)
            self._end(job, EndReason.INFRASTRUCTURE, clause)
        elif (client := self._clients.get(job.experiment_id)) is not None:
            client.queue_change(held_up(job, keeper_id, session.place, clause, now=self._now()))

    async def content(self, keeper_id: str, request: ContentRequest) -> bytes:
        """Bytes of an archive that a keeper was asked to fetch. Raises UnknownNode, UnknownSession, UnknownContent."""
        return await self._session(keeper_id, request.session).files.read_offered(request.sha256, request.offset)

    def answer(self, keeper_id: str, answer: FileAnswer, data: bytes) -> None:
        """A keeper's answer to a file request. Raises UnknownNode, UnknownSession."""
        self._session(keeper_id, answer.session).files.answer(answer, data)

    # ---- for training services

    def attach(self, experiment_id: str, client: HubClient) -> None:
        """Deliver reports about this experiment's jobs to `client` from now on."""
        self._clients[experiment_id] = client

    def detach(self, experiment_id: str, client: HubClient | None = None) -> None:
        """Stop delivering; reports are not acknowledged and stay with the keepers. With `client`: only if it is the
        attached one."""
        if client is None or self._clients.get(experiment_id) is client:
            self._clients.pop(experiment_id, None)

    def expect(
        self, job_id: str, token: str, experiment_id: str, *, node_id: str | None = None, started: bool = False
    ) -> None:
        """Announce the experiment of a job, and the keeper it will be sent to (`node_id`), before any command about it.
        Idempotent.

        :param started: it is known to have run, and must not be sent again to a keeper that does not have it.
        """
        self._jobs.expect(job_id, token, experiment_id, node_id=node_id, started=started)

    def forget(self, job_id: str) -> None:
        """A job is no longer needed: its keeper must stop and forget it when it next reports on it."""
        self._jobs.forget(job_id)

    def forget_unsent(self, experiment_id: str) -> None:
        """The service of an experiment is attached, and the jobs that it has not sent to a keeper have none."""
        for job in self._jobs.of_experiment(experiment_id):
            if job.node_id is None:
                self._jobs.forget(job.job_id)

    def abandon(self, experiment_id: str) -> list[str]:
        """Forget every job of an experiment; returns their ids."""
        jobs = [job.job_id for job in self._jobs.of_experiment(experiment_id)]
        for job_id in jobs:
            self._jobs.forget(job_id)
        return jobs

    def end(self, job_id: str, reason: EndReason, detail: str) -> None:
        """A job is over, as its platform says, and its keeper will not report its end. One that was ordered to stop is
        CANCELED. Does nothing for a job that is not expected."""
        job = self._jobs.known(job_id)
        if job is not None:
            self._end(job, reason if job.cancel is None else EndReason.CANCELED, detail)

    def was_started(self, job_id: str) -> bool:
        """Whether a job is known to have run."""
        job = self._jobs.known(job_id)
        return job is not None and job.started

    def send(self, keeper_id: str, command: KeeperCommand) -> None:
        """Send a command to a keeper.

        Commands about a job are remembered and sent again to a keeper that registers again; while there is no keeper
        they wait. A launch raises UnknownNode, and UnknownTrialJob if it was not announced by `expect`.
        Commands about a job that has ended do nothing. Raises SubmissionRefused for what no keeper can read.
        """
        _require_readable(command)
        if isinstance(command, Launch):
            self._sessions.secret(keeper_id)  # an unknown node is an error
            self._jobs.place(self._jobs.require(command.job_id), keeper_id)
        session = self._sessions.find(keeper_id)
        must_be_sent = isinstance(command, Shutdown) or self._remember(command, session)
        if must_be_sent and session is not None:
            session.commands.push(command)

    def resume_launch(self, keeper_id: str, launch: Launch) -> None:
        """Resume a job that was sent to a node before the manager was restarted: it is launched only if its
        keeper does not have it. Raises UnknownTrialJob if it was not announced by `expect`, SubmissionRefused as
        `send`."""
        _require_readable(launch)
        self._jobs.require(launch.job_id).remember(launch)
        if self.reattach(keeper_id, launch.job_id) is False:
            self.send(keeper_id, launch)

    def reattach(self, keeper_id: str, job_id: str) -> bool | None:
        """Whether a job that was sent to a node before the manager was restarted has arrived there; then it continues,
        or its end is reported if it is gone. None while its keeper is disconnected. Raises
        UnknownTrialJob if it was not announced by `expect`."""
        job = self._jobs.require(job_id)
        self._jobs.place(job, keeper_id)
        session = self._sessions.find(keeper_id)
        found = None if session is None else session.jobs.get(job_id)
        job.handed_over = session is None or found is not None or job.started
        if session is not None and job.handed_over:
            self._resume(job, found, session)
        return None if session is None else job.handed_over

    def cancel_unattached(self, keeper_id: str, job_id: str, stop: SoftStop | None = None) -> None:
        """Stop a job whose experiment is not attached. Its end and its reports stay with its keeper. Idempotent; does
        nothing for a job that never arrived or is not expected.

        :param stop: let it save first; None: at once, also if it was asked to save before.
        """
        job = self._jobs.known(job_id)
        if job is None or (job.cancel is not None and (stop is not None or job.cancel.save_seconds == 0)):
            return
        if job.cancel is not None or self.reattach(keeper_id, job_id) is not False:
            self.send(keeper_id, Cancel(job_id, job.token) if stop is None else write_cancel(job_id, job.token, stop))

    def is_over(self, keeper_id: str, job_id: str) -> bool:
        """Whether nothing of a job still runs on its node, as far as its keeper reports; False while that is
        disconnected."""
        job = self._jobs.known(job_id)
        session = self._sessions.find(keeper_id)
        if job is None or job.has_ended:
            return True
        found = None if session is None else session.jobs.get(job_id)
        return session is not None and (found is None or found.exit is not None)

    def suspension(self, keeper_id: str, job_id: str) -> str:
        """Why a job is stuck, as its keeper says: a process of that is suspended. "" if it is not, or that is not
        known."""
        session = self._sessions.find(keeper_id)
        return "" if session is None else session.held_up.get(job_id, "")

    # ---- jobs

    def _remember(self, command: KeeperCommand, session: RegisteredKeeper | None) -> bool:
        """Keep a command with its job; whether it must be sent to the keeper."""
        assert not isinstance(command, Shutdown)
        job = self._jobs.find(command.job_id, command.token)
        if job is None:
            return False
        job.remember(command)
        if isinstance(command, Launch):
            return session is None or command.job_id not in session.jobs
        if isinstance(command, Cancel) and not job.handed_over:
            if session is not None:
                session.commands.withdraw_job(job.job_id)
            self._end(job, EndReason.CANCELED, "stopped before it was started")
            return False
        return True

    def _resume(self, job: ExpectedJob, found: JobReport | None, session: RegisteredKeeper) -> None:
        """Send again what a keeper that has just registered still has to do about a job."""
        if found is not None and found.token == job.token:
            job.handed_over = True
            if found.pid is not None and found.exit is None:
                self._record_running(job, found)
            for command in (job.update, job.cancel) if found.exit is None else ():
                if command is not None:
                    session.commands.push(command)
        elif job.started:
            self._end(job, EndReason.EXIT_UNKNOWN, f"the keeper of {session.place} no longer knows this job")
        elif job.cancel is not None:
            self._end(job, EndReason.CANCELED, "stopped before it was started")
        elif job.launch is not None:
            session.commands.push(job.launch)

    def _record_running(self, job: ExpectedJob, found: JobReport) -> None:
        """The start may not have been committed before the manager was killed."""
        assert job.node_id is not None
        job.started = True
        client = self._clients.get(job.experiment_id)
        if client is not None and found.pid is not None:
            client.queue_change(started(Start(job.job_id, job.token, found.pid, found.started_at), job.node_id))

    def _end(self, job: ExpectedJob, reason: EndReason, detail: str) -> None:
        """Report an end to the job's experiment that no keeper will report."""
        client = self._clients.get(job.experiment_id)
        self._jobs.forget(job.job_id)
        if client is None:
            log.warning("trial job %s ended (%s: %s), its experiment is not attached", job.job_id, reason, detail)
            return
        client.queue_change(abandoned(job, reason, detail=detail, now=self._now()))

    def _abandon_jobs(self, keeper_id: str, clause: str, is_lost: bool) -> bool:
        """A node is lost with its jobs, or may be: then only jobs that are being stopped are abandoned. Should its
        keeper register again, it must stop them. Jobs whose experiment is not attached are kept: their end must be
        reported to it. False: there were none."""
        if is_lost:
            self._sessions.end(keeper_id)
        attached = [job for job in self._jobs.on_node(keeper_id) if job.experiment_id in self._clients]
        jobs = [job for job in attached if is_lost or job.cancel is not None]
        for job in jobs:
            reason = EndReason.NODE_LOST if job.cancel is None else EndReason.CANCELED
            self._end(job, reason, f"node {keeper_id}: {clause}")
        return bool(jobs)

    # ---- reports

    def _sort(
        self,
        keeper_id: str,
        session: RegisteredKeeper,
        header: ReportHeader,
        body: bytes | memoryview,
        unexpected: dict[str, JobReport],
    ) -> list[ExperimentReport]:
        """A report by experiment. Unexpected jobs go into `unexpected`; those of experiments that are not attached are
        left out."""
        reports: dict[str, ExperimentReport] = {}

        def report_of(item: Chunk | Start | End) -> ExperimentReport | None:
            job = self._jobs.find(item.job_id, item.token)
            if job is None:
                known = session.jobs.get(item.job_id)
                unexpected[item.job_id] = known or JobReport(item.job_id, item.token, None, 0.0)
                return None
            if self._is_of_another(job, keeper_id, session):
                return None
            job.started = True
            client = self._clients.get(job.experiment_id)
            if client is not None and job.experiment_id not in reports:
                reports[job.experiment_id] = ExperimentReport(client)
            return reports.get(job.experiment_id)

        for chunk, item in zip(split_body(header, body), header.chunks, strict=True):
            if (report := report_of(item)) is not None:
                report.chunks.append(chunk)
        for start in header.starts:
            if (report := report_of(start)) is not None:
                report.starts.append(started(start, keeper_id))
                continue
            job = self._jobs.find(start.job_id, start.token)
            is_refused = self._reattached.is_set() if job is None else self._is_of_another(job, keeper_id, session)
            if not is_refused:  # its experiment is not loaded yet, and a keeper reports this once
                before = session.jobs.get(start.job_id)
                owner = "" if before is None else before.experiment_id
                session.jobs[start.job_id] = JobReport(
                    start.job_id, start.token, start.pid, start.started_at, experiment_id=owner
                )
        for end in header.ends:
            if (report := report_of(end)) is not None:
                report.ends.append(ended(end, keeper_id))
            job = self._jobs.find(end.job_id, end.token)
            if job is not None and not self._is_of_another(job, keeper_id, session):
                job.has_ended = True
        return list(reports.values())

    def _is_of_another(self, job: ExpectedJob, keeper_id: str, session: RegisteredKeeper) -> bool:
        """Whether a job was sent to another keeper than the one that reports on it; logged once a session."""
        if job.node_id == keeper_id or (job.node_id is None and not is_job_keeper(keeper_id)):
            return False
        if job.job_id not in session.refused:
            session.refused.add(job.job_id)
            text = "%s reports on trial job %s, which was sent to %s; the report is refused"
            extra = {"action": "report.refuse", "job_id": job.job_id, "node_id": keeper_id}
            other = "another node" if job.node_id is None else self._sessions.place(job.node_id)
            log.warning(text, session.place, job.job_id, other, extra=extra)
        return True

    async def _removable(self, where: str, unexpected: Sequence[JobReport]) -> set[str]:
        """The unexpected jobs that are to be stopped; none before `mark_reattached`."""
        return await self._unknown_jobs.judge(where, unexpected) if self._reattached.is_set() else set()

    def _record_stored(self, report: ExperimentReport, session: RegisteredKeeper) -> None:
        for (job_id, member), offset in report.stored.items():
            if (job := self._jobs.known(job_id)) is not None:
                job.stored[str(member)] = offset
        for job_id in (*report.refused, *report.ended):
            session.jobs.pop(job_id, None)
            self._jobs.forget(job_id)

    # ---- keepers

    def _requests(self, keeper_id: str) -> FileRequests:
        return self._sessions.files(keeper_id)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ManagerLeaving

    def _session(self, keeper_id: str, session_id: str) -> RegisteredKeeper:
        self._require_open()
        return self._sessions.require(keeper_id, session_id)


def _require_readable(command: KeeperCommand) -> None:
    """Raise SubmissionRefused for a command that no keeper can read: keepers of earlier versions do not answer it."""
    if problem := why_unreadable(command):
        job = "" if isinstance(command, Shutdown) else f" of trial job {command.job_id}"
        raise SubmissionRefused(f"no keeper can read the {type(command).__name__}{job}: {problem}")
