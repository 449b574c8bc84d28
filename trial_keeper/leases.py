"""Leases on GPUs: one lock per GPU share in a directory that all users of the machine share.

The lock is a `flock`, so it goes when its holder dies, however it dies. The file says who holds it, for people and for
the next one who is refused. Used by the reaper, so it imports as little as possible.
"""

import errno
import fcntl
import json
import os

_FOLDER_MODE = 0o1777
_FILE_MODE = 0o666
_LONGEST_NOTE = 4096


class LeaseRefused(Exception):
    """Somebody else holds the GPU."""


def acquire(folder: str, slots: list[tuple[str, int]], note: dict[str, object]) -> list[int]:
    """Take the leases on all `slots` (GPU UUID, share) or none; returns the descriptors that hold them.

    :param note: what the next one who asks is told: holder, job_id, pid, since.
    :raises LeaseRefused: with a sentence that names the holder.
    :raises OSError: the directory cannot be used.
    """
    _make_folder(folder)
    held: list[int] = []
    try:
        for uuid, slot in sorted(slots):
            held.append(_acquire_one(os.path.join(folder, f"{uuid}.{slot}"), uuid, slot, note))
    except BaseException:
        release(held)
        raise
    return held


def release(descriptors: list[int]) -> None:
    """Give leases back; what dies gives its leases back by dying."""
    for descriptor in descriptors:
        os.close(descriptor)


def _make_folder(folder: str) -> None:
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    os.chmod(folder, _FOLDER_MODE)


def _acquire_one(path: str, uuid: str, slot: int, note: dict[str, object]) -> int:
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        told = os.pread(descriptor, _LONGEST_NOTE, 0)
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise LeaseRefused(f"GPU {uuid} (share {slot}) is held by {_describe(told)}") from None
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode() + b"\n", 0)
    except OSError:
        pass  # another user's file or a full disk: the lock holds without its note
    return descriptor


def _open(path: str) -> int:
    """Open without O_CREAT first: the kernel may refuse that flag on other users' files in a sticky directory."""
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
            os.fchmod(descriptor, _FILE_MODE)  # whatever the umask says: the next user must be able to lock it
            return descriptor
        except PermissionError:
            if flags == os.O_RDONLY:
                raise
    raise AssertionError("unreachable")


def _describe(told: bytes) -> str:
    try:
        note = json.loads(told)
    except ValueError:
        return "somebody who left no note"
    holder = note.get("holder") or "somebody"
    return f"{holder} (job {note.get('job_id')}, pid {note.get('pid')}, since {note.get('since')})"
