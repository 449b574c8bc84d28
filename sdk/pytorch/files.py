"""Files that appear whole or not at all, and what tells a whole file from a torn one.

Whatever is written goes under an unfinished name first, is synced to the disk, and gets its own name by one rename;
then the folder is synced, because a rename that is only in memory is undone by a power cut.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proctor.sdk.failpoints import failpoint
from proctor.sdk.unfinished import UNFINISHED_PREFIX, name_unfinished, remove_tree

BLOCK_BYTES = 1 << 20


def write_whole(path: Path, data: "bytes | memoryview", *, place: str) -> None:
    """Write a file that is found complete or not at all, whatever kills this process or its machine meanwhile.

    :param place: what the failpoints around the write are called after.
    :raises OSError: the disk refuses; what was written so far is removed.
    """
    with _unfinished(path) as unfinished:
        _write(unfinished, data)
        failpoint(f"{place}.written")
        os.replace(unfinished, path)
        failpoint(f"{place}.renamed")
    sync_folder(path.parent)


def copy_whole(source: Path, target: Path, *, size: "int | None" = None) -> None:
    """Copy a file, or its first `size` bytes, so that the copy is complete or not there.

    :raises OSError: the disk refuses; what was written so far is removed.
    """
    with _unfinished(target) as unfinished:
        with open(source, "rb") as reader, open(unfinished, "wb") as writer:
            for block in _blocks(reader.read, size):
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(unfinished, target)
    sync_folder(target.parent)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; its content is never in memory as a whole."""
    digest = hashlib.sha256()
    block = bytearray(min(BLOCK_BYTES, max(1, os.stat(path).st_size)))
    with open(path, "rb", buffering=0) as reader:
        while count := reader.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers have left half made in a folder that only the caller writes to."""
    for path in folder.glob(f"{UNFINISHED_PREFIX}*"):
        remove_tree(str(path))


@contextmanager
def _unfinished(path: Path) -> "Iterator[str]":
    unfinished = name_unfinished(str(path.parent))
    try:
        yield unfinished
    except BaseException:
        remove_tree(unfinished)
        raise


def _write(path: str, data: "bytes | memoryview") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _blocks(read: "Callable[[int], bytes]", size: "int | None") -> "Iterator[bytes]":
    rest = size
    while rest is None or rest > 0:
        block = read(BLOCK_BYTES if rest is None else min(BLOCK_BYTES, rest))
        if not block:
            return
        rest = None if rest is None else rest - len(block)
        yield block
