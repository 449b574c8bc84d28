"""Which errors of a file system go away by themselves or once somebody makes room: one list for everything that writes.

Imported by trials, so it imports as little as possible.
"""

import errno
import os

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Nothing can be written until somebody frees bytes or inodes, raises the quota, or mounts the disk writable again."""

PASSING = FULL | {errno.EIO, errno.ESTALE}
"""The same, or the disk (most often a network file system) does not answer at the moment."""

HOPELESS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EFBIG})
"""Trying again does not help: the folder is gone, or this process must not write there, or not as much."""

_CLAUSES = {
    errno.EDQUOT: "the disk quota is used up (%s); free some space or raise the quota",
    errno.EROFS: "its disk is read-only (%s); check the disk and mount it writable",
}
_NO_BYTES = "its disk is full (%s); free some space"
_NO_INODES = "its disk has no inodes left (%s); remove some files"


def is_full(error: "BaseException | None") -> bool:
    """Whether an error says that there is no room: the disk is full, has no inodes, is over quota or read-only."""
    return isinstance(error, OSError) and error.errno in FULL


def describe_full(number: int, path: str) -> str:
    """What is wrong with the disk of `path`, and what to do, as a clause: "its disk is full (/home/bob); free …".

    :param number: one of `FULL`.
    """
    if number in _CLAUSES:
        return _CLAUSES[number] % path
    return (_NO_INODES if _has_no_inodes(path) else _NO_BYTES) % path


def _has_no_inodes(path: str) -> bool:
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    return facts.f_files > 0 and facts.f_favail == 0
