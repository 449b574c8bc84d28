"""Files and folders that appear complete or not at all, and survive a power cut once they are there.

A file or folder is made under an unfinished name, synced to the disk, and renamed to its own name; then the folder that
holds it is synced, because a rename that is only in memory is undone by a power cut. An unfinished name holds the host
and the thread that is at work. Once that thread is gone from this host, the thing is left over and may be removed.

Standard library only and quick to import: trials and keepers use it.
"""

import os
from _thread import get_native_id

from proctor.sdk.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    AnyPath = str | os.PathLike[str]

UNFINISHED_PREFIX = ".unfinished-"
_BLOCK_BYTES = 1 << 20


def replace_file(path: "AnyPath", data: "bytes | memoryview", *, place: str) -> None:
    """Write a durable file that is found complete or not at all, whatever kills this process or its machine meanwhile.

    :param place: what the failpoints around the rename are called after.
    :raises OSError: the disk refuses; what was written so far is removed.
    """
    folder = os.path.dirname(path) or "."
    unfinished = name_unfinished(folder)
    try:
        _write(unfinished, data)
        failpoint(f"{place}.written")
        os.replace(unfinished, path)
        failpoint(f"{place}.renamed")
    except BaseException:
        remove_tree(unfinished)
        raise
    sync_folder(folder)


def copy_file(source: "AnyPath", target: "AnyPath", *, size: "int | None" = None) -> None:
    """Copy a file, or its first `size` bytes, to a durable file that is complete or not there.

    :raises OSError: the disk refuses; what was written so far is removed.
    """
    folder = os.path.dirname(target) or "."
    unfinished = name_unfinished(folder)
    try:
        with open(source, "rb") as reader, open(unfinished, "wb") as writer:
            _copy(reader, writer, size)
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(unfinished, target)
    except BaseException:
        remove_tree(unfinished)
        raise
    sync_folder(folder)


def sync_file(path: "AnyPath") -> None:
    """Make the content of a file survive a power cut."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: "AnyPath") -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_unfinished(folder: str) -> str:
    """Return a path in `folder` for this thread to work under."""
    return f"{folder}/{_prefix()}{get_native_id()}"


def remove_unfinished(folder: "AnyPath", *, is_only_writer: bool = False) -> None:
    """Remove what threads of this host that are gone, or this very thread, have left in `folder`.

    :param is_only_writer: nothing else writes to the folder, so everything unfinished in it is left over.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(UNFINISHED_PREFIX) and (is_only_writer or _is_left_over(name)):
            remove_tree(f"{os.fspath(folder)}/{name}")


def remove_tree(path: str) -> None:
    """Remove a folder and all in it, or a file; what cannot be removed stays."""
    import shutil  # slow to import, and hardly ever needed in a trial

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def _prefix() -> str:
    return f"{UNFINISHED_PREFIX}{os.uname().nodename}-"


def _is_left_over(name: str) -> bool:
    writer = name.removeprefix(_prefix())
    return writer != name and (writer == str(get_native_id()) or not os.path.exists(f"/proc/{writer}"))


def _write(path: str, data: "bytes | memoryview") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(reader: "BinaryIO", writer: "BinaryIO", size: "int | None") -> None:
    rest = size
    while rest is None or rest > 0:
        block = reader.read(_BLOCK_BYTES if rest is None else min(_BLOCK_BYTES, rest))
        if not block:
            return
        writer.write(block)
        rest = None if rest is None else rest - len(block)
