"""The jobs that the hub expects reports on: every job that is not known to have ended, whose it is, and what its keeper
was ordered to do."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from proctor.training_services.errors import UnknownTrialJob
from proctor.trial_keeper.protocol import Cancel, JobReport, Launch, Update


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
                self.update = command
                if self.launch is not None:
                    self.launch = replace(self.launch, max_duration_seconds=command.max_duration_seconds)


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
