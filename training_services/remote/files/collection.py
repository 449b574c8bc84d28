"""The files of ended jobs, collected to the manager's disk: small ones as soon as a job has ended, all of them when the
experiment releases its machines (`collect_and_remove`). `JobReader` reads them wherever they are.

What of a job's files was collected is noted beside the copy, in `jobs/<n>.collected.json`.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn
from weakref import WeakValueDictionary

from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import discard, make_folder, replace_file
from proctor.training_services.errors import CollectionFailed, ServiceUnavailable, TrainingServiceError
from proctor.training_services.files.mirror import PART_SUFFIX, CollectedFiles
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import FileCollection
from proctor.training_services.remote.files.paths import ExperimentPaths
from proctor.training_services.remote.files.transfer import StartTask
from proctor.training_services.ssh.errors import RemoteError
from proctor.trial_keeper.files.access import list_files, read_file
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["CollectionNote", "Collector", "JobReader", "collect_and_remove", "name_files", "read_left"]

log = logging.getLogger(__name__)

SUFFIX = ".collected.json"
PAUSE_SECONDS = 5.0
DISK_PAUSE_SECONDS = 60.0
ATTEMPTS = 5
ATTEMPT_PAUSE_SECONDS = 1.0
MOST_NAMED = 5
_LIST_SECONDS = 60.0
_READ_SECONDS = 30.0


@dataclass(frozen=True)
class CollectionNote:
    """What of one job's files was collected. Paths are relative to the job's directory.

    left: (path, size) of the files that are on the machine only; None: the job was not collected yet.
    whole: folders that are here completely, whatever `left` says.
    node_id: of the machine; "" where an earlier version has collected the job.
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
    return directory.parent / f"{directory.name}{SUFFIX}"


class Collector:
    """Collects the files of one experiment's jobs, from each node one thing at a time.

    :param largest: files over so many bytes are left until the end.
    """

    def __init__(
        self,
        hub: KeeperHub,
        pool: NodePool,
        paths: ExperimentPaths,
        *,
        largest: int,
        start: StartTask,
        experiment_id: str,
    ) -> None:
        self._hub = hub
        self._pool = pool
        self._paths = paths
        self._largest = largest
        self._start = start
        self._extra = {"action": "files.collect", "experiment_id": experiment_id}
        self._queues: dict[str, deque[tuple[str, Path]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}  # by node
        self._job_locks = WeakValueDictionary[str, asyncio.Lock]()

    def note_end(self, node_id: str, folder: str, directory: Path) -> None:
        """A job has ended on a node; its files in `folder` there are collected to `directory` here after those of
        earlier jobs."""
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = deque()
            self._start(self._serve(node_id, queue), f"files of node {node_id}")
        queue.append((folder, directory))

    async def fetch(self, node_id: str, folder: str, directory: Path) -> bool:
        """Collect all of a folder of a job, whatever its size. False: it has no files there.

        Raises ServiceUnavailable: the node is away; CollectionFailed: our disk.
        """
        files = await self._hub.list_files(node_id, folder, timeout_seconds=_LIST_SECONDS)
        if not files:
            return False
        async with self._job_lock(directory), self._lock(node_id):
            return await self._fetch(node_id, folder, directory)

    async def copy(self, node_id: str, folder: str, directory: Path) -> None:
        """As `fetch`, beside everything else that is collected from the node but the files of the same job."""
        async with self._job_lock(directory):
            await self._fetch(node_id, folder, directory)

    async def _fetch(self, node_id: str, folder: str, directory: Path) -> bool:
        mirror = CollectedFiles(self._hub, node_id, folder=folder, local_folder=directory)
        collection = await mirror.collect(durable=True)
        if collection.left or not await asyncio.to_thread(directory.is_dir):
            return False
        await asyncio.to_thread(self._note_whole, directory)
        return True

    async def delete(self, directory: Path, path: str) -> None:
        """Remove our copy of a folder of a job, which is deleted on its node or about to be. Raises OSError."""
        async with self._job_lock(directory):
            await asyncio.to_thread(_delete_copy, directory, path)

    def has_all(self, folder: Path) -> bool:
        """Whether everything that was in a folder of a job is here. Blocks."""
        job, inner = self._split(folder)
        return job is not None and folder.is_dir() and CollectionNote.read(job).has_all(inner)

    # ---- one node

    async def _serve(self, node_id: str, queue: deque[tuple[str, Path]]) -> None:
        try:
            while queue:
                await self._pool.wait_connected(node_id)
                pause = await self._attempt(node_id, *queue[0])
                if pause:
                    await asyncio.sleep(pause)
                else:
                    queue.popleft()
        finally:
            del self._queues[node_id]

    async def _attempt(self, node_id: str, folder: str, directory: Path) -> float:
        """Collect one job's files. Returns after how many seconds to try again; 0: it is finished."""
        try:
            async with self._job_lock(directory), self._lock(node_id):
                mirror = CollectedFiles(self._hub, node_id, folder=folder, local_folder=directory)
                collection = await mirror.collect(largest=self._largest)
                note = await asyncio.to_thread(CollectionNote.read, directory)
                await asyncio.to_thread(note.with_left(collection.left, node_id).write, directory)
        except ServiceUnavailable as error:
            log.info("files of %s are collected later: %s", directory, error, extra=self._extra)
            return PAUSE_SECONDS
        except (CollectionFailed, OSError) as error:
            log.warning("files of %s cannot be collected: %s", directory, error, extra=self._extra)
            return DISK_PAUSE_SECONDS
        except TrainingServiceError as error:
            log.warning("files of %s stay on node %s: %s", directory, node_id, error, extra=self._extra)
        return 0.0

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

    def _lock(self, node_id: str) -> asyncio.Lock:
        return self._locks.setdefault(node_id, asyncio.Lock())

    def _job_lock(self, directory: Path) -> asyncio.Lock:
        """Of the job to which a folder belongs: its copy is written by one at a time. Taken before that of a node."""
        job, _ = self._split(directory)
        return self._job_locks.setdefault(str(job or directory), asyncio.Lock())


def _delete_copy(directory: Path, path: str) -> None:
    note = CollectionNote.read(directory)
    cleaned = note.without(path)
    if cleaned != note:
        cleaned.write(directory)
    with suppress(FileNotFoundError):
        discard(directory / path)


async def collect_and_remove(hub: KeeperHub, node_id: str, paths: ExperimentPaths, progress: FileCollection) -> None:
    """Collect all files of an experiment's jobs that are still on a node, then remove its folder there. No other copy
    of files of that experiment from there may run meanwhile. Idempotent; can be repeated after it was broken off.

    Tried again for a moment: a job that has ended may still be running for the keeper, or its session be a new one.
    Raises ServiceUnavailable, CollectionFailed, OSError; RemoteError for files that cannot be copied.
    """
    for pauses in reversed(range(ATTEMPTS)):
        try:
            failpoint("manager.collect.before")
            await _collect_rest(hub, node_id, paths, progress)
            failpoint("manager.collect.after")
            try:
                return await hub.remove_folder(node_id, paths.folder)
            except asyncio.CancelledError:  # the experiment may start over: what was begun must be over by then
                await hub.remove_folder(node_id, paths.folder)
                raise
        except TrainingServiceError as error:
            if not pauses or isinstance(error, (CollectionFailed, RemoteError)):
                raise
        await asyncio.sleep(ATTEMPT_PAUSE_SECONDS)


async def _collect_rest(hub: KeeperHub, node_id: str, paths: ExperimentPaths, progress: FileCollection) -> None:
    mirror = CollectedFiles(hub, node_id, folder=paths.trials, local_folder=paths.directory / "trials")
    for _ in range(ATTEMPTS):  # a trial that was just ended may have written meanwhile
        collection = await mirror.collect(durable=True, progress=progress)
        if not collection.files:
            break
    with suppress(FileNotFoundError):
        there = await hub.list_files(node_id, paths.trials, timeout_seconds=_LIST_SECONDS)
        await asyncio.to_thread(_note_all, paths, node_id, there, collection.left)
    if collection.left:
        names = name_files([file.path for file in collection.left])
        raise RemoteError(f"{names} cannot be copied, see the manager's log; make them readable there")


def read_left(paths: ExperimentPaths, node_id: str) -> list[str]:
    """The files that are known to be on a node only, of jobs that had ended before it went away. Blocks."""
    trials = paths.directory / "trials"
    found = []
    for path in sorted(trials.glob(f"*/jobs/*{SUFFIX}")):
        job = path.with_name(path.name.removesuffix(SUFFIX))
        note = CollectionNote.read(job)
        found += [f"{job.relative_to(trials)}/{name}" for name, _ in note.left or () if note.node_id == node_id]
    return found


def name_files(paths: Sequence[str]) -> str:
    """For people: "2 files (1-abc/jobs/1/a, 1-abc/jobs/1/b)"."""
    names = ", ".join(paths[:MOST_NAMED]) + (", …" if len(paths) > MOST_NAMED else "")
    return f"{len(paths)} {'file' if len(paths) == 1 else 'files'} ({names})"


def _note_all(paths: ExperimentPaths, node_id: str, there: Sequence[FileFacts], left: Sequence[FileFacts]) -> None:
    """A note for every job that has files on a node."""
    trials = paths.directory / "trials"
    lacking: dict[Path, list[FileFacts]] = {}
    for file in there:
        if (job := paths.local_job(file.path)) is not None:
            lacking.setdefault(job, [])
    for file in left:
        if (job := paths.local_job(file.path)) is not None:
            inner = (trials / file.path).relative_to(job).as_posix()
            lacking.setdefault(job, []).append(FileFacts(inner, file.size, file.modified))
    for job, found in lacking.items():
        CollectionNote.read(job).with_left(found, node_id).write(job)


class JobReader:
    """Reads files of one experiment's jobs."""

    def __init__(self, hub: KeeperHub) -> None:
        self._hub = hub

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
            return await self._hub.read_file(node_id, folder, path, offset, limit, timeout_seconds=_READ_SECONDS)
        except (FileNotFoundError, TrainingServiceError) as error:
            if not lives:
                try:
                    return await asyncio.to_thread(read_file, str(directory), path, offset, limit)
                except FileNotFoundError:
                    pass
            if isinstance(error, FileNotFoundError):
                raise
            await self._fail(f"{path} is on node {node_id}", directory, error)

    async def list(self, node_id: str, folder: str, directory: Path, *, lives: bool) -> list[tuple[str, int]]:
        """As `SupportsLogs.list_job_files`; names files too that are on the job's machine only. Raises
        ServiceUnavailable when that is away and nothing is known of its files."""
        note = CollectionNote() if lives else await asyncio.to_thread(CollectionNote.read, directory)
        here = {} if lives else await asyncio.to_thread(_sizes, directory, note.left is not None)
        if note.left is not None:
            return sorted({**dict(note.left), **here}.items())
        try:
            found = await self._hub.list_files(node_id, folder, timeout_seconds=_READ_SECONDS)
        except FileNotFoundError:
            found = []
        except TrainingServiceError as error:
            if here:
                return sorted(here.items())
            await self._fail(f"the files are on node {node_id}", directory, error)
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
