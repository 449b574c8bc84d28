"""Copies to a machine: trial code, and checkpoints to resume from.

`Transfers` copies over one connection. `TransferQueue` makes each copy of an experiment once, however many jobs wait
for it, and reports its progress to all of them.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.training_services.files.code import CodeArchive, pack_folder
from proctor.training_services.files.mirror import size_text
from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper
from proctor.training_services.ssh.base import NodeConnection, ProgressCallback
from proctor.training_services.ssh.errors import CommandFailed

__all__ = ["Copy", "Notify", "StartTask", "TransferQueue", "Transfers"]

SMALL_BYTES = 1 << 20
"""An archive up to this size is sent with the command that unpacks it: one session less for the machine."""

_NAME_LENGTH = 20

Notify = Callable[[str], None]
"""Called with a clause for users: "the code (120 MB) is being copied to gpu-3, 34 %"."""
StartTask = Callable[[Coroutine[Any, Any, None], str], object]
"""Runs a coroutine with a name in a task group. Does not raise what the coroutine raises."""

NOTIFY_SECONDS = 1.0
"""The shortest time between two progress reports of a copy."""


class Transfers:
    """Copies archives over one connection; concurrent calls for the same one copy it once.

    :param codes: the names of the code that is unpacked there; updated.
    """

    def __init__(self, connection: NodeConnection, keeper: NodeKeeper, codes: set[str]) -> None:
        self._connection = connection
        self._keeper = keeper
        self._codes = codes
        self._folders: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    def forget(self) -> None:
        """Look again what is there, because someone may have deleted it: what is copied and there already stays."""
        self._codes.clear()
        self._folders.clear()

    async def ensure_code(self, archive: CodeArchive, on_progress: ProgressCallback | None) -> None:
        """Have trial code unpacked below `code/`. Raises RemoteError."""
        async with self._locks.setdefault(archive.name, asyncio.Lock()):
            if archive.name not in self._codes:
                target = f"code/{archive.name}"
                await self._copy(archive.path, archive.file_sha256, target=target, on_progress=on_progress)
                self._codes.add(archive.name)

    async def ensure_folder(self, folder: Path, target: str, on_progress: ProgressCallback | None) -> None:
        """Have a copy of a local folder at `target`. Raises RemoteError, and OSError where it cannot be read."""
        async with self._locks.setdefault(target, asyncio.Lock()):
            if target in self._folders:
                return
            with tempfile.TemporaryDirectory(prefix="proctor-copy-") as place:
                packed = Path(place) / "folder.tar.gz"
                sha256 = await asyncio.to_thread(pack_folder, folder, packed)
                await self._copy(packed, sha256, target=target, on_progress=on_progress)
            self._folders.add(target)

    async def _copy(self, source: Path, sha256: str, *, target: str, on_progress: ProgressCallback | None) -> None:
        """Copy and unpack. An upload is named by its hash, so that an interrupted one is continued by the same file
        only."""
        arrived = f"uploads/{sha256[:_NAME_LENGTH]}.tar.gz"
        for is_last in (False, True):
            data = await asyncio.to_thread(_read_small, source)
            if not data:
                await self._connection.upload(source, f"{self._keeper.directory}/{arrived}", on_progress=on_progress)
            try:
                return await self._keeper.unpack(arrived, sha256, target=target, data=data)
            except CommandFailed:  # damaged: the machine has removed it
                if is_last:
                    raise


def _read_small(path: Path) -> bytes:
    """A small file; nothing of a larger one."""
    return path.read_bytes() if path.stat().st_size <= SMALL_BYTES else b""


@dataclass(frozen=True)
class Copy:
    """Something to copy to a node. Two with the same key are the same copy. `what` is a noun: "the code"."""

    key: tuple[str, str]
    what: str
    node_id: str
    run: Callable[[ProgressCallback], Awaitable[None]]


@dataclass(eq=False)
class _RunningCopy:
    copy: Copy
    done: asyncio.Future[None]
    listeners: list[Notify] = field(default_factory=list)
    clause: str = ""
    notified_at: float = float("-inf")

    def report(self, present: int, total: int) -> None:
        """Report the progress to all listeners, but not too often."""
        share = 100 * present // total if total else 100
        self.clause = f"{self.copy.what} ({size_text(total)}) is being copied to {self.copy.node_id}, {share} %"
        now = self.done.get_loop().time()
        if now - self.notified_at >= NOTIFY_SECONDS:
            self.notified_at = now
            for notify in self.listeners:
                notify(self.clause)


class TransferQueue:
    """The copies of one experiment.

    :param start: starts a copy in a task of its own, apart from the jobs that wait for it: a copy continues when no job
        waits for it.
    """

    def __init__(self, start: StartTask) -> None:
        self._start = start
        self._underway: dict[tuple[str, str], _RunningCopy] = {}

    async def make(self, copy: Copy, notify: Notify) -> None:
        """Have a copy made, or wait for it if it is under way. Raises what its `run` raises."""
        underway = self._underway.get(copy.key)
        if underway is None:
            underway = _RunningCopy(copy, asyncio.get_running_loop().create_future())
            self._underway[copy.key] = underway
            self._start(self._run(underway), f"copy of {copy.what} to {copy.node_id}")
        underway.listeners.append(notify)
        if underway.clause:
            notify(underway.clause)
        try:
            await asyncio.shield(underway.done)
        finally:
            underway.listeners.remove(notify)

    async def _run(self, underway: _RunningCopy) -> None:
        try:
            await underway.copy.run(underway.report)
        except Exception as error:
            underway.done.set_exception(error)
            underway.done.exception()  # retrieved: perhaps no job is waiting for it now
        except asyncio.CancelledError:
            underway.done.cancel()
            raise
        else:
            underway.done.set_result(None)
        finally:
            del self._underway[underway.copy.key]
