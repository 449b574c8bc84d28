"""Files in the folder of a job, whose trial may put anything in their place: a pipe that no process reads, a link, a
folder, a file without end. So nothing is opened that could block, and nothing but a regular file is used.

Also the room on the disk that is allocated beforehand for what must be written on a full one. Everything else about
files is in `proctor.sdk.files`. Used by the reaper, so it imports as little as possible.
"""

import errno
import os
import stat
from _thread import get_native_id
from contextlib import suppress

from proctor.sdk.files import name_beside, put_in_place, remove_file, set_aside, write_all
from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import MAX_WAITS_BYTES, WAITS_FILE, read_wait, read_waits


def allocate_file(path: str, size: int, *, mode: int = 0o600) -> None:
    """Make a file of `size` zero bytes whose room on the disk is its own from now on.

    :raises OSError: there is no room (and nothing is left of the file), or the file system cannot allocate.
    """
    descriptor = _open_to_write(path, mode)
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
    allocate_file(name_beside(path), size, mode=mode)


def remove_replacement(path: str) -> None:
    """Give back the room that was allocated for `path`, if any. Raises OSError."""
    remove_file(name_beside(path))


def write_replacement(path: str, data: bytes, *, mode: int = 0o644) -> None:
    """As `replace_file`, within the room that was allocated, if any; it stays allocated when this fails."""
    temporary = name_beside(path)
    descriptor = _open_to_write(temporary, mode)
    try:
        write_all(descriptor, data)
        os.ftruncate(descriptor, len(data))
        put_in_place(temporary, path, place="file.replace")
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
    for name in (path, name_beside(path)):
        with suppress(OSError):
            if stat.S_ISDIR(os.lstat(name).st_mode):
                set_aside(name, f"{name}.{get_native_id()}.aside")


def _open_to_write(path: str, mode: int) -> int:
    """Open or make a regular file. A pipe or link in its place is removed; a folder is an error."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    try:
        return open_regular_file(path, flags, mode)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP, errno.EINVAL):
            raise
    os.unlink(path)
    return open_regular_file(path, flags, mode)


def verdict_seconds(directory: str, now: float) -> float:
    """Return how long a job has waited for verdicts in this boot of the machine, up to `now` (CLOCK_BOOTTIME). Raises
    OSError where the machine has no descriptors left."""
    return read_waits(_read_waits_file(directory), now)


def present_wait(directory: str, now: float) -> tuple[float, float]:
    """Return how long a job waits for a verdict at `now` (CLOCK_BOOTTIME), and how long it may; zeros if it waits for
    none, and while that is not known."""
    try:
        return read_wait(_read_waits_file(directory), now)
    except OSError:
        return 0.0, 0.0


def _read_waits_file(directory: str) -> bytes:
    try:
        return read_regular_file(f"{directory}/{WAITS_FILE}", MAX_WAITS_BYTES)
    except OSError as error:  # it has waited for none, or the disk does not say
        if is_short(error):
            raise
        return b""
