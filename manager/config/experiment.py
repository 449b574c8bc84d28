"""The whole configuration of an experiment, as the engine uses it and as the database keeps it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from proctor.manager.config.fields import (
    AbsolutePath,
    AnyMapping,
    AnyValue,
    Budget,
    ClassName,
    Concurrency,
    Count,
    ExitCodes,
    GpuIndices,
    Hours,
    Label,
    NewestCheckpoints,
    ObjectiveMetric,
    Positive,
    Priority,
    Seconds,
    SecondsOrZero,
    StoragePlace,
    Text,
    TrialNumber,
    Truth,
    VariableNames,
    VerdictTimeout,
    Whole,
    newest_checkpoints,
    unexpected,
)
from proctor.manager.config.objective import Direction, stored_direction
from proctor.manager.config.services import Section, SharedStorageConfig, TrainingServiceConfig
from proctor.manager.dispatcher.algorithms.catalog import ASSESSOR, TRIAL_SCHEDULER, TUNER

LogLevel = Literal["trace", "debug", "info", "warning", "error", "fatal"]


class AlgorithmConfig(Section):
    """A tuner, an assessor or a trial scheduler: a built-in one by `name`, or a class of the user's."""

    name: Text | None = None
    """Name of a built-in algorithm, upper or lower case."""
    class_name: ClassName | None = None
    """A class of your own, as module.ClassName."""
    code_directory: AbsolutePath | None = None
    """Directory the module of className is imported from; the configuration's own if not given."""
    class_args: AnyMapping = Field(default_factory=dict)
    """Arguments of the algorithm."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if (self.name is None) == (self.class_name is None):
            raise unexpected("either name (a built-in algorithm) or className (your own)")
        return self


class TunerConfig(AlgorithmConfig):
    """A tuner."""

    include_intermediate_results: Truth | None = None
    """Whether the last intermediate metric of a trial that was stopped early counts as its result. If not given: true
    for built-in tuners, false for a tuner of your own, as in NNI."""

    @property
    def counts_intermediate_results(self) -> bool:
        """`include_intermediate_results` with its default."""
        given = self.include_intermediate_results
        return self.class_name is None if given is None else given


class ObjectiveConfig(Section):
    """What is optimized. In a file every key is optional; what it does not say is decided when it is read."""

    metric: ObjectiveMetric = "default"
    """Which number of a metric with several is optimized: always the one reported under "default"."""
    direction: Direction
    """Which values are better, for all algorithms and everything shown; what optimize_mode says if not given."""


class KeepCheckpointsConfig(Section):
    """How many checkpoints of each trial are kept; the others are deleted."""

    newest: NewestCheckpoints = 2
    """How many of each trial's newest checkpoints are kept, or all."""
    best: Count = 1
    """How many of each trial's best are kept, too: by the metric reported with them, else the last one before."""


ALL_CHECKPOINTS = KeepCheckpointsConfig(newest="all", best=0)


def _keep_checkpoints(value: Any) -> Any:
    """A number or "all" as the mapping that it stands for."""
    if isinstance(value, dict | KeepCheckpointsConfig):
        return value
    try:
        return {"newest": newest_checkpoints(value), "best": 0}
    except PydanticCustomError:
        raise unexpected("a number from 1, all, or a mapping such as {newest: 2, best: 1}") from None


class CheckpointStorageConfig(Section):
    """Where checkpoints are stored instead of the jobs' own folders."""

    location: StoragePlace
    """A folder that all nodes share, or a URL that fsspec can write to, such as s3://bucket/folder."""
    environment: VariableNames = ()
    """Variables with the credentials, taken from the shell of `create`; for trials and manager, stored privately."""


def _checkpoint_storage(value: Any) -> Any:
    """A location alone as the mapping that it stands for."""
    return {"location": value} if isinstance(value, str) else value


class ExperimentConfig(Section):
    """Everything an experiment was asked to be; immutable, all paths absolute, no secrets inside."""

    experiment_name: Label | None = None
    """A label for people."""
    experiment_type: Literal["hpo"] = "hpo"
    """Kind of experiment."""
    search_space_file: AbsolutePath | None = None
    """JSON or YAML file with the search space; either this or searchSpace."""
    search_space: AnyValue
    """The search space itself; either this or searchSpaceFile. For a tuner of your own any JSON value."""
    trial_command: Text
    """Shell command (bash) that runs one trial."""
    trial_code_directory: AbsolutePath
    """Where trialCommand runs; the configuration's own directory if not given."""
    trial_concurrency: Concurrency
    """How many trials run concurrently; 1 to 1000 when changed while running."""
    trial_gpu_number: Count | None = None
    """GPUs of a trial; 0 hides all GPUs from it, not given leaves GPUs alone."""
    max_experiment_duration_seconds: Annotated[Seconds | None, Field(alias="maxExperimentDuration")] = None
    """After this time no new trials start: seconds, or 10m, 1.5h, 2d."""
    max_trial_duration_seconds: Annotated[Seconds | None, Field(alias="maxTrialDuration")] = None
    """A trial whose jobs have run for longer is stopped early: seconds, or 10m, 1.5h, 2d."""
    max_trial_number: TrialNumber | None = None
    """How many trials to create."""
    max_trial_retries: Budget = 0
    """How often a trial whose command fails is retried; -1: without a limit."""
    max_infrastructure_retries: Budget = 5
    """How often a trial that failed through no fault of its own (node lost, preempted) is retried; -1: no limit."""
    retry_exit_codes: ExitCodes = ()
    """Exit codes by which a command says that it is not to blame: retried as if infrastructure had failed."""
    max_failed_trials: Positive | None = None
    """How many failed trials put the experiment into ERROR; unlimited if not given."""
    max_gpu_hours: Hours | None = None
    """After so many GPU-hours of all trials no new trials start: 100 is one GPU for 100 hours."""
    priority: Priority = 0
    """Free GPUs go to the experiment with the higher priority first; -1000 to 1000."""
    preemptible: Truth = False
    """Whether its trials may be stopped, to be continued later, for those of an experiment with a higher priority."""
    debug: Truth = False
    """Sets logLevel to debug where that is not given."""
    log_level: LogLevel = "info"
    """How much the manager and the dispatcher write to their logs."""
    experiment_working_directory: AbsolutePath | None = None
    """Where the experiment's folder is made; the manager's home if not given."""
    tuner_gpu_indices: GpuIndices | None = None
    """CUDA_VISIBLE_DEVICES of the process that hosts the algorithms."""
    objective: ObjectiveConfig
    """Which values are better."""
    tuner: TunerConfig
    """The algorithm that proposes parameters."""
    assessor: AlgorithmConfig | None = None
    """The algorithm that stops trials early."""
    trial_scheduler: AlgorithmConfig | None = None
    """The algorithm that pauses, resumes, clones and stops trials; in the place of an assessor."""
    training_service: TrainingServiceConfig
    """Where trials run."""
    shared_storage: Annotated[SharedStorageConfig, Field(discriminator="storage_type")] | None = None
    """Storage shared by the manager and the trials' machines."""
    report_from: Count = 0
    """The rank of the process whose metrics and checkpoints are the trial's, where a trial has several."""
    code_snapshot: Truth = False
    """Run trials from a frozen copy of trialCodeDirectory instead of in place."""
    seed: Whole | None = None
    """Makes the suggestions of the built-in algorithms repeatable."""
    keep_checkpoints: Annotated[KeepCheckpointsConfig, BeforeValidator(_keep_checkpoints)] = Field(
        default_factory=KeepCheckpointsConfig
    )
    """Which checkpoints of each trial are kept; instead of a mapping the number of the newest, or all."""
    checkpoint_quota_mb: Positive | None = None
    """How many megabytes all checkpoints of the experiment may take together; no limit if not given."""
    copy_checkpoints: Truth = True
    """Copy the newest checkpoint of each trial from its machine to the manager's, in the background."""
    checkpoint_storage: Annotated[CheckpointStorageConfig | None, BeforeValidator(_checkpoint_storage)] = None
    """Where checkpoints are stored, as a location alone or a mapping; in the jobs' own folders if not given."""
    save_seconds: SecondsOrZero | None = None
    """How long a stopped trial may save; if not given 30 where it calls should_stop() or has a checkpoint, else 0."""
    verdict_timeout_seconds: Annotated[VerdictTimeout | None, Field(alias="verdictTimeout")] = None
    """How long a trial waits at most where its trial scheduler decides, also while the manager is away: 0 to 7d; 10m if
    not given."""
    lease_seconds: Seconds | None = None
    """Stop the trials after this time without a manager; never if not given."""

    @model_validator(mode="before")
    @classmethod
    def _with_direction_used_before(cls, values: Any) -> Any:
        """Configurations that were stored before there was `objective` name none."""
        if not isinstance(values, dict) or "objective" in values:
            return values
        return {**values, "objective": {"direction": stored_direction(values)}}

    @property
    def has_own_algorithm(self) -> bool:
        """Whether tuner, assessor or trial scheduler is a class of the user's."""
        algorithms = (self.tuner, self.assessor, self.trial_scheduler)
        return any(each is not None and each.class_name is not None for each in algorithms)

    @property
    def algorithms(self) -> list[tuple[str, str | None]]:
        """Of tuner, assessor and trial scheduler, as far as there are any: the kind and the name, None for a class of
        the user's."""
        named = ((TUNER, self.tuner), (ASSESSOR, self.assessor), (TRIAL_SCHEDULER, self.trial_scheduler))
        return [(kind, each.name) for kind, each in named if each is not None]

    @property
    def judges_trials(self) -> bool:
        """Whether an algorithm learns of intermediate metrics."""
        return self.assessor is not None or self.trial_scheduler is not None

    def canonical(self) -> dict[str, Any]:
        """The configuration as JSON values with snake_case keys: what goes into the database."""
        return self.model_dump(mode="json", by_alias=False)

    @classmethod
    def from_canonical(cls, canonical: dict[str, Any]) -> Self:
        """The configuration from what `canonical` gave; raises pydantic.ValidationError on anything else. Before there
        was `keepCheckpoints` all of them were kept, and of experiments from then they are."""
        return cls.model_validate({"keep_checkpoints": "all", **canonical})
