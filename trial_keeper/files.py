"""Replacing a file so that a reader sees the old text or the new one, never half of one; and what it takes for files
and folders to survive a power cut.

A rename is not enough for that: the kernel may have written the new name back long before the data, and the file is
empty afterwards. So whoever replaces a file says whether anything relies on it after a power cut (`durable`). What
need not be durable must be made again, or be tolerated when it is empty, cut short or missing.

Used by the reaper, so it imports as little as possible.
"""

import errno
import os
from _thread import get_native_id
from contextlib import suppress

from proctor.sdk.failpoints import failpoint


def replace_file(
    path: str, data: bytes, *, durable: bool, mode: int = 0o600, shared: bool = False, syncs_folder: bool = True
) -> None:
    """Write `data` beside `path` and rename it over `path`.

    What a process that is killed here leaves beside it is overwritten by the next one that replaces the file.

    :param durable: survive a power cut: data and name are on the disk when this returns.
    :param shared: several threads or processes may replace the file at once; without, only one at a time.
    :param syncs_folder: False where the caller makes the names of many durable files durable by one `sync_folder`.
    """
    temporary = f"{path}.{get_native_id()}.new" if shared else _beside(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        _write(descriptor, data)
        if durable:
            os.fsync(descriptor)
        _rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    if durable and syncs_folder:
        sync_folder(os.path.dirname(path) or ".")


def allocate_file(path: str, size: int, *, mode: int = 0o600) -> None:
    """Make a file of `size` zero bytes whose room on the disk is its own from now on.

    :raises OSError: there is no room (and nothing is left of the file), or the file system cannot allocate.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def allocate_replacement(path: str, size: int, *, mode: int = 0o644) -> None:
    """Allocate room so that `write_replacement` of up to `size` bytes for `path` works on a full disk. Raises OSError
    as `allocate_file`."""
    allocate_file(_beside(path), size, mode=mode)


def remove_replacement(path: str) -> None:
    """Give back the room that was allocated for `path`, if any. Raises OSError."""
    remove_file(_beside(path))


def write_replacement(path: str, data: bytes, *, mode: int = 0o644) -> None:
    """As `replace_file`, within the room that was allocated, if any; it stays allocated when this fails."""
    temporary = _beside(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        _write(descriptor, data)
        os.ftruncate(descriptor, len(data))
        _rename(temporary, path)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make renames within a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str, *, mode: int = 0o700) -> None:
    """Make a folder, and those above it that are missing (with the usual permissions), so that it survives a power
    cut. One that is there is no error. Raises OSError."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_folder(parent, mode=0o777)
    with suppress(FileExistsError):
        os.mkdir(path, mode)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "should be a folder", path)
    sync_folder(parent)


def sync_tree(path: str) -> None:
    """Make a folder and all that is in it survive a power cut, by one call for its whole file system."""
    import ctypes  # slow to import, and not needed by the reaper

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)


def remove_file(path: str) -> None:
    """Remove a file; one that is not there is removed already."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _beside(path: str) -> str:
    return f"{path}.new"


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _rename(temporary: str, path: str) -> None:
    failpoint("file.replace.before")
    os.rename(temporary, path)
    failpoint("file.replace.after")
