"""What can go wrong between a client and its manager.

ProctorError
└── ClientError
    ├── ManagerUnreachable     no answer
    ├── ManagerNotStarted      it could not be started; the text says why
    └── ProblemError           the manager answered with a problem document
        ├── BadInput      400, 413, 422
        ├── Unauthorized  401
        ├── Refused       403
        ├── NotFound      404
        ├── Conflict      409
        └── ManagerFault  5xx and everything else
"""

from proctor.sdk.errors import ProctorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ClientError(ProctorError):
    """A manager could not be asked, or has refused."""


class ManagerUnreachable(ClientError):
    """There is no answer where the manager should be."""


class ManagerNotStarted(ClientError):
    """The manager could not be started."""


class ProblemError(ClientError):
    """The manager has answered with a problem document (RFC 9457).

    `status_code` is the HTTP status, `problems` every single thing that is wrong with what was sent, one line each.
    """

    def __init__(self, message: str, *, status_code: int = 500, problems: "tuple[str, ...]" = ()) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.problems = problems


class BadInput(ProblemError):
    """What was sent is wrong."""


class Unauthorized(ProblemError):
    """The token is missing or not the manager's."""


class Refused(ProblemError):
    """It is not allowed, with this token or by the manager's settings."""


class NotFound(ProblemError):
    """There is no such thing."""


class Conflict(ProblemError):
    """It is not in a status in which this can be done, or the id is not unique."""


class ManagerFault(ProblemError):
    """The manager could not do it; its log says more."""


_KIND_OF: "dict[int, type[ProblemError]]" = {
    400: BadInput,
    401: Unauthorized,
    403: Refused,
    404: NotFound,
    409: Conflict,
    413: BadInput,
    422: BadInput,
}


def problem_error(status_code: int, document: "Any", where: str) -> ProblemError:
    """The error of an answer that is no success.

    :param document: the parsed problem document, or whatever else came; text that is no document is quoted.
    :param where: what was asked, for the sentence, such as `GET /api/v1/nodes`.
    """
    fields = document if isinstance(document, dict) else {}
    detail = str(fields.get("detail") or fields.get("title") or "").strip()
    if not detail:
        found = str(document or "").strip()[:200]
        detail = f"{where} was answered with status {status_code}" + (f": {found}" if found else "")
    problems = tuple(_describe(item) for item in fields.get("problems") or ())
    kind = _KIND_OF.get(status_code, ManagerFault)
    return kind(detail, status_code=status_code, problems=problems)


def _describe(item: "Any") -> str:
    """One line for one problem: `file:line:column: key: message`."""
    if not isinstance(item, dict):
        return str(item)
    place = ":".join(str(item[name]) for name in ("file", "line", "column") if item.get(name) is not None)
    return ": ".join(str(part) for part in (place, item.get("key"), item.get("message")) if part)
