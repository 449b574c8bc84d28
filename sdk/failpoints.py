"""Named places where a test may kill this process, to prove that nothing is lost.

`failpoint("store.commit.before")` does nothing in normal use. When the environment variable `PROCTOR_FAILPOINT` holds
`name` or `name@n`, the n-th passage (from 1) through that place kills the process with SIGKILL. `PROCTOR_FAILPOINT_LOG`
names a file to which every passage appends its name; tests use it to learn which places exist and how often they
are passed. `PROCTOR_FAILPOINT_COUNTER` names a file that counts the passages through the target for all processes that
share it, forks and successors included: then exactly one of them is killed.
"""

import os

_passages: dict[str, int] = {}
_target_name, _, _count = os.environ.get("PROCTOR_FAILPOINT", "").partition("@")
_target_count = int(_count or 1)
_log_path = os.environ.get("PROCTOR_FAILPOINT_LOG", "")
_counter_path = os.environ.get("PROCTOR_FAILPOINT_COUNTER", "")
_armed = bool(_target_name or _log_path)


def failpoint(name: str) -> None:
    """Kill this process here if a test asked for it; otherwise return at once."""
    if not _armed:
        return
    if _log_path:
        descriptor = os.open(_log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{name}\n".encode())
        os.close(descriptor)
    if name == _target_name and _count_passage(name) == _target_count:
        import signal  # here, because it costs a trial's start-up time

        os.kill(os.getpid(), signal.SIGKILL)


def _count_passage(name: str) -> int:
    if not _counter_path:
        _passages[name] = _passages.get(name, 0) + 1
        return _passages[name]
    descriptor = os.open(_counter_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b".")
    count = os.lseek(descriptor, 0, os.SEEK_CUR)  # where our own byte ends, even if others write at the same time
    os.close(descriptor)
    return count
