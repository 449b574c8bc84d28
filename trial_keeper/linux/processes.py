"""Processes of Linux: finding and ending every process of a job, the few system calls for which Python has no function,
and what the kernel reports about memory.

A process belongs to a job when it descends from one of the given processes, is in the trial's session or process
group, or carries the job's environment tag: its id and its directory, because another manager may use the same id. That
covers `setsid`, double forks, and what `torchrun` leaves behind.

Used by the reaper, so it imports as little as possible.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Collection
from time import monotonic

from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import ENV_JOB_DIRECTORY, ENV_JOB_ID
from proctor.trial_keeper.linux.identity import open_pidfd, stat_fields

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
OOM_COUNTER = "/proc/vmstat"
"""Counts for the whole machine, since its boot."""
_libc = ctypes.CDLL(None, use_errno=True)
_JOB_ID = ENV_JOB_ID.encode()
_DIRECTORY = ENV_JOB_DIRECTORY.encode()


def become_subreaper() -> None:
    """Make all orphaned descendants of this process its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_subreaper() -> bool:
    """Whether the orphaned descendants of this process become its children."""
    answer = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(answer))
    return answer.value != 0


def reap_children() -> bool:
    """Collect what has ended; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def cpu_seconds_of_children() -> float:
    """Processor time of the children of this process that it has waited for, and of what they have waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def oom_kills(counter: str) -> int:
    """How many processes the kernel has killed for memory, as the file `counter` says: `OOM_COUNTER`, or the one of a
    control group; 0 where it does not say."""
    try:
        with open(counter, "rb") as file:
            _, found, rest = (b"\n" + file.read()).partition(b"\noom_kill ")
    except OSError:
        return 0
    return int(rest.split(b"\n", 1)[0]) if found else 0


def find_oom_counter(root: str) -> str:
    """Where the kernel counts for the control group of this process, by version 2 or 1; "" where it does not.

    In a container its own group is found at the mount point, whatever /proc/self/cgroup calls it.

    :param root: where control groups are mounted.
    """
    version_2, version_1 = [root], [f"{root}/memory"]
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                version_2.insert(0, root + path)
            elif "memory" in controllers.split(","):
                version_1.insert(0, f"{root}/memory{path}")
    candidates = [f"{folder}/memory.events" for folder in version_2]
    candidates += [f"{folder}/memory.oom_control" for folder in version_1]
    return next((path for path in candidates if os.path.exists(path)), "")


class ProcessFacts:
    """One living process as `/proc` shows it."""

    __slots__ = ("group", "parent", "pid", "session", "started")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.started = int(fields[19])


def survey() -> dict[int, ProcessFacts]:
    """All living processes of the machine by pid; zombies are dead."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        fields = stat_fields(int(name))
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(name)] = ProcessFacts(int(name), fields)
    return found


def read_tag(pid: int) -> tuple[str, str] | None:
    """The job id and the job's directory in a process's environment, or None when it has none or may not be read. As
    `survey`, it raises OSError where the machine has no descriptors left."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError as error:
        if is_short(error):
            raise
        return None
    values = dict(item.partition(b"=")[::2] for item in environment.split(b"\0"))
    job_id, directory = values.get(_JOB_ID), values.get(_DIRECTORY)
    if job_id is None or directory is None:
        return None
    return os.fsdecode(job_id), os.fsdecode(directory)


def descendants(table: dict[int, ProcessFacts], roots: Collection[int]) -> set[int]:
    """The pids below `roots`, themselves not included."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    pending = list(roots)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found and child not in roots:
                found.add(child)
                pending.append(child)
    return found


def find_job_processes(
    tag: tuple[str, str], *, ancestors: Collection[int] = (), session: tuple[int, int] | None = None
) -> list[ProcessFacts]:
    """The living processes of a job.

    :param tag: the job's id and its directory.
    :param ancestors: processes (the reaper, the trial) whose descendants belong to the job; they themselves do not.
    :param session: the pid and the start time of the trial, which leads its own session and process group. The kernel
        gives its number away once the trial and all members are gone.
    """
    table = survey()
    leader = None if session is None else table.get(session[0])
    number = session[0] if session is not None and (leader is None or leader.started == session[1]) else None
    below = descendants(table, ancestors)
    return [
        process
        for pid, process in table.items()
        if pid not in ancestors
        and pid != os.getpid()
        and (
            pid in below or (number is not None and number in (process.session, process.group)) or read_tag(pid) == tag
        )
    ]


def send(pid: int, started: int, number: int) -> None:
    """Signal exactly this process; one that has ended meanwhile is left alone, and so is each while the machine has no
    descriptors left: signal again."""
    try:
        descriptor = open_pidfd(pid, started)
    except OSError:
        return
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # gone, or made itself another user's: nothing we can do
    finally:
        os.close(descriptor)


def end_processes(
    find: Callable[[], list[ProcessFacts]],
    *,
    grace_seconds: float,
    wait: Callable[[float], None],
    limit_seconds: float = 60.0,
) -> list[int]:
    """SIGTERM, grace, then SIGKILL again and again until `find` finds nothing.

    :param wait: waits at most so many seconds, less when something has ended.
    :returns: the pids that could not be ended within `limit_seconds` after the grace (uninterruptible sleep).
    """
    members = find()
    grace_ends = monotonic() + grace_seconds
    signaled: set[tuple[int, int]] = set()
    while members and monotonic() < grace_ends:
        for process in members:
            if (process.pid, process.started) not in signaled:
                signaled.add((process.pid, process.started))
                send(process.pid, process.started, signal.SIGTERM)
                send(process.pid, process.started, signal.SIGCONT)
        wait(min(0.25, max(0.0, grace_ends - monotonic())))
        members = find()
    gives_up = monotonic() + limit_seconds
    while members and monotonic() < gives_up:
        for process in members:
            send(process.pid, process.started, signal.SIGKILL)
        wait(0.25)
        members = find()
    return [process.pid for process in members]
