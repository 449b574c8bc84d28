"""Files: replaced as a whole, linked, synced, locked, hashed, removed. No other module renames, links, syncs or locks;
ruff refuses the raw calls, and pyproject.toml names the exceptions.

What must be found complete or not at all is written under another name and then renamed. That is not enough after a
power cut: the kernel may have written the new name back long before the data, and the file is empty afterwards. So the
caller says whether anything relies on it after a power cut (`durable`): then data and name are on the disk when the
function returns. What need not be durable must be made again, or be tolerated when it is empty, cut short or missing.

An unfinished name holds the host and the thread that is at work. Once that thread is gone from this host, the thing is
left over and may be removed.

Standard library only and quick to import: trials, keepers and the reaper use it.
"""

import errno
import os
from _thread import get_native_id

from proctor.sdk.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    AnyPath = str | os.PathLike[str]

UNFINISHED_PREFIX = ".unfinished-"
_BLOCK_BYTES = 1 << 20

# ---- room


def require_room(folder: "AnyPath", size: int) -> None:
    """Raise OSError where no file of so many bytes can be written in a folder now. Nothing is left there. A file system
    that cannot tell has room."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return
        raise
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)


# ---- replacing


def replace_file(
    path: "AnyPath",
    data: "bytes | memoryview | Callable[[int], object]",
    *,
    durable: bool,
    mode: int = 0o600,
    unfinished: str = "",
    syncs_folder: bool = True,
    place: str = "file.replace",
) -> None:
    """Write a file that is found complete or not at all, whatever kills this process meanwhile.

    In a folder where others may put anything in the way, nothing but a folder can keep it from being written.

    :param data: the bytes, or a function that writes them to the descriptor that it is given.
    :param durable: survive a power cut: data and name are on the disk when this returns.
    :param unfinished: what it is written as. Without, `path` with the suffix ".new", for which one writer at a time is
        allowed; what a killed one has left there goes with the next.
    :param syncs_folder: False where the caller makes the names of many durable files durable by one `sync_folder`.
    :param place: what the fail points around the rename are called after.
    :raises OSError: the disk refuses; what was written so far is removed.
    """
    unfinished = unfinished or name_beside(path)
    descriptor = _create(unfinished, mode)
    try:
        if callable(data):
            data(descriptor)
        else:
            write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
        put_in_place(unfinished, path, place=place)
    except BaseException:
        remove_file(unfinished)
        raise
    finally:
        os.close(descriptor)
    if durable and syncs_folder:
        sync_folder(os.path.dirname(path) or ".")


def put_in_place(unfinished: "AnyPath", path: "AnyPath", *, place: str = "") -> None:
    """Give a file that is complete its name, in the place of another one; or a folder, where there is none that holds
    anything. Syncs nothing. Raises OSError."""
    if place:
        failpoint(f"{place}.before")
    os.rename(unfinished, path)
    if place:
        failpoint(f"{place}.after")


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
        os.rename(unfinished, target)
    except BaseException:
        remove_file(unfinished)
        raise
    sync_folder(folder)


def name_beside(path: "AnyPath", *, of_thread: bool = False) -> str:
    """The name a file is written as before it is `path`.

    :param of_thread: for this thread only, because several may replace the file at a time.
    """
    return f"{os.fspath(path)}.{get_native_id()}.new" if of_thread else f"{os.fspath(path)}.new"


def link_file(path: "AnyPath", other: "AnyPath") -> None:
    """Give a file a second name, which must be free: of two processes at once one gets FileExistsError. Raises OSError,
    also where the file system has no such links."""
    os.link(path, other)


def set_aside(path: "AnyPath", aside: "AnyPath") -> None:
    """Take away a thing's name, which something else is to have. Raises OSError."""
    os.rename(path, aside)


# ---- surviving a power cut


def sync_file(file: "AnyPath | int") -> None:
    """Make the content of a file survive a power cut.

    :param file: its path, or a descriptor.
    """
    if isinstance(file, int):
        os.fsync(file)
    else:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())


def sync_folder(path: "AnyPath") -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: "AnyPath") -> None:
    """Make a folder and all that is in it survive a power cut, by one call for its whole file system."""
    import ctypes  # slow to import

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(descriptor)


def make_folder(path: "AnyPath", *, mode: int = 0o700) -> None:
    """Make a folder, and those above it that are missing (with the usual permissions), so that it survives a power
    cut. Does nothing where it exists. Raises OSError."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    make_folder(parent, mode=0o777)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "should be a folder", os.fspath(path)) from None
    sync_folder(parent)


# ---- locks, which end with their holder however it dies


def lock_file(descriptor: int, *, shared: bool = False, waits: bool = False) -> bool:
    """Lock an open file or folder (`flock`) until all descriptors of this opening are closed; whether it is locked now.

    Where the file may be removed meanwhile, see `trial_keeper/linux/locks.py`.

    :param waits: wait until no other process holds it.
    :raises OSError: its file system knows no locks.
    """
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if waits else kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def unlock_file(descriptor: int) -> None:
    """Release a lock before its descriptors are closed. Raises OSError."""
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_UN)


def open_locked(path: "AnyPath", *, mode: int = 0o600) -> "int | None":
    """A descriptor, to read and write, that holds the lock of a file, which is made where it is missing; None while
    another process holds it. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    is_ours = False
    try:
        is_ours = lock_file(descriptor)
    finally:
        if not is_ours:
            os.close(descriptor)
    return descriptor if is_ours else None


def is_locked(path: "AnyPath") -> bool:
    """Whether another process holds the lock of a file, or its file system cannot say. Raises OSError where the file
    cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not lock_file(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def has_open(pid: int, path: "AnyPath") -> bool:
    """Return whether a process has a file open; False for one that is gone, and where there is no such file.

    :raises PermissionError: the process is another user's.
    :raises OSError: it could not be looked at, such as for lack of descriptors.
    """
    folder, suffix = f"/proc/{pid}/fd", f"/{os.path.basename(path)}"
    gone = (FileNotFoundError, NotADirectoryError, ProcessLookupError)
    try:
        wanted, descriptors = os.stat(path), os.listdir(folder)
    except gone:
        return False
    for descriptor in descriptors:
        opened = f"{folder}/{descriptor}"
        try:
            if os.readlink(opened).endswith(suffix) and os.path.samestat(os.stat(opened), wanted):
                return True
        except gone:  # closed meanwhile
            continue
    return False


# ---- reading, writing and removing


def last_lines(descriptor: int, count: int, *, begin: int = 0, most_bytes: int = 8192) -> "list[str]":
    """Return the last lines with something in them of an open file, without the white space around them.

    Only its last `most_bytes` are read, and nothing before `begin`. Raises OSError.
    """
    begin = max(begin, os.fstat(descriptor).st_size - most_bytes)
    text = os.pread(descriptor, most_bytes, begin).decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()][-count:]


def hash_file(path: "AnyPath", *, is_abandoned: "Callable[[], bool]" = bool) -> str:
    """Return the SHA-256 of a file in hexadecimal; its content is never in memory as a whole. Raises OSError.

    :param is_abandoned: asked for each piece; once it is true, the hash is of what was read until then.
    """
    import hashlib  # slow to import

    digest = hashlib.sha256()
    block = bytearray(min(_BLOCK_BYTES, max(1, os.stat(path).st_size)))
    with open(path, "rb", buffering=0) as reader:
        while not is_abandoned() and (count := reader.readinto(block)):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def write_all(descriptor: int, data: "bytes | memoryview") -> None:
    """Write all of it, however little the system takes at a time. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


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


def discard(path: "AnyPath") -> None:
    """Remove a folder that must not be found half removed: it loses its name first. Raises OSError where it cannot."""
    discarded = f"{name_unfinished(os.path.dirname(path) or '.')}-discarded"
    os.rename(path, discarded)
    remove_tree(discarded)


def remove_tree(path: str) -> None:
    """Remove a folder and all in it, or a file; what cannot be removed of a folder stays."""
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil  # slow to import, and hardly ever needed in a trial

        shutil.rmtree(path, ignore_errors=True)
    else:
        remove_file(path)


def remove_file(path: "AnyPath") -> None:
    """Remove a file; one that is not there is removed already. Raises OSError."""
    try:  # noqa: SIM105 - contextlib is slow to import
        os.unlink(path)
    except FileNotFoundError:
        pass


def _prefix() -> str:
    return f"{UNFINISHED_PREFIX}{os.uname().nodename}-"


def _is_left_over(name: str) -> bool:
    writer = name.removeprefix(_prefix())
    return writer != name and (writer == str(get_native_id()) or not os.path.exists(f"/proc/{writer}"))


def _create(path: str, mode: int) -> int:
    """Never opens what is there, which may be a link, or a pipe that no process reads."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
    return os.open(path, flags, mode)


def _copy(reader: "BinaryIO", writer: "BinaryIO", size: "int | None") -> None:
    rest = size
    while rest is None or rest > 0:
        block = reader.read(_BLOCK_BYTES if rest is None else min(_BLOCK_BYTES, rest))
        if not block:
            return
        writer.write(block)
        rest = None if rest is None else rest - len(block)
