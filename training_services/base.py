"""The contract of a training service: the place where an experiment's trial jobs run.

One instance belongs to one experiment. A platform is added by subclassing `TrainingService` and `SupportsEvents`,
registering the class under the entry-point group `proctor.training_services`, and passing the suite in
`proctor.training_services.testing`. A constructor does no I/O and claims nothing: an instance is also made to read the
files of an experiment that is over, and its `run` is then never called.

What every implementation must keep:

* Every call is idempotent. `submit_trial_job` with a known job id starts nothing; `cancel_trial_job` of a job that is
  unknown or has ended does nothing.
* Nothing is polled. Metrics and status changes are pushed to the listeners, which are awaited: they return only when
  what they were given is committed. When a listener raises, the same thing must be delivered again later (after a
  pause), in order, until it is taken.
* One job id, one start. A job that is retried has a new id, token and directory. Two processes must never write the
  same journal, so a service that does not know whether a job has started must not start it again: it ends the job as
  EXIT_UNKNOWN.
* A restart of the manager. A service that can find its jobs again is `SupportsReattach`: its jobs outlive the manager,
  and the engine calls `reattach`. On any other service a job of the previous instance is never submitted again. The
  engine asks the new instance to cancel it, ends it as EXIT_UNKNOWN, and gives its trial a new job (charged to
  `maxInfrastructureRetries`).
* No silent wait. A job that cannot be placed yet is answered with a `StatusChange` whose `detail` says why; one that
  can never be placed raises `SubmissionRefused`.
* Nothing is left. Before a job's end is delivered all its processes have ended, also those in a session of their own.
  They are found by PROCTOR_JOB_ID and PROCTOR_JOB_DIR in their environment.

A trial is the process `bash -c <form.command>`, in `form.code_directory` (or a copy of it), with

* a directory of its own, `form.directory` or its counterpart on the job's machine. Before the trial starts it holds
  `parameter.json` (the text `form.parameter_file`), an empty `journal`, the folder `output/` and in it the link `.nni`.
  The trial's stdout and stderr go to the files of these names. The trial appends to `journal`; the service delivers it
  as `JournalChunk`s. To stop a trial that may want to save its state, the service may replace `control.json` before it
  sends SIGTERM. `proctor.sdk.protocol` has the details.
* an environment: that in `form.environment_file` (JSON, its key `environment`; without a file the service's own), over
  it `form.environment`, over it what `proctor.sdk.protocol.trial_environment` returns, and the folder that
  `proctor.sdk.bundle.build_bundle` makes first on PYTHONPATH, so that `import proctor` and `import nni` work in every
  interpreter. `proctor.trial_keeper.jobs.launching.keep_bundle` keeps it there when the command sets PYTHONPATH.
* the umask of the user: the key `umask` of that file, a number. The manager's own keeps its files to its user.
* the limit on open files of the user: `proctor.sdk.process_limits.users_open_files()`. The manager's own is as high as
  it may be; programs that use `select` do not work with such a limit.

For processes on the manager's machine `proctor.training_services.trial_processes` does both.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from proctor.training_services.capacity import GpuRules, Strategy
from proctor.trial_keeper.protocol import EndReason, Exit, GpuSlot

__all__ = [
    "CheckpointOffer",
    "EndReason",
    "Exit",
    "GpuSlot",
    "JobStart",
    "JournalChunk",
    "MetricListener",
    "NodePlacement",
    "SoftStop",
    "StatusChange",
    "StatusListener",
    "SupportsCheckpointCopies",
    "SupportsCheckpointDeletion",
    "SupportsCheckpoints",
    "SupportsCollection",
    "SupportsEvents",
    "SupportsLogs",
    "SupportsNodes",
    "SupportsNotices",
    "SupportsReattach",
    "SupportsSoftStop",
    "TrainingService",
    "TrialJobDetail",
    "TrialJobForm",
    "TrialJobStatus",
    "describe_refused_start",
    "describe_start",
    "must_continue",
]


class TrialJobStatus(StrEnum):
    """The status of one attempt to run a trial."""

    CREATED = "CREATED"  # written down, not yet given to the service
    SUBMITTED = "SUBMITTED"  # given to the service
    RUNNING = "RUNNING"  # its process was seen
    STOPPING = "STOPPING"  # asked to stop
    ENDED = "ENDED"  # over, with an end reason

    @property
    def is_terminal(self) -> bool:
        """Nothing leaves ENDED."""
        return self is TrialJobStatus.ENDED


@dataclass(frozen=True)
class NodePlacement:
    """Where the manager has placed a job: a node and shares of its GPUs. `gpus` None: GPUs are not managed."""

    node_id: str
    gpus: tuple[GpuSlot, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, for the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "NodePlacement":
        """The inverse of `to_json`."""
        gpus = body["gpus"]
        return cls(body["node_id"], None if gpus is None else tuple(GpuSlot(**gpu) for gpu in gpus))


@dataclass(frozen=True)
class CheckpointOffer:
    """A registered checkpoint that a job may continue from."""

    job_id: str  # of the job that has saved it
    path: str  # of its folder, absolute, as if that were on the manager's machine
    sequence: int  # the number of points that the trial's curve had when it was saved
    node_id: str | None = None  # where that job ran
    manifest: str | None = None  # the SHA-256 of its manifest; None: an earlier version has saved it, without one
    damage: str = ""  # what is known to be wrong with it, as a clause; "" where it must be looked at

    def name(self, trial_id: str) -> str:
        """What it is called for a job of this trial: "checkpoint 3 of job 2"."""
        owner, _, job = self.job_id.rpartition(".")
        whose = "" if owner == trial_id else f" of trial {owner}"
        return f"checkpoint {self.path.rpartition('/')[2]} of job {job}{whose}"


@dataclass(frozen=True)
class JobStart:
    """Where a job begins."""

    checkpoint: CheckpointOffer | None  # one of its form's; None: at the start
    reason: str = ""  # a clause: "from checkpoint 3 of job 2, copied from the manager's machine"


MOST_NAMED = 3
"""Maximum number of passed-over checkpoints that a reason names; it counts the others."""


def describe_start(
    trial_id: str,
    checkpoint: CheckpointOffer | None,
    passed_over: Sequence[tuple[CheckpointOffer, str]],
    place: str = "",
) -> JobStart:
    """The start of a trial's job, with the reason put together.

    :param passed_over: the checkpoints that could not be used, each with the reason as a clause; first those of the
        form (`TrialJobForm.passed_over`).
    :param place: how the checkpoint is read, to follow its name: ", which is on this node".
    """
    clauses = []
    for other, problem in passed_over[:MOST_NAMED]:
        name = other.name(trial_id)
        if checkpoint is not None and other.job_id == checkpoint.job_id:
            name = name.partition(" of ")[0]
        clauses.append(f"{name} was passed over: {problem}")
    if (more := len(passed_over) - MOST_NAMED) > 0:
        clauses.append(f"{more} more {'was' if more == 1 else 'were'} passed over")
    if checkpoint is not None:
        return JobStart(checkpoint, "; ".join((f"from {checkpoint.name(trial_id)}{place}", *clauses)))
    if len(passed_over) > 1:
        clauses.insert(0, f"none of {len(passed_over)} checkpoints is whole")
    return JobStart(None, f"from the start: {'; '.join(clauses)}" if clauses else "")


def describe_refused_start(start: JobStart) -> str:
    """Why a job that must continue from a checkpoint cannot begin: the reason of a start without one."""
    return f"it continues from another trial's checkpoint, and {start.reason.removeprefix('from the start: ')}"


def must_continue(trial_id: str, offers: Iterable[CheckpointOffer]) -> bool:
    """Whether a trial with these offers must not begin at the start: it is to continue from another trial's."""
    return any(offer.job_id.rpartition(".")[0] != trial_id for offer in offers)


@dataclass(frozen=True)
class TrialJobForm:
    """All that a service needs to know to run one trial job."""

    job_id: str  # "<trial id>.<number>"
    token: str  # fencing token: reports with another token are refused
    experiment_id: str
    trial_id: str
    sequence_id: int
    number: int  # the generation: 1 for the first attempt
    parameter_id: int
    parameter_file: str  # text of parameter.json
    command: str
    code_directory: str  # absolute path on the manager's machine
    directory: str  # absolute path of the job's directory on the manager's machine
    environment_file: str | None = None  # the captured environment, 0600
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpu_number: int | None = None
    max_duration_seconds: float | None = None
    checkpoints: tuple[CheckpointOffer, ...] = ()
    """What the job may continue from, in this order. A service that is `SupportsCheckpoints` takes the first that is
    whole; to any other it is one checkpoint, which the engine has verified on the manager's machine."""
    damaged: tuple[CheckpointOffer, ...] = ()
    """Checkpoints that are not offered again because an earlier job has found them damaged."""
    placement: NodePlacement | None = None  # set by the manager for services that are `SupportsNodes`
    lease_seconds: float | None = None
    tags: tuple[str, ...] = ()
    milestone: int | None = None
    """The step at whose report the trial waits for the verdict of its trial scheduler, by control.json in its directory
    (`proctor.sdk.protocol`); NO_MILESTONE: at none; None: what holds stays. A service may ignore it."""

    @property
    def must_continue(self) -> bool:
        """Whether the job must not begin at the start: its trial is to continue from another trial's checkpoint."""
        return must_continue(self.trial_id, (*self.checkpoints, *self.damaged))

    @property
    def passed_over(self) -> list[tuple[CheckpointOffer, str]]:
        """Checkpoints that `describe_start` names and counts before those that the service passes over."""
        return [(offer, offer.damage) for offer in self.damaged]

    @property
    def resume_checkpoint(self) -> str | None:
        """The path of the first checkpoint, if there is one."""
        return self.checkpoints[0].path if self.checkpoints else None


def updated(form: TrialJobForm, new: TrialJobForm) -> TrialJobForm:
    """The form of a live job with what can be changed of it as in another one."""
    milestone = form.milestone if new.milestone is None else new.milestone
    return replace(form, max_duration_seconds=new.max_duration_seconds, milestone=milestone)


@dataclass(frozen=True)
class TrialJobDetail:
    """What a service knows of a job. Times are aware UTC."""

    id: str
    status: TrialJobStatus
    form: TrialJobForm
    submit_time: datetime
    start_time: datetime | None = None
    end_time: datetime | None = None
    tags: tuple[str, ...] = ()
    url: str | None = None
    working_directory: str | None = None
    is_early_stopped: bool | None = None
    exit: Exit | None = None

    @property
    def sequence_id(self) -> int:
        """The trial's number within its experiment."""
        return self.form.sequence_id


@dataclass(frozen=True)
class JournalChunk:
    """Whole lines of a job's journal from byte `offset`; see `proctor.sdk.protocol` for the records."""

    job_id: str
    token: str
    member: int
    offset: int
    data: bytes
    started_at: float | None = None
    """Unix time at which the job's process began, where its start is reported together with the chunk."""
    after_loss: bool = False
    """What is not stored of the journal before `offset` is lost: it will not come any more."""

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + len(self.data)


@dataclass(frozen=True)
class StatusChange:
    """A job has moved, or (same status) the reason why it waits, or is stuck, has changed; `detail` is that
    reason, "" if there is none.

    `exit` is set when and only when `status` is ENDED. All journal chunks of a job are delivered before its end; they
    may be delivered before RUNNING is.
    """

    job_id: str
    token: str
    status: TrialJobStatus
    time: datetime
    detail: str = ""
    node_id: str | None = None
    pid: int | None = None
    exit: Exit | None = None
    start: JobStart | None = None
    """With RUNNING, and with SUBMITTED before the first metric is delivered: where it begins. None: with the first
    checkpoint of its form, if it has one."""


MetricListener = Callable[[Sequence[JournalChunk]], Awaitable[Mapping[tuple[str, int], int]]]
"""Awaited with chunks in order; returns the stored offset by (job id, member) once they are committed. May be given
the same bytes twice. A job id that is missing in the answer was refused (stale token or unknown job): the service
stops that job and forgets it."""

StatusListener = Callable[[Sequence[StatusChange]], Awaitable[None]]
"""Awaited with changes in order; returns once they are committed. May receive the same change more than once."""


class TrainingService(ABC):
    """Runs trial jobs somewhere. See the module's docstring for what every implementation keeps. It must be
    `SupportsEvents` too: the registry refuses one that is not."""

    @abstractmethod
    async def list_trial_jobs(self) -> list[TrialJobDetail]:
        """Every job that this instance knows, ended ones included until they were acknowledged."""

    @abstractmethod
    async def get_trial_job(self, job_id: str) -> TrialJobDetail:
        """One job. Raises UnknownTrialJob."""

    @abstractmethod
    def add_trial_job_metric_listener(self, listener: MetricListener) -> None:
        """Call `listener` with every journal chunk from now on."""

    @abstractmethod
    def remove_trial_job_metric_listener(self, listener: MetricListener) -> None:
        """Stop calling it. Removing one that was never added does nothing."""

    @abstractmethod
    async def submit_trial_job(self, form: TrialJobForm) -> TrialJobDetail:
        """Take a job; return quickly, do not wait for it to run.

        Idempotent by job id within one instance; with another token it raises SubmissionRefused. After a restart it is
        called only for jobs that were never submitted before. Raises SubmissionRefused when the job can never run, and
        ServiceUnavailable when it was not taken now. After that and after any other exception the trial waits, with
        this reason, and is submitted again with growing pauses, for as long as it takes; that costs it no retry.
        """

    @abstractmethod
    async def update_trial_job(self, job_id: str, form: TrialJobForm) -> TrialJobDetail:
        """Change what can be changed of a live job: `max_duration_seconds`, the `milestone` if it is known, and the
        parameters where multi-phase jobs are supported. Raises UnknownTrialJob. After any other exception it is called
        again, as is `cancel_trial_job`, as long as the job lives."""

    @property
    @abstractmethod
    def is_multi_phase_job_supported(self) -> bool:
        """Whether a running job can be given new parameters."""

    @abstractmethod
    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        """Begin to stop a job with all its processes; its end arrives as a status change. Idempotent; does not raise
        for an unknown or ended job. Returns without waiting for the end.

        On a service that is not `SupportsReattach` it is called after a restart for every job of the previous instance,
        before `run`: what can still be found of such a job must be ended. No status change is expected of it.
        """

    @abstractmethod
    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        """Change a setting of the running service (the keys are the service's own). Raises KeyError for an unknown
        key."""

    @abstractmethod
    async def get_cluster_metadata(self, key: str) -> Any:
        """Read a setting. Raises KeyError for an unknown key."""

    @abstractmethod
    async def clean_up(self) -> None:
        """Let go of everything that belongs to this experiment: no process, lock or temporary file of its jobs is left.
        Nodes, connections and keepers belong to the manager and stay. Called after `run` was canceled or before it
        began.

        It is owed until it has succeeded: when it raises, or the manager dies meanwhile, it is called again, on a new
        instance on which nothing else is called. Idempotent."""

    @abstractmethod
    async def run(self) -> None:
        """Serve until canceled. Delivers to the listeners.

        On cancellation the jobs of a service that is `SupportsReattach` keep running. Any other service ends its jobs
        before it returns, because nothing could find them again.
        """


class SupportsEvents(ABC):
    """A service that pushes status changes. Required: the engine never polls, so the job of a service without it would
    never be seen to run or to end, and the registry refuses such a service."""

    @abstractmethod
    def add_status_listener(self, listener: StatusListener) -> None:
        """Call `listener` with every status change from now on."""

    @abstractmethod
    def remove_status_listener(self, listener: StatusListener) -> None:
        """Stop calling it."""


class SupportsNotices(ABC):
    """A service that knows things about its platform that users should know and that are about no single job."""

    @abstractmethod
    def take_notices(self) -> Sequence[str]:
        """What is new since the last call, a sentence each. Asked at each placement; returns at once."""


class SupportsNodes(ABC):
    """A service whose jobs are placed by the manager on nodes of the manager-wide pool."""

    @abstractmethod
    def node_ids(self) -> tuple[str, ...]:
        """The nodes this experiment may use, in the order of preference. Asked at each placement; returns at once."""

    def job_folder(self) -> str:
        """The absolute path, on the nodes, of the folder that holds the directories of this experiment's jobs; "" if it
        is in the directories of their keepers."""
        return ""

    def gpu_rules(self, node_id: str) -> GpuRules:
        """How trials may use the GPUs of one of these nodes, under the settings of now. Asked at each placement, and
        after a restart also for a node that is no longer one of them; returns at once."""
        return GpuRules()

    def placement_strategy(self) -> Strategy:
        """Which node with room gets the next job, under the settings of now."""
        return Strategy.SPREAD


class SupportsLogs(ABC):
    """A service that can read a job's files."""

    @abstractmethod
    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a file of the job's directory from `offset` (negative: from the end).
        `path` is relative to it and may not leave it. Raises FileNotFoundError."""

    @abstractmethod
    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        """(relative path, size in bytes) of every file in the job's directory."""


class SupportsCheckpoints(ABC):  # noqa: B024 - it promises a behavior, not a method
    """A service that finds out by itself which of the checkpoints of its form the place of a job can read.

    The engine offers it several, also such that are not on the manager's machine. The service takes the first that
    `proctor.sdk.checkpoints.manifest.verify_checkpoint` finds whole, where the job will run or where it copies it from;
    one under a URL is verified by `stored_checkpoints.await_verified`. If there is none, the job begins at the
    start; one that must continue (`TrialJobForm.must_continue`) ends instead with LAUNCH_FAILED and
    `describe_refused_start`. It says which (`StatusChange.start`, put together by `describe_start`): with
    SUBMITTED, before it starts the job, because that decides where the curve of its metrics continues; and again with
    RUNNING.
    """


class SupportsCheckpointCopies(ABC):
    """A service whose jobs save their checkpoints on other machines, and that can copy them to the manager's."""

    @abstractmethod
    async def copy_checkpoint(self, form: TrialJobForm, path: str) -> None:
        """Copy a checkpoint of a job, which may be running, to where its path would be on the manager's machine, so
        that a later job can continue from it when its own node is lost.

        `path` is relative to the job's directory. Takes as long as the copy takes, and must not delay reports; may be
        canceled at any time. Idempotent. Raises ServiceUnavailable while the node is away: it may be called again;
        TrainingServiceError where it cannot be copied, as when the manager's disk is full.
        """


class SupportsCheckpointDeletion(ABC):
    """A service that can delete checkpoints. On one that cannot, all of them are kept."""

    @abstractmethod
    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        """Delete a checkpoint of a job, which may be running: everywhere the service has put a copy of it.

        That it is deleted was committed before, so no job is given it any longer. `path` is relative to the job's
        directory, output/checkpoints/<n>, or absolute where it is in a folder that the nodes share (checkpointStorage).
        It must never be found half removed. Idempotent; one that is not there is deleted already. May take as long as
        removing the files takes. Raises ServiceUnavailable while the job's node is away: it is called again later, also
        by the next manager (NoJobRuns is a notice besides, if it lasts); and TrainingServiceError, with what a person
        can do about it, where it cannot be deleted.
        """


class SupportsCollection(ABC):
    """A service that collects the files of jobs that are over, for which `clean_up` waits."""

    @abstractmethod
    def end_collection(self) -> None:
        """The experiment is about to be deleted: collect nothing from now on, and what is being collected no further,
        also in a `clean_up` that has begun. Idempotent; returns at once."""


@dataclass(frozen=True)
class SoftStop:
    """A stop that lets the trial save first."""

    reason: str  # a sentence for the trial
    save_seconds: float  # how long it may save before it is signaled, at most; its exit ends the wait
    only_if_able: bool  # no such time unless the trial has called `should_stop()` or has a checkpoint
    request: str = "stop"  # what comes after the stop: stop, pause, preempt or resize


class SupportsSoftStop(ABC):
    """A service that can ask a job to save before it stops it. One that cannot is asked to `cancel_trial_job`."""

    @abstractmethod
    async def cancel_softly(self, job_id: str, stop: SoftStop) -> None:
        """Ask a job to save and end, by control.json in its directory (`proctor.sdk.protocol`); stop it as
        `cancel_trial_job` does when the time is over. A platform that grants less time than `save_seconds` uses its
        own. Idempotent: asked again, the earlier of the two deadlines counts. `cancel_trial_job` ends the wait at once.
        Does nothing for an unknown or ended job. Returns without waiting for the end."""


class SupportsReattach(ABC):
    """A service whose jobs survive the manager and are found again by job id and token. Without it, jobs end with the
    instance that started them (see the module's docstring)."""

    @abstractmethod
    async def reattach(self, forms: Sequence[TrialJobForm], ended: Sequence[str]) -> None:
        """After a restart of the manager, before `run`: these jobs were given to the service and are not known to have
        ended; of `ended` the end is stored. Jobs that are found continue, those that never arrived are started as if
        submitted; what can no longer run ends with a status change."""
