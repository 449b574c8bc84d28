"""What experiments have brought to a machine over one connection: trial code, and checkpoints to continue from."""

import asyncio
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from proctor.training_services.remote.errors import CommandFailed
from proctor.training_services.remote.node_keeper import NodeKeeper
from proctor.trial_keeper.commands.unpack import hash_file

__all__ = ["Cargo", "Carrier", "CodeLike", "Progress"]

SMALL_BYTES = 1 << 20
"""An archive up to this size is given to the command that unpacks it: the machine is spared a session."""

_NAME_LENGTH = 20

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes there will be."""


class Carrier(Protocol):
    """What brings files: a `connection.Connection`."""

    async def upload(self, source: Path | bytes, target: str, *, on_progress: Progress | None = None) -> None:
        """Write a file there; one that is partly there is continued. Raises ConnectionEnded, NoRoom, NotWritable."""


class CodeLike(Protocol):
    """Packed trial code: `code_archive.CodeArchive`."""

    @property
    def path(self) -> Path:
        """The .tar.gz here."""

    @property
    def name(self) -> str:
        """What the unpacked folder is called below `code/`."""


class Cargo:
    """Brings archives over one connection; whatever is asked for twice at once is brought once.

    :param codes: the code that is unpacked there, by name; added to.
    """

    def __init__(self, connection: Carrier, keeper: NodeKeeper, codes: set[str]) -> None:
        self._connection = connection
        self._keeper = keeper
        self._codes = codes
        self._folders: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    async def ensure_code(self, archive: CodeLike, on_progress: Progress | None) -> None:
        """Have trial code unpacked below `code/`. Raises RemoteError."""
        async with self._locks.setdefault(archive.name, asyncio.Lock()):
            if archive.name not in self._codes:
                sha256 = await asyncio.to_thread(hash_file, archive.path)
                await self._bring(archive.path, sha256, target=f"code/{archive.name}", on_progress=on_progress)
                self._codes.add(archive.name)

    async def ensure_folder(self, folder: Path, target: str, on_progress: Progress | None) -> None:
        """Have a copy of a local folder at `target`. Raises RemoteError, and OSError where it cannot be read."""
        async with self._locks.setdefault(target, asyncio.Lock()):
            if target in self._folders:
                return
            with tempfile.TemporaryDirectory(prefix="proctor-copy-") as place:
                packed = Path(place) / "folder.tar.gz"
                sha256 = await asyncio.to_thread(_pack, folder, packed)
                await self._bring(packed, sha256, target=target, on_progress=on_progress)
            self._folders.add(target)

    async def _bring(self, source: Path, sha256: str, *, target: str, on_progress: Progress | None) -> None:
        """Bring and unpack. An upload is named by its hash, so that one that was broken off is continued by the same
        file only."""
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


def _pack(folder: Path, archive: Path) -> str:
    """Returns the hash of the archive."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=".")
    return hash_file(archive)
