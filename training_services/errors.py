"""The errors of training services.

TrainingServiceError
├── UnknownTrialJob       no such job here
├── SubmissionRefused     the form can never be run as it is (permanent; the sentence says why)
├── ServiceUnavailable    not now; try again (temporary)
└── UnknownPlatform       no training service of that name is registered
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
