"""Copies of a node's files on the manager's disk: what is missing or has changed is fetched through its keeper."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from proctor.training_services.errors import CollectionFailed, ServiceUnavailable, TrainingServiceError
from proctor.training_services.file_requests import MOST_BYTES
from proctor.training_services.mirror_folder import MirrorFolder, UnusableName
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["CollectedFiles", "Collection", "NodeFiles"]

_SMALL_BYTES = 256 * 1024
_MOST_TOGETHER = 500
_FIRST_BYTES = 512 * 1024
_FEWEST_BYTES = 64 * 1024
_QUICK_SECONDS = 1.0
_SLOW_SECONDS = 5.0
_LIST_SECONDS = 60.0
_READ_SECONDS = 120.0

log = logging.getLogger(__name__)


class NodeFiles(Protocol):
    """What is asked of the hub (`KeeperHub`)."""

    async def list_files(self, node_id: str, folder: str, *, timeout_seconds: float) -> list[FileFacts]: ...

    async def read_file(
        self, node_id: str, folder: str, path: str, offset: int, limit: int, *, timeout_seconds: float
    ) -> bytes: ...

    async def read_files(
        self, node_id: str, folder: str, paths: Sequence[str], *, limit: int, timeout_seconds: float
    ) -> dict[str, bytes]: ...


@dataclass(frozen=True)
class Collection:
    """What one `collect` has done: how many files and bytes it has fetched, and which files are only on the node,
    because they are larger than allowed or because they, and no others, cannot be copied (the log says why)."""

    files: int
    bytes: int
    left: list[FileFacts]


class CollectedFiles:
    """A mirror of one folder of a node. Only regular files are copied; what is gone from the node stays here.

    :param folder: on the node, as in `KeeperHub.list_files`.
    :param local_folder: made when there is something to put into it. One mirror at a time may write to it.
    """

    def __init__(self, hub: NodeFiles, node_id: str, *, folder: str, local_folder: Path) -> None:
        self._hub = hub
        self._node_id = node_id
        self._folder = folder
        self._mirror = MirrorFolder(local_folder)
        self._piece = _FIRST_BYTES

    async def collect(self, *, largest: int | None = None, durable: bool = False) -> Collection:
        """Fetch what is missing here or has another size or modification time, small files first. What was cut off
        before goes on where it was. A folder that is not on the node has no files.

        :param largest: leave files over so many bytes; None: none.
        :param durable: everything that is here survives a power cut when this returns.
        :raises ServiceUnavailable: the node's keeper is away; what is here stays, try again.
        :raises CollectionFailed: our disk is full or cannot be written to; no half file is left.
        """
        try:
            files = await self._hub.list_files(self._node_id, self._folder, timeout_seconds=_LIST_SECONDS)
        except FileNotFoundError:
            return Collection(0, 0, [])
        lacking = await asyncio.to_thread(self._mirror.lacking, files)
        left = [file for file in lacking if largest is not None and file.size > largest]
        wanted = sorted((file for file in lacking if largest is None or file.size <= largest), key=lambda f: f.size)
        fetched = await self._fetch_all(wanted, left)
        if durable:
            lacks = {file.path for file in left}
            await asyncio.to_thread(self._mirror.sync, [file for file in files if file.path not in lacks])
        return Collection(len(fetched), sum(fetched), left)

    async def _fetch_all(self, wanted: Sequence[FileFacts], left: list[FileFacts]) -> list[int]:
        """Fetch files; returns how many bytes each has brought, and adds to `left` those that cannot be copied."""
        fetched: list[int] = []
        for batch in self._batches(wanted):
            contents = await self._read_together(batch) if len(batch) > 1 else {}
            together = [file for file in batch if file.path in contents]
            unusable = await asyncio.to_thread(self._store, together, contents) if together else []
            fetched += [len(contents[file.path]) for file in together if file not in unusable]
            left += unusable
            for file in batch:
                if file.path not in contents:
                    await self._fetch(file, fetched, left)
        return fetched

    async def _fetch(self, file: FileFacts, fetched: list[int], left: list[FileFacts]) -> None:
        try:
            fetched.append(await self._copy(file))
        except FileNotFoundError:
            self._mirror.abandon(file)
            log.info("file %s of %s is gone from node %s", file.path, self._folder, self._node_id)
        except (ServiceUnavailable, CollectionFailed):
            raise
        except (UnusableName, TrainingServiceError) as error:
            self._mirror.abandon(file)
            left.append(file)
            log.warning("a file of node %s was not collected: %s", self._node_id, error)

    def _batches(self, files: Sequence[FileFacts]) -> Iterator[list[FileFacts]]:
        """Small files in batches that are asked for together; each large one by itself. Looks at how quick the
        connection has been so far."""
        batch: list[FileFacts] = []
        size = 0
        for file in files:
            if batch and (size + file.size > self._piece or len(batch) == _MOST_TOGETHER or file.size > _SMALL_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(file)
            size += file.size
        if batch:
            yield batch

    async def _copy(self, file: FileFacts) -> int:
        """Copy one file piece by piece; returns how many bytes were fetched."""
        begin = offset = await asyncio.to_thread(self._mirror.begin, file)
        while offset < file.size:
            data = await self._read(file.path, offset, min(self._piece, file.size - offset))
            if not data:
                break  # it has become shorter; the next collection sees that
            await asyncio.to_thread(self._mirror.append, file, offset, data)
            offset += len(data)
        await asyncio.to_thread(self._mirror.finish, file)
        return offset - begin

    def _store(self, files: Sequence[FileFacts], contents: Mapping[str, bytes]) -> list[FileFacts]:
        """In a thread: store whole files; returns those whose names cannot be used here."""
        unusable = []
        for file in files:
            try:
                self._mirror.store(file, contents[file.path])
            except UnusableName as error:
                unusable.append(file)
                log.warning("a file of node %s was not collected: %s", self._node_id, error)
        return unusable

    async def _read_together(self, batch: Sequence[FileFacts]) -> dict[str, bytes]:
        """The contents of small files; those that are missing are asked for one by one."""
        paths = [file.path for file in batch]
        begun = asyncio.get_running_loop().time()
        try:
            contents = await self._hub.read_files(
                self._node_id, self._folder, paths, limit=_SMALL_BYTES, timeout_seconds=_READ_SECONDS
            )
        except ServiceUnavailable:
            raise
        except (FileNotFoundError, TrainingServiceError):
            return {}
        self._adapt(sum(map(len, contents.values())), asyncio.get_running_loop().time() - begun)
        return contents

    async def _read(self, path: str, offset: int, limit: int) -> bytes:
        begun = asyncio.get_running_loop().time()
        data = await self._hub.read_file(
            self._node_id, self._folder, path, offset, limit, timeout_seconds=_READ_SECONDS
        )
        self._adapt(len(data), asyncio.get_running_loop().time() - begun)
        return data

    def _adapt(self, size: int, seconds: float) -> None:
        """Ask for so much at once that others need not wait long on a slow connection."""
        if seconds > _SLOW_SECONDS:
            self._piece = max(self._piece // 2, _FEWEST_BYTES)
        elif seconds < _QUICK_SECONDS and 2 * size >= self._piece:
            self._piece = min(self._piece * 2, MOST_BYTES)
