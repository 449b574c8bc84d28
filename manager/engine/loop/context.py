"""What an experiment's loop is given: everything that is not the experiment itself, and the forms of its jobs."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.manager.clock import Clock
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.engine.code import SNAPSHOT_FOLDER, CodeWatch
from proctor.manager.engine.loop.checkpoint_storage import CheckpointStorage
from proctor.manager.engine.loop.reservations import Placer
from proctor.manager.engine.loop.stopping import save_time
from proctor.manager.events import ChangeFeed
from proctor.manager.lifecycle.retries import RetryPolicy
from proctor.manager.settings import ENVIRONMENT_FILE
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.sdk.protocol import (
    CHECKPOINT_FOLDER,
    ENV_CHECKPOINT_QUOTA,
    ENV_CHECKPOINT_STORAGE,
    ENV_JUDGED_RANK,
    ENV_VERDICT_SECONDS,
    checkpoint_place,
)
from proctor.training_services.base import (
    CheckpointOffer,
    NodePlacement,
    SupportsSoftStop,
    TrainingService,
    TrialJobForm,
)

if TYPE_CHECKING:
    from proctor.manager.config.experiment import AlgorithmConfig, ExperimentConfig

_VERDICT_SECONDS = 600.0
"""How long a trial waits for a verdict at most, where the configuration does not say."""


class JobFormBuilder:
    """From rows of one experiment to the forms that its training service gets."""

    def __init__(self, config: "ExperimentConfig", directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._trials_directory = str(directory / "trials")
        environment_file = directory / ENVIRONMENT_FILE
        self._environment_file = str(environment_file) if environment_file.exists() else None

    @cached_property
    def storage(self) -> CheckpointStorage | None:
        """Where checkpoints are stored instead of in the jobs' folders."""
        return CheckpointStorage.of(self._config, self._directory)

    @property
    def code_directory(self) -> Path:
        """Where trials run: the user's directory, or the frozen copy of it."""
        if self._config.code_snapshot:
            return self._directory / SNAPSHOT_FOLDER
        return Path(self._config.trial_code_directory)

    def job_directory(self, trial: TrialRow, number: int) -> str:
        """Where the files of a trial's job are."""
        return f"{self._trials_directory}/{trial.sequence_id}-{trial.id}/jobs/{number}"

    def checkpoint_place(self, trial: TrialRow, number: int, path: str) -> str:
        """Where a registered checkpoint of a trial's job is: an absolute path, or a URL."""
        return checkpoint_place(self.job_directory(trial, number), path)

    def is_checkpoint_path(self, trial: TrialRow, number: int, path: str) -> bool:
        """Whether what a trial's job has registered is a checkpoint that the SDK has stored, and not any path."""
        folder, _, name = path.rpartition("/")
        folders = {CHECKPOINT_FOLDER}
        if self.storage is not None:
            folders.add(self.storage.of_job(trial.experiment_id, trial.id, number))
        return folder in folders and name.isascii() and name.isdecimal()

    def form(
        self,
        experiment: ExperimentRow,
        trial: TrialRow,
        job: TrialJobRow,
        *,
        milestone: int | None = None,
        run_before: float = 0.0,
    ) -> TrialJobForm:
        """Everything the service needs to run `job`.

        :param run_before: how long the trial's earlier jobs ran, in seconds, which its limit counts.
        """
        limit = experiment.max_trial_seconds
        quota = self._config.checkpoint_quota_mb
        environment = {} if quota is None else {ENV_CHECKPOINT_QUOTA: str(quota)}
        if self.storage is not None:
            environment |= self.storage.environment
            environment[ENV_CHECKPOINT_STORAGE] = self.storage.of_job(experiment.id, trial.id, job.number)
        if self._config.trial_scheduler is not None:
            environment[ENV_JUDGED_RANK] = str(experiment.report_from)
            configured = self._config.verdict_timeout_seconds
            environment[ENV_VERDICT_SECONDS] = f"{_VERDICT_SECONDS if configured is None else configured:g}"
        offers = _offers(job)
        return TrialJobForm(
            job_id=job.id,
            token=job.token,
            experiment_id=experiment.id,
            trial_id=trial.id,
            sequence_id=trial.sequence_id,
            number=job.number,
            parameter_id=job.parameter_id,
            parameter_file=parameter_file(trial, job),
            command=self._config.trial_command,
            code_directory=str(self.code_directory),
            directory=self.job_directory(trial, job.number),
            environment_file=self._environment_file,
            environment=environment,
            gpu_number=self._config.trial_gpu_number,
            max_duration_seconds=None if limit is None else max(limit - run_before, 0.0),
            checkpoints=tuple(offer for offer in offers if not offer.damage),
            damaged=tuple(offer for offer in offers if offer.damage),
            placement=placement_from(job.placement),
            lease_seconds=self._config.lease_seconds,
            milestone=milestone,
        )


def _offers(job: TrialJobRow) -> tuple[CheckpointOffer, ...]:
    """Return the checkpoints that a job may continue from, and those that are damaged. Rows of earlier versions name
    one checkpoint."""
    if job.checkpoints is None and job.resumed_from_job is not None and job.resume_checkpoint is not None:
        path, sequence = job.resume_checkpoint, job.resumed_from_step or 0
        return (CheckpointOffer(job.resumed_from_job, path, sequence, job.resume_node_id),)
    return tuple(CheckpointOffer(**offer) for offer in job.checkpoints or ())


def parameter_file(trial: TrialRow, job: TrialJobRow) -> str:
    """The text of parameter.json, in NNI's shape."""
    return json.dumps(
        {
            "parameter_id": job.parameter_id,
            "parameter_source": trial.source,
            "parameters": job.parameters,
            "parameter_index": 0,
        },
        separators=(",", ":"),
    )


def placement_from(body: dict[str, object] | None) -> NodePlacement | None:
    """The placement in a job's row."""
    return None if body is None else NodePlacement.from_json(body)


@dataclass(frozen=True)
class LoopContext:
    """What a loop works with; opened by the supervisor, which also closes it."""

    config: "ExperimentConfig"
    control: Database
    metrics: Database
    service: TrainingService
    placer: Placer
    clock: Clock
    feed: ChangeFeed
    forms: JobFormBuilder
    code: CodeWatch
    open_dispatcher: Opener
    checkpoint_directory: str
    copying: dict[tuple[str, int], tuple[int, int]]
    """Of all experiments of the manager, the checkpoints that are being copied to its machine: (disk, bytes) by
    experiment and checkpoint."""

    def initialize(self, row: ExperimentRow) -> protocol.Initialize:
        """The first message to each dispatcher of the experiment."""
        config = self.config
        return protocol.Initialize(
            experiment_id=row.id,
            search_space=config.search_space,  # the first one; changes of it are in the log
            tuner=_spec(config.tuner),
            assessor=None if config.assessor is None else _spec(config.assessor),
            seed=row.seed,
            checkpoint_directory=self.checkpoint_directory,
            direction=config.objective.direction,
            scheduler=None if config.trial_scheduler is None else _spec(config.trial_scheduler),
            rules=row.rules,
        )

    @property
    def save_seconds(self) -> float:
        """How long a trial may save at most when it is stopped softly."""
        return save_time(self.config.save_seconds) if isinstance(self.service, SupportsSoftStop) else 0.0

    @property
    def retry_policy(self) -> RetryPolicy:
        """The user's budgets."""
        return RetryPolicy(
            max_trial_retries=self.config.max_trial_retries,
            max_infrastructure_retries=self.config.max_infrastructure_retries,
            retry_exit_codes=frozenset(self.config.retry_exit_codes),
        )


def _spec(algorithm: "AlgorithmConfig") -> protocol.AlgorithmSpec:
    directory = algorithm.code_directory
    return protocol.AlgorithmSpec(
        name=algorithm.name,
        class_name=algorithm.class_name,
        code_directory=None if directory is None else str(directory),
        class_args=dict(algorithm.class_args),
    )
