"""Platform `local`: trials run on the manager's own machine, in place, under its keeper."""

import asyncio
import os
import pwd
from collections.abc import Mapping
from typing import Any

from proctor.training_services.base import SupportsLogs, TrialJobForm
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import SubmissionRefused
from proctor.training_services.keeper_service import KeeperTrainingService
from proctor.training_services.local.settings import LocalSettings
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.job_files import list_files, read_file
from proctor.trial_keeper.protocol import Launch

LOCAL_NODE = "local"


def user_name() -> str:
    """Who the manager runs as, for people who wonder who holds a GPU."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without a passwd entry
        return str(os.getuid())


class LocalTrainingService(KeeperTrainingService, SupportsLogs):
    """One experiment's trials on node `local`. Settings: `use_active_gpu`, `max_trial_number_per_gpu`,
    `gpu_indices`."""

    def __init__(self, context: ServiceContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._settings = LocalSettings.read(context.settings)
        self._owner = f"user {user_name()}, manager {context.experiment_directory.parent.parent}"

    def node_ids(self) -> tuple[str, ...]:
        return (LOCAL_NODE,)

    def gpu_rules(self, node_id: str) -> GpuRules:
        return self._settings.rules

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        self._settings = self._settings.replace(key, value)

    async def get_cluster_metadata(self, key: str) -> Any:
        return self._metadata()[key]

    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        return await asyncio.to_thread(read_file, form.directory, path, offset, limit)

    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        found = await asyncio.to_thread(list_files, form.directory)
        return [(file.path, file.size) for file in found]

    def check(self, form: TrialJobForm) -> None:
        if not form.command.strip():
            raise SubmissionRefused("trialCommand is empty; it says how a trial is started, e.g. `python trial.py`")
        if not os.path.isdir(form.code_directory):
            found = "it is a file" if os.path.exists(form.code_directory) else "it does not exist"
            raise SubmissionRefused(
                f"trialCodeDirectory should be the folder that trials run in, but {found}: {form.code_directory}"
            )
        wanted, placed = form.gpu_number or 0, len(form.placement.gpus or ()) if form.placement is not None else 0
        if wanted and placed != wanted:
            raise SubmissionRefused(
                f"trial job {form.job_id} needs {wanted} GPUs and its placement names {placed}; GPUs are chosen "
                "before a job is submitted"
            )

    def launch(self, form: TrialJobForm) -> Launch:
        gpus = form.placement.gpus if form.placement is not None else None
        if gpus is None and form.gpu_number == 0:
            gpus = ()
        return Launch(
            job_id=form.job_id,
            token=form.token,
            experiment_id=form.experiment_id,
            trial_id=form.trial_id,
            sequence_id=form.sequence_id,
            directory=form.directory,
            command=form.command,
            code_directory=form.code_directory,
            parameter_file=form.parameter_file,
            environment_file=form.environment_file,
            platform="local",
            environment=dict(form.environment),
            gpus=None if gpus is None else list(gpus),
            max_duration_seconds=form.max_duration_seconds,
            resume_checkpoint=form.resume_checkpoint,
            lease_seconds=form.lease_seconds,
            holder=f"{self._owner}, experiment {form.experiment_id}, trial {form.sequence_id}",
            max_trials_per_gpu=self._settings.max_trial_number_per_gpu,
        )

    def _metadata(self) -> Mapping[str, Any]:
        return vars(self._settings)
