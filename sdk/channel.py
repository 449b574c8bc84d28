"""How a trial finds its keeper: the job's directory named by the environment, or none at all (standalone).

Nothing here touches the network. The channel is opened at the first call, once a process; forked and spawned children
find the same directory through the same environment.
"""

import os
from time import monotonic, sleep, time

from proctor.sdk.errors import JobDirectoryError
from proctor.sdk.journal import Journal, read_wait_seconds
from proctor.sdk.protocol import (
    CAN_SAVE_FILE,
    CONTROL_FILE,
    ENV_CURVE_POINTS,
    ENV_EXPERIMENT_ID,
    ENV_JOB_DIRECTORY,
    ENV_JUDGED_RANK,
    ENV_MEMORY_RESERVE,
    ENV_RESUME_CHECKPOINT,
    ENV_SEQUENCE_ID,
    ENV_TRIAL_ID,
    ENV_VERDICT_SECONDS,
    PARAMETER_FILE,
    find_rank,
    journal_name,
)
from proctor.sdk.quick_json import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

STANDALONE = "STANDALONE"
VERDICT_SECONDS = 10.0
"""How long a report waits for a verdict where the environment does not say it: the manager may be away."""

_MARKER_RETRY_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05
_LONGEST_VERDICT_SECONDS = 3600.0


class StopRequest:
    """Why a trial was asked to stop, and how long it has to save.

    `request` says what comes after the stop: "stop" (nothing, until the experiment is resumed), "pause", "preempt" or
    "resize". `reason` is a sentence. `deadline` is the Unix time at which the trial's processes are sent SIGTERM; None
    if the keeper does not say.
    """

    __slots__ = ("deadline", "reason", "request")

    def __init__(self, request: str, reason: str, deadline: "float | None") -> None:
        self.request = request
        self.reason = reason
        self.deadline = deadline

    def __repr__(self) -> str:
        return f"StopRequest(request={self.request!r}, reason={self.reason!r}, deadline={self.deadline!r})"

    @property
    def seconds_left(self) -> float:
        """Seconds until SIGTERM, at least 0; 0 if the deadline is not known."""
        return 0.0 if self.deadline is None else max(0.0, self.deadline - time())


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
        self.is_judged = False  # a trial scheduler judges what this process reports
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

    def await_verdict(self, step: "int | None", *, is_stored: bool) -> None:
        """After a report of an intermediate metric: if the trial is at its milestone, wait until control.json names a
        later one, none, or a stop. If nothing comes in time, the trial continues, and does not wait again at this
        milestone. One `stat` a call where there is nothing to wait for.

        :param step: the reported one; without one the points of the trial's curve are counted.
        :param is_stored: the metric is a point of the curve.
        """
        self._points += is_stored
        reached = self._points if step is None else step
        if not self._must_wait(reached):
            return
        deadline, pause = self._clock() + _verdict_seconds(self._environment), _FIRST_PAUSE_SECONDS
        while (left := deadline - self._clock()) > 0:
            self._pause(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            if not self._must_wait(reached):
                return
        self._given_up = self._milestone

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
    """What control.json says; a keeper of an earlier version names neither request nor deadline."""
    if body.get("stop") is not True:
        return None
    deadline = body.get("deadline")
    known = float(deadline) if type(deadline) in (int, float) else None
    return StopRequest(str(body.get("request") or "stop"), str(body.get("reason") or ""), known)


def _read_count(text: "str | None") -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _verdict_seconds(environment: "Mapping[str, str]") -> float:
    """How long to wait for a verdict, as the environment says."""
    try:
        seconds = float(environment[ENV_VERDICT_SECONDS])
    except (KeyError, ValueError):
        return VERDICT_SECONDS
    return seconds if 0 <= seconds <= _LONGEST_VERDICT_SECONDS else VERDICT_SECONDS


class _ForkedJournal:
    """The journal of a forked process until its first report, when it chooses the one of its rank: a worker of a data
    loader has the rank of its parent, and a process that a launcher has forked is given its rank after the fork."""

    def __init__(self, open_journal: "Callable[[], Journal]") -> None:
        self._open_journal = open_journal

    def append(self, record: str, *, count: int = 1, patient: bool = False) -> bool:
        """Append to the journal of this process's rank, and from now on only there."""
        return self._open_journal().append(record, count=count, patient=patient)


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
