"""Which errors of a file system go away by themselves or once someone makes room: one list for everything that writes.

Imported by trials, so it imports as little as possible.
"""

import errno
import os

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Nothing can be written until someone frees bytes or inodes, raises the quota, or mounts the disk writable again."""

PASSING = FULL | {errno.EIO, errno.ESTALE}
"""The same, or the disk (most often a network file system) does not answer at the moment."""

HOPELESS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EFBIG})
"""Trying again does not help: the folder is gone, or this process must not write there, or not as much."""

_PROBLEMS = {
    errno.ENOSPC: ("its disk is full", "free some space"),
    errno.EDQUOT: ("its disk quota is used up", "free some space or raise the quota"),
    errno.EROFS: ("its disk is read-only", "check the disk and mount it writable"),
}
_NO_INODES = ("its disk has no inodes left", "remove some files")


def is_full(error: "BaseException | None") -> bool:
    """Whether an error says that there is no room: the disk is full, has no inodes, is over quota or read-only."""
    return isinstance(error, OSError) and error.errno in FULL


def describe_full(number: int, path: str) -> str:
    """What is wrong with the disk of `path`, and what to do, as a clause: "its disk is full (/home/bob); free …".

    :param number: one of `FULL`.
    """
    problem, advice = _NO_INODES if number == errno.ENOSPC and has_no_inodes(path) else _PROBLEMS[number]
    return f"{problem} ({path}); {advice}"


def explain(error: OSError, path: str) -> str:
    """What is wrong with writing below `path`, and what to do where that is known, as a clause."""
    return describe_full(error.errno or 0, path) if is_full(error) else f"{error.strerror or error} ({path})"


def full_problem(name: "str | None") -> str:
    """What is wrong with a disk, by the system's name of the error ("ENOSPC"), as a clause; "" unless one of `FULL`."""
    found = (problem for number, (problem, _) in _PROBLEMS.items() if errno.errorcode[number] == name)
    return next(found, "")


def advise(error: OSError) -> str:
    """What a person can do about an error of the disk, as a clause; "" where that is not known."""
    return _PROBLEMS.get(error.errno or 0, ("", ""))[1]


def has_no_inodes(path: str) -> bool:
    """Whether it is inodes that its file system, or that of the nearest folder above it, has no more of."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    return facts.f_files > 0 and facts.f_favail == 0
