"""Platform `local`: trials run on the manager's own machine, in place, under its keeper."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from proctor.sdk.protocol import checkpoint_place
from proctor.training_services.base import (
    SupportsCheckpointDeletion,
    SupportsCheckpoints,
    SupportsLogs,
    TrialJobForm,
)
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import SubmissionRefused
from proctor.training_services.keeper_service import KeeperTrainingService
from proctor.training_services.keepers.launches import require_launchable, user_name, write_launch
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.files.access import list_files, read_file
from proctor.trial_keeper.protocol import Launch

LOCAL_NODE = "local"


@dataclass(frozen=True)
class LocalSettings:
    """How trials use the GPUs of this machine."""

    use_active_gpu: bool = False
    """Use GPUs that other processes use; own trials never count."""
    max_trial_number_per_gpu: int = 1
    """How many trials may share one GPU."""
    gpu_indices: tuple[int, ...] | None = None
    """The GPUs trials may use; None: all."""

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> "LocalSettings":
        """From the `trainingService` section; keys of other parts are left alone."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: _tupled(value) for key, value in settings.items() if key in known})

    def replace(self, key: str, value: Any) -> "LocalSettings":
        """The settings with one of them changed. Raises KeyError for an unknown key."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values[key]  # raises KeyError
        return LocalSettings(**{**values, key: _tupled(value)})

    @property
    def rules(self) -> GpuRules:
        """What placement keeps to."""
        return GpuRules(
            max_trials_per_gpu=self.max_trial_number_per_gpu,
            use_active_gpu=self.use_active_gpu,
            gpu_indices=self.gpu_indices,
        )


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class LocalTrainingService(KeeperTrainingService, SupportsLogs, SupportsCheckpoints, SupportsCheckpointDeletion):
    """One experiment's trials on node `local`. Settings: `use_active_gpu`, `max_trial_number_per_gpu`,
    `gpu_indices`."""

    def __init__(self, context: ServiceContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._settings = LocalSettings.read(context.settings)
        self._directory = str(context.experiment_directory)
        self._owner = f"user {user_name()}, manager {context.experiment_directory.parent.parent}"

    def node_ids(self) -> tuple[str, ...]:
        return (LOCAL_NODE,)

    def job_folder(self) -> str:
        return self._directory

    def gpu_rules(self, node_id: str) -> GpuRules:
        return self._settings.rules

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        self._settings = self._settings.replace(key, value)

    async def get_cluster_metadata(self, key: str) -> Any:
        return vars(self._settings)[key]

    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        return await asyncio.to_thread(read_file, form.directory, path, offset, limit)

    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        found = await asyncio.to_thread(list_files, form.directory)
        return [(file.path, file.size) for file in found]

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        await self._hub.remove_checkpoint(LOCAL_NODE, checkpoint_place(form.directory, path))

    def check(self, form: TrialJobForm) -> None:
        require_launchable(form)
        if not os.path.isdir(form.code_directory):
            found = "it is a file" if os.path.exists(form.code_directory) else "it does not exist"
            raise SubmissionRefused(
                f"trialCodeDirectory should be the folder that trials run in, but {found}: {form.code_directory}"
            )

    def launch(self, form: TrialJobForm) -> Launch:
        launch = write_launch(form, platform="local", owner=self._owner, rules=self._settings.rules)
        return replace(launch, resume_checkpoint=self.checkpoint_of(form))
