"""What a trial and its keeper agree on: the files of a job's directory, the journal's records, the environment.

A job's directory:

    parameter.json   written before the trial starts:
                     {"parameter_id", "parameter_source", "parameters", "parameter_index"}
    control.json     replaced atomically by the keeper. When the job is to stop; read by `should_stop()`:
                     {"stop": true, "reason": str, "request": "stop" | "pause" | "preempt" | "resize",
                      "deadline": Unix time at which SIGTERM is sent, "until": the same as a moment (`JobTime`)};
                     keepers of earlier versions wrote the first two, or the first four.
                     Before, where a trial scheduler judges the trial:
                     {"milestone": int}, the step at whose report the trial waits until the file names a later one,
                     none, or a stop; {} for none
    verdict-waits    how long the trial has waited for verdicts (`JobTime`); locked while it waits
    can-save         empty; made by the trial at its first `should_stop()`: it will notice control.json, so a soft
                     stop gives it time to save
    journal          appended to by the trial, one record a line; `journal.<rank>` by the processes of a `rank` > 0
    stdout, stderr   the trial's own output
    exit.json        written by rename by the reaper when the trial has ended; its room is allocated as exit.json.new
                     before the trial starts
    reserve          room for what a full disk does not take (`reserve`); removed when the trial has ended
    output/          the trial's files ($PROCTOR_OUTPUT_DIR = $NNI_OUTPUT_DIR); checkpoints in output/checkpoints/<n>/
    output/.nni      a link to parameter.json: NNI 2's own package, which wants a folder of this name, fails when it is
                     imported instead of ours; it would wait forever

A journal record is one JSON object on one line, at most `MAX_RECORD_BYTES` long, appended by one `write`:

    {"kind": "intermediate", "value": 0.5, "time": 1764000000.5}
        value: a number, "NaN", "Infinity", "-Infinity", or any JSON value
    {"kind": "final", "value": {"default": 0.5, "loss": 1.2}, "time": …}
    {"kind": "checkpoint", "path": "output/checkpoints/3", "with_metric": true, "bytes": 1048576, "manifest": SHA-256,
     "step": 3, "time": …}
        path is relative to the job's directory; with_metric: whether it was reported together with the metric whose
        record is written just before it. Records of earlier versions do not say so, and have such a metric after them.
        bytes: the size of all its files; manifest: the SHA-256, in hexadecimal, of its manifest
        (`proctor.sdk.checkpoints.saving`). Records of earlier versions have neither
    {"kind": "lost", "count": 7, "time": …}
    {"kind": "lost", "why": "a sentence", "time": …}      (how many, or of what, is not counted)
    {"kind": "lost", "why": "a sentence", "damaged": "s3://…", "time": …}  (the checkpoint that the job was handed)
        reports that could not be written (full disk). Of those that the trial itself could no longer record the keeper
        tells, behind the last byte of the journal, as if they stood there; so it does of a final in the reserve
    {"kind": "unjudged", "step": 27, "waited": 600.0, "time": …}
        the trial has waited so many seconds at this milestone, in vain, and trains past it without a verdict

An optional `"step"` is the step the user named. `"time"` is Unix time, for people. `"seconds"` is how long the job had
run by a clock that nothing sets, without its waits for verdicts (`JobTime`); records of earlier versions, and of
processes on another machine than the job's keeper, have none. A record carries no number of its own: its identity is
its byte offset, and sequence numbers are derived by the reader.
"""

from time import clock_gettime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOL_VERSION = 1

PARAMETER_FILE = "parameter.json"
CONTROL_FILE = "control.json"
CAN_SAVE_FILE = "can-save"
JOURNAL_FILE = "journal"
STDOUT_FILE = "stdout"
STDERR_FILE = "stderr"
EXIT_FILE = "exit.json"
RESERVE_FILE = "reserve"
WAITS_FILE = "verdict-waits"
"""For how many seconds a job has waited for verdicts, since when it waits now, by `boot_time` (0: it does not), and for
how many seconds at most."""
MAX_WAITS_BYTES = 128
MAX_VERDICT_SECONDS = 7 * 86400.0
OUTPUT_FOLDER = "output"
CHECKPOINT_FOLDER = "output/checkpoints"

NNI_2_BARRIER = "output/.nni"
NNI_2_BARRIER_TARGET = "../parameter.json"
NNI_CHANNEL = "import://proctor.sdk.compat.nni_channel.ProctorChannel"
"""Where NNI 3's own package reports to when it is imported instead of ours; without `proctor` it fails at once."""

MAX_RECORD_BYTES = 256 * 1024

NO_MILESTONE = -1
"""In messages to a keeper: the trial waits at no step. Steps count from 0 or 1."""

KIND_INTERMEDIATE = "intermediate"
KIND_FINAL = "final"
KIND_CHECKPOINT = "checkpoint"
KIND_LOST = "lost"
KIND_UNJUDGED = "unjudged"

# The environment of a trial. The NNI names (facts of NNI 3.0) are set beside ours, see `trial_environment`.
ENV_JOB_DIRECTORY = "PROCTOR_JOB_DIR"  # absolute path; its presence means "inside an experiment"
ENV_OUTPUT_DIRECTORY = "PROCTOR_OUTPUT_DIR"
ENV_EXPERIMENT_ID = "PROCTOR_EXPERIMENT_ID"
ENV_TRIAL_ID = "PROCTOR_TRIAL_ID"
ENV_JOB_ID = "PROCTOR_JOB_ID"  # also the tag by which the keeper finds stray processes of the job
ENV_SEQUENCE_ID = "PROCTOR_SEQUENCE_ID"
ENV_MEMBER = "PROCTOR_MEMBER"  # rank of a process that no launcher has given one, "0" unless the job is distributed
ENV_INHERITED_LAUNCHES = "PROCTOR_INHERITED_LAUNCHES"  # `describe_launches` of the trial's start, or unset
ENV_JOB_STARTED = "PROCTOR_JOB_STARTED"  # the moment at which the job's process was started, set by its reaper
ENV_MEMORY_RESERVE = "PROCTOR_MEMORY_RESERVE"  # path of the reserve in the reaper's memory
ENV_CHECKPOINT_QUOTA = "PROCTOR_CHECKPOINT_QUOTA_MB"  # what all checkpoints of the experiment may take, or unset
ENV_CHECKPOINT_STORAGE = "PROCTOR_CHECKPOINT_STORAGE"  # folder or URL below which this job stores its own, or unset
ENV_RESUME_CHECKPOINT = "PROCTOR_RESUME_CHECKPOINT"  # path or URL of the checkpoint to continue from, or unset
ENV_JUDGED_RANK = "PROCTOR_JUDGED_RANK"  # the rank whose reports a trial scheduler judges, or unset: nothing waits
ENV_VERDICT_SECONDS = (
    "PROCTOR_VERDICT_SECONDS"  # how long a report waits for a verdict at most; from older managers none
)
ENV_CURVE_POINTS = "PROCTOR_CURVE_POINTS"  # how many points the trial's curve has where this job continues it, or unset

_CLOCK_BOOTTIME = 7  # Python names it on Linux only
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_boot_id = ""

# Of each launcher: the variables of the rank and the number of processes, and those that distinguish its launches.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),  # torchrun, accelerate, DeepSpeed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"),  # srun
    ("LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),  # Lightning, on one node
)


def find_rank(environment: "Mapping[str, str]") -> int:
    """Return the rank of a process among those of its trial job, by which its journal is named.

    It is what a launcher below the trial's start says; one that the trial itself was started by (`proctor create` in a
    Slurm step, for example) is recorded in the environment and does not count. Without a launcher it is the member.
    """
    inherited = environment.get(ENV_INHERITED_LAUNCHES, "").split(";")
    for names in _LAUNCHERS:
        rank = _launched_rank(environment, names)
        if rank is not None and _describe_launch(environment, names) not in inherited:
            return rank
    member = environment.get(ENV_MEMBER, "")
    return int(member) if member.isdecimal() else 0


def describe_launches(environment: "Mapping[str, str]") -> str:
    """Return what distinguishes the launches that an environment comes from from later ones; "" if there are none."""
    found = [names for names in _LAUNCHERS if _launched_rank(environment, names) is not None]
    return ";".join(_describe_launch(environment, names) for names in found)


def is_url(place: str) -> bool:
    """Return whether a place of checkpoints is a URL for fsspec and not a folder."""
    return "://" in place


def checkpoint_place(job_directory: str, path: str) -> str:
    """Return where a registered checkpoint is: its `path` is relative to the job's directory unless it was stored in
    the experiment's storage, of which it is the absolute path or the URL."""
    return path if path.startswith("/") or is_url(path) else f"{job_directory}/{path}"


def journal_name(rank: int) -> str:
    """Return the name of a rank's journal in the job's directory."""
    return f"{JOURNAL_FILE}.{rank}" if rank else JOURNAL_FILE


def _launched_rank(environment: "Mapping[str, str]", names: "tuple[str, ...]") -> "int | None":
    """The rank, if the variables are those of a launcher and not something else of the same name."""
    rank, size = environment.get(names[0], ""), environment.get(names[1], "")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        return None
    if "NODE_RANK" in names and environment.get("NODE_RANK", "0") != "0":  # a local rank is no rank there
        return None
    return int(rank)


def _describe_launch(environment: "Mapping[str, str]", names: "tuple[str, ...]") -> str:
    return ",".join(f"{name}={environment.get(name, '')}" for name in names)


def trial_environment(
    *,
    experiment_id: str,
    trial_id: str,
    job_id: str,
    sequence_id: int,
    job_directory: str,
    code_directory: str,
    platform: str,
    resume_checkpoint: str | None = None,
) -> dict[str, str]:
    """Everything a trial's environment gets from us, NNI's variables included; GPUs are added by the keeper."""
    output = f"{job_directory}/{OUTPUT_FOLDER}"
    environment = {
        ENV_JOB_DIRECTORY: job_directory,
        ENV_OUTPUT_DIRECTORY: output,
        ENV_EXPERIMENT_ID: experiment_id,
        ENV_TRIAL_ID: trial_id,
        ENV_JOB_ID: job_id,
        ENV_SEQUENCE_ID: str(sequence_id),
        ENV_MEMBER: "0",
        "NNI_PLATFORM": platform,
        "NNI_EXP_ID": experiment_id,
        "NNI_TRIAL_JOB_ID": trial_id,
        "NNI_TRIAL_SEQ_ID": str(sequence_id),
        "NNI_SYS_DIR": output,
        "NNI_OUTPUT_DIR": output,
        "NNI_CODE_DIR": code_directory,
        "NNI_TRIAL_COMMAND_CHANNEL": NNI_CHANNEL,
        "MULTI_PHASE": "false",
    }
    if resume_checkpoint is not None:
        environment[ENV_RESUME_CHECKPOINT] = resume_checkpoint
    return environment


# ---- how long a job has run, by a clock that nothing sets: from the machine's boot, also while it is suspended. A
# moment of it means nothing on another machine or after another boot, so it is written together with the boot's id.


def boot_time() -> float:
    """Return the seconds since the machine's boot, those in which it was suspended included."""
    return clock_gettime(_CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the id of this boot of the machine; moments and process identities mean nothing across boots. A process
    reads it once: it lives in one boot, and may have no descriptors left later."""
    global _boot_id
    if not _boot_id:
        with open(_BOOT_ID_FILE, encoding="ascii") as file:
            _boot_id = file.read().strip()
    return _boot_id


def write_moment(at: float) -> str:
    """Return a moment of this boot as text."""
    return f"{boot_id()} {at:.6f}"


def read_moment(text: str) -> "float | None":
    """Return the boot time of a moment; None for one of another boot or machine, and for what is no moment."""
    boot, _, at = text.partition(" ")
    try:
        return float(at) if boot == boot_id() else None
    except (OSError, ValueError):
        return None


def read_waits(data: bytes, now: float) -> float:
    """Return for how many seconds a job has waited for verdicts by boot time `now`; 0 for what is no such file. A wait
    counts as over when it has lasted as long as it may: its process may have been killed, and the job continue."""
    waited, since, longest = _parse_waits(data)
    seconds = waited + (max(0.0, min(now - since, longest)) if since else 0.0)
    return seconds if 0.0 <= seconds < now else 0.0  # a trial may write there what it likes


def read_wait(data: bytes, now: float) -> "tuple[float, float]":
    """Return for how many seconds a job waits for a verdict by boot time `now`, and how long it may; zeros if it does
    not, or no longer may."""
    _, since, longest = _parse_waits(data)
    is_waiting = 0.0 < since <= now < since + longest <= now + MAX_VERDICT_SECONDS
    return (now - since, longest) if is_waiting else (0.0, 0.0)


def _parse_waits(data: bytes) -> "tuple[float, float, float]":
    try:
        waited, since, longest = (float(word) for word in data.split())
    except ValueError:
        return 0.0, 0.0, 0.0
    return waited, since, longest
