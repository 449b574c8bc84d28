"""Bringing the files of ended jobs to the manager's disk: small ones as soon as a job has ended, all when the
experiment is let go."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from proctor.training_services.collected_files import CollectedFiles, NodeFiles
from proctor.training_services.errors import CollectionFailed, ServiceUnavailable, TrainingServiceError
from proctor.training_services.nodes import NodePool
from proctor.training_services.remote.collection_notes import CollectionNote
from proctor.training_services.remote.copies import Start
from proctor.training_services.remote.job_places import JobPlaces
from proctor.training_services.remote.presence import until_present
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["Collector", "collect_rest", "name_files"]

log = logging.getLogger(__name__)

PAUSE_SECONDS = 5.0
DISK_PAUSE_SECONDS = 60.0
MOST_NAMED = 5
_LIST_SECONDS = 60.0


class Collector:
    """Collects the files of one experiment's jobs, from each node one thing at a time.

    :param largest: files over so many bytes are left until the end.
    """

    def __init__(
        self, files: NodeFiles, pool: NodePool, places: JobPlaces, *, largest: int, start: Start, experiment_id: str
    ) -> None:
        self._files = files
        self._pool = pool
        self._places = places
        self._largest = largest
        self._start = start
        self._extra = {"action": "files.collect", "experiment_id": experiment_id}
        self._queues: dict[str, deque[tuple[str, Path]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def note_end(self, node_id: str, folder: str, directory: Path) -> None:
        """A job has ended on a node; its files in `folder` there shall come to `directory` here, when it is their
        turn."""
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = deque()
            self._start(self._serve(node_id, queue), f"files of node {node_id}")
        queue.append((folder, directory))

    async def fetch(self, node_id: str, folder: str, directory: Path) -> bool:
        """Bring all of a folder of a job here, whatever its size. False: it has no files there.

        Raises ServiceUnavailable: the node is away; CollectionFailed: our disk.
        """
        files = await self._files.list_files(node_id, folder, timeout_seconds=_LIST_SECONDS)
        if not files:
            return False
        async with self._lock(node_id):
            mirror = CollectedFiles(self._files, node_id, folder=folder, local_folder=directory)
            collection = await mirror.collect(durable=True)
            if collection.left:
                return False
            await asyncio.to_thread(self._note_whole, directory)
        return True

    def has_all(self, folder: Path) -> bool:
        """Whether everything that was in a folder of a job is here. Blocks."""
        job, inner = self._split(folder)
        return job is not None and folder.is_dir() and CollectionNote.read(job).has_all(inner)

    async def collect_all(self, node_id: str) -> Sequence[FileFacts]:
        """Bring everything here that is still on a node; returns what cannot be copied.

        Raises ServiceUnavailable, CollectionFailed.
        """
        async with self._lock(node_id):
            return await collect_rest(self._files, node_id, self._places)

    # ---- one node's turn

    async def _serve(self, node_id: str, queue: deque[tuple[str, Path]]) -> None:
        try:
            while queue:
                await until_present(self._pool, node_id)
                pause = await self._attempt(node_id, *queue[0])
                if pause:
                    await asyncio.sleep(pause)
                else:
                    queue.popleft()
        finally:
            del self._queues[node_id]

    async def _attempt(self, node_id: str, folder: str, directory: Path) -> float:
        """Collect one job's files. Returns after how many seconds to try again; 0: it is done with."""
        try:
            async with self._lock(node_id):
                mirror = CollectedFiles(self._files, node_id, folder=folder, local_folder=directory)
                collection = await mirror.collect(largest=self._largest)
                note = await asyncio.to_thread(CollectionNote.read, directory)
                await asyncio.to_thread(note.with_left(collection.left).write, directory)
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
        trials = self._places.directory / "trials"
        if not folder.is_relative_to(trials):
            return None, ""
        job = self._places.local_job(folder.relative_to(trials).as_posix())
        return job, "" if job is None else folder.relative_to(job).as_posix()

    def _note_whole(self, folder: Path) -> None:
        job, inner = self._split(folder)
        if job is not None:
            CollectionNote.read(job).with_whole(inner).write(job)

    def _lock(self, node_id: str) -> asyncio.Lock:
        return self._locks.setdefault(node_id, asyncio.Lock())


async def collect_rest(files: NodeFiles, node_id: str, places: JobPlaces) -> Sequence[FileFacts]:
    """Bring all files of an experiment's jobs here that are still on a node; returns what cannot be copied. Nobody else
    may copy files of that experiment from there meanwhile.

    Raises ServiceUnavailable, CollectionFailed, OSError.
    """
    folder, directory = places.trials, places.directory / "trials"
    collection = await CollectedFiles(files, node_id, folder=folder, local_folder=directory).collect(durable=True)
    try:
        there = await files.list_files(node_id, folder, timeout_seconds=_LIST_SECONDS)
    except FileNotFoundError:
        return []
    await asyncio.to_thread(_note_all, places, there, collection.left)
    return collection.left


def name_files(files: Sequence[FileFacts]) -> str:
    """For people: "2 files (1-abc/jobs/1/a, 1-abc/jobs/1/b)"."""
    names = ", ".join(file.path for file in files[:MOST_NAMED]) + (", …" if len(files) > MOST_NAMED else "")
    return f"{len(files)} {'file' if len(files) == 1 else 'files'} ({names})"


def _note_all(places: JobPlaces, there: Sequence[FileFacts], left: Sequence[FileFacts]) -> None:
    """A note for every job that has files on a node."""
    trials = places.directory / "trials"
    lacking: dict[Path, list[FileFacts]] = {}
    for file in there:
        if (job := places.local_job(file.path)) is not None:
            lacking.setdefault(job, [])
    for file in left:
        if (job := places.local_job(file.path)) is not None:
            inner = (trials / file.path).relative_to(job).as_posix()
            lacking.setdefault(job, []).append(FileFacts(inner, file.size, file.modified))
    for job, found in lacking.items():
        CollectionNote.read(job).with_left(found).write(job)
