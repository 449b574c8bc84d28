"""What the REST API answers; `requests` has what it takes, `errors` how it fails."""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from proctor.manager.api.json_types import PARAMETERS_EXAMPLE, Json, JsonObject, Number, Time
from proctor.manager.config.objective import Direction
from proctor.manager.field_docs import DescribedFields
from proctor.manager.lifecycle.checkpoints import KeepReason
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind, PausedBy
from proctor.sdk.json_input import clean_text
from proctor.training_services.base import EndReason, TrialJobStatus
from proctor.training_services.providers import CheckVerdict

T = TypeVar("T")


class Resource(DescribedFields, BaseModel):
    """What every resource has in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _clean_text(cls, fields: Any) -> Any:
        """No text may keep a list from being answered; that of JSON values is cleaned when it is serialized."""
        if not isinstance(fields, dict):
            return fields
        unclean: dict[str, Any] = {}
        for name, value in fields.items():
            if isinstance(value, str):
                if not value.isascii():
                    unclean[name] = clean_text(value)
            elif isinstance(value, list) and any(isinstance(each, str) and not each.isascii() for each in value):
                unclean[name] = [clean_text(text) if isinstance(text, str) else text for text in value]
        return {**fields, **unclean} if unclean else fields


class Page(Resource, Generic[T]):
    """One page of a list. Ask again with `cursor=next_cursor` until it is null."""

    items: list[T]
    next_cursor: str | None = None


class Best(Resource):
    """The best trial so far."""

    trial_id: str = Field(examples=["p3kV9xQa"])
    sequence_id: int = Field(examples=[17])
    value: Number = Field(examples=[0.982])
    """Its final metric."""
    parameters: Json = Field(examples=[PARAMETERS_EXAMPLE])


class Objective(Resource):
    """What an experiment optimizes."""

    metric: str = Field(examples=["default"])
    """The key of a reported mapping that holds the number; a metric that is just a number is that number."""
    direction: Direction = Field(examples=["maximize"])
    """Which values are better: for the algorithms, `best`, the curve of the best and the page."""


class UnusableMachine(Resource):
    """A machine that gets no trials of an experiment now."""

    node_id: str = Field(examples=["gpu-3"])
    reason: str = Field(examples=["node gpu-3 is failed: no route to host; tried again in 8 s"])


class Machines(Resource):
    """Which of the machines that an experiment names can be used now."""

    total: int = Field(examples=[7])
    pending: list[str] = Field(examples=[["gpu-1"]])
    """Nodes that are being connected."""
    unusable: list[UnusableMachine]
    never: str = Field(examples=["needs 1 GPU, node local has no GPU"])
    """Why no trial can ever run on any of them; empty if one may."""


class Usage(Resource):
    """What trial jobs have used."""

    gpu_hours: float = Field(examples=[3.25])
    """Time from start to end (of a job that runs, to now) × GPUs. A share of a GPU that n trials may share counts 1/n;
    jobs for which GPUs are not managed count none."""
    cpu_hours: float = Field(examples=[11.5])
    """Processor time of all processes of the jobs that have ended."""
    unmeasured_jobs: int = Field(default=0, examples=[0])
    """How many of the jobs are missing in `cpu_hours`: they still run, or could not be measured. Where it is
    not 0, `cpu_hours` is a lower bound."""


class Experiment(Resource):
    """One search: a space, a tuner, a budget and its trials."""

    id: str = Field(examples=["Ab3dE5f7"])
    name: str = Field(examples=["digits"])
    status: ExperimentStatus
    reason: str = Field(examples=["max trial number 24 is reached"])
    """Why it is in this status; while it cannot be loaded or nothing can be written (a full disk), what is in the way;
    while it is STOPPING, the machines whose trials it waits for."""
    error: str = ""
    """The whole traceback when `status` is ERROR."""
    config: JsonObject = Field(examples=[{"trial_command": "python trial.py", "trial_concurrency": 2}])
    """The configuration as it was understood, without secrets."""
    search_space: Json = Field(examples=[{"lr": {"_type": "loguniform", "_value": [0.0001, 0.1]}}])
    """The current search space."""
    trial_concurrency: int = Field(examples=[2])
    max_trial_number: int | None = Field(examples=[24])
    """null: no limit."""
    max_experiment_duration_seconds: float | None = Field(examples=[3600.0])
    """null: no limit."""
    max_trial_duration_seconds: float | None = Field(examples=[600.0])
    """null: no limit."""
    max_gpu_hours: float | None = Field(default=None, examples=[100.0])
    """null: no limit."""
    tags: list[str] = Field(default_factory=list, examples=[["baseline", "paper"]])
    archived: bool = False
    """Whether lists leave it out once it has ended, unless they are asked for it."""
    priority: int = Field(default=0, examples=[5])
    """Free GPUs go to the experiment with the higher priority first. `preemptible` is in its configuration."""
    rules: int = Field(examples=[2])
    """The version of the rules by which built-in algorithms decide: the one that was current when it was created."""
    usage: Usage
    trial_counts: dict[TrialStatus, int] = Field(examples=[{"SUCCEEDED": 9, "RUNNING": 2}])
    """How many trials are in each status; a status without trials is left out."""
    failure: str = Field(
        default="", examples=["none of 12 trials has succeeded; 9 of 12 ended with: exit code 1: ValueError: lr"]
    )
    """Where trials have ended and none has succeeded: how many, and the most frequent reason among the newest 100."""
    best: Best | None = None
    """null until a trial has ended with a final metric that is a finite number."""
    no_best_reason: str = Field(
        default="",
        examples=["no final metric is a finite number that could be compared; trial 3 reported NaN"],
    )
    """Why there is no best trial, if there is none."""
    objective: Objective
    """Decided when it was created: by `objective` of its configuration, else by NNI's optimize_mode, else by the
    tuner's default."""
    created_at: Time
    started_at: Time | None = None
    ended_at: Time | None = None
    active_seconds: float = Field(examples=[93.5])
    """How long it has run, up to now: the time in which trials were created or waited for, without pauses and stops."""
    directory: str = Field(examples=["/home/ada/.local/state/proctor/experiments/Ab3dE5f7"])
    """Its folder on the manager's machine."""
    url: str = Field(examples=["http://127.0.0.1:8080/experiments/Ab3dE5f7"])
    """Its page."""
    machines: Machines | None = None
    """Of an active experiment whose platform's machines are known: which of them can be used. Any problem is in
    `reason`, too."""
    notices: list[str] = Field(default_factory=list)
    """The newest messages that are not errors: keys that do less than they seem to, code that has changed."""


class Trial(Resource):
    """One set of parameters being evaluated."""

    id: str = Field(examples=["p3kV9xQa"])
    experiment_id: str = Field(examples=["Ab3dE5f7"])
    sequence_id: int = Field(examples=[17])
    """Its number in the experiment, from 0."""
    status: TrialStatus
    reason: str = ""
    """Why it is in this status."""
    parameters: Json = Field(examples=[PARAMETERS_EXAMPLE])
    """An object; a tuner of the user's may propose any other JSON value."""
    parameter_id: int = Field(examples=[17])
    source: str = Field(examples=["algorithm"])
    """Where it comes from: algorithm, customized (a user), retry or clone."""
    origin_trial_id: str | None = None
    """The trial that it was cloned or retried from."""
    origin_job_id: str | None = None
    """The job whose checkpoint it began with, if it did."""
    origin_checkpoint: str | None = Field(default=None, examples=["/home/ann/.proctor/experiments/…/checkpoints/3"])
    """The checkpoint itself: an absolute path on its node, or a URL."""
    paused_by: PausedBy | None = None
    """Who has paused it, or is pausing it. Only that one has it run again: a user (USER), a user who has paused its
    experiment together with its trials (EXPERIMENT), or its trial scheduler (SCHEDULER). null: it is not paused."""
    jobs: int = Field(examples=[1])
    """How often it was started."""
    node_id: str | None = Field(default=None, examples=["local"])
    """Where its newest job runs or ran."""
    final_value: Number | None = Field(default=None, examples=[0.982])
    """The number of its final metric."""
    final_data: Json = None
    """The final metric as it was reported."""
    latest_value: Number | None = Field(default=None, examples=[0.982])
    """The number of its last intermediate metric."""
    intermediate_count: int = 0
    usage: Usage
    run_seconds: float | None = Field(default=None, examples=[61.5])
    """Seconds for which its jobs have run, one after another; null before the first one begins."""
    created_at: Time
    started_at: Time | None = None
    ended_at: Time | None = None
    directory: str
    """Its folder on the manager's machine."""


class TrialDecision(Resource):
    """What the trial scheduler has decided of a trial: that it runs again."""

    kind: DecisionKind
    """resume: as it was; clone: from a checkpoint of another trial, with parameters made from that one's."""
    reason: str = Field(default="", examples=["promoted to rung 9: 2nd of 7 in rung 3"])
    """The scheduler's, as a clause."""
    donor_trial_id: str | None = None
    """Of a clone: the trial to continue from."""
    donor_sequence_id: int | None = Field(default=None, examples=[3])
    """Its number."""
    has_donor_checkpoint: bool = False
    """Whether it had a checkpoint that could be read; if not, a clone continues from the trial's own."""
    job: int | None = Field(default=None, examples=[2])
    """Number of the job that begins with it; null: it is to be carried out; 0: it came too late for the trial."""
    decided_at: Time


class TrialInFull(Trial):
    """A trial with what was decided of it."""

    decisions: list[TrialDecision] = []
    """Each time its trial scheduler had it run again, the first one first."""


class GpuShare(Resource):
    """A share of a GPU that a job holds."""

    uuid: str = Field(examples=["GPU-5f3c"])
    slot: int = Field(examples=[0])


class Job(Resource):
    """One attempt to run a trial."""

    id: str = Field(examples=["p3kV9xQa.1"])
    trial_id: str
    experiment_id: str
    number: int = Field(examples=[1])
    status: TrialJobStatus
    stop_reason: EndReason | None = None
    """Why it was asked to stop."""
    end_reason: EndReason | None = None
    """Why it ended."""
    detail: str = ""
    """A sentence: why it waits, or why it ended."""
    parameter_id: int
    parameters: Json
    parent_job: str | None = None
    """The job it was retried or cloned from."""
    resumed_from_job: str | None = None
    """The job whose checkpoint it continues."""
    resume_checkpoint: str | None = Field(default=None, examples=["/home/ann/.proctor/experiments/…/checkpoints/3"])
    """The checkpoint itself: an absolute path on its node, or a URL."""
    resumed_from_step: int | None = None
    start_reason: str = Field(default="", examples=["from checkpoint 3 of job 2, which is on this node"])
    """Where it begins, and why there; empty for a first attempt."""
    node_id: str | None = None
    gpus: list[GpuShare] | None = None
    """null: GPUs are not managed for this job."""
    counted_gpus: float = Field(default=0.0, examples=[0.5])
    """How many GPUs its time is multiplied with; a share of a GPU that n trials may share counts 1/n."""
    cpu_seconds: float | None = Field(default=None, examples=[41.7])
    """Processor time of all its processes; null while it runs, and where it is not known."""
    run_seconds: float | None = Field(default=None, examples=[61.5])
    """Seconds for which it has run, by a clock that nothing sets; null before it begins, and where it has ended and
    only its times tell."""
    verdict_seconds: float = Field(default=0.0, examples=[0.4])
    """Seconds of these in which it waited for verdicts of its trial scheduler; these count neither for
    `maxTrialDuration` nor for `time_total_s`."""
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    code_fingerprint: str | None = None
    """A digest of the code directory when it was started."""
    submitted_at: Time | None = None
    started_at: Time | None = None
    ended_at: Time | None = None


class Metric(Resource):
    """One report of a trial."""

    id: int
    """Counts up within the experiment."""
    trial_id: str
    job: int
    member: int = 0
    """The rank of the process that reported it."""
    counts: bool = True
    """Whether it is the trial's: of the rank that `report_from` names."""
    kind: str = Field(examples=["intermediate"])
    """intermediate, final, lost (`value` reports; or an unknown number, and `data` says why) or unreadable."""
    sequence: int
    """Counts the reports of this kind in its job and member, from 0."""
    step: int | None = None
    """The step the trial named."""
    value: Number | None = Field(default=None, examples=[0.91])
    """The number."""
    data: Json = None
    """The report as it was made."""
    time: Time
    seconds: float | None = Field(default=None, examples=[12.5])
    """Seconds for which its job had run, by a clock that nothing sets and without waits for verdicts; null where only
    `time` tells."""


class TrialRank(Resource):
    """What one process of a distributed trial has reported, in the newest job that has reported."""

    member: int
    """Its rank."""
    counts: bool
    """Whether its reports are the trial's: of the rank that `report_from` names."""
    intermediate_count: int
    latest_value: Number | None = Field(default=None, examples=[0.91])
    """The number of its newest intermediate metric."""
    final_value: Number | None = Field(default=None, examples=[0.93])
    """The number of its first final metric."""


class RegisteredCheckpoint(Resource):
    """A checkpoint that a trial has registered."""

    id: int
    """Counts up within the experiment."""
    trial_id: str
    job: int
    """The number of the job that has registered it."""
    member: int = 0
    """The rank of the process that has registered it."""
    step: int | None = None
    """The step the trial named."""
    sequence: int
    """How many points the trial's curve had before it."""
    path: str = Field(examples=["output/checkpoints/3"])
    """Its folder in the job's directory; its files are among the trial's files."""
    size_bytes: int | None = Field(default=None, examples=[104857600])
    """The size of its files. Not known of one that an earlier version has registered."""
    manifest: str | None = None
    """The SHA-256 of its manifest, which names every file with size and hash; none in earlier versions."""
    value: Number | None = Field(default=None, examples=[0.91])
    """The number of the metric that was reported with it, or of the last one before it."""
    kept: list[KeepReason] = Field(default=[], examples=[["NEWEST", "BEST"]])
    """Why it is kept: GIVEN to a running job, DONOR of a trial that has not ended, just being COPIED to the manager's
    machine, among the NEWEST or the BEST of `keepCheckpoints`, ALL are kept, or FOREIGN: not made by the SDK."""
    deleted_at: Time | None = None
    """When it was deleted; from then on no attempt continues from it."""
    is_here: bool
    """Whether that folder is on the manager's machine; else it is on the job's node, or gone."""
    time: Time


class CurvePoint(Resource):
    """A trial that ended, and the best value until then."""

    sequence_id: int = Field(examples=[17])
    ended_at: Time | None = None
    value: Number = Field(examples=[0.971])
    best: Number = Field(examples=[0.982])
    """The best of all that had ended by then."""


class ExportRow(Resource):
    """The outcome of a trial, in the shape that `import` takes."""

    parameter: Json = Field(examples=[PARAMETERS_EXAMPLE])
    value: Json = Field(default=None, examples=[0.982])
    """The final metric as it was reported; null: it has none."""
    trial_id: str = Field(examples=["p3kV9xQa"])
    sequence_id: int = Field(examples=[17])
    status: TrialStatus
    reason: str = Field(default="", examples=["stopped early by the assessor"])
    """Why it is in this status."""
    latest_value: Number | None = Field(default=None, examples=[0.982])
    """The number of its last intermediate metric."""
    intermediate: list[Json] | None = None
    """The intermediate metrics, when they were asked for."""
    intermediate_steps: list[int | None] | None = None
    """The step that each of them named; null: it named none."""


class ImportedResult(Resource):
    """A result from elsewhere that the tuner was given."""

    parameter: Json = Field(examples=[{"lr": 0.003, "hidden": 128}])
    value: Json = Field(examples=[0.97])
    """The final metric."""


class ImportedResults(Resource):
    """All results from elsewhere that a tuner was given."""

    items: list[ImportedResult] = Field(examples=[[{"parameter": {"lr": 0.003, "hidden": 128}, "value": 0.97}]])


class Imported(Resource):
    """How many rows the tuner received."""

    imported: int = Field(examples=[3])
    skipped: int = Field(examples=[1])
    """Rows whose value is null."""
    outside: int = Field(default=0, examples=[0])
    """Rows outside of the search space, where `skip_outside` was asked for."""


class NodeReservation(Resource):
    """What a trial job of this manager holds on a node."""

    job_id: str = Field(examples=["p3kV9xQa.1"])
    holder: str = Field(examples=["trial 17 of experiment Ab3dE5f7"])
    gpus: list[GpuShare] | None = None
    """null: GPUs are not managed for this job."""


class Node(Resource):
    """A machine on which trials run."""

    id: str = Field(examples=["gpu-3"])
    kind: str = Field(examples=["remote"])
    status: str = Field(examples=["CONNECTED"])
    """CONNECTING, CONNECTED, SILENT, LOST, FAILED or RELEASED."""
    reason: str = Field(default="", examples=["login as bob was refused; tried the agent (2 keys); tried again in 8 s"])
    """Why it is in this status."""
    hold: str = Field(default="", examples=["drained: its disk is replaced"])
    """Why it gets no new jobs though it may be well; empty: it gets them."""
    address: str = Field(default="", examples=["bob@gpu-3:2222"])
    """How it is reached; empty for the manager's own machine."""
    experiments: list[str] = Field(default_factory=list, examples=[["Ab3dE5f7"]])
    """The active experiments that may use it."""
    uncollected: list[str] = Field(default_factory=list, examples=[[]])
    """The stopped experiments that may have files there which were not collected."""
    reservations: list[NodeReservation] = Field(default_factory=list)
    """What trial jobs of this manager hold there."""
    usage: Usage
    """By the experiments of this manager that were not deleted."""
    facts: JsonObject = Field(default_factory=dict)
    """What its keeper reported: host name, versions, free disk, and its devices: each with the processes on it, with
    `held_by` (phrases for people; those of `foreign`, the processes that are not of trials, are the last) and with
    `leases`, the shares of it that jobs of any manager and user hold."""
    seen_at: Time | None = None


class FileCollection(Resource):
    """How far the files of a stopped experiment are collected from a machine."""

    experiment_id: str = Field(examples=["Ab3dE5f7"])
    files: int = Field(examples=[3])
    """How many were copied so far."""
    total_files: int = Field(examples=[12])
    """How many were only there, as far as is known."""
    bytes: int = Field(examples=[1048576])
    total_bytes: int = Field(examples=[4194304])
    problem: str = Field(default="", examples=["the machine is unreachable: its SSH server does not answer"])
    """Why not all of them could be collected: then they stay there."""
    is_finished: bool


class CheckStep(Resource):
    """One hop on the way to one machine."""

    machine: str = Field(examples=["bob@gpu-3:2222"])
    """As it was written."""
    name: str = Field(examples=["host key"])
    verdict: CheckVerdict = Field(examples=["ok"])
    """ok, note (works; worth knowing), fail (trials cannot run there) or skipped (an earlier step failed)."""
    found: str = Field(examples=["SHA256:5T9… is in ~/.ssh/known_hosts"])
    advice: str = ""
    """What to do about it."""


class FileEntry(Resource):
    """A file of a job."""

    path: str = Field(examples=["output/model.pt"])
    size_bytes: int


class Health(Resource):
    """Whether the manager is healthy."""

    status: str = Field(examples=["ok"])
    """ok, or degraded: something cannot be written or loaded, or trials of this machine cannot be started or are not
    reported on; the reason says which."""
    reason: str = ""


class Version(Resource):
    """The manager that answers."""

    version: str = Field(examples=["0.1.0"])
    api: str = Field(default="v1", examples=["v1"])
    python: str = Field(examples=["3.11.9"])
    home: str
    pid: int
    started_at: Time


class Deletion(Resource):
    """What became of an experiment that was deleted."""

    left: list[str] = Field(examples=[["/mnt/all/k3x9 was left: it belongs to experiment k3x9 of another manager"]])
    """What was not deleted because nothing shows that it is the experiment's, a sentence each."""


class Accepted(Resource):
    """It was stored and will be carried out."""

    accepted: bool = Field(default=True, examples=[True])
