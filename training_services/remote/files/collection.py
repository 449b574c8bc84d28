"""When the files of ended jobs are collected from machines: small ones as soon as a job has ended, all of them when the
experiment releases its machines (`collect_and_remove`)."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from proctor.sdk.failpoints import failpoint
from proctor.training_services.errors import CollectionFailed, ServiceUnavailable, TrainingServiceError
from proctor.training_services.files.collection import NOTE_SUFFIX, CollectionNote, Collector
from proctor.training_services.files.mirror import CollectedFiles
from proctor.training_services.files.paths import ExperimentPaths
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import FileCollection
from proctor.training_services.remote.files.transfer import StartTask
from proctor.training_services.ssh.errors import RemoteError
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["CollectionQueues", "collect_and_remove", "name_files", "read_left"]

log = logging.getLogger(__name__)

PAUSE_SECONDS = 5.0
DISK_PAUSE_SECONDS = 60.0
ATTEMPTS = 5
ATTEMPT_PAUSE_SECONDS = 1.0
MOST_NAMED = 5
_LIST_SECONDS = 60.0


class CollectionQueues:
    """The jobs of one experiment whose small files are to be collected, from each node one after the other."""

    def __init__(self, pool: NodePool, collector: Collector, *, start: StartTask, experiment_id: str) -> None:
        self._pool = pool
        self._collector = collector
        self._start = start
        self._extra = {"action": "files.collect", "experiment_id": experiment_id}
        self._queues: dict[str, deque[tuple[str, Path]]] = {}

    def note_end(self, node_id: str, folder: str, directory: Path) -> None:
        """A job has ended on a node; its files in `folder` there are collected to `directory` here after those of
        earlier jobs."""
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = deque()
            self._start(self._serve(node_id, queue), f"files of node {node_id}")
        queue.append((folder, directory))

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
            await self._collector.collect(node_id, folder, directory)
        except ServiceUnavailable as error:
            log.info("files of %s are collected later: %s", directory, error, extra=self._extra)
            return PAUSE_SECONDS
        except (CollectionFailed, OSError) as error:
            log.warning("files of %s cannot be collected: %s", directory, error, extra=self._extra)
            return DISK_PAUSE_SECONDS
        except TrainingServiceError as error:
            log.warning("files of %s stay on node %s: %s", directory, node_id, error, extra=self._extra)
        return 0.0


async def collect_and_remove(hub: KeeperHub, node_id: str, paths: ExperimentPaths, progress: FileCollection) -> None:
    """Collect all files of an experiment's jobs that are still on a node, then remove its folder there. No other copy
    of files of that experiment from there may run meanwhile. Idempotent; can be repeated after it was broken off.

    Tried again for a moment: a job that has ended may still be running for the keeper, or its session be a new one.
    Raises ServiceUnavailable, CollectionFailed, OSError; RemoteError for files that cannot be copied.
    """
    if not await asyncio.to_thread(paths.directory.is_dir):  # it is never made here: another disk would get the files
        raise CollectionFailed(f"the experiment's folder {paths.directory} is not there; have its disk mounted")
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
    for path in sorted(trials.glob(f"*/jobs/*{NOTE_SUFFIX}")):
        job = path.with_name(path.name.removesuffix(NOTE_SUFFIX))
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
