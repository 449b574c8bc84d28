"""Reading a job's files: on its machine while they are there only, else where they were collected."""

import asyncio
from pathlib import Path
from typing import NoReturn

from proctor.training_services.collected_files import NodeFiles
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.mirror_folder import PART_SUFFIX
from proctor.training_services.remote.collection_notes import CollectionNote
from proctor.trial_keeper.files.access import list_files, read_file

__all__ = ["JobReader"]

SECONDS = 30.0


class JobReader:
    """Reads files of one experiment's jobs."""

    def __init__(self, files: NodeFiles) -> None:
        self._files = files

    async def read(
        self, node_id: str, folder: str, directory: Path, *, path: str, offset: int, limit: int, lives: bool
    ) -> bytes:
        """As `SupportsLogs.read_job_file`. Raises FileNotFoundError; ServiceUnavailable for what is on a machine that
        is away.

        :param folder: the job's, on its node.
        :param directory: where its files are collected.
        :param lives: it has not ended, so that nothing was collected yet.
        """
        note = CollectionNote() if lives else await asyncio.to_thread(CollectionNote.read, directory)
        if note.has(path):
            return await asyncio.to_thread(read_file, str(directory), path, offset, limit)
        try:
            return await self._files.read_file(node_id, folder, path, offset, limit, timeout_seconds=SECONDS)
        except (FileNotFoundError, TrainingServiceError) as error:
            if not lives:
                try:
                    return await asyncio.to_thread(read_file, str(directory), path, offset, limit)
                except FileNotFoundError:
                    pass
            if isinstance(error, FileNotFoundError):
                raise
            await self._give_up(f"{path} is on node {node_id}", directory, error)

    async def list(self, node_id: str, folder: str, directory: Path, *, lives: bool) -> list[tuple[str, int]]:
        """As `SupportsLogs.list_job_files`; names files too that are on the job's machine only. Raises
        ServiceUnavailable when that is away and nothing is known of its files."""
        note = CollectionNote() if lives else await asyncio.to_thread(CollectionNote.read, directory)
        here = {} if lives else await asyncio.to_thread(_sizes, directory, note.left is not None)
        if note.left is not None:
            return sorted({**dict(note.left), **here}.items())
        try:
            found = await self._files.list_files(node_id, folder, timeout_seconds=SECONDS)
        except FileNotFoundError:
            found = []
        except TrainingServiceError as error:
            if here:
                return sorted(here.items())
            await self._give_up(f"the files are on node {node_id}", directory, error)
        return sorted({**here, **{file.path: file.size for file in found}}.items())

    async def _give_up(self, what: str, directory: Path, error: Exception) -> NoReturn:
        number = len(await asyncio.to_thread(_sizes, directory, False))
        collected = f"{number} files of the job were collected" if number else "no file of the job was collected yet"
        raise ServiceUnavailable(f"{what}, which cannot be read now: {error}; {collected}") from error


def _sizes(directory: Path, is_collected: bool) -> dict[str, int]:
    """The files that are here; those that are just being copied do not count."""
    return {
        file.path: file.size
        for file in list_files(str(directory))
        if is_collected or not file.path.endswith(PART_SUFFIX)
    }
