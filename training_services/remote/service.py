"""Platform `remote`: trials run on machines that are reached over SSH, under keepers that are installed there.

`submit` starts a task for each job, which stages what the job needs on its machine and then launches it there.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from proctor.training_services.base import (
    EndReason,
    JobStart,
    SupportsCheckpointCopies,
    SupportsCheckpointDeletion,
    SupportsCheckpoints,
    SupportsLogs,
    TrialJobDetail,
    TrialJobForm,
)
from proctor.training_services.capacity import GpuRules, Strategy
from proctor.training_services.errors import BrokenPlatform, NoRoomForJob, ServiceUnavailable, TrainingServiceError
from proctor.training_services.files.code import CodeArchives, ExperimentCode
from proctor.training_services.files.collection import Collector, JobReader
from proctor.training_services.files.paths import ExperimentPaths, StagedJob
from proctor.training_services.keeper_service import KeeperTrainingService
from proctor.training_services.keepers.launches import require_launchable, user_name, write_launch
from proctor.training_services.providers import SECRETS_FILE
from proctor.training_services.registry import ServiceContext
from proctor.training_services.remote.files.collection import CollectionQueues
from proctor.training_services.remote.files.transfer import TransferQueue
from proctor.training_services.remote.settings import ClusterMetadata, RemoteSettings, read_logins
from proctor.training_services.remote.staging import CheckpointLocator, Staging
from proctor.trial_keeper.protocol import Launch

if TYPE_CHECKING:  # it imports the SSH library
    from proctor.training_services.remote.machines.provider import RemoteProvider

__all__ = ["RemoteTrainingService", "provider_of"]

NO_ROOM_SECONDS = 60.0
_BYTES_PER_MB = 10**6


def provider_of(context: ServiceContext) -> "RemoteProvider":
    """The manager's provider of remote nodes. Raises BrokenPlatform; ImportError with the package to install."""
    if context.providers is None:
        raise BrokenPlatform("platform remote needs a manager that reaches machines, and this one does not")
    return cast("RemoteProvider", context.providers.get("remote"))


class RemoteTrainingService(
    KeeperTrainingService, SupportsLogs, SupportsCheckpoints, SupportsCheckpointDeletion, SupportsCheckpointCopies
):
    """One experiment's trials on its machines. Settings: see `RemoteSettings`.

    Machines are claimed with the first job, or when jobs are reattached; an instance that only reads claims nothing.

    :param provider: for tests; None: the manager's.
    """

    def __init__(self, context: ServiceContext, *, provider: "RemoteProvider | None" = None, **options: Any) -> None:
        super().__init__(context, **options)
        self._context = context
        self._settings = RemoteSettings.read(context.settings)
        self._provider = provider or provider_of(context)
        nodes = self._provider.node_ids_of(context.settings)
        logins = read_logins(context.secrets, len(nodes))
        self._metadata = ClusterMetadata(zip(nodes, self._settings.machines, logins, strict=True), self._pool)
        self._node_ids = tuple(dict.fromkeys(nodes))
        home = context.experiment_directory.parent.parent
        self._owner = f"user {user_name()}, manager {socket.gethostname()}:{home}"
        self._is_claimed = False
        self._staged: dict[str, StagedJob] = {}
        self._code = ExperimentCode(context.experiment_directory)
        self._paths = ExperimentPaths(context.experiment_id, context.experiment_directory)
        self._reader = JobReader(self._hub)
        transfers = TransferQueue(self._start)
        largest = self._settings.collect_limit_mb * _BYTES_PER_MB
        self._collector = Collector(self._hub, self._paths, largest=largest)
        self._collections = CollectionQueues(
            self._pool, self._collector, start=self._start, experiment_id=context.experiment_id
        )
        self._checkpoints = CheckpointLocator(
            self._hub,
            self._pool,
            self._paths,
            provider=self._provider,
            collector=self._collector,
            transfers=transfers,
        )
        self._staging = Staging(
            self._pool,
            provider=self._provider,
            code=self._code_of,
            code_on_node=self._settings.code_path_on_node,
            transfers=transfers,
            checkpoints=self._checkpoints,
        )

    # ---- nodes

    def node_ids(self) -> tuple[str, ...]:
        return self._node_ids

    def gpu_rules(self, node_id: str) -> GpuRules:
        return self._metadata.rules(node_id)

    def placement_strategy(self) -> Strategy:
        return Strategy(self._settings.placement.upper())

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        self._metadata.set(key, value)

    async def get_cluster_metadata(self, key: str) -> Any:
        return self._metadata.get(key)

    # ---- files

    async def read_job_file(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        return await self._reader.read(
            self._node_of(form),
            self._paths.job(form),
            Path(form.directory),
            place=self.where(form),
            path=path,
            offset=offset,
            limit=limit,
            lives=form.job_id in self._jobs,
        )

    async def list_job_files(self, form: TrialJobForm) -> list[tuple[str, int]]:
        node_id, folder = self._node_of(form), self._paths.job(form)
        lives = form.job_id in self._jobs
        return await self._reader.list(node_id, folder, Path(form.directory), place=self.where(form), lives=lives)

    async def copy_checkpoint(self, form: TrialJobForm, path: str) -> None:
        here = Path(form.directory, path)
        if not await asyncio.to_thread(self._collector.has_all, here):
            with suppress(FileNotFoundError):  # deleted meanwhile, with the checkpoint or with all of the job
                await self._collector.copy(self._node_of(form), f"{self._paths.job(form)}/{path}", here)

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        node_id = self._node_of(form)
        if os.path.isabs(path) and self._pool.absence(node_id):  # any node will do
            node_id = next((other for other in self._node_ids if not self._pool.absence(other)), node_id)
        try:
            await self._checkpoints.delete(form, node_id, path)
        except OSError as error:
            problem = f"the copy of {path} of job {form.job_id} on the manager's machine cannot be removed: {error}"
            raise TrainingServiceError(problem) from error

    # ---- run

    async def run(self) -> None:
        self._claim()
        await super().run()

    async def reattach(self, forms: Sequence[TrialJobForm], ended: Sequence[str]) -> None:
        self._claim()
        await super().reattach(forms, ended)

    async def clean_up(self) -> None:
        await super().clean_up()
        await self._provider.release(self._experiment_id)

    # ---- jobs

    async def submit_trial_job(self, form: TrialJobForm) -> TrialJobDetail:
        code = self._code_of(form)
        if form.job_id not in self._jobs and code is not None:
            await code.scan()
        self._claim()
        return await super().submit_trial_job(form)

    def check(self, form: TrialJobForm) -> None:
        require_launchable(form)

    def must_prepare(self, form: TrialJobForm) -> bool:
        return True

    async def prepare(self, form: TrialJobForm) -> JobStart | None:
        node_id = self._node_of(form)
        try:
            staged = await self._staging.prepare(form, node_id, lambda clause: self.report_waiting(form, clause))
        except NoRoomForJob as error:
            self._avoid_full_node(node_id, str(error))
            raise NoRoomForJob(f"node {node_id}: {error}") from error
        self._staged[form.job_id] = staged
        return staged.resume_point.start

    def launch(self, form: TrialJobForm) -> Launch:
        node_id, staged = self._node_of(form), self._staged[form.job_id]
        launch = write_launch(form, platform="remote", owner=self._owner, rules=self._metadata.rules(node_id))
        machine = self._metadata.machine(node_id)
        return replace(
            launch,
            directory=self._paths.job(form),
            code_directory=staged.code_directory,
            environment_file=None,  # what `create` has captured is the environment of another machine
            resume_checkpoint=staged.resume_point.path,
            search_path=(machine.python_path or "") if machine is not None else "",
        )

    def on_end(self, job: TrialJobDetail) -> None:
        if job.exit is not None:
            node_id, after = self._node_of(job.form), self._settings.quarantine_after
            self._pool.quarantine.record(node_id, job.form.trial_id, job.exit.reason, after=after)
            if job.exit.reason is EndReason.LAUNCH_FAILED:  # perhaps because someone has deleted its code
                with suppress(TrainingServiceError):  # it is away, or no longer ours
                    self._provider.machine(node_id).forget_copies()
        lost = job.exit is not None and job.exit.reason is EndReason.NODE_LOST
        if self._group is not None and job.id not in self._waiting and not lost:
            self._collections.note_end(self._node_of(job.form), self._paths.job(job.form), Path(job.form.directory))

    def release_job(self, job_id: str) -> None:
        self._staged.pop(job_id, None)

    def _avoid_full_node(self, node_id: str, clause: str) -> None:
        """The node has no room for a job. It gets no others until it reports more room than now. As it does not report
        everything (a quota), it is tried again after `NO_ROOM_SECONDS`."""
        if not self._pool.shortage([node_id]):
            self._pool.set_copy_obstacle(node_id, clause)
            loop = asyncio.get_running_loop()
            loop.call_later(NO_ROOM_SECONDS, self._pool.set_copy_obstacle, node_id, "")

    # ---- machines

    def _claim(self) -> None:
        if not self._is_claimed:
            context = self._context
            secrets_file = context.experiment_directory / SECRETS_FILE
            try:
                self._provider.claim(
                    context.experiment_id, context.settings, context.secrets, secrets_file=secrets_file
                )
            except OSError as error:
                raise ServiceUnavailable(
                    f"the claims of the machines cannot be written to the manager's home: {error}"
                ) from error
            self._is_claimed = True

    def _code_of(self, form: TrialJobForm) -> CodeArchives | None:
        """The code that must be copied for a job; None where it is on the machines already."""
        on_node = self._settings.code_path_on_node is not None
        return None if on_node else self._code.of(form.code_directory)
