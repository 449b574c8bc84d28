"""The errors of training services.

TrainingServiceError
├── UnknownTrialJob       no such job here
├── SubmissionRefused     the form can never be run as it is (permanent; the sentence says why)
├── ServiceUnavailable    not now; try again (temporary)
├── UnknownPlatform       no training service of that name is registered
├── BrokenPlatform        one is registered, but cannot be loaded or made
├── ReservationRefused    somebody else holds it
├── NodeInUse             an experiment needs this node (the sentence says which)
├── CollectionFailed      files of a node cannot be stored on the manager's disk (the sentence says what to do)
└── KeeperError           a keeper asked for something it cannot have; `status_code` is what it is answered over REST
    ├── UnknownNode       no such node here (404)
    ├── UnknownSession    the keeper must register again (409)
    ├── MalformedReport   the request contradicts itself (400)
    └── ManagerLeaving    this manager is shutting down (503)
"""


class TrainingServiceError(Exception):
    """A training service could not do what was asked."""


class UnknownTrialJob(TrainingServiceError):
    """There is no such trial job on this training service."""


class SubmissionRefused(TrainingServiceError):
    """This trial job can never run here."""


class ServiceUnavailable(TrainingServiceError):
    """The training service cannot be reached at the moment."""


class UnknownPlatform(TrainingServiceError):
    """No training service of that name is registered."""


class BrokenPlatform(TrainingServiceError):
    """A training service is registered under that name, but cannot be loaded."""


class ReservationRefused(TrainingServiceError):
    """Somebody else holds what was to be reserved."""


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


class UnknownSession(KeeperUnavailable):
    """The keeper's session is not known, or was replaced by a newer one; it must register again."""

    status_code = 409


class MalformedReport(KeeperUnavailable):
    """A keeper's report contradicts itself."""

    status_code = 400


class ManagerLeaving(KeeperUnavailable):
    """This manager is shutting down; another one will take the call."""

    status_code = 503
