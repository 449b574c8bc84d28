"""How a trial finds its keeper: the job's directory named by the environment, or none at all (standalone).

Nothing here touches the network. The channel is opened at the first call, once a process; forked and spawned children
find the same directory through the same environment.
"""

import os
from time import monotonic, time

from proctor.sdk.errors import JobDirectoryError
from proctor.sdk.journal import Journal, read_wait_seconds
from proctor.sdk.protocol import (
    CAN_SAVE_FILE,
    CONTROL_FILE,
    ENV_EXPERIMENT_ID,
    ENV_JOB_DIRECTORY,
    ENV_MEMORY_RESERVE,
    ENV_RESUME_CHECKPOINT,
    ENV_SEQUENCE_ID,
    ENV_TRIAL_ID,
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
_MARKER_RETRY_SECONDS = 5.0


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
    """One job's directory as its trial sees it."""

    def __init__(self, environment: "Mapping[str, str]") -> None:
        """:raises KeyError: the environment is not that of a trial."""
        self.job_directory = environment[ENV_JOB_DIRECTORY]
        self.experiment_id = environment.get(ENV_EXPERIMENT_ID, STANDALONE)
        self.trial_id = environment.get(ENV_TRIAL_ID, STANDALONE)
        self.sequence_id = int(environment.get(ENV_SEQUENCE_ID) or 0)
        self.resume_checkpoint = environment.get(ENV_RESUME_CHECKPOINT) or None
        self._environment = environment
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
        try:
            found = os.stat(self._control_path)
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
            if identity != self._control_identity:
                self._stop = _stop_request(loads(_read(self._control_path)))
                self._control_identity = identity
        except (OSError, ValueError, AttributeError):
            pass  # not written yet, or damaged: what was known stays true
        return self._stop

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
