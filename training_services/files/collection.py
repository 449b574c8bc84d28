"""The files of ended jobs, collected to the manager's disk, and `JobReader`, which reads them wherever they are.

What of a job's files was collected is noted beside the copy, in `jobs/<n>.collected.json`.
"""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn
from weakref import WeakValueDictionary

from proctor.sdk.files import discard, make_folder, replace_file
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.files.mirror import PART_SUFFIX, CollectedFiles, CollectionResult
from proctor.training_services.files.paths import ExperimentPaths
from proctor.training_services.keepers.hub import KeeperHub
from proctor.trial_keeper.files.access import list_files, read_file
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["NOTE_SUFFIX", "CollectionNote", "Collector", "JobReader"]

NOTE_SUFFIX = ".collected.json"
_LIST_SECONDS = 60.0
_READ_SECONDS = 30.0


@dataclass(frozen=True)
class CollectionNote:
    """What of one job's files was collected. Paths are relative to the job's directory.

    left: (path, size) of the files that are on the machine only; None: the job was not collected yet.
    whole: folders that are here completely, whatever `left` says.
    node_id: of the keeper; "" where an earlier version has collected the job.
    """

    left: tuple[tuple[str, int], ...] | None = None
    whole: tuple[str, ...] = ()
    node_id: str = ""

    @classmethod
    def read(cls, directory: Path) -> "CollectionNote":
        """The note on a job's directory; where there is none, or none that can be read, nothing was collected."""
        try:
            body = json.loads(_note_path(directory).read_text(encoding="utf-8"))
            left = body["left"]
            sizes = None if left is None else tuple((str(path), int(size)) for path, size in left)
            return cls(sizes, tuple(body["whole"]), str(body.get("node_id", "")))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def write(self, directory: Path) -> None:
        """Replace the note on a job's directory. Raises OSError."""
        make_folder(str(directory.parent), mode=0o777)
        replace_file(str(_note_path(directory)), json.dumps(asdict(self)).encode(), durable=True)

    def with_left(self, left: Iterable[FileFacts], node_id: str) -> "CollectionNote":
        """The job was collected but for these."""
        return replace(self, left=tuple((file.path, file.size) for file in left), node_id=node_id)

    def with_whole(self, folder: str) -> "CollectionNote":
        """All of a folder is here."""
        return self if folder in self.whole else replace(self, whole=(*self.whole, folder))

    def without(self, folder: str) -> "CollectionNote":
        """A folder of the job is deleted."""
        left = self.left
        if left is not None:
            left = tuple((path, size) for path, size in left if not path.startswith(f"{folder}/"))
        return replace(self, left=left, whole=tuple(each for each in self.whole if each != folder))

    def has(self, path: str) -> bool:
        """Whether a file of the job, if it was there when the job ended, is here."""
        if any(path.startswith(f"{folder}/") for folder in self.whole):
            return True
        return self.left is not None and all(path != name for name, _ in self.left)

    def has_all(self, folder: str) -> bool:
        """Whether everything that was in a folder is here."""
        if folder in self.whole:
            return True
        return self.left is not None and not any(name.startswith(f"{folder}/") for name, _ in self.left)


def _note_path(directory: Path) -> Path:
    return directory.parent / f"{directory.name}{NOTE_SUFFIX}"


class Collector:
    """Collects the files of one experiment's jobs, through each keeper one thing at a time.

    :param largest: `collect` leaves files over so many bytes.
    """

    def __init__(self, hub: KeeperHub, paths: ExperimentPaths, *, largest: int) -> None:
        self._hub = hub
        self._paths = paths
        self._largest = largest
        self._locks: dict[str, asyncio.Lock] = {}  # by keeper
        self._job_locks = WeakValueDictionary[str, asyncio.Lock]()

    async def collect(self, keeper_id: str, folder: str, directory: Path, *, durable: bool = False) -> CollectionResult:
        """Collect what is small of a job that is over, and note what is left.

        Raises ServiceUnavailable: its keeper is away; CollectionFailed, OSError: our disk; TrainingServiceError: its
        keeper cannot read its files.
        """
        async with self._job_lock(directory), self._lock(keeper_id):
            mirror = CollectedFiles(self._hub, keeper_id, folder=folder, local_folder=directory)
            collection = await mirror.collect(largest=self._largest, durable=durable)
            note = await asyncio.to_thread(CollectionNote.read, directory)
            await asyncio.to_thread(note.with_left(collection.left, keeper_id).write, directory)
        return collection

    async def fetch(self, keeper_id: str, folder: str, directory: Path) -> bool:
        """Collect all of a folder of a job, whatever its size. False: it has no files there.

        Raises ServiceUnavailable: the keeper is away; CollectionFailed: our disk.
        """
        files = await self._hub.list_files(keeper_id, folder, timeout_seconds=_LIST_SECONDS)
        if not files:
            return False
        async with self._job_lock(directory), self._lock(keeper_id):
            return await self._fetch(keeper_id, folder, directory)

    async def copy(self, keeper_id: str, folder: str, directory: Path) -> None:
        """As `fetch`, beside everything else that is collected through the keeper but the files of the same job."""
        async with self._job_lock(directory):
            await self._fetch(keeper_id, folder, directory)

    async def _fetch(self, keeper_id: str, folder: str, directory: Path) -> bool:
        mirror = CollectedFiles(self._hub, keeper_id, folder=folder, local_folder=directory)
        collection = await mirror.collect(durable=True)
        if collection.left or not await asyncio.to_thread(directory.is_dir):
            return False
        await asyncio.to_thread(self._note_whole, directory)
        return True

    async def delete(self, directory: Path, path: str) -> None:
        """Remove our copy of a folder of a job, which is deleted where it was saved or about to be. Raises OSError."""
        async with self._job_lock(directory):
            await asyncio.to_thread(_delete_copy, directory, path)

    def has_all(self, folder: Path) -> bool:
        """Whether everything that was in a folder of a job is here. Blocks."""
        job, inner = self._split(folder)
        return job is not None and folder.is_dir() and CollectionNote.read(job).has_all(inner)

    # ---- notes

    def _split(self, folder: Path) -> tuple[Path | None, str]:
        """The job's directory, and the rest of the path."""
        trials = self._paths.directory / "trials"
        if not folder.is_relative_to(trials):
            return None, ""
        job = self._paths.local_job(folder.relative_to(trials).as_posix())
        return job, "" if job is None else folder.relative_to(job).as_posix()

    def _note_whole(self, folder: Path) -> None:
        job, inner = self._split(folder)
        if job is not None:
            CollectionNote.read(job).with_whole(inner).write(job)

    def _lock(self, keeper_id: str) -> asyncio.Lock:
        return self._locks.setdefault(keeper_id, asyncio.Lock())

    def _job_lock(self, directory: Path) -> asyncio.Lock:
        """Of the job to which a folder belongs: its copy is written by one at a time. Taken before that of a keeper."""
        job, _ = self._split(directory)
        return self._job_locks.setdefault(str(job or directory), asyncio.Lock())


def _delete_copy(directory: Path, path: str) -> None:
    note = CollectionNote.read(directory)
    cleaned = note.without(path)
    if cleaned != note:
        cleaned.write(directory)
    with suppress(FileNotFoundError):
        discard(directory / path)


class JobReader:
    """Reads files of one experiment's jobs."""

    def __init__(self, hub: KeeperHub) -> None:
        self._hub = hub

    async def read(
        self,
        keeper_id: str | None,
        folder: str,
        directory: Path,
        *,
        place: str,
        path: str,
        offset: int,
        limit: int,
        lives: bool,
    ) -> bytes:
        """As `SupportsLogs.read_job_file`. Raises FileNotFoundError; ServiceUnavailable for what is on a machine that
        is away.

        :param keeper_id: through which it is read; None: where the job ran is gone.
        :param folder: the job's, where it ran.
        :param directory: where its files are collected.
        :param place: what that is called.
        :param lives: it has not ended, so that nothing was collected yet.
        """
        note = CollectionNote() if lives else await asyncio.to_thread(CollectionNote.read, directory)
        if note.has(path):
            return await asyncio.to_thread(read_file, str(directory), path, offset, limit)
        if keeper_id is None:
            if path in dict(note.left or ()):
                raise ServiceUnavailable(f"{path} was on {place}, which is gone; it was too large to be collected")
            return await asyncio.to_thread(read_file, str(directory), path, offset, limit)
        try:
            return await self._hub.read_file(keeper_id, folder, path, offset, limit, timeout_seconds=_READ_SECONDS)
        except (FileNotFoundError, TrainingServiceError) as error:
            if not lives:
                try:
                    return await asyncio.to_thread(read_file, str(directory), path, offset, limit)
                except FileNotFoundError:
                    pass
            if isinstance(error, FileNotFoundError):
                raise
            await self._fail(f"{path} is on {place}", directory, error)

    async def list(
        self, keeper_id: str | None, folder: str, directory: Path, *, place: str, lives: bool
    ) -> list[tuple[str, int]]:
        """As `SupportsLogs.list_job_files`; names files too that are on the job's machine only. Raises
        ServiceUnavailable when that is away and nothing is known of its files."""
        note = CollectionNote() if lives else await asyncio.to_thread(CollectionNote.read, directory)
        here = {} if lives else await asyncio.to_thread(_sizes, directory, note.left is not None)
        if note.left is not None:
            return sorted({**dict(note.left), **here}.items())
        if keeper_id is None:
            return sorted(here.items())
        try:
            found = await self._hub.list_files(keeper_id, folder, timeout_seconds=_READ_SECONDS)
        except FileNotFoundError:
            found = []
        except TrainingServiceError as error:
            if here:
                return sorted(here.items())
            await self._fail(f"the files are on {place}", directory, error)
        return sorted({**here, **{file.path: file.size for file in found}}.items())

    async def _fail(self, what: str, directory: Path, error: Exception) -> NoReturn:
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
