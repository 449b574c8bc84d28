"""The limit on open files of a process, and that of the user's code which it runs.

Manager and keepers take as many descriptors as they may have. What runs the user's own code (trials, tuners) gets the
limit of the shell again: programs that use `select` fail with descriptors of 1024 and more, and some try to close every
descriptor that there may be.
"""

import resource

_limit_at_start: int | None = None  # beside the kernel's own, which is one for the process as well


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
