"""The errors of training services.

TrainingServiceError
├── UnknownTrialJob       no such job here
├── SubmissionRefused     the form can never be run as it is (permanent; the sentence says why)
├── ServiceUnavailable    not now; try again (temporary)
│   └── NoJobRuns         only a job of the experiment could do it, and none runs (the sentence says what waits)
├── PreparationFailed     what a job needs cannot be brought to its node; `reason` is how the job ends
│   ├── NoRoomForJob      the node has no room for it (the text is a clause about its disk)
│   ├── KeeperOutdated    its keeper is of another version and lacks what the job needs; the next keeper has it
│   └── NothingToContinueFrom  none of the checkpoints from which it must continue is whole
├── UnknownPlatform       no training service of that name is registered
├── BrokenPlatform        one is registered, but cannot be loaded or made
├── ReservationRefused    another job holds it
├── NodeInUse             an experiment needs this node (the sentence says which)
├── CollectionFailed      files of a node cannot be stored on the manager's disk (the sentence says what to do)
└── KeeperUnavailable     a keeper asked for something it cannot have; `status_code` is what it is answered over REST
    ├── UnknownNode       no such node here (404)
    ├── UnknownContent    it was not asked to fetch this (404)
    ├── UnknownSession    the keeper must register again (409)
    ├── KeeperReplaced    the trial job has another keeper (410)
    ├── MalformedReport   the request contradicts itself (400)
    └── ManagerLeaving    this manager is shutting down (503)
"""

from proctor.trial_keeper.protocol import EndReason


class TrainingServiceError(Exception):
    """A training service could not do what was asked."""


class UnknownTrialJob(TrainingServiceError):
    """There is no such trial job on this training service."""


class SubmissionRefused(TrainingServiceError):
    """This trial job can never run here."""


class ServiceUnavailable(TrainingServiceError):
    """The training service cannot be reached at the moment."""


class NoJobRuns(ServiceUnavailable):
    """What is asked can only be done where a job of the experiment runs, and none does."""


class PreparationFailed(TrainingServiceError):
    """A node answers and cannot be made ready for a job."""

    reason = EndReason.INFRASTRUCTURE


class NothingToContinueFrom(PreparationFailed):
    """None of the checkpoints from which a job must continue is whole."""

    reason = EndReason.LAUNCH_FAILED


class NoRoomForJob(PreparationFailed):
    """A node has no room for what a job needs."""

    reason = EndReason.NO_ROOM


class KeeperOutdated(PreparationFailed):
    """A keeper is of another version, and does not know a command that is needed. It never will: ask another one."""


class UnknownPlatform(TrainingServiceError):
    """No training service of that name is registered."""


class BrokenPlatform(TrainingServiceError):
    """A training service is registered under that name, but cannot be loaded."""


class ReservationRefused(TrainingServiceError):
    """Another job holds what was to be reserved."""


class NodeInUse(TrainingServiceError):
    """An experiment needs this node."""


class CollectionFailed(TrainingServiceError):
    """Files of a node cannot be stored on the manager's disk."""


class KeeperUnavailable(TrainingServiceError):
    """A keeper asked for something it cannot have."""

    status_code = 400


class UnknownNode(KeeperUnavailable):
    """There is no such node."""

    status_code = 404


class UnknownContent(KeeperUnavailable):
    """The keeper was not asked to fetch this archive."""

    status_code = 404


class UnknownSession(KeeperUnavailable):
    """The keeper's session is not known, or was replaced by a newer one; it must register again."""

    status_code = 409


class KeeperReplaced(KeeperUnavailable):
    """The trial job has another keeper, or needs none any more; this one should leave."""

    status_code = 410


class MalformedReport(KeeperUnavailable):
    """A keeper's report contradicts itself."""

    status_code = 400


class ManagerLeaving(KeeperUnavailable):
    """This manager is shutting down; another one will take the call."""

    status_code = 503
