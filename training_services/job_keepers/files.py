"""The files of jobs with keepers of their own: sending, reading, copying, deleting and collecting them."""

import asyncio
from dataclasses import replace
from pathlib import Path

from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import JobStart, TrialJobForm
from proctor.training_services.errors import TrainingServiceError, UnknownTrialJob
from proctor.training_services.files.collection import Collector, JobReader
from proctor.training_services.files.mirror import size_text
from proctor.training_services.files.paths import ExperimentPaths, StagedJob
from proctor.training_services.hub_service import HubTrainingService
from proctor.training_services.job_keepers.departures import Departures
from proctor.training_services.job_keepers.staging import JobStaging
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.protocol import Launch

COLLECT_LIMIT_BYTES = 100 * 10**6
CHECKPOINT_LIMIT_BYTES = 10 * 10**9
_LIST_SECONDS = 60.0


class JobKeeperFiles:
    """The files of an experiment's jobs.

    :param collect_limit: larger files are not collected.
    :param checkpoint_limit: larger checkpoints are not copied.
    """

    def __init__(
        self, service: HubTrainingService, context: ServiceContext, *, collect_limit: int, checkpoint_limit: int
    ) -> None:
        self._paths = ExperimentPaths(context.experiment_id, context.experiment_directory)
        self._service = service
        self._hub: KeeperHub = context.hub
        self._checkpoint_limit = checkpoint_limit
        self._staged: dict[str, StagedJob] = {}
        self._reader = JobReader(self._hub)
        self._collector = Collector(self._hub, self._paths, largest=collect_limit)
        self.departures = Departures(
            self._hub,
            self._paths,
            self._collector,
            checkpoint_limit=checkpoint_limit,
            experiment_id=context.experiment_id,
        )
        self._staging = JobStaging(
            service, self._hub, self._paths, collector=self._collector, departures=self.departures
        )

    async def scan_code(self, form: TrialJobForm) -> None:
        """Raise SubmissionRefused for trial code that cannot be sent."""
        await self._staging.code.of(form.code_directory).scan()

    async def prepare(self, form: TrialJobForm, code_place: str | None) -> JobStart | None:
        """As `HubTrainingService.prepare`.

        :param code_place: as of `KeeperPlatform`.
        """
        staged = self._staged[form.job_id] = await self._staging.prepare(form, code_place)
        return staged.resume_point.start

    def complete_launch(self, launch: Launch, form: TrialJobForm, code_place: str | None) -> Launch:
        """Fill in the paths on the job's machine, and drop the environment that `create` captured on another one."""
        staged = self._staged.get(form.job_id)
        return replace(
            launch,
            directory=self._paths.job(form),
            code_directory=code_place or (staged.code_directory if staged is not None else ""),
            environment_file=None,
            resume_checkpoint=None if staged is None else staged.resume_point.path,
        )

    def release(self, job_id: str) -> None:
        """Forget a job."""
        self._staged.pop(job_id, None)

    def remove_leftovers(self) -> None:
        """Remove files left by a manager that was killed while sending them. Blocks."""
        self._staging.remove_leftovers()

    async def read(self, form: TrialJobForm, path: str, offset: int, limit: int) -> bytes:
        """As `SupportsLogs.read_job_file`."""
        lives = await self._await_files(form)
        return await self._reader.read(
            self._keeper_id(form, lives=lives),
            self._paths.job(form),
            Path(form.directory),
            place=_place(form),
            path=path,
            offset=offset,
            limit=limit,
            lives=lives,
        )

    async def list(self, form: TrialJobForm) -> list[tuple[str, int]]:
        """As `SupportsLogs.list_job_files`."""
        lives = await self._await_files(form)
        keeper_id, folder = self._keeper_id(form, lives=lives), self._paths.job(form)
        return await self._reader.list(keeper_id, folder, Path(form.directory), place=_place(form), lives=lives)

    async def copy_checkpoint(self, form: TrialJobForm, path: str) -> None:
        """As `SupportsCheckpointCopies.copy_checkpoint`."""
        here, there = Path(form.directory, path), f"{self._paths.job(form)}/{path}"
        if not await self._lives(form):
            await self.departures.wait(form.job_id)
        if await asyncio.to_thread(self._collector.has_all, here):
            return
        if not await self._lives(form):
            raise TrainingServiceError(f"{path} of job {form.job_id} was lost with its machine before it was copied")
        try:
            files = await self._hub.list_files(job_keeper_id(form.job_id), there, timeout_seconds=_LIST_SECONDS)
            if (size := sum(file.size for file in files)) > self._checkpoint_limit:
                limit = self._checkpoint_limit
                raise TrainingServiceError(
                    f"{path} of job {form.job_id} has {size_text(size)}; no more than {size_text(limit)} are copied"
                )
            failpoint("manager.job_keeper.copy.before")
            await self._collector.copy(job_keeper_id(form.job_id), there, here)
            failpoint("manager.job_keeper.copy.after")
        except FileNotFoundError:  # it was deleted meanwhile
            return

    async def delete_checkpoint(self, form: TrialJobForm, path: str) -> None:
        """Delete a checkpoint in a job's own folder, on its machine and on the manager's."""
        directory = Path(form.directory)
        try:
            if await self._lives(form):
                await self._collector.delete(directory, path)
                await self._hub.remove_checkpoint(job_keeper_id(form.job_id), f"{self._paths.job(form)}/{path}")
            else:
                await self.departures.wait(form.job_id)
            await self._collector.delete(directory, path)  # it may just have been copied
        except OSError as error:
            problem = f"the copy of {path} of job {form.job_id} on the manager's machine cannot be removed: {error}"
            raise TrainingServiceError(problem) from error

    async def _await_files(self, form: TrialJobForm) -> bool:
        """Whether a job has not ended; if it has, wait until its small files are collected."""
        lives = await self._lives(form)
        if not lives:
            await self.departures.wait_small(form.job_id)
        return lives

    async def _lives(self, form: TrialJobForm) -> bool:
        """Whether a job has not ended."""
        try:
            await self._service.get_trial_job(form.job_id)
        except UnknownTrialJob:
            return False
        return True

    def _keeper_id(self, form: TrialJobForm, *, lives: bool) -> str | None:
        return job_keeper_id(form.job_id) if lives else None


def _place(form: TrialJobForm) -> str:
    return f"the machine of job {form.job_id}"
