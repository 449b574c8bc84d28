"""A checkpoint on every rank: read where the main rank's file is reachable, sent where it is not.

Only the main rank needs the folder of the checkpoints. A rank that can open the very same file (the same inode of the
same running kernel, not merely the same path) reads it. All others, on other machines or in other containers, get its
bytes through the process group in blocks, into a nameless temporary file. So no process has more than a block of them
in memory, and no rank reads another file that happens to have that name.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any, BinaryIO

import torch

from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import UnreadableCheckpointError
from proctor.sdk.trial import is_in_trial

BLOCK_BYTES = 16 << 20
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class _Identity:
    """What two openings of one file have in common, and openings of two files never."""

    boot_id: str  # of the running kernel; empty where it has none, and then nothing is the same
    device: int
    inode: int
    size: int
    changed_ns: int


@contextmanager
def deliver(path: Path, ranks: Ranks) -> "Iterator[BinaryIO]":
    """Yield, on every rank, a file with the bytes of the main rank's file at `path` (collective).

    :raises OSError: the main rank cannot read it.
    :raises UnreadableCheckpointError: this machine has no room for a copy.
    """
    with ExitStack() as stack:
        file: BinaryIO | None = None
        try:
            file = stack.enter_context(open(path, "rb"))
        except OSError:
            if ranks.is_main:
                raise
        own = None if file is None else _identify(file)
        wanted: _Identity = ranks.broadcast(own)
        is_missing = not ranks.is_main and (own != wanted or not wanted.boot_id)
        if is_missing:
            file = stack.enter_context(TemporaryFile(prefix="proctor-checkpoint-"))
        assert file is not None
        if ranks.any(is_missing):
            source, target = (file if ranks.is_main else None), (file if is_missing else None)
            _send(source, target, size=wanted.size, ranks=ranks)
        file.seek(0)
        yield file


def refuse_to_leave_behind(storage: CheckpointFolder, ranks: Ranks) -> None:
    """Called where the main rank has no checkpoint: nor may any other rank have one at its place (collective).

    In a trial the manager decides what an attempt continues from, and what else a machine has does not count.

    :raises UnreadableCheckpointError: there is one; the main rank was on another machine before.
    """
    found = "" if is_in_trial() or storage.is_empty() else f"{storage.path} on {platform.node()} (rank {ranks.rank})"
    strays = ranks.broadcast([place for place in ranks.gather(found) or () if place])
    if strays:
        raise UnreadableCheckpointError(
            f"the main rank, which reads the checkpoints, has none, and there are some in {', '.join(strays)}. Start "
            "the ranks so that the main one is where it was, give all machines one shared chkpt_root, or begin anew "
            "with resume=False."
        )


def _identify(file: BinaryIO) -> _Identity:
    boot_id = ""
    with suppress(OSError), open(_BOOT_ID_FILE) as lines:
        boot_id = lines.read().strip()
    found = os.fstat(file.fileno())
    return _Identity(boot_id, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _send(source: "BinaryIO | None", target: "BinaryIO | None", *, size: int, ranks: Ranks) -> None:
    """Bring the bytes from the rank that has a source to those that have a target; all ranks take part."""
    block = bytearray(min(BLOCK_BYTES, max(1, size)))
    tensor = torch.frombuffer(block, dtype=torch.uint8)
    for begin in range(0, size, len(block)):
        part = memoryview(block)[: size - begin]
        if source is not None:
            _fill(part, source)
        ranks.broadcast_tensor(tensor[: len(part)])
        if target is not None:
            _store(part, target, size=size)


def _fill(part: memoryview, source: BinaryIO) -> None:
    data: Any = source
    if data.readinto(part) < len(part):
        raise UnreadableCheckpointError(f"{source.name} became shorter while it was sent to the other ranks.")


def _store(part: memoryview, target: BinaryIO, *, size: int) -> None:
    try:
        target.write(part)
    except OSError as problem:
        raise UnreadableCheckpointError(
            f"{platform.node()} cannot see the main rank's checkpoint and gets a copy of its {size} bytes, for which "
            f"{gettempdir()} has no room: {problem}. Make room, or set TMPDIR to another folder."
        ) from problem
