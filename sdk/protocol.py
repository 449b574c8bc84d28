"""What a trial and its keeper agree on: the files of a job's directory, the journal's records, the environment.

A job's directory:

    parameter.json   written before the trial starts:
                     {"parameter_id", "parameter_source", "parameters", "parameter_index"}
    control.json     replaced atomically by the keeper: {"stop": bool, "reason": str}; read by `should_stop()`
    journal          appended to by the trial, one record a line; `journal.<rank>` for member `rank` > 0
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
    {"kind": "checkpoint", "path": "output/checkpoints/3", "with_metric": true, "step": 3, "time": …}
        path is relative to the job's directory; with_metric: whether it was reported together with the metric whose
        record is written just before it. Records of earlier versions do not say so, and have such a metric after them.
    {"kind": "lost", "count": 7, "time": …}
    {"kind": "lost", "why": "a sentence", "time": …}      (how many, or of what, is not counted)
        reports that could not be written (full disk). Of those that the trial could not record any more the keeper
        tells, behind the last byte of the journal, as if they stood there; so it does of a final in the reserve

An optional `"step"` is the step the user named. A record carries no number of its own: its identity is its byte
offset, and sequence numbers are derived by the reader.
"""

PROTOCOL_VERSION = 1

PARAMETER_FILE = "parameter.json"
CONTROL_FILE = "control.json"
JOURNAL_FILE = "journal"
STDOUT_FILE = "stdout"
STDERR_FILE = "stderr"
EXIT_FILE = "exit.json"
RESERVE_FILE = "reserve"
OUTPUT_FOLDER = "output"
CHECKPOINT_FOLDER = "output/checkpoints"

NNI_2_BARRIER = "output/.nni"
NNI_2_BARRIER_TARGET = "../parameter.json"
NNI_CHANNEL = "import://proctor.sdk.nni_channel.ProctorChannel"
"""Where NNI 3's own package reports to when it is imported instead of ours; without `proctor` it fails at once."""

MAX_RECORD_BYTES = 256 * 1024

KIND_INTERMEDIATE = "intermediate"
KIND_FINAL = "final"
KIND_CHECKPOINT = "checkpoint"
KIND_LOST = "lost"

# The environment of a trial. The NNI names (facts of NNI 3.0) are set beside ours, see `trial_environment`.
ENV_JOB_DIRECTORY = "PROCTOR_JOB_DIR"  # absolute path; its presence means "inside an experiment"
ENV_OUTPUT_DIRECTORY = "PROCTOR_OUTPUT_DIR"
ENV_EXPERIMENT_ID = "PROCTOR_EXPERIMENT_ID"
ENV_TRIAL_ID = "PROCTOR_TRIAL_ID"
ENV_JOB_ID = "PROCTOR_JOB_ID"  # also the tag by which the keeper finds stray processes of the job
ENV_SEQUENCE_ID = "PROCTOR_SEQUENCE_ID"
ENV_MEMBER = "PROCTOR_MEMBER"  # rank of this member of a distributed trial job, "0" otherwise
ENV_MEMORY_RESERVE = "PROCTOR_MEMORY_RESERVE"  # path of the reserve in the reaper's memory
ENV_RESUME_CHECKPOINT = "PROCTOR_RESUME_CHECKPOINT"  # absolute path of the checkpoint to continue from, or unset


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
