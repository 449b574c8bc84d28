"""The files of trial jobs, read through their training service, whether the experiment runs or not."""

from pathlib import Path

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.engine.loop.context import JobFormBuilder
from proctor.manager.engine.supervisor import ExperimentSupervisor
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import jobs
from proctor.training_services.base import SupportsLogs, TrialJobForm
from proctor.training_services.errors import TrainingServiceError


class TrialFiles:
    """Reads what trials have written."""

    def __init__(self, control: Database, supervisor: ExperimentSupervisor) -> None:
        self._control = control
        self._supervisor = supervisor

    async def read(self, trial: TrialRow, number: int | None, path: str, offset: int, limit: int) -> bytes:
        """Part of a file of a trial's job (None: its newest). Raises NotFound, Conflict; Unavailable while the node
        that has it is away."""
        service, form = await self._open(trial, number)
        try:
            return await service.read_job_file(form, path, offset, limit)
        except FileNotFoundError as error:
            raise NotFound(f"job {form.job_id} has no file {path!r}") from error
        except TrainingServiceError as error:
            raise Unavailable(str(error)) from error

    async def list(self, trial: TrialRow, number: int | None) -> list[tuple[str, int]]:
        """(relative path, size) of every file of a trial's job (None: its newest). Raises as `read` does."""
        service, form = await self._open(trial, number)
        try:
            return await service.list_job_files(form)
        except FileNotFoundError:
            return []
        except TrainingServiceError as error:
            raise Unavailable(str(error)) from error

    async def _open(self, trial: TrialRow, number: int | None) -> tuple[SupportsLogs, TrialJobForm]:
        wanted = f"{trial.id}.{trial.jobs if number is None else number}"
        try:
            job = await self._control.read(lambda c: jobs.get(c, wanted))
        except RowNotFound:
            raise NotFound(f"trial {trial.id} has no job {wanted.rpartition('.')[2]} yet") from None
        experiment = await self._supervisor.experiment(trial.experiment_id)
        try:
            service = self._supervisor.service(experiment)
        except TrainingServiceError as error:  # its package was uninstalled
            raise Unavailable(str(error)) from error
        if not isinstance(service, SupportsLogs):
            raise Conflict(f"platform {experiment.config['training_service']['platform']} cannot show files")
        config = ExperimentConfig.from_canonical(experiment.config)
        return service, JobFormBuilder(config, Path(experiment.directory)).form(experiment, trial, job)
