"""Every status there is. A status says where a thing is; the reason beside it says why it got there."""

from enum import StrEnum


class ExperimentStatus(StrEnum):
    """The status of an experiment."""

    INITIALIZED = "INITIALIZED"  # written down; its dispatcher and service are starting
    RUNNING = "RUNNING"  # trials are created
    PAUSED = "PAUSED"  # no new trials, as the user has asked for; running ones keep running
    NO_MORE_TRIAL = "NO_MORE_TRIAL"  # a limit is reached; running trials keep running
    TUNER_NO_MORE_TRIAL = "TUNER_NO_MORE_TRIAL"  # the tuner has no more suggestions; running trials keep running
    DONE = "DONE"  # a limit is reached and no trial is left; RUNNING again when the limit is raised
    STOPPING = "STOPPING"  # being stopped
    STOPPED = "STOPPED"  # stopped by the user; can be resumed
    ERROR = "ERROR"  # cannot continue by itself; the reason says why
    VIEWED = "VIEWED"  # open for reading only

    @property
    def creates_trials(self) -> bool:
        """Whether new suggestions are asked for."""
        return self is ExperimentStatus.RUNNING

    @property
    def is_working(self) -> bool:
        """Whether it is on its way to an end, with a dispatcher that takes part in it."""
        return self in {
            ExperimentStatus.INITIALIZED,
            ExperimentStatus.RUNNING,
            ExperimentStatus.PAUSED,
            ExperimentStatus.NO_MORE_TRIAL,
            ExperimentStatus.TUNER_NO_MORE_TRIAL,
        }

    @property
    def is_resumable(self) -> bool:
        """Whether a user may resume it, at once or when it has stopped."""
        return self in {
            ExperimentStatus.PAUSED,
            ExperimentStatus.STOPPING,
            ExperimentStatus.STOPPED,
            ExperimentStatus.ERROR,
            ExperimentStatus.VIEWED,
        }

    @property
    def counts_time(self) -> bool:
        """Whether its time runs: trials are created, or the last ones are waited for. As NNI counts."""
        return self in {
            ExperimentStatus.RUNNING,
            ExperimentStatus.NO_MORE_TRIAL,
            ExperimentStatus.TUNER_NO_MORE_TRIAL,
        }

    @property
    def has_ended(self) -> bool:
        """Whether it is no longer active by itself. A user may continue it."""
        return self in {
            ExperimentStatus.DONE,
            ExperimentStatus.STOPPED,
            ExperimentStatus.ERROR,
            ExperimentStatus.VIEWED,
        }

    @property
    def is_active(self) -> bool:
        """Whether a loop works on it."""
        return self not in {ExperimentStatus.STOPPED, ExperimentStatus.VIEWED}


class TrialStatus(StrEnum):
    """The status of a trial."""

    WAITING = "WAITING"  # for a place, for a retry, or for its experiment to be resumed
    RUNNING = "RUNNING"  # one of its jobs runs
    PAUSED = "PAUSED"  # kept, without a place
    SUCCEEDED = "SUCCEEDED"  # its command exited with 0
    FAILED = "FAILED"  # its command failed and its retries are spent
    EARLY_STOPPED = "EARLY_STOPPED"  # by the assessor, the trial scheduler or maxTrialDuration
    USER_CANCELED = "USER_CANCELED"  # by the user
    SYS_CANCELED = "SYS_CANCELED"  # by the system: it could never run, or infrastructure failed too often
    UNKNOWN = "UNKNOWN"  # imported without a status

    @property
    def is_terminal(self) -> bool:
        """Nothing leaves a terminal status."""
        return self not in {TrialStatus.WAITING, TrialStatus.RUNNING, TrialStatus.PAUSED}

    @property
    def has_failed(self) -> bool:
        """Whether it ended without a result and no user asked it to."""
        return self in {TrialStatus.FAILED, TrialStatus.SYS_CANCELED}

    @property
    def has_result(self) -> bool:
        """Whether it ran as it should, so that its final metric counts and may be the best."""
        return self in {TrialStatus.SUCCEEDED, TrialStatus.EARLY_STOPPED}
