"""The life of a trial job: one attempt to run a trial."""

from enum import StrEnum

from proctor.manager.lifecycle.machine import Lifecycle
from proctor.training_services.base import TrialJobStatus as Status


class JobEvent(StrEnum):
    """What can happen to a trial job."""

    SUBMIT = "SUBMIT"  # written down for the training service to take
    START = "START"  # its process was seen
    STOP = "STOP"  # it was asked to stop
    END = "END"  # it is over


JOB = Lifecycle(
    "trial job",
    {
        JobEvent.SUBMIT: {Status.CREATED: Status.SUBMITTED},
        JobEvent.START: {Status.SUBMITTED: Status.RUNNING, Status.STOPPING: Status.STOPPING},
        JobEvent.STOP: {
            Status.CREATED: Status.STOPPING,
            Status.SUBMITTED: Status.STOPPING,
            Status.RUNNING: Status.STOPPING,
        },
        JobEvent.END: {
            Status.CREATED: Status.ENDED,
            Status.SUBMITTED: Status.ENDED,
            Status.RUNNING: Status.ENDED,
            Status.STOPPING: Status.ENDED,
        },
    },
)
