"""Bringing the files of ended jobs to the manager's disk: small ones as soon as a job has ended, all when the
experiment is let go."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Protocol

from proctor.training_services.errors import CollectionFailed, ServiceUnavailable, TrainingServiceError
from proctor.training_services.files.mirror import PART_SUFFIX, CollectedFiles, NodeFiles
from proctor.training_services.nodes.pool import NodePool, until_present
from proctor.training_services.remote.files.paths import ExperimentPaths
from proctor.training_services.remote.files.transfer import Start
from proctor.trial_keeper.files.access import list_files, read_file
from proctor.trial_keeper.linux.files import make_folder, replace_file
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["Collector", "Departure", "FolderRemover", "JobReader", "collect_rest", "name_files"]


# ---- collection notes -----------------------------------------------------------------------------------------------
# What of a job's files was brought from its machine, written beside the copy: `jobs/<n>.collected.json`.

SUFFIX = ".collected.json"


@dataclass(frozen=True)
class CollectionNote:
    """`left`: (path, size) of the files that are on the machine only; None: the job was not collected yet. `whole`:
    folders all of which are here, whatever `left` says. Paths are relative to the job's directory."""

    left: tuple[tuple[str, int], ...] | None = None
    whole: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> "CollectionNote":
        """The note on a job's directory; where there is none, or none that can be read, nothing was collected."""
        try:
            body = json.loads(_place(directory).read_text(encoding="utf-8"))
            left = body["left"]
            return cls(
                None if left is None else tuple((str(path), int(size)) for path, size in left), tuple(body["whole"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def write(self, directory: Path) -> None:
        """Replace the note on a job's directory. Raises OSError."""
        make_folder(str(directory.parent), mode=0o777)
        body = json.dumps({"left": self.left, "whole": self.whole})
        replace_file(str(_place(directory)), body.encode(), durable=True)

    def with_left(self, left: Iterable[FileFacts]) -> "CollectionNote":
        """The job was collected but for these."""
        return replace(self, left=tuple((file.path, file.size) for file in left))

    def with_whole(self, folder: str) -> "CollectionNote":
        """All of a folder is here."""
        return self if folder in self.whole else replace(self, whole=(*self.whole, folder))

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


def _place(directory: Path) -> Path:
    return directory.parent / f"{directory.name}{SUFFIX}"


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
        self,
        files: NodeFiles,
        pool: NodePool,
        places: ExperimentPaths,
        *,
        largest: int,
        start: Start,
        experiment_id: str,
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


async def collect_rest(files: NodeFiles, node_id: str, places: ExperimentPaths) -> Sequence[FileFacts]:
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


def _note_all(places: ExperimentPaths, there: Sequence[FileFacts], left: Sequence[FileFacts]) -> None:
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


# ---- departure ------------------------------------------------------------------------------------------------------
# An experiment leaves its machines: what is still there is collected, then its folder is removed. A machine that is
# away, or whose files cannot be stored now, owes them from then on: see `machine`.

ATTEMPTS = 5
RELEASE_PAUSE_SECONDS = 1.0


class FolderRemover(Protocol):
    """What removes folders of nodes: `KeeperHub`."""

    async def remove_folder(self, node_id: str, folder: str, *, timeout_seconds: float = 60.0) -> None:
        """Raises ServiceUnavailable, TrainingServiceError."""


class Departure:
    """Takes leave of the machines of one experiment, which has no jobs any more."""

    def __init__(
        self,
        remover: FolderRemover,
        pool: NodePool,
        places: ExperimentPaths,
        collector: Collector,
        *,
        experiment_id: str,
    ) -> None:
        self._remover = remover
        self._pool = pool
        self._places = places
        self._collector = collector
        self._experiment_id = experiment_id

    async def leave(self, node_ids: Iterable[str]) -> frozenset[str]:
        """All machines at once. Returns those that still have files of the experiment; the log says why."""
        async with asyncio.TaskGroup() as group:
            leaving = {id: group.create_task(self._leave(id), name=f"leave node {id}") for id in node_ids}
        return frozenset(node_id for node_id, task in leaving.items() if not task.result())

    async def _leave(self, node_id: str) -> bool:
        """Whether everything was collected and removed."""
        if absence := self._pool.absence(node_id):
            self._warn(node_id, f"what was not collected yet is collected when that answers again: {absence}")
            return False
        try:
            left = await self._collector.collect_all(node_id)
            if left:
                self._warn(node_id, f"{name_files(left)} cannot be copied and stay there")
                return False
            await self._remove(node_id)
        except (TrainingServiceError, OSError) as error:
            self._warn(node_id, f"its files there are not all collected and removed: {error}")
            return False
        return True

    async def _remove(self, node_id: str) -> None:
        """A keeper may hold a job to be running for a moment longer than we do."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._remover.remove_folder(node_id, self._places.folder)
                return
            except TrainingServiceError:
                if attempt == ATTEMPTS or self._pool.absence(node_id):
                    raise
                await asyncio.sleep(RELEASE_PAUSE_SECONDS)

    def _warn(self, node_id: str, clause: str) -> None:
        extra = {"action": "node.depart", "node_id": node_id, "experiment_id": self._experiment_id}
        log.warning("experiment %s leaves node %s: %s", self._experiment_id, node_id, clause, extra=extra)


# ---- job reading ----------------------------------------------------------------------------------------------------
# Reading a job's files: on its machine while they are there only, else where they were collected.

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
