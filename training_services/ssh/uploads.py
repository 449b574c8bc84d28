"""Files that are written to a machine by SFTP."""

import asyncio
from dataclasses import dataclass
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from proctor.training_services.ssh.base import ProgressCallback
from proctor.training_services.ssh.errors import NoRoom, NotWritable, RemoteError

_CHUNK_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 32 * 1024, 128 * 1024  # of one request: what every server takes, what is enough
_MISSING, _DENIED, _FULL, _QUOTA = 2, 3, 14, 15  # status codes of the SFTP protocol
_LEAST_FREE_BYTES = 1024 * 1024
_READ_ONLY = 1  # a flag of the file system


@dataclass(frozen=True)
class Room:
    """What is free on the disk of a path; None: the server does not say."""

    free_bytes: int | None = None
    free_inodes: int | None = None
    is_read_only: bool = False


async def send(
    sftp: Any, source: Path | bytes, target: str, *, resume: bool, on_progress: ProgressCallback | None
) -> None:
    """Write a file, from where an earlier attempt has stopped. Raises what the SFTP library raises, OSError for the
    source."""
    with BytesIO(source) if isinstance(source, bytes) else await asyncio.to_thread(source.open, "rb") as content:
        total = await asyncio.to_thread(content.seek, 0, SEEK_END)
        there = await sftp.getsize(target) if resume and await sftp.exists(target) else 0
        start = there if there <= total else 0
        async with sftp.open(target, "r+b" if start else "wb", block_size=None) as remote:
            block = min(sftp.limits.max_write_len or _BLOCK_BYTES, _LARGEST_BLOCK_BYTES)
            file = _RemoteFile(remote, block)
            await _copy(content, file, start=start, total=total, on_progress=on_progress)
    await sftp.chmod(target, 0o600)


class _RemoteFile:
    """A file that is written by many requests at a time, in order, so that what has arrived has no holes."""

    def __init__(self, remote: Any, block: int) -> None:
        self._remote = remote
        self._block = block

    async def write(self, chunk: bytes, offset: int) -> None:
        """Write; returns when the server has taken all of it. Every request is waited for, also after an error: the
        library's own way would leave them behind as tasks whose results are never retrieved."""
        starts = range(0, len(chunk), self._block)
        requests = (self._remote.write(chunk[start : start + self._block], offset + start) for start in starts)
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


async def room(sftp: Any, target: str) -> Room:
    """How much is free where a file was to be written. Raises what the SFTP library raises."""
    facts = await sftp.statvfs(target.rpartition("/")[0] or ".")
    is_read_only = bool(facts.flags & _READ_ONLY)
    return Room(facts.bavail * facts.frsize, facts.favail if facts.files else None, is_read_only)


def failure(target: str, code: int, reason: str, *, free: Room) -> RemoteError:
    """Why a file could not be written. Servers have no code of their own for a quota, and most none for a full disk."""
    if free.is_read_only:
        return NoRoom(f"its disk is read-only ({target} could not be written); mount it writable there")
    is_used_up = free.free_inodes == 0 or (free.free_bytes is not None and free.free_bytes < _LEAST_FREE_BYTES)
    if code in (_FULL, _QUOTA) or is_used_up:
        what = "the quota is used up" if code == _QUOTA else "its disk is full"
        left = "" if free.free_bytes is None else f", {free.free_bytes // 2**20} MiB free"
        inodes = ", no inodes free" if free.free_inodes == 0 else ""
        return NoRoom(f"{what} ({target} could not be written{left}{inodes}); make room there")
    if code == _DENIED:
        return NotWritable(f"{target} cannot be written there (permission denied)")
    if code == _MISSING:
        return NotWritable(f"{target} cannot be written there (no such folder)")
    failed = f"writing {target} by SFTP failed ({reason})"
    if free.free_bytes is None:
        return NotWritable(failed)
    return NoRoom(f"{failed}; {free.free_bytes // 2**20} MiB are free, so a quota may be used up")


async def _copy(
    content: BinaryIO, remote: _RemoteFile, *, start: int, total: int, on_progress: ProgressCallback | None
) -> None:
    await asyncio.to_thread(content.seek, start)
    done = start
    while True:
        if on_progress is not None:
            on_progress(done, total)
        chunk = await asyncio.to_thread(content.read, _CHUNK_BYTES)
        if not chunk:
            return
        await remote.write(chunk, done)
        done += len(chunk)
