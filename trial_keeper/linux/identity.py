"""Which process is meant: a pid alone is reused, (pid, start time, boot id) is not.

Used by the reaper, so it imports as little as possible. All of it raises OSError where the machine has no descriptors
left: it is not known then whether a process lives.
"""

import os

from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import boot_id as boot_id


def stat_fields(pid: int) -> list[bytes] | None:
    """The fields of `/proc/<pid>/stat` after the command's name (state first), or None when the process is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError as error:
        if is_short(error):
            raise
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return text[text.rfind(b")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is no such process."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether exactly that process lives; a zombie is dead."""
    fields = stat_fields(pid)
    return fields is not None and int(fields[19]) == started and fields[0] not in (b"Z", b"X")


def describe_stop(pid: int, started: int) -> str:
    """That this process is suspended, and what to do, as a clause that follows its name; "" while it is not, or that is
    not known."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return ""
    if fields is None or int(fields[19]) != started:
        return ""
    if fields[0] == b"T":
        return f"(pid {pid}) is stopped (SIGSTOP); resume it with: kill -CONT {pid}"
    return f"(pid {pid}) is held by a debugger; resume it there" if fields[0] == b"t" else ""


def open_pidfd(pid: int, started: int) -> int | None:
    """A pidfd of exactly that process, or None when it is gone (or a zombie whose parent is slow)."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if is_short(error):
            raise
        return None
    try:
        fields = stat_fields(pid)
    except OSError:
        os.close(descriptor)
        raise
    if fields is None or int(fields[19]) != started or fields[0] in (b"Z", b"X"):
        os.close(descriptor)
        return None
    return descriptor
