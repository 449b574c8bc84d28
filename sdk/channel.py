"""How a trial finds its keeper: the job's directory named by the environment, or none at all (standalone).

Nothing here touches the network. The channel is opened at the first call, once a process; forked and spawned children
find the same directory through the same environment.
"""

import os
from _thread import RLock
from time import monotonic, sleep, time

from proctor.sdk.errors import JobDirectoryError
from proctor.sdk.journal import Journal, read_wait_seconds
from proctor.sdk.protocol import (
    CAN_SAVE_FILE,
    CONTROL_FILE,
    ENV_CURVE_POINTS,
    ENV_EXPERIMENT_ID,
    ENV_JOB_DIRECTORY,
    ENV_JOB_STARTED,
    ENV_JUDGED_RANK,
    ENV_MEMORY_RESERVE,
    ENV_RESUME_CHECKPOINT,
    ENV_SEQUENCE_ID,
    ENV_TRIAL_ID,
    ENV_VERDICT_SECONDS,
    MAX_VERDICT_SECONDS,
    MAX_WAITS_BYTES,
    PARAMETER_FILE,
    WAITS_FILE,
    boot_time,
    find_rank,
    journal_name,
    read_moment,
    read_wait,
    read_waits,
)
from proctor.sdk.quick_json import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

STANDALONE = "STANDALONE"
VERDICT_SECONDS = 10.0
"""How long a report waits for a verdict where the environment does not say it: the manager is of an earlier version."""

_MARKER_RETRY_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05


class StopRequest:
    """Why a trial was asked to stop, and how long it has to save.

    `request` says what comes after the stop: "stop" (nothing, until the experiment is resumed), "pause", "preempt" or
    "resize". `reason` is a sentence. `deadline` is the Unix time at which the trial's processes are sent SIGTERM, as
    the clock was when the keeper wrote it; None if the keeper does not say.
    """

    __slots__ = ("_until", "deadline", "reason", "request")

    def __init__(self, request: str, reason: str, deadline: "float | None", until: "float | None" = None) -> None:
        """:param until: the same by `boot_time`; None: the keeper does not say, or runs on another machine."""
        self.request = request
        self.reason = reason
        self.deadline = deadline
        self._until = until

    def __repr__(self) -> str:
        return f"StopRequest(request={self.request!r}, reason={self.reason!r}, deadline={self.deadline!r})"

    @property
    def seconds_left(self) -> float:
        """Seconds until SIGTERM, at least 0, however the clock is set; 0 if the deadline is not known."""
        if self._until is not None:
            return max(0.0, self._until - boot_time())
        return 0.0 if self.deadline is None else max(0.0, self.deadline - time())


class JobTime:
    """What a process of a trial knows of its job's time. Waits for verdicts are no time of the trial's: the process
    that waits keeps a file of them, from which the keeper's side reads how long they were, also while one lasts.
    Several threads may wait at once.

    :param directory: the job's.
    """

    def __init__(
        self, environment: "Mapping[str, str]", directory: str, *, clock: "Callable[[], float]" = boot_time
    ) -> None:
        text = environment.get(ENV_JOB_STARTED)
        self._clock = clock
        self._started = None if text is None else read_moment(text)
        self._path = f"{directory}/{WAITS_FILE}"
        self._waited: float | None = None  # None: the file was not read yet
        self._since = self._longest = 0.0
        self._waiting = 0  # threads that wait
        self._descriptor = -1  # of the file, locked while any does
        self._lock = RLock()
        os.register_at_fork(after_in_child=self._start_over)

    def seconds(self) -> "float | None":
        """Return how long the job has run, without its waits for verdicts; None where its start is not known."""
        if self._started is None:
            return None
        with self._lock:
            now = self._clock()
            return max(0.0, now - self._started - self._waited_by(now))

    def begin_wait(self, longest: float) -> None:
        """From now on a thread of the process waits for a verdict, for at most so many seconds. Threads that wait at
        once wait once."""
        with self._lock:
            now = self._clock()
            self._waited_by(now)
            self._waiting += 1
            if self._waiting == 1:
                self._since, self._longest = now, longest
                self._take_hold(shared=True)
                self._write()

    def end_wait(self) -> None:
        """The verdict is there, or was waited for long enough. If another thread still waits, the file says so from
        now on: that one may wait longer than the one that began."""
        with self._lock:
            if not self._waiting:  # a signal handler has raised before the wait began
                return
            now = self._clock()
            self._waited = self._waited_by(now)
            self._waiting -= 1
            self._since, self._longest = (now, self._longest) if self._waiting else (0.0, 0.0)
            self._write()
            if not self._waiting:
                self._release()

    def end_left_wait(self) -> None:
        """As a process begins: the wait in which one before it was killed is over. When it was killed is not known, so
        the wait has lasted until now. A process that still waits holds a lock: its wait is left alone."""
        with self._lock:
            now = self._clock()
            data = self._read()
            if self._waiting or not read_wait(data, now)[1]:
                return
            if self._take_hold(shared=False):
                self._waited = read_waits(data, now)
                self._write()
            self._release()

    def _waited_by(self, now: float) -> float:
        """How long the waits have taken; other processes of the job may have waited before this one began."""
        if self._waited is None:
            self._waited = read_waits(self._read(), now)
        return self._waited + (now - self._since if self._waiting else 0.0)

    def _take_hold(self, *, shared: bool) -> bool:
        """Lock the file, which ends with the process; whether no other process forbids it. Where there is no room for
        the file, or are no locks, none does."""
        from proctor.sdk.files import lock_file

        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            return lock_file(self._descriptor, shared=shared)
        except OSError:
            return True

    def _release(self) -> None:
        """Close the file, unless user code has closed it and given its number to another one."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if descriptor >= 0 and os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                os.close(descriptor)
        except OSError:
            pass

    def _start_over(self) -> None:
        """In a forked child: no thread of it waits, and one that is not here may hold the lock."""
        self._lock = RLock()
        if self._waiting:
            self._waited, self._waiting = None, 0
            self._since = self._longest = 0.0
            self._release()

    def _read(self) -> bytes:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(descriptor, MAX_WAITS_BYTES)
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def _write(self) -> None:
        """In place and of one length, so that a reader finds a whole file. What a full disk refuses counts as run."""
        data = f"{self._waited:20.6f} {self._since:20.6f} {self._longest:20.6f}\n".encode("ascii")
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.pwrite(descriptor, data, 0)
        except OSError:
            pass
        finally:
            os.close(descriptor)


class Channel:
    """One job's directory as its trial sees it.

    :raises KeyError: the environment is not that of a trial.
    """

    def __init__(
        self,
        environment: "Mapping[str, str]",
        *,
        clock: "Callable[[], float]" = monotonic,
        pause: "Callable[[float], None]" = sleep,
    ) -> None:
        self.job_directory = environment[ENV_JOB_DIRECTORY]
        self.experiment_id = environment.get(ENV_EXPERIMENT_ID, STANDALONE)
        self.trial_id = environment.get(ENV_TRIAL_ID, STANDALONE)
        self.sequence_id = int(environment.get(ENV_SEQUENCE_ID) or 0)
        self.resume_checkpoint = environment.get(ENV_RESUME_CHECKPOINT) or None
        self.time = JobTime(environment, self.job_directory)
        self.is_judged = False  # a trial scheduler judges what this process reports
        self.verdict_seconds = _verdict_seconds(environment)
        """How long a report waits for a verdict at most."""
        self._environment = environment
        self._clock, self._pause = clock, pause
        self._points = _read_count(environment.get(ENV_CURVE_POINTS))
        self._milestone: int | None = None
        self._given_up: int | None = None  # a milestone for whose verdict a report has waited in vain
        self.journal: Journal | _ForkedJournal = self._open_journal()
        os.register_at_fork(after_in_child=self._forget_journal)
        self._control_path = f"{self.job_directory}/{CONTROL_FILE}"
        self._control_identity: tuple[int, ...] = ()
        self._stop: StopRequest | None = None
        self._marker_path = f"{self.job_directory}/{CAN_SAVE_FILE}"
        self._marker_due: float | None = 0.0  # monotonic time of the next attempt; None once the marker is there

    def _open_journal(self) -> Journal:
        """Choose the journal of this process's rank."""
        rank = find_rank(self._environment)
        self.is_judged = self._environment.get(ENV_JUDGED_RANK) == str(rank)
        if self.is_judged:
            self.time.end_left_wait()
        self.journal = Journal(
            f"{self.job_directory}/{journal_name(rank)}",
            wait_seconds=read_wait_seconds(),
            member=str(rank),
            memory=self._environment.get(ENV_MEMORY_RESERVE, ""),
        )
        return self.journal

    def _forget_journal(self) -> None:
        """In a forked child: its rank is not known yet."""
        self.journal = _ForkedJournal(self._open_journal)

    def read_parameters(self) -> "Any":
        """The parameters of this job, normally a dictionary.

        :raises JobDirectoryError: the keeper's file is missing or damaged.
        """
        path = f"{self.job_directory}/{PARAMETER_FILE}"
        try:
            return loads(_read(path))["parameters"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JobDirectoryError(
                f"trial {self.trial_id} cannot read its parameters from {path}: {error!r}. The keeper writes this "
                f"file before it starts a trial; outside an experiment, unset {ENV_JOB_DIRECTORY}."
            ) from error

    def read_stop_request(self) -> "StopRequest | None":
        """What the keeper asks of the trial, if it is to end: one `stat` a call, a read only after a change. The first
        call shows the keeper that the trial asks, which is why a soft stop waits for it."""
        if self._marker_due is not None:
            self._make_marker()
        self._read_control()
        return self._stop

    def await_verdict(self, step: "int | None", *, is_stored: bool, has_value: bool) -> "int | None":
        """After a report of an intermediate metric: if the trial is at its milestone, wait until control.json names a
        later one, none, or a stop. If nothing comes in time, return the milestone: the trial continues, and does not
        wait again there. One `stat` a call where there is nothing to wait for.

        :param step: the reported one; without one the points of the trial's curve are counted.
        :param is_stored: the metric is a point of the curve.
        :param has_value: it has what a trial scheduler judges. There will be no verdict on one that has not, nor on one
            that was lost.
        """
        self._points += is_stored
        reached = self._points if step is None else step
        if not (is_stored and has_value and self.verdict_seconds and self._must_wait(reached)):
            return None
        try:
            self.time.begin_wait(self.verdict_seconds)
            deadline, pause = self._clock() + self.verdict_seconds, _FIRST_PAUSE_SECONDS
            while (left := deadline - self._clock()) > 0:
                self._pause(min(pause, left))
                pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
                if not self._must_wait(reached):
                    return None
            self._given_up = self._milestone
            return self._given_up
        finally:
            self.time.end_wait()

    def _must_wait(self, reached: int) -> bool:
        self._read_control()
        milestone = self._milestone
        is_due = milestone is not None and reached >= milestone != self._given_up
        return is_due and self._stop is None

    def _read_control(self) -> None:
        try:
            found = os.stat(self._control_path)
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
            if identity != self._control_identity:
                body = loads(_read(self._control_path))
                self._stop, milestone = _stop_request(body), body.get("milestone")
                self._milestone = milestone if type(milestone) is int else None
                self._control_identity = identity
        except (OSError, ValueError, AttributeError):
            pass  # not written yet, or damaged: what was known stays true

    def _make_marker(self) -> None:
        """Make the marker file. On a full disk the attempt is repeated after a while; the trial is never held up."""
        now = monotonic()
        if self._marker_due is None or now < self._marker_due:
            return
        try:
            os.close(os.open(self._marker_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._marker_due = None
        except OSError:
            self._marker_due = now + _MARKER_RETRY_SECONDS


def _stop_request(body: "Any") -> "StopRequest | None":
    """What control.json says; keepers of earlier versions name neither request nor deadline, or no moment of it."""
    if body.get("stop") is not True:
        return None
    deadline = body.get("deadline")
    known = float(deadline) if type(deadline) in (int, float) else None
    until = read_moment(str(body.get("until") or ""))
    return StopRequest(str(body.get("request") or "stop"), str(body.get("reason") or ""), known, until)


def _read_count(text: "str | None") -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def longest_wait(environment: "Mapping[str, str]") -> float:
    """Return for how many seconds a rank of the trial may stand still for a verdict; 0 without a trial scheduler."""
    return _verdict_seconds(environment) if ENV_JUDGED_RANK in environment else 0.0


def _verdict_seconds(environment: "Mapping[str, str]") -> float:
    """How long to wait for a verdict, as the environment says."""
    try:
        seconds = float(environment[ENV_VERDICT_SECONDS])
    except (KeyError, ValueError):
        return VERDICT_SECONDS
    return seconds if 0 <= seconds <= MAX_VERDICT_SECONDS else VERDICT_SECONDS


class _ForkedJournal:
    """The journal of a forked process until its first report, when it chooses the one of its rank: a worker of a data
    loader has the rank of its parent, and a process that a launcher has forked is given its rank after the fork."""

    def __init__(self, open_journal: "Callable[[], Journal]") -> None:
        self._open_journal = open_journal

    def append(self, record: str, *, count: int = 1, registers: bool = False, patient: bool = False) -> bool:
        """Append to the journal of this process's rank, and from now on only there."""
        return self._open_journal().append(record, count=count, registers=registers, patient=patient)


def _read(path: str) -> str:
    """The text of a small file; `open` would import codecs for more than we need."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8")
