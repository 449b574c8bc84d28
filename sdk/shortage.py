"""A shortage of the machine: of processes, descriptors or memory. It is never the fault of a trial, it passes, and what
could not be looked at because of it is not known.

Imported by trials, the reaper and the spawner, so it imports as little as possible.
"""

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

_PROBLEMS = {
    errno.EAGAIN: "no process can be started: a limit on processes is reached (`ulimit -u`, or pids.max of the control "
    "group or container); end some, or raise the limit",
    errno.EMFILE: "no file can be opened: the limit on open files of a process is reached; raise it (`ulimit -n`)",
    errno.ENFILE: "no file can be opened: the machine has no descriptors left; raise fs.file-max",
    errno.ENOMEM: "the kernel has no memory left for another process; end some",
}


def is_short(error: "BaseException | None") -> "TypeGuard[OSError]":
    """Whether an error says that the machine has no processes, descriptors or memory left."""
    return isinstance(error, OSError) and error.errno in _PROBLEMS


def describe_shortage(number: "int | None") -> str:
    """What is missing, and what to do, as a clause; "" for the number of an error that is no shortage."""
    return _PROBLEMS.get(number or 0, "")
