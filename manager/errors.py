"""The manager's errors; each knows its REST status and title.

ManagerError
├── NotFound        404  no experiment, trial or job of that id
├── Conflict        409  not in this status
├── BadRequest      422  the input is wrong; `problems` lists every fault
├── Refused         403  not allowed by configuration
├── NotInstalled    501  it needs a package that the manager does not have: the sentence names it
└── Unavailable     503  not now: the sentence says why
"""

from collections.abc import Sequence


class ManagerError(Exception):
    """The manager could not do what was asked."""

    status_code = 500
    title = "Internal error"


class NotFound(ManagerError):
    """There is no such thing here."""

    status_code = 404
    title = "Not found"


class Conflict(ManagerError):
    """It is not in a status in which this can be done."""

    status_code = 409
    title = "Conflict"


class BadRequest(ManagerError):
    """The input is wrong."""

    status_code = 422
    title = "Bad request"

    def __init__(self, message: str, problems: Sequence[object] = ()) -> None:
        """`problems`: sentences, or what knows its key (ConfigProblem, SpaceProblem) and reads as a sentence."""
        super().__init__(message)
        self.problems = tuple(problems)


class Refused(ManagerError):
    """It is not allowed."""

    status_code = 403
    title = "Refused"


class NotInstalled(ManagerError):
    """It needs a package that is not installed."""

    status_code = 501
    title = "Not installed"


class Unavailable(ManagerError):
    """It cannot be done at the moment."""

    status_code = 503
    title = "Unavailable"
