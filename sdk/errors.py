"""The errors of the SDK, drawn as a tree, and its notices.

    ProctorError                        anything the SDK refuses
    ├── MetricError (TypeError)         a reported value that is no metric
    ├── CheckpointError                 a folder that cannot be a checkpoint
    │   └── DamagedCheckpointError      what the job was to continue from is not what was stored
    ├── JobDirectoryError               the job's directory does not hold what the keeper should have put there
    ├── UnsafeDocumentError             a document of NNI that could be read only by running what it holds
    └── NoMoreTrialError                raised by a tuner: nothing is left to propose

A report raises only for what its caller did wrong. A full disk, a missing keeper or a dead manager never raises; what
the user should know goes to the trial's standard error, once each, and never costs the trial anything.
"""

import sys

_given: "set[str]" = set()


class ProctorError(Exception):
    """Something the SDK refuses; the text says what was expected, what was found and what to do."""


class MetricError(ProctorError, TypeError):
    """A reported value is not a number or a dictionary that JSON can hold."""


class CheckpointError(ProctorError):
    """The folder given as a checkpoint is missing, unreadable, or holds what cannot be copied."""


class DamagedCheckpointError(CheckpointError):
    """The checkpoint that the job was to continue from is not what was stored. Another attempt continues from another
    one, and no retry is charged for this one, if the process ends with this error."""


class JobDirectoryError(ProctorError):
    """The trial's parameters cannot be read from its job's directory."""


class UnsafeDocumentError(ProctorError, ValueError):
    """A JSON document holds pickled or named Python objects; reading it would run code."""


class NoMoreTrialError(ProctorError):
    """A tuner raises this when it has nothing left to propose."""


def notice_once(topic: str, text: str) -> bool:
    """Print `proctor: <text>` to standard error unless this process has printed one on this topic; whether it is the
    first one."""
    if topic in _given:
        return False
    _given.add(topic)
    try:
        sys.stderr.write(f"proctor: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # no standard error, or a closed one
        pass
    return True
