"""Locks that are files in a directory of all users of the machine: `flock`, which ends with its holder however it dies.

Files are removed when no process needs them. That is safe because a lock counts only if its file is still the one at
its path: who has locked a file that was removed meanwhile begins again. Used by the reaper, so it imports as little as
possible.
"""

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress

from proctor.sdk.files import lock_file
from proctor.sdk.process_limits import is_short
from proctor.trial_keeper.linux.backoff import growing_pause

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

_FOLDER_MODE = 0o1777
_FILE_MODE = 0o666
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LONGEST_TEXT = 4096
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05
_MOST_TRIES = 100
_UNMAPPED_USER = 65534  # root of the machine, seen from a container without root rights


def lock(path: str, kind: int, *, make: bool = True) -> int | None:
    """A descriptor that holds the lock of the file at `path`; None when another process holds it.

    :param kind: SHARED or EXCLUSIVE.
    :param make: make the file, and its directory, if it is not there. Only for a process with one thread.
    :raises FileNotFoundError: it is not there and is not to be made.
    :raises OSError: it cannot be opened or made.
    """
    for _ in range(_MOST_TRIES):
        descriptor = _open_or_make(path) if make else _open(path)
        is_ours = False
        try:
            if not lock_file(descriptor, shared=kind == SHARED):
                return None
            is_ours = _is_at(path, descriptor)
        finally:
            if not is_ours:
                os.close(descriptor)
        if is_ours:
            return descriptor
        # it was removed between opening and locking: no other process will open this file
    raise OSError(errno.EBUSY, "it is repeatedly created and removed", path)


def wait_for_lock(path: str, kind: int, *, make: bool = True, seconds: float) -> int | None:
    """Like `lock`, waiting for the holder. `flock` itself knows no time limit, hence the pauses."""
    deadline = time.monotonic() + seconds
    tries = 0
    while (descriptor := lock(path, kind, make=make)) is None and time.monotonic() < deadline:
        tries += 1
        time.sleep(growing_pause(tries, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS))
    return descriptor


def read_if_locked(path: str) -> bytes | None:
    """The text of a file that is locked exclusively; None when it is not, or is missing. Raises OSError where the
    machine has no descriptors left."""
    try:
        descriptor = _open(path)
    except OSError as error:
        if is_short(error):
            raise
        return None
    try:
        with suppress(OSError):  # its file system cannot say
            if lock_file(descriptor, shared=True):
                return None
        with suppress(OSError):  # something that is no file
            return os.pread(descriptor, _LONGEST_TEXT, 0)
        return b""
    finally:
        os.close(descriptor)


def remove_unlocked(path: str) -> bool:
    """Remove a file that is not locked; whether it is gone. Another user's file may have to stay."""
    try:
        descriptor = lock(path, EXCLUSIVE, make=False)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    if descriptor is None:
        return False
    try:
        os.unlink(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    finally:
        os.close(descriptor)
    return True


def find_danger(folder: str) -> str:
    """Why users who are neither root nor this one could remove locks that are held in a folder, or replace it, with the
    command by which an administrator puts that right; "" if they cannot, or if there is no such folder. Raises OSError.

    The owner of a sticky folder is trusted: on a machine without an administrator some user has to make it.
    """
    try:
        found, above = os.lstat(folder), os.stat(os.path.dirname(folder))
    except FileNotFoundError:
        return ""
    make = f"sudo install -d -o root -g root -m 1777 {_quote(folder)}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} should be a folder, found something else; an administrator runs: sudo rm {_quote(folder)}"
    if (found.st_uid not in _trusted() and not found.st_mode & stat.S_ISVTX) or _is_open(found):
        return f"other users could remove locks that are held in {folder}; an administrator runs: {make}"
    if above.st_uid not in _trusted() or _is_open(above):
        parent = os.path.dirname(folder)
        return (
            f"other users could replace {folder}; an administrator runs: "
            f"sudo chown root {_quote(parent)} && sudo chmod go-w {_quote(parent)}"
        )
    return ""


def _trusted() -> tuple[int, ...]:
    return 0, os.geteuid(), _UNMAPPED_USER


def _is_open(folder: os.stat_result) -> bool:
    """Whether users who do not own it may rename and remove what others have in a folder. A group is trusted to be
    what root has made it for."""
    others = 0o002 if folder.st_uid == 0 else 0o022
    return bool(folder.st_mode & others) and not folder.st_mode & stat.S_ISVTX


def _quote(path: str) -> str:
    """For a shell; `shlex` is slow to import."""
    is_plain = path.isascii() and path.translate({ord(letter): "x" for letter in "/._-"}).isalnum()
    return path if is_plain else "'" + path.replace("'", "'\\''") + "'"


def _is_at(path: str, descriptor: int) -> bool:
    try:
        there, ours = os.stat(path, follow_symlinks=False), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _open_or_make(path: str) -> int:
    """Open the file, or make it and its directory; others make and remove them at the same time."""
    problem: OSError | None = None
    for _ in range(_MOST_TRIES):
        for attempt in (_open, _make):
            try:
                return attempt(path)
            except (FileNotFoundError, FileExistsError) as error:
                problem = error
    assert problem is not None
    raise problem


def _open(path: str) -> int:
    """Without O_CREAT: the kernel may refuse that flag on other users' files in a sticky directory."""
    try:
        return os.open(path, os.O_RDWR | _FLAGS)
    except PermissionError:
        return os.open(path, os.O_RDONLY | _FLAGS)


def _make(path: str) -> int:
    """Open to all users from its first moment: a process that dies right after making it must not lock the others
    out."""
    before = os.umask(0)
    try:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), _FOLDER_MODE)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, _FILE_MODE)
    finally:
        os.umask(before)
