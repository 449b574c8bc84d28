"""How a trial finds its keeper: the job's directory named by the environment, or none at all (standalone).

Nothing here touches the network. The channel is opened at the first call, once a process; forked and spawned children
find the same directory through the same environment.
"""

import os

from proctor.sdk.errors import JobDirectoryError
from proctor.sdk.journal import Journal, read_wait_seconds
from proctor.sdk.protocol import (
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
        self._stop = False

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

    def is_stop_requested(self) -> bool:
        """Whether the keeper has asked the trial to end itself: one `stat` a call, a read only after a change."""
        try:
            found = os.stat(self._control_path)
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
            if identity != self._control_identity:
                self._stop = loads(_read(self._control_path)).get("stop") is True
                self._control_identity = identity
        except (OSError, ValueError, AttributeError):
            pass  # not written yet, or damaged: what was known stays true
        return self._stop


class _ForkedJournal:
    """The journal of a forked process until its first report, when it chooses the one of its rank: a worker of a data
    loader has the rank of its parent, and a process that a launcher has forked is given its rank after the fork."""

    def __init__(self, open_journal: "Callable[[], Journal]") -> None:
        self._open_journal = open_journal

    def append(self, records: str, *, patient: bool = False) -> bool:
        """Append to the journal of this process's rank, and from now on only there."""
        return self._open_journal().append(records, patient=patient)


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
