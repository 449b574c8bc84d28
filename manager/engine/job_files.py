"""The files of trial jobs, read through their training service, whether the experiment runs or not."""

import asyncio
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.manager.engine.context import read_config
from proctor.manager.engine.loop.context import JobFormBuilder
from proctor.manager.engine.supervisor import ExperimentSupervisor
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import jobs
from proctor.sdk.protocol import is_url
from proctor.training_services.base import SupportsLogs, TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.stored_checkpoints import download_stored
from proctor.trial_keeper.files.access import list_files, read_file

PIECE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class ArchivedFile:
    """A file of a job, and what it is called in a tar."""

    path: str
    size: int
    name: str

    def header(self) -> bytes:
        """What comes before its content."""
        info = tarfile.TarInfo(self.name)
        info.size = self.size
        return info.tobuf(tarfile.PAX_FORMAT)

    @property
    def padding(self) -> int:
        """How many bytes come after its content."""
        return -self.size % tarfile.BLOCKSIZE


class FolderArchive:
    """Files of a job as one tar, whose size is known before anything is read."""

    def __init__(
        self, files: Sequence[ArchivedFile], read: Callable[[str, int, int], Coroutine[Any, Any, bytes]]
    ) -> None:
        """:param read: reads at most so many bytes (third) of a file from an offset (second)."""
        self._files = files
        self._read = read

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(len(file.header()) + file.size + file.padding for file in self._files) + 2 * tarfile.BLOCKSIZE

    async def body(self) -> AsyncIterator[bytes]:
        """Its bytes. Raises Unavailable when a file can no longer be read, so that the tar is seen to be incomplete."""
        for file in self._files:
            yield file.header()
            offset = 0
            while offset < file.size:
                data = await self._read(file.path, offset, min(PIECE_BYTES, file.size - offset))
                if not data:
                    raise Unavailable(f"{file.path} has changed while it was read; download it again")
                yield data
                offset += len(data)
            yield bytes(file.padding)
        yield bytes(2 * tarfile.BLOCKSIZE)


async def _archive_of_folder(folder: str, name: str, *, owner: object = None) -> FolderArchive:
    """A folder of this machine as a tar. Raises NotFound where it has no files.

    :param owner: kept as long as the archive is.
    """
    found = await asyncio.to_thread(list_files, folder)
    if not found:
        raise NotFound(f"the manager's machine has no files in {folder}; copy them from a node that has the folder")

    async def read(path: str, offset: int, limit: int, _owner: object = owner) -> bytes:
        return await asyncio.to_thread(read_file, folder, path, offset, limit)

    return FolderArchive([ArchivedFile(file.path, file.size, f"{name}/{file.path}") for file in found], read)


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

    async def archive_checkpoint(self, trial: TrialRow, number: int, folder: str, *, name: str) -> "FolderArchive":
        """A checkpoint of a trial's job as a tar in which it is called `name`. One that is stored under a URL is
        downloaded first. Raises NotFound where it has no files, and as `read` does.

        :param folder: its registered path.
        """
        if is_url(folder):
            _, form = await self._open(trial, number)
            copy = tempfile.TemporaryDirectory(prefix="proctor-checkpoint-")  # removed with the archive
            try:
                await download_stored(folder, f"{copy.name}/files", form.environment)
            except ServiceUnavailable as error:
                raise Unavailable(str(error)) from error
            return await _archive_of_folder(f"{copy.name}/files", name, owner=copy)
        if folder.startswith("/"):
            return await _archive_of_folder(folder, name)
        files = [(path, size) for path, size in await self.list(trial, number) if path.startswith(f"{folder}/")]
        if not files:
            why = "they were removed by hand, or lost with their machine"
            raise NotFound(f"job {trial.id}.{number} has no files in {folder}: {why}")
        await self.read(trial, number, files[0][0], 0, 1)  # that they can be read is known before the answer begins

        async def read(path: str, offset: int, limit: int) -> bytes:
            return await self.read(trial, number, path, offset, limit)

        members = [ArchivedFile(path, size, f"{name}/{path[len(folder) + 1 :]}") for path, size in files]
        return FolderArchive(members, read)

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
        config = await read_config(experiment)
        return service, JobFormBuilder(config, Path(experiment.directory)).form(experiment, trial, job)
