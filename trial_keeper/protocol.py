"""Messages between a keeper and the manager, and what both sides call the end of a job. REST over a Unix
socket or TLS.

The keeper always dials. Under `/api/v1/keepers/{node_id}/`:

    POST hello      {"nonce": hex}            → {"proof": hex}   the manager proves that it knows the node's secret
    POST register   Registration              → RegistrationAnswer
    POST commands   CommandPoll               → CommandBatch     held open until there is one, or `wait_seconds`
    POST report     ReportHeader as one JSON line, then the bytes of its chunks one after another → ReportAnswer
    POST answer     FileAnswer as one JSON line, then the bytes that were asked for → {}
    POST content    ContentRequest            → bytes of an archive that the keeper was asked to fetch

`proof` is HMAC-SHA256(secret, "manager:" + nonce); the keeper then sends "Authorization: Bearer <secret>". A session
begins with `register`; a manager that does not know the session answers 409 and the keeper registers again. Commands
are numbered within a session, and a poll with `cursor` n says that all up to n were carried out, written down, or are
refused: a command that the keeper cannot read is answered, too, with a `FileAnswer` or in the next report.
A keeper that was started for one job, and is not the first instance of it, is answered 410: it should leave.
Everything may be sent again: launches are idempotent by job id, chunks by (job, member, offset), exits by job id.
"""

import hashlib
import hmac
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

PROTOCOL_VERSION = 1

JsonObject = dict[str, Any]

_LEAST_NUMBER = -(2**63)
_MOST_NUMBER = 2**63 - 1


class EndReason(str, Enum):
    """Why a trial job ended. `manager/lifecycle/retries.py` says what each means for the trial."""

    EXITED_OK = "EXITED_OK"  # exit code 0
    EXITED_ERROR = "EXITED_ERROR"  # another exit code, or a signal of its own making (SIGSEGV, SIGABRT, …)
    OUT_OF_MEMORY = "OUT_OF_MEMORY"  # the kernel's OOM killer
    SIGNALED = "SIGNALED"  # killed by a signal from outside that we did not send
    DEADLINE = "DEADLINE"  # maxTrialDuration
    CANCELED = "CANCELED"  # stopped on the manager's command; the manager knows why and replaces it by one of these:
    EARLY_STOPPED = "EARLY_STOPPED"  # … the assessor or trial scheduler
    BUDGET_USED = "BUDGET_USED"  # … the trial scheduler, because it has used all that a trial may
    USER_CANCELED = "USER_CANCELED"  # … the user
    PAUSED = "PAUSED"  # … its trial was paused; runs again when it is resumed
    CLONED = "CLONED"  # … its trial continues from another trial's checkpoint, as its next job
    EXPERIMENT_STOPPED = "EXPERIMENT_STOPPED"  # … the experiment was stopped; runs again when it is resumed
    LAUNCH_FAILED = "LAUNCH_FAILED"  # could not be started: missing directory, unreadable environment
    EXIT_UNKNOWN = "EXIT_UNKNOWN"  # neither its process nor its exit record is there
    NODE_LOST = "NODE_LOST"  # its node has gone silent
    LEASE_EXPIRED = "LEASE_EXPIRED"  # the keeper had no manager for lease_seconds
    NO_ROOM = "NO_ROOM"  # before it began: its node's disk is full, or it has no processes or descriptors left
    RESULT_LOST = "RESULT_LOST"  # the manager's: it exited with 0, and its final metric is lost (full disk)
    CHECKPOINT_DAMAGED = "CHECKPOINT_DAMAGED"  # the manager's: what it was to continue from is not what was stored
    PREEMPTED = "PREEMPTED"  # the platform took its place away, others of the machine its GPUs, or the manager both
    UNPLACEABLE = "UNPLACEABLE"  # no node could ever hold it
    INFRASTRUCTURE = "INFRASTRUCTURE"  # anything else that is not the trial's fault


@dataclass(frozen=True)
class DeviceProcess:
    """A process that uses a device. `job_id` is set when it belongs to one of our jobs, or to one with a lease."""

    pid: int
    memory_mb: int
    job_id: str | None = None


@dataclass(frozen=True)
class Lease:
    """Who holds a share of a GPU on this machine, as its lock says: a job of any manager, of any user."""

    slot: int
    holder: str  # a phrase for people: "user, manager, experiment, trial"
    job_id: str | None
    pid: int | None
    since: str  # RFC 3339 UTC
    max_trials_per_gpu: int = 1  # how many the holder allows on this GPU, itself included


@dataclass(frozen=True)
class Device:
    """One GPU as NVML sees it. Memory in MiB, utilization in percent."""

    index: int
    uuid: str
    name: str
    memory_total_mb: int
    memory_used_mb: int
    utilization: int
    processes: list[DeviceProcess] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)


@dataclass(frozen=True)
class SystemLoad:
    """How busy a node is. Memory in MiB."""

    load: float  # the kernel's load average over a minute: processes that run, or wait for a processor or a disk
    cpus: int
    memory_used_mb: int  # without what the kernel would give back at once
    memory_total_mb: int


@dataclass(frozen=True)
class Exit:
    """How a job ended, from its exit.json. Times are Unix seconds; `detail` is a sentence for people.

    lost: how many of its reports could not be stored.
    lost_finals: the ranks that have reported a final metric of which nothing is stored.
    memory: only in exit.json, for the keeper: what the reserve in the reaper's memory holds.
    cpu_seconds: processor time of all its processes, as far as one of them or its reaper has waited for their end; None
        where it is not known.
    run_seconds: from its start to its end by a clock that nothing sets; None where it is not known, and from an older
        keeper: then the times tell, as far as the machine's clock was not set.
    verdict_seconds: for how many of them it waited for verdicts of a trial scheduler.
    """

    reason: EndReason
    code: int | None
    signal: int | None
    started_at: float
    ended_at: float
    detail: str = ""
    lost: int = 0
    lost_finals: list[int] = field(default_factory=list)
    memory: str = ""
    cpu_seconds: float | None = None
    run_seconds: float | None = None
    verdict_seconds: float = 0.0


@dataclass(frozen=True)
class JobReport:
    """A job that is on the node, as reported at registration. `sizes` are the journals' sizes by member."""

    job_id: str
    token: str
    pid: int | None
    started_at: float
    sizes: dict[str, int] = field(default_factory=dict)
    exit: Exit | None = None
    experiment_id: str = ""  # whose it is; "" from an older keeper


@dataclass(frozen=True)
class Registration:
    """Who the keeper is, what its node has, and what is already there."""

    keeper_id: str  # new for every keeper process
    pid: int
    boot_id: str
    hostname: str
    version: str
    python: str
    devices: list[Device]
    jobs: list[JobReport]
    driver_note: str = ""  # why there are no devices, said once
    full: dict[str, str] = field(default_factory=dict)  # as in a report
    commands: list[str] = field(default_factory=list)  # the types it understands; none from an older keeper
    instance: str = ""  # of a keeper that was started for one job: which one of it this is, such as the uid of its pod
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class RegistrationAnswer:
    """`offsets[job_id][member]` is how far each journal is stored. `unknown` jobs are not the manager's: stop them,
    forget them."""

    session: str
    offsets: dict[str, dict[str, int]]
    unknown: list[str]
    heartbeat_seconds: float = 5.0


@dataclass(frozen=True)
class GpuSlot:
    """A share of one GPU: `slot` counts from 0 to maxTrialNumberPerGpu - 1."""

    uuid: str
    slot: int


@dataclass(frozen=True)
class Launch:
    """Start a job. Idempotent. A path that is not absolute is relative to the keeper's
    directory, so that a manager need not know where that is."""

    job_id: str
    token: str
    experiment_id: str
    trial_id: str
    sequence_id: int
    directory: str  # path of the job's directory
    command: str  # run by bash
    code_directory: str  # the working directory
    parameter_file: str  # the text of parameter.json
    environment_file: str | None  # absolute path of a 0600 JSON file with the captured environment
    platform: str = "local"
    environment: dict[str, str] = field(default_factory=dict, repr=False)  # laid over it; may hold credentials
    gpus: list[GpuSlot] | None = None  # None: unmanaged; []: CUDA_VISIBLE_DEVICES is empty
    max_duration_seconds: float | None = None
    resume_checkpoint: str | None = None
    lease_seconds: float | None = None
    holder: str = ""  # "user manager experiment trial", shown to others who want its GPUs
    max_trials_per_gpu: int = 1  # how many trials it allows on each of its GPUs, itself included
    search_path: str = ""  # a directory to put first on PATH
    milestone: int | None = None  # the step at whose report the trial waits for control.json to change; as in Update


@dataclass(frozen=True)
class Cancel:
    """Ask a job to stop: control.json, `save_seconds`, SIGTERM, `grace_seconds`, SIGKILL until nothing of it is left.
    Idempotent; a later one may shorten both times, never prolong them."""

    job_id: str
    token: str
    grace_seconds: float = 5.0
    request: str = "stop"  # what comes after the stop: stop, pause, preempt or resize
    reason: str = ""  # a sentence for the trial
    save_seconds: float = 0.0  # how long the trial may save before SIGTERM, at most; its exit ends the wait
    only_if_able: bool = False  # no time to save unless the trial has called should_stop() or has a checkpoint


@dataclass(frozen=True)
class Update:
    """A job's duration limit (None: no limit), which counts from the job's start, or its milestone has changed."""

    job_id: str
    token: str
    max_duration_seconds: float | None
    milestone: int | None = None  # the step at whose report its trial waits; NO_MILESTONE: none; None: stays as it is

    def applied_to(self, launch: Launch) -> Launch:
        """The launch with what this changes."""
        milestone = launch.milestone if self.milestone is None else self.milestone
        return replace(launch, max_duration_seconds=self.max_duration_seconds, milestone=milestone)


@dataclass(frozen=True)
class Shutdown:
    """The keeper must stop when it has no jobs."""


@dataclass(frozen=True)
class ListFiles:
    """Answer `request` with the regular files below `folder` (links are not followed), by path, of those after the
    path `after` the first ones."""

    request: str
    folder: str
    after: str = ""


@dataclass(frozen=True)
class ReadFile:
    """Answer `request` with at most `limit` bytes of a file of `folder` from `offset` (negative: from the end).
    `path` is relative to the folder and may not leave it, by a link neither."""

    request: str
    folder: str
    path: str
    offset: int
    limit: int


@dataclass(frozen=True)
class ReadFiles:
    """Answer `request` with the beginnings of small files of `folder`, each up to `limit` bytes, one after another;
    the answer's `files` say how many bytes each has. Those that are not there are left out."""

    request: str
    folder: str
    paths: list[str]
    limit: int


@dataclass(frozen=True)
class VerifyCheckpoint:
    """Answer `request` with what keeps a trial from continuing from the checkpoint in `folder`, wherever that is. All
    of it is read.

    manifest: the SHA-256 of its manifest, as it was registered; None: it was saved without one.
    """

    request: str
    folder: str
    manifest: str | None


@dataclass(frozen=True)
class ProbeStorage:
    """Answer `request` with what keeps the trials of an experiment on this node from storing checkpoints in `folder`,
    which may be a URL: their interpreter is asked then, in their environment.

    launch: of one of its jobs.
    mark: the name of a file in the folder; the answer says whether that is there.
    makes_mark: make it. Never under a URL.
    """

    request: str
    folder: str
    launch: Launch
    mark: str = ""
    makes_mark: bool = False


@dataclass(frozen=True)
class RemoveFolder:
    """Remove a folder below the keeper's directory with all that is in it, and answer `request`. One that is not there
    is allowed; one in which a job still runs is left, with an error."""

    request: str
    folder: str


@dataclass(frozen=True)
class RemoveCheckpoint:
    """Delete a checkpoint of a job, which may be running, and answer `request`: `folder` is the path of
    output/checkpoints/<n> in the job's directory, or of a checkpoint in the experiment's storage. It loses its name at
    once, so that no process finds half of it. One that is not there is deleted already; one that a running job
    continues from is left, with an error."""

    request: str
    folder: str


@dataclass(frozen=True)
class FetchArchive:
    """Have the .tar.gz with this SHA-256 and size (of the file) unpacked as `folder`, below the keeper's directory, and
    answer `request`. Its bytes are what `content` answers, a piece at a time. The folder appears whole or not at all;
    one that is there already is not fetched again."""

    request: str
    folder: str
    sha256: str
    size: int


KeeperCommand = Launch | Cancel | Update | Shutdown
"""What a keeper must do with a job, or with itself."""
FileRequest = (
    ListFiles | ReadFile | ReadFiles | VerifyCheckpoint | ProbeStorage | RemoveFolder | RemoveCheckpoint | FetchArchive
)
"""A command that is answered, with a `FileAnswer`."""
COMMAND_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(KeeperCommand | FileRequest)}


@dataclass(frozen=True)
class CommandPoll:
    """`cursor`: the number of the last command that was taken."""

    session: str
    cursor: int
    wait_seconds: float = 25.0


@dataclass(frozen=True)
class Command:
    """A numbered command. `order` is its body, `type` the name of that in `COMMAND_TYPES`."""

    number: int
    type: str
    order: JsonObject


@dataclass(frozen=True)
class CommandBatch:
    """The commands after the cursor, in order; empty when the wait was over."""

    commands: list[Command]


@dataclass(frozen=True)
class Chunk:
    """`length` bytes of whole lines of a journal, from byte `offset`. Its bytes follow the header, in the order of
    the chunks."""

    job_id: str
    token: str
    member: str
    offset: int
    length: int


@dataclass(frozen=True)
class Start:
    """A job's process is running."""

    job_id: str
    token: str
    pid: int
    started_at: float


@dataclass(frozen=True)
class End:
    """A job has ended; all of its journal has been sent, in this report at the latest."""

    job_id: str
    token: str
    exit: Exit


@dataclass(frozen=True)
class RefusedCommand:
    """A command about a job, which the keeper cannot read, and why, as a clause. It was not carried out."""

    job_id: str
    token: str
    type: str
    reason: str


@dataclass(frozen=True)
class ReportHeader:
    """What the keeper has to say. `devices` is None when nothing has changed. An empty report is a heartbeat."""

    session: str
    chunks: list[Chunk] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    devices: list[Device] | None = None
    disk_free_mb: int | None = None
    notes: list[str] = field(default_factory=list)  # sentences for the node's page: what is wrong on this node
    full: dict[str, str] = field(default_factory=dict)
    """Where no jobs can be started for lack of room, processes or descriptors, and why, as clauses: by absolute path of
    a folder in which the directories of jobs are; "" stands for the keeper's own directory, and so for the node."""
    # keepers of earlier versions use this name for what is called `suspended` elsewhere
    stopped: dict[str, str] = field(default_factory=dict)
    """What is stuck because a process of the keeper is suspended, and what to do, as clauses: by job id; ""
    stands for all jobs that are to be started."""
    system: SystemLoad | None = None  # None where it cannot be read, and from an older keeper
    refused: list[RefusedCommand] = field(default_factory=list)  # an older keeper only writes them to its log
    waiting: dict[str, str] = field(default_factory=dict)
    """Which trials stand still until their trial scheduler has decided, as clauses by job id; none from an older
    keeper."""


@dataclass(frozen=True)
class FileFacts:
    """A regular file: its path relative to the folder that was asked about, its size in bytes and its modification
    time (Unix seconds)."""

    path: str
    size: int
    modified: float = 0.0


@dataclass(frozen=True)
class FileAnswer:
    """The answer to a `FileRequest`; the bytes that were read follow it. `error` is a sentence, empty if all went well;
    `missing`: what was asked for is not there; `passing`: the machine has no descriptors left, ask again; `more`: there
    are files after these, ask again; `damage`: why no trial must continue from a checkpoint or can store one, as a
    clause, empty if nothing is wrong; `has_mark`: whether the mark of a `ProbeStorage` is there, None where the keeper
    cannot tell, and from an older one."""

    session: str
    request: str
    error: str = ""
    missing: bool = False
    files: list[FileFacts] = field(default_factory=list)
    more: bool = False
    damage: str = ""
    passing: bool = False
    has_mark: bool | None = None


@dataclass(frozen=True)
class ContentRequest:
    """Ask for the bytes of an archive from `offset` on, as many as the manager sends at once: at least one where there
    are any. Only an archive that a `FetchArchive` names which was not answered yet."""

    session: str
    sha256: str
    offset: int


@dataclass(frozen=True)
class Acknowledgement:
    """A journal is stored up to `offset`."""

    job_id: str
    member: str
    offset: int


@dataclass(frozen=True)
class ReportAnswer:
    """`ended`: ends that are stored, the keeper may forget these jobs. `fenced`: the token is stale: stop and
    forget. `pause_seconds`: how long what is not urgent (more of a journal) must wait to be sent with other reports; it
    grows with the number of nodes."""

    acknowledged: list[Acknowledgement]
    ended: list[str]
    fenced: list[str]
    pause_seconds: float = 0.0


def manager_proof(secret: str, nonce: str) -> str:
    """What a manager that knows `secret` answers to `nonce` (hex HMAC-SHA256)."""
    return hmac.new(secret.encode(), b"manager:" + nonce.encode(), hashlib.sha256).hexdigest()


T = TypeVar("T")


def to_json(message: Any) -> JsonObject:
    """A message as a JSON object."""
    return asdict(message)


def from_json(kind: type[T], body: Any) -> T:
    """The message of this kind in a JSON object. Unknown keys are ignored (newer peers); missing ones raise
    TypeError, values of the wrong type or size TypeError or ValueError that name the field."""
    hints = _field_hints(kind)  # type: ignore[arg-type]
    values = {}
    for name, value in body.items():
        if name in hints:
            try:
                values[name] = _read(hints[name], value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from None
    return kind(**values)


def why_unreadable(message: Any) -> str:
    """Why the other side could not read a message, as a clause; "" if it can."""
    try:
        from_json(type(message), to_json(message))
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


@cache
def _field_hints(kind: Any) -> dict[str, Any]:
    """The annotations of a message's fields; looking them up costs more than reading a message."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _read(hint: Any, value: Any) -> Any:
    """`value` as the annotation `hint` wants it: nested messages, lists of them, enums, plain values.

    Raises TypeError or ValueError for anything else: what the other side says is not believed without a look.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (hint,) = (option for option in arguments if option is not NoneType)
        return _read(hint, value)
    if origin is list and isinstance(value, list):
        return [_read(arguments[0], element) for element in value]
    if origin is dict and isinstance(value, dict):
        return {key: _read(arguments[1], element) for key, element in value.items()}
    if is_dataclass(hint) and isinstance(value, dict):
        return from_json(hint, value)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if value.__class__ is hint or (hint is float and value.__class__ is int):
        if value.__class__ in (int, float) and not _LEAST_NUMBER <= value <= _MOST_NUMBER:  # nor NaN
            raise ValueError(f"expected a number that can be stored, found {str(value)[:30]}")
        return value
    raise TypeError(f"expected {getattr(hint, '__name__', hint)}, found {type(value).__name__}")
