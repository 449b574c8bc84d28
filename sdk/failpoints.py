"""Named places where a test may kill this process, to prove that nothing is lost.

`failpoint("store.commit.before")` does nothing in normal use. When the environment variable `PROCTOR_FAILPOINT` holds
`name` or `name@n`, the n-th passage (from 1) through that place kills the process with SIGKILL.
`PROCTOR_FAILPOINT_FOLDER` names a folder in which a file arms the place that it is named after, at any time: the first
passage through the place, by any process, removes the file, and kills that process alone. `PROCTOR_FAILPOINT_LOG` names
a file to which every passage appends its name; tests use it to learn which places there are.
"""

import os

_passages: dict[str, int] = {}
_target_name, _, _count = os.environ.get("PROCTOR_FAILPOINT", "").partition("@")
_target_count = int(_count or 1)
_log_path = os.environ.get("PROCTOR_FAILPOINT_LOG", "")
_folder = os.environ.get("PROCTOR_FAILPOINT_FOLDER", "")
_armed = bool(_target_name or _log_path or _folder)


def failpoint(name: str) -> None:
    """Kill this process here if a test asked for it; otherwise return at once."""
    if not _armed:
        return
    if _log_path:
        descriptor = os.open(_log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{name}\n".encode())
        os.close(descriptor)
    if (name == _target_name and _count_passage(name) == _target_count) or (_folder and _disarm(name)):
        import signal  # here, because it costs a trial's start-up time

        os.kill(os.getpid(), signal.SIGKILL)


def _count_passage(name: str) -> int:
    _passages[name] = _passages.get(name, 0) + 1
    return _passages[name]


def _disarm(name: str) -> bool:
    """Whether the place was armed and this process is the one that comes first."""
    try:
        os.unlink(os.path.join(_folder, name))
    except FileNotFoundError:
        return False
    return True
