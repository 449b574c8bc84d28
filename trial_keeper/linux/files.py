"""Replacing a file so that a reader sees the old text or the new one, never half of one; and what it takes for files
and folders to survive a power cut.

A rename is not enough for that: the kernel may have written the new name back long before the data, and the file is
empty afterwards. So the caller says whether anything relies on it after a power cut (`durable`). What
need not be durable must be made again, or be tolerated when it is empty, cut short or missing.

Many of these files lie in the folder of a job, whose trial may put anything in their place: a pipe that no process
reads, a link, a folder, a file without end. So nothing is opened that could block, and nothing but a regular file is
used.

Used by the reaper, so it imports as little as possible.
"""

import errno
import os
import stat
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
    descriptor = _open_to_write(temporary, os.O_TRUNC, mode)
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
    descriptor = _open_to_write(path, 0, mode)
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
    descriptor = _open_to_write(temporary, 0, mode)
    try:
        _write(descriptor, data)
        os.ftruncate(descriptor, len(data))
        _rename(temporary, path)
    finally:
        os.close(descriptor)


def open_regular_file(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a regular file, close-on-exec. Never blocks on what is not one. Raises OSError, also for anything else."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is not a regular file", path)


def read_regular_file(path: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError, also for anything else."""
    descriptor = open_regular_file(path, os.O_RDONLY)
    try:
        data = os.pread(descriptor, limit + 1, 0)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", path)
    return data


def make_replaceable(path: str) -> None:
    """Undo what keeps `path` from being replaced: a missing or unwritable parent folder, a folder in the place of the
    file or of the one beside it (moved aside). What cannot be undone stays."""
    parent = os.path.dirname(path)
    with suppress(OSError):
        os.makedirs(parent, exist_ok=True)
    with suppress(OSError):
        os.chmod(parent, os.stat(parent).st_mode & 0o777 | 0o700)
    for name in (path, _beside(path)):
        with suppress(OSError):
            if stat.S_ISDIR(os.lstat(name).st_mode):
                os.rename(name, f"{name}.{get_native_id()}.aside")


def sync_folder(path: str) -> None:
    """Make renames within a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str, *, mode: int = 0o700) -> None:
    """Make a folder, and those above it that are missing (with the usual permissions), so that it survives a power
    cut. Does nothing where it exists. Raises OSError."""
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


def _open_to_write(path: str, flags: int, mode: int) -> int:
    """Open or make a regular file. A pipe or link in its place is removed; a folder is an error."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    try:
        return open_regular_file(path, flags, mode)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP, errno.EINVAL):
            raise
    os.unlink(path)
    return open_regular_file(path, flags, mode)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _rename(temporary: str, path: str) -> None:
    failpoint("file.replace.before")
    os.rename(temporary, path)
    failpoint("file.replace.after")
