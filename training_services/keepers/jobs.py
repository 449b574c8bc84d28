"""The jobs that the hub expects reports on: every job that is not known to have ended, whose it is, and what its keeper
was ordered to do. And those that keepers have although they are not expected."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from proctor.training_services.errors import UnknownTrialJob
from proctor.trial_keeper.protocol import Cancel, JobReport, Launch, Update

log = logging.getLogger(__name__)

MayBeStopped = Callable[[Sequence[JobReport]], Awaitable[set[str] | None]]
"""Called with unexpected jobs: returns the ids of those that may be stopped; None: that is not known yet."""


@dataclass(slots=True)
class ExpectedJob:
    """One job. What it was ordered to do is kept, so that a keeper that comes back can be ordered again."""

    job_id: str
    token: str
    experiment_id: str
    node_id: str | None = None
    launch: Launch | None = None
    cancel: Cancel | None = None
    update: Update | None = None
    handed_over: bool = False  # a keeper may have been given its launch
    started: bool = False  # a keeper has said that it runs
    has_ended: bool = False  # a keeper has said so, and was not acknowledged yet
    stored: dict[str, int] = field(default_factory=dict)  # how far each member's journal is stored

    def remember(self, command: Launch | Cancel | Update) -> None:
        """Keep the newest command of each kind; an update is also laid into the launch."""
        match command:
            case Launch():
                self.launch = command
            case Cancel():
                self.cancel = command
            case Update():
                if command.milestone is None and self.update is not None:
                    command = replace(command, milestone=self.update.milestone)
                self.update = command
                if self.launch is not None:
                    self.launch = command.applied_to(self.launch)


class ExpectedJobs:
    """All of them, by id and by node."""

    def __init__(self) -> None:
        self._jobs: dict[str, ExpectedJob] = {}
        self._by_node: dict[str, dict[str, ExpectedJob]] = {}

    def expect(
        self, job_id: str, token: str, experiment_id: str, *, node_id: str | None = None, started: bool = False
    ) -> None:
        """Add a job, and place it if its node is named; one that is known with this token stays as it is."""
        if self.find(job_id, token) is None:
            self.forget(job_id)
            self._jobs[job_id] = ExpectedJob(job_id, token, experiment_id)
        job = self._jobs[job_id]
        job.started = job.started or started
        if node_id is not None:
            self.place(job, node_id)

    def find(self, job_id: str, token: str) -> ExpectedJob | None:
        """The job, if it is expected with this token."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.token == token else None

    def known(self, job_id: str) -> ExpectedJob | None:
        """The job, whatever its token."""
        return self._jobs.get(job_id)

    def require(self, job_id: str) -> ExpectedJob:
        """The job. Raises UnknownTrialJob."""
        try:
            return self._jobs[job_id]
        except KeyError:
            raise UnknownTrialJob(f"trial job {job_id} is not expected; call `expect` first") from None

    def place(self, job: ExpectedJob, node_id: str) -> None:
        """The job is this node's."""
        if job.node_id is not None:
            self._by_node.get(job.node_id, {}).pop(job.job_id, None)
        job.node_id = node_id
        self._by_node.setdefault(node_id, {})[job.job_id] = job

    def on_node(self, node_id: str) -> list[ExpectedJob]:
        """The jobs of a node, in the order they were placed."""
        return list(self._by_node.get(node_id, {}).values())

    def of_experiment(self, experiment_id: str) -> list[ExpectedJob]:
        """The jobs of an experiment."""
        return [job for job in self._jobs.values() if job.experiment_id == experiment_id]

    def forget(self, job_id: str) -> None:
        """Stop expecting a job. Does nothing for an unknown one."""
        job = self._jobs.pop(job_id, None)
        if job is not None and job.node_id is not None:
            self._by_node.get(job.node_id, {}).pop(job_id, None)

    def unexpected(self, reports: Iterable[JobReport]) -> list[JobReport]:
        """Those of a keeper's jobs that are not expected with their tokens."""
        return [report for report in reports if self.find(report.job_id, report.token) is None]


class UnknownJobs:
    """The unexpected jobs that must not be stopped, by the keeper or platform that has them."""

    def __init__(self) -> None:
        self.may_be_stopped: MayBeStopped | None = None
        """None: each may be."""
        self._jobs: dict[str, dict[str, JobReport]] = {}
        self.held: set[str] = set()  # experiments whose own services remove what their platforms have of their jobs

    def all(self) -> list[tuple[str, JobReport]]:
        """Each with who has it."""
        return [(where, job) for where, jobs in self._jobs.items() for job in jobs.values()]

    def forget(self, where: str) -> None:
        """What this keeper or platform has is about to be judged anew."""
        self._jobs.pop(where, None)

    async def judge(self, where: str, unexpected: Sequence[JobReport]) -> set[str]:
        """Those of a keeper's or platform's unexpected jobs that may be stopped. The others are kept here."""
        if not unexpected or self.may_be_stopped is None:
            return {job.job_id for job in unexpected}
        try:
            stopped = await self.may_be_stopped(unexpected)
        except Exception:
            log.exception("cannot tell whether unknown jobs may be stopped; they keep running")
            stopped = None
        if stopped is None:
            return set()
        known = self._jobs.setdefault(where, {})
        for job in unexpected:
            if job.job_id in stopped:
                continue
            if job.job_id not in known:
                text = "job %s (experiment %s) on node %s is in no database of this manager; it is not stopped"
                extra = {"action": "job.ignore", "job_id": job.job_id, "node_id": where}
                log.error(text, job.job_id, job.experiment_id or "unknown", where, extra=extra)
            known[job.job_id] = job
        return stopped
