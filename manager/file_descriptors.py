"""The file descriptors of the manager's process: who gets how many, and what is said when they run short."""

import errno
import os
import resource

_FOLDER = "/proc/self/fd"
_SCARCE_SHARE = 0.8
_SPARE_SHARE = 0.1
_DESCRIPTORS_PER_DATABASE = 16
"""An open database holds seven: less than half of all descriptors belong to databases."""
_DESCRIPTORS_PER_CONNECTION = 8
_MOST_DATABASES = 500
"""An open database holds three threads, which are scarcer than descriptors where the limit is high."""


def most_databases() -> int:
    """How many databases of experiments may be open at a time."""
    return max(min(_limit() // _DESCRIPTORS_PER_DATABASE, _MOST_DATABASES), 4)


def most_connections(wanted: int) -> int:
    """How many connections a server may have that would like to have so many; there are up to three servers."""
    return max(min(wanted, _limit() // _DESCRIPTORS_PER_CONNECTION), 8)


def require_spare() -> None:
    """Raise OSError where so few descriptors are left that they are needed for requests and keepers."""
    used, limit = _used(), _limit()
    if used > (1 - _SPARE_SHARE) * limit:
        text = f"{os.strerror(errno.EMFILE)} ({used} of {limit}, the last ones are kept for requests)"
        raise OSError(errno.EMFILE, text)


def shortage() -> str:
    """That descriptors run short, and what to do, as a clause; or ''."""
    used, limit = _used(), _limit()
    if used < _SCARCE_SHARE * limit:
        return ""
    return (
        f"the manager has {used} of {limit} file descriptors open: stop experiments, or raise the hard limit "
        "(`ulimit -Hn`, LimitNOFILE= of a systemd unit) and start the manager again; trials keep running meanwhile"
    )


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _used() -> int:
    try:
        return len(os.listdir(_FOLDER)) - 1  # one of them is that of the folder
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return _limit()
