"""The umask and the limit on open files of a process, and those of the user's code which it runs.

Manager and keepers keep their files to their user, also in a folder that others may enter, and take as many descriptors
as they may have. What runs the user's own code (trials, tuners) gets the umask and the limit of the shell again:
programs that use `select` fail with descriptors of 1024 and more, and some try to close every descriptor that there may
be.

A limit that is reached, or a machine that has no processes, descriptors or memory left, is a shortage: it is never the
fault of a trial, it passes, and what could not be looked at because of it is not known. Imported by trials, so it
imports as little as possible.
"""

import errno
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

_PRIVATE = 0o077
_SHORTAGES = {
    errno.EAGAIN: "no process can be started: a limit on processes is reached (`ulimit -u`, or pids.max of the control "
    "group or container); end some, or raise the limit",
    errno.EMFILE: "no file can be opened: the limit on open files of a process is reached; raise it (`ulimit -n`)",
    errno.ENFILE: "no file can be opened: the machine has no descriptors left; raise fs.file-max",
    errno.ENOMEM: "the kernel has no memory left for another process; end some",
}
# Beside the kernel's own, which are one for the process as well.
_umask_at_start: int | None = None
_limit_at_start: int | None = None


def keep_files_private() -> None:
    """What this process creates from now on is for its user only, even if others may enter the folder. Idempotent."""
    global _umask_at_start
    before = os.umask(_PRIVATE)
    if _umask_at_start is None:
        _umask_at_start = before


def users_umask() -> int:
    """The umask with which this process was started: what runs the user's code goes back to it."""
    return read_umask() if _umask_at_start is None else _umask_at_start


def read_umask() -> int:
    """The umask of this process, read without changing it for other threads."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


def raise_open_files() -> None:
    """Allow this process as many open files as it may have. Idempotent."""
    global _limit_at_start
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _limit_at_start is None:
        _limit_at_start = soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def users_open_files() -> int:
    """The soft limit with which this process was started."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _limit_at_start is None else _limit_at_start


def restore_open_files(limit: int) -> None:
    """Go back to the soft limit `limit`, which came from the process that started this one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def is_short(error: "BaseException | None") -> "TypeGuard[OSError]":
    """Whether an error says that the machine has no processes, descriptors or memory left."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def describe_shortage(number: "int | None") -> str:
    """What is missing, and what to do, as a clause; "" for the number of an error that is no shortage."""
    return _SHORTAGES.get(number or 0, "")
